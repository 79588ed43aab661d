"""A picture of who did what when: one lane per env worker, generator and learner."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from ebrl.report import activity as a
from ebrl.report.activity import Activity
from ebrl.report.lanes import lane_name
from ebrl.scheduling.plan import SchedulerPlan

MOST_ENVS = 32
"""Lanes of env workers that a picture has room for; the first ones are shown."""


class Span(NamedTuple):
    """A stretch of time in which a lane did one thing."""

    kind: str
    """``env`` (an env worker), ``cpu``, ``generator`` or ``learner``."""
    number: int
    what: str
    start: float
    end: float


COLOURS = {
    a.STEPPING: "#009E73",
    a.RESETTING: "#CC79A7",
    a.WANTS_CPU: "#F0E442",
    a.QUEUED: "#D9D9D9",
    a.GENERATING: "#56B4E9",
    a.NO_SLOT: "#D55E00",
    "generation": "#0072B2",
    "adopting weights": "#E69F00",
    "update": "#222222",
    "checkpoint": "#888888",
}
"""Okabe and Ito's colours, which colour-blind readers can tell apart, and greys. What is not here is left white."""


class Spans:
    """Collects the spans of a run that ``Activity`` reports."""

    def __init__(self, *, until: float = float("inf")) -> None:
        self.all: list[Span] = []
        self._until = until

    def __call__(self, kind: str, index: int, what: str, start: float, end: float) -> None:
        """Take one in; those that begin too late are left out."""
        if start < self._until:
            self.all.append(Span(kind, index, what, start, end))


def window(activity: Activity, spans: list[Span], seconds: float | None) -> tuple[float, float]:
    """What a picture shows: from the first generation batch on, up to the third update, at most 3 s."""
    start = min(
        (span.start for span in spans if span.kind == "generator" and span.what.endswith("chunks")), default=0.0
    )
    if seconds is None:
        third = activity.updates[min(2, len(activity.updates) - 1)][0] if activity.updates else activity.now
        seconds = min(max(third - start, 0.2), 3.0)
    return start, min(start + seconds, max(activity.now, start + 1e-3))


def draw_timeline(path: Path, plan: SchedulerPlan, spans: list[Span], *, start: float, end: float, title: str) -> Path:
    """Draw the spans between two times; returns ``path``."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    num_envs = min(plan.num_shards, MOST_ENVS)
    rows: dict[tuple[str, int], float] = {("learner", 0): 0.0}
    rows |= {("generator", index): 1 + index for index in range(plan.num_generators)}
    rows |= {("env", index): 1.5 + plan.num_generators + index for index in range(num_envs)}
    bars: dict[tuple[float, str], list[tuple[float, float]]] = {}
    for span in spans:
        row = rows.get((span.kind, span.number))
        what = "generation" if span.what.endswith("chunks") else span.what
        if row is None or what not in COLOURS or span.end <= start or span.start >= end:
            continue
        left = max(span.start, start)
        bars.setdefault((row, what), []).append((left - start, min(span.end, end) - left))
    figure = Figure(figsize=(14, 2.2 + 0.26 * len(rows)), layout="constrained", dpi=110)
    axes = figure.subplots()
    for (row, what), stretches in bars.items():
        edge = {"edgecolors": "white", "linewidth": 0.5} if row < 1 else {"linewidth": 0}
        axes.broken_barh(stretches, (row - 0.4, 0.8), facecolors=COLOURS[what], **edge)
    axes.set_yticks(list(rows.values()), [lane_name(plan, kind, index) for kind, index in rows], fontsize=8)
    axes.set(xlim=(0, end - start), ylim=(max(rows.values()) + 0.7, -0.7), title=title)
    axes.set_xlabel(f"seconds since the first generation batch ({start:.2f} s after the start)")
    used = {what for _, what in bars}
    names = {"generation": "generator makes chunks", "update": "learner takes an update"}
    handles = [Patch(color=COLOURS[what], label=names.get(what, what)) for what in COLOURS if what in used]
    figure.legend(handles=handles, loc="outside lower center", ncols=5, frameon=False, fontsize=9)
    axes.grid(axis="x", alpha=0.25)
    figure.savefig(path)
    return path
