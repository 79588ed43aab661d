"""Who did what when, as swim lanes that can be zoomed and moved (``page.js``); without script it is a picture.

A lane's stretches are one path per kind of work, so that thousands of them stay small.
"""

from __future__ import annotations

from ebrl.report import activity as a
from ebrl.report.charts import figure, nice_ticks, tick_text
from ebrl.report.lanes import cpu_lane, lane_name
from ebrl.report.page_markup import Markup, joined, tag
from ebrl.report.timeline import Span
from ebrl.scheduling.plan import SchedulerPlan

MOST_SPANS = 40_000
"""That a page holds; where a run has more, the lanes end early."""

MOST_LANES = {"cpu": 16, "generator": 6, "learner": 1, "env": 12}
"""By kind; the first ones are shown."""

_ORDER = ("learner", "generator", "cpu", "env")
_HEADINGS = {"learner": "training", "generator": "generation", "cpu": "simulation: CPUs", "env": "env workers"}

STYLES = {
    "learner": {"update": ("training", "takes an update"), "checkpoint": ("grey", "saves a checkpoint")},
    "generator": {"chunks": ("generation", "makes chunks"), "adopting weights": ("weights", "adopts weights")},
    "cpu": {"busy": ("simulation", "env steps and resets")},
    "env": {
        a.STEPPING: ("simulation", a.STEPPING),
        a.RESETTING: ("reset", a.RESETTING),
        a.WANTS_CPU: ("wants-cpu", a.WANTS_CPU),
        a.QUEUED: ("grey", a.QUEUED),
        a.GENERATING: ("actions", a.GENERATING),
        a.NO_SLOT: ("no-slot", a.NO_SLOT),
    },
}
"""Kind of lane → work → class of page.css, words. Everything else stays empty."""

_ALTERNATES = frozenset({"learner", "generator", "cpu"})
"""Every other stretch is paler, so that one can be told from the next."""

_WIDTH, _LEFT, _RIGHT, _TOP, _LANE, _THICK, _HEADING = 1160, 104, 12, 8, 17, 13, 26


class LaneSpans:
    """Collects the stretches of the lanes that are shown, from the beginning of a run until there are enough."""

    def __init__(self, plan: SchedulerPlan) -> None:
        self.plan = plan
        self.all: list[Span] = []
        self.until = float("inf")
        """Where the lanes end early; what begins before is whole."""
        cpus = [cpu_lane(plan, node, cpu) for node, cpus in enumerate(plan.nodes) for cpu in cpus]
        self.lanes: dict[str, list[int]] = {"cpu": cpus[: MOST_LANES["cpu"]], "learner": [0]}
        self.lanes["generator"] = list(range(min(plan.num_generators, MOST_LANES["generator"])))
        self.lanes["env"] = list(range(min(plan.num_shards, MOST_LANES["env"])))

    def __call__(self, kind: str, index: int, what: str, start: float, end: float) -> None:
        """Take one in, or leave it out."""
        known = self.lanes[kind]
        if kind == "cpu" and index not in known and len(known) < MOST_LANES["cpu"]:
            known.append(index)  # a CPU that simulation was given later
        if start >= self.until or index not in known or style_of(kind, what) is None:
            return
        self.all.append(Span(kind, index, what, start, end))
        if len(self.all) >= MOST_SPANS and self.until == float("inf"):
            self.until = end


def style_of(kind: str, what: str) -> tuple[str, str] | None:
    """Class and words of a stretch; None if it is not drawn."""
    if kind == "cpu":
        what = "busy"
    elif what.endswith("chunks"):
        what = "chunks"
    return STYLES[kind].get(what)


def lane_chart(title: str, spans: LaneSpans, *, start: float, view: tuple[float, float], end: float) -> Markup:
    """All lanes from the start of a run (0 on the axis), first seen between the two times of ``view``."""
    end = min(end, spans.until)
    by_lane: dict[tuple[str, int], list[Span]] = {}
    for span in spans.all:
        by_lane.setdefault((span.kind, span.number), []).append(span)
    labels, groups, at = [], [], float(_TOP)
    for kind in _ORDER:
        labels.append(tag("text", _HEADINGS[kind], x=2, y=at + 18, class_="heading"))
        at += _HEADING
        for index in sorted(spans.lanes[kind]):
            name = lane_name(spans.plan, kind, index)
            labels.append(tag("text", name, x=_LEFT - 8, y=at + _LANE / 2 + 4, class_="tick end"))
            groups.append(_lane(kind, name, by_lane.get((kind, index), []), at + _LANE / 2, start))
            at += _LANE
    height = at + 4
    left, right = (1000 * (time - start) for time in view)
    lanes = tag(
        "svg",
        *groups,
        x=_LEFT,
        y=0,
        width=_WIDTH - _LEFT - _RIGHT,
        height=height,
        viewBox=f"{left:.1f} 0 {right - left:.1f} {height:g}",
        preserveAspectRatio="none",
        data_end=f"{1000 * (end - start):.1f}",
        class_="lanes",
    )
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    label = tag("text", "time since training began (s)", x=middle, y=height + 38, class_="axis-label x middle")
    drawing = tag(
        "svg",
        tag("title", title),
        tag("g", *_ticks(left / 1000, right / 1000, height), class_="ticks"),
        *labels,
        lanes,
        label,
        viewBox=f"0 0 {_WIDTH} {height + 46:g}",
        role="img",
        aria_label=title,
        class_="plot swim",
        tabindex="0",
    )
    return figure(title, _see(spans, start, end), _buttons(), tag("div", drawing, class_="wide"), _legend(), wide=True)


def _lane(kind: str, name: str, spans: list[Span], middle: float, start: float) -> Markup:
    paths: dict[tuple[str, str], list[str]] = {}
    for number, span in enumerate(spans):
        style = style_of(kind, span.what)
        assert style is not None, f"{span} was collected, but is not drawn"
        pale = " pale" if kind in _ALTERNATES and number % 2 else ""
        left, size = 1000 * (span.start - start), 1000 * (span.end - span.start)
        paths.setdefault((style[0] + pale, style[1]), []).append(f"M{left:.1f} 0h{size:.2f}")
    shapes = [
        tag("path", tag("title", f"{name}: {words}"), d="".join(moves), class_=f"stroke {style}")
        for (style, words), moves in paths.items()
    ]
    return tag("g", *shapes, transform=f"translate(0 {middle:g})", stroke_width=_THICK)


def _ticks(left: float, right: float, height: float) -> list[Markup]:
    shapes, room = [], _WIDTH - _LEFT - _RIGHT
    for value in nice_ticks(left, right, most=9):
        at = _LEFT + (value - left) / (right - left) * room
        shapes.append(tag("line", x1=at, x2=at, y1=_TOP, y2=height, class_="grid"))
        shapes.append(tag("text", tick_text(value), x=at, y=height + 17, class_="tick middle"))
    return shapes


def _see(spans: LaneSpans, start: float, end: float) -> str:
    text = (
        "Busy lanes are filled without gaps: while the learner takes an update, CPUs step and generators make chunks."
    )
    if spans.until < float("inf"):
        text += f" Thinned: only the first {end - start:.3g} s are on this page"
        text += " (ebrl timeline writes all of it to trace.json)."
    plan, hidden = spans.plan, []
    for kind, total in (
        ("cpu", sum(map(len, plan.nodes))),
        ("generator", plan.num_generators),
        ("env", plan.num_shards),
    ):
        if total > len(spans.lanes[kind]):
            hidden.append(f"{len(spans.lanes[kind])} of {total} {_HEADINGS[kind].split(': ')[-1]}")
    return text + (f" Shown are {', '.join(hidden)}." if hidden else "")


def _buttons() -> Markup:
    names = (("in", "zoom in"), ("out", "zoom out"), ("left", "earlier"), ("right", "later"), ("all", "all of it"))
    buttons = [tag("button", words, type="button", data_do=name) for name, words in names]
    hint = tag("span", "drag to move, Shift and wheel to zoom", class_="hint")
    return tag("div", *buttons, hint, class_="buttons", hidden="")


def _legend() -> Markup:
    rows = []
    for kind in _ORDER:
        items = []
        for colour, words in STYLES[kind].values():
            shape = tag("rect", width=14, height=11, class_=f"fill {colour}")
            items.append(tag("li", tag("svg", shape, width=14, height=11, aria_hidden="true"), " ", words))
        rows.append(tag("ul", tag("li", f"{_HEADINGS[kind]}:", class_="kind"), *items, class_="legend"))
    return joined(rows)
