"""Charts as inline SVG: lines over a number, horizontal bars, columns.

Colours are CSS classes (``page.css``), so that a chart follows light and dark. A legend is HTML above the
drawing, so it never covers anything.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ebrl.report.page_markup import Markup, tag

Point = tuple[float, float]

MOST_POINTS = 240
"""Of a line; longer ones are averaged over neighbours."""

_HUGE = 1e100
"""What is larger is no number that anybody measured."""

_WIDTH, _HEIGHT = 560, 260
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 14, 14, 46


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """One axis."""

    label: str
    """With the unit."""
    low: float | None = None
    """None fits the data, and takes in 0."""
    high: float | None = None
    percent: bool = False
    """1.0 is written as 100 %."""
    whole: bool = False
    """Only whole numbers are marked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One line of a chart, or some dots."""

    name: str
    points: Sequence[Point]
    colour: str
    """A class of page.css: a stage, ``first`` or ``second``."""
    dashed: bool = False
    stepped: bool = False
    """The value holds until the next point."""
    dots: bool = False
    """No line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A vertical line across a chart."""

    at: float
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """A row of a bar chart: one bar per run."""

    label: str
    values: Sequence[float | None]
    colour: str
    heading: str = ""
    """Stands above the row."""


@dataclass(frozen=True, slots=True)
class _Scale:
    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)


def figure(title: str, see: str, *drawing: Markup, wide: bool = False) -> Markup:
    """A drawing with its title and a sentence that says what to look for."""
    caption = tag("figcaption", tag("h3", title), tag("p", see, class_="see"))
    return tag("figure", caption, *drawing, class_="chart spread" if wide else "chart")


def absent(title: str, why: str) -> Markup:
    """In the place of a chart for which there is no data."""
    caption = tag("figcaption", tag("h3", title), tag("p", why, class_="see"))
    return tag("figure", caption, class_="chart absent")


def line_chart(title: str, see: str, x: Axis, y: Axis, series: Sequence[Series], marks: Sequence[Mark] = ()) -> Markup:
    """Lines over a number; who has no finite point is left out."""
    kept = [(one, thinned(_finite(one.points), stepped=one.stepped)) for one in series]
    kept = [(one, points) for one, points in kept if points]
    if not kept:
        return absent(title, "Nothing of this was recorded.")
    values = [point for _, points in kept for point in points]
    across = _scale(x, [at for at, _ in values], _LEFT, _WIDTH - _RIGHT)
    up = _scale(y, [value for _, value in values], _HEIGHT - _BOTTOM, _TOP)
    shapes = [_shape(one, points, across, up) for one, points in kept]
    lines = [
        tag(
            "line",
            tag("title", mark.label),
            x1=across(mark.at),
            x2=across(mark.at),
            y1=_TOP,
            y2=up(up.low),
            class_="mark",
        )
        for mark in marks
        if across.low <= mark.at <= across.high
    ]
    drawing = _frame(title, _HEIGHT, *_x_axis(x, across, _HEIGHT), *_y_axis(y, up), *lines, *shapes)
    return figure(title, see, legend([(one.name, one.colour, _kind(one)) for one, _ in kept]), drawing)


def column_chart(
    title: str, see: str, x: Axis, y: Axis, counts: Sequence[tuple[str, dict[int, float]]], bounds: Sequence[int | None]
) -> Markup:
    """Columns over whole numbers, side by side for each run, with a line behind each run's bound."""
    last = max([*(number for _, one in counts for number in one), *(bound or 0 for bound in bounds), 1])
    across = _Scale(-0.5, last + 1.0, _LEFT, _WIDTH - _RIGHT)
    up = _scale(y, [value for _, one in counts for value in one.values()], _HEIGHT - _BOTTOM, _TOP)
    width = 0.7 / len(counts)
    shapes = []
    for index, (name, one) in enumerate(counts):
        for number, value in sorted(one.items()):
            left = across(number - 0.35 + index * width)
            size = across(number - 0.35 + (index + 1) * width) - left
            text = tag("title", f"{name}: {number}: {number_text(value, percent=y.percent)}")
            box = {"x": left, "y": up(value), "width": max(size - 1.0, 1.0), "height": up(up.low) - up(value)}
            shapes.append(tag("rect", text, **box, class_=f"fill {run_colour(index)}"))
            label = number_text(value, percent=y.percent)
            shapes.append(tag("text", label, x=left + size / 2, y=up(value) - 4, class_="value middle"))
    for index, bound in enumerate(bounds):
        if bound is not None:
            at = across(bound + 0.5) + index * 3
            shapes.append(tag("line", x1=at, x2=at, y1=_TOP, y2=up(up.low), class_=f"bound {run_colour(index)}"))
    ticks = [tag("text", str(n), x=across(n), y=_HEIGHT - _BOTTOM + 17, class_="tick middle") for n in range(last + 1)]
    axis = [*ticks, _x_label(x.label, across, _HEIGHT)]
    drawing = _frame(title, _HEIGHT, *_y_axis(y, up), *axis, *shapes)
    names = [
        (name if bound is None else f"{name}: columns; vertical line: bound {bound}", run_colour(index), "box")
        for index, ((name, _), bound) in enumerate(zip(counts, bounds, strict=True))
    ]
    return figure(title, see, legend(names, always=True), drawing)


def bar_chart(title: str, see: str, x: Axis, bars: Sequence[Bar], names: Sequence[str]) -> Markup:
    """Horizontal bars under each other, those of the second run hatched; every one has its number."""
    label_width, right, thick = 248, 46, 15 if len(names) == 1 else 13
    across = _scale(x, [v for bar in bars for v in bar.values if v is not None], label_width, _WIDTH - right)
    shapes, at = [], 8.0
    for bar in bars:
        if bar.heading:
            shapes.append(tag("text", bar.heading, x=2, y=at + 13, class_="heading"))
            at += 21
        height = thick * len(names)
        shapes.append(tag("text", bar.label, x=label_width - 8, y=at + height / 2 + 4, class_="tick end"))
        for index, value in enumerate(bar.values):
            if value is not None:
                shapes += _bar(bar, value, across, at + index * thick, thick - 2, index, x)
        at += height + 5
    height = int(at) + 44
    drawing = _frame(title, height, *_x_axis(x, across, height, top=4), *shapes)
    entries = [(name, "neutral" if not index else "neutral second-run", "box") for index, name in enumerate(names)]
    return figure(title, see, legend(entries), drawing)


def legend(entries: Sequence[tuple[str, str, str]], *, always: bool = False) -> Markup:
    """Names of lines and colours: (name, class, ``line``, ``dashed``, ``dot`` or ``box``); nothing for a single one."""
    if len(entries) < 2 and not always:
        return Markup()
    items = []
    for name, colour, kind in entries:
        match kind:
            case "dot":
                shape = tag("circle", cx=11, cy=6, r=4, class_=f"fill {colour}")
            case "box":
                shape = tag("rect", x=4, width=14, height=11, class_=f"fill {colour}")
            case _:
                shape = tag("line", x1=0, x2=22, y1=6, y2=6, class_=f"stroke {colour} {kind}")
        swatch = tag("svg", shape, width=22, height=12, viewBox="0 0 22 12", aria_hidden="true")
        items.append(tag("li", swatch, " ", name))
    return tag("ul", *items, class_="legend")


def _kind(series: Series) -> str:
    return "dot" if series.dots else "dashed" if series.dashed else "line"


def run_colour(index: int) -> str:
    """Class of what belongs to the first or the second run."""
    return ("first", "second")[index]


def number_text(value: float, *, percent: bool = False) -> str:
    """A number as short as it can be read."""
    if percent:
        return f"{value * 100:.0f} %" if value >= 0.0995 or value < 5e-4 else f"{value * 100:.1f} %"
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            return f"{value / (1e3 if letter == 'k' else size):.4g}{letter}"
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"


def tick_text(value: float, *, percent: bool = False) -> str:
    """A round number, whole."""
    if percent:
        return f"{value * 100:.6g} %"
    return f"{value / 1000:.6g}k" if abs(value) >= 1e4 else f"{value:.6g}"


def nice_ticks(low: float, high: float, *, most: int = 7, whole: bool = False) -> list[float]:
    """Round numbers (1, 2 or 5 times a power of ten) between two, at most so many."""
    rough = (high - low) / max(most - 1, 1)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * (1 - 1e-9))
    step = max(step, 1.0) if whole else step
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [index * step for index in range(first, last + 1)]


def thinned(points: Sequence[Point], *, stepped: bool = False) -> list[Point]:
    """At most ``MOST_POINTS`` points: means of neighbours, or of a stepped line those where it changes."""
    if stepped:
        kept = [
            point
            for index, point in enumerate(points)
            if index in (0, len(points) - 1) or point[1] != points[index - 1][1]
        ]
        return kept[:: -(-len(kept) // MOST_POINTS) or 1]
    size = -(-len(points) // MOST_POINTS) or 1
    groups = [points[index : index + size] for index in range(0, len(points), size)]
    return [(sum(x for x, _ in group) / len(group), sum(y for _, y in group) / len(group)) for group in groups]


def _finite(points: Sequence[Point]) -> list[Point]:
    return [(x, y) for x, y in points if abs(x) < _HUGE and abs(y) < _HUGE]


def _scale(axis: Axis, values: Sequence[float], start: float, end: float) -> _Scale:
    low = min([0.0, *values]) if axis.low is None else axis.low
    high = max([0.0, *values]) if axis.high is None else axis.high
    if high - low < 1 / _HUGE:
        high = low + 1.0
    room = (high - low) * 0.06
    return _Scale(low if low == 0.0 or axis.low is not None else low - room, high + room, start, end)


def _shape(series: Series, points: list[Point], across: _Scale, up: _Scale) -> Markup:
    if series.dots or len(points) == 1:
        dots = [
            tag(
                "circle",
                tag("title", f"{series.name}: {y:.4g}"),
                cx=across(x),
                cy=up(y),
                r=4.5,
                class_=f"fill {series.colour}",
            )
            for x, y in points
        ]
        return tag("g", *dots)
    steps = [f"M{across(points[0][0]):.1f} {up(points[0][1]):.1f}"]
    for x, y in points[1:]:
        steps.append(f"H{across(x):.1f}V{up(y):.1f}" if series.stepped else f"L{across(x):.1f} {up(y):.1f}")
    dash = " dashed" if series.dashed else ""
    return tag("path", tag("title", series.name), d="".join(steps), class_=f"stroke {series.colour}{dash}")


def _bar(bar: Bar, value: float, across: _Scale, top: float, height: float, index: int, x: Axis) -> list[Markup]:
    text = number_text(value, percent=x.percent)
    size = max(across(value) - across(across.low), 0.5)
    box = {"x": across(across.low), "y": top, "width": size, "height": height}
    style = f"fill {bar.colour}" + (" second-run" if index else "")
    label = tag("text", text, x=across(value) + 5, y=top + height - 2, class_="value")
    return [tag("rect", tag("title", f"{bar.label}: {text}"), **box, class_=style), label]


def _frame(title: str, height: int, *shapes: Markup) -> Markup:
    view = f"0 0 {_WIDTH} {height}"
    return tag("svg", tag("title", title), *shapes, viewBox=view, role="img", aria_label=title, class_="plot")


def _x_axis(axis: Axis, across: _Scale, height: int, *, top: int = _TOP) -> list[Markup]:
    bottom = height - _BOTTOM
    shapes = []
    for value in nice_ticks(across.low, across.high, whole=axis.whole):
        at = across(value)
        shapes.append(tag("line", x1=at, x2=at, y1=top, y2=bottom, class_="grid"))
        shapes.append(tag("text", tick_text(value, percent=axis.percent), x=at, y=bottom + 17, class_="tick middle"))
    return [*shapes, _x_label(axis.label, across, height)]


def _x_label(label: str, across: _Scale, height: int) -> Markup:
    return tag("text", label, x=(across.start + across.end) / 2, y=height - 8, class_="axis-label x middle")


def _y_axis(axis: Axis, up: _Scale) -> list[Markup]:
    shapes = []
    for value in nice_ticks(up.low, up.high, whole=axis.whole):
        at = up(value)
        shapes.append(tag("line", x1=_LEFT, x2=_WIDTH - _RIGHT, y1=at, y2=at, class_="grid"))
        shapes.append(tag("text", tick_text(value, percent=axis.percent), x=_LEFT - 7, y=at + 4, class_="tick end"))
    middle = (_TOP + _HEIGHT - _BOTTOM) / 2
    turned = f"rotate(-90 13 {middle:g})"
    shapes.append(tag("text", axis.label, x=13, y=middle, transform=turned, class_="axis-label y middle"))
    return shapes
