"""Line charts of ``ebrl bench scaling``, ``staleness`` and ``convergence``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median
from typing import TYPE_CHECKING, Any

from ebrl.bench.chart_style import GREY, VERMILION, Look, look_at, look_of, new_figure, plain_log

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Document = dict[str, Any]


def scaling(document: Document) -> Figure:
    """Rate over GPUs, one line per mode beside the ideal one, and over environments."""
    figure = new_figure(document, f"Scaling of ebrl and of others, from {document['base']}", width=11.0, height=4.9)
    left, right = figure.subplots(1, 2)
    sized = [row for row in document["rows"] if row["over"] == "GPUs"]
    for mode in dict.fromkeys(row["mode"] for row in sized):
        points = _points(sized, "num_gpus", mode)
        if points:
            _line(left, points, look_of(mode), mode)
    ebrl = _points(sized, "num_gpus", "ebrl")
    sizes = sorted({row["num_gpus"] for row in sized})
    if ebrl:
        first, rate = ebrl[0]
        left.plot(sizes, [rate / first * size for size in sizes], color=GREY, linewidth=1.0, label="ebrl, ideal")
    plain_log(left, "x", sizes)
    plain_log(left, "y", _powers_of_two([rate for row in sized for rate in row["trajectories_per_s"]]))
    left.set(xlabel="GPUs (CPUs, environments and trajectories in proportion)", ylabel="trajectories/s")
    left.legend(frameon=False)
    alone = [row for row in document["rows"] if row["over"] == "environments"]
    _line(right, _points(alone, "num_envs", "ebrl"), look_of("ebrl"), "ebrl")
    plain_log(right, "x", [row["num_envs"] for row in alone])
    right.set_ylim(0.0, 1.08 * max(rate for row in alone for rate in row["trajectories_per_s"]))
    for panel in (left, right):
        panel.grid(alpha=0.3)
    right.set(xlabel=f"environments, on the whole machine of {document['base']}", ylabel="trajectories/s")
    return figure


def _points(rows: Sequence[Document], over: str, mode: str) -> list[tuple[float, float]]:
    return [
        (row[over], median(row["trajectories_per_s"]))
        for row in rows
        if row["mode"] == mode and row["trajectories_per_s"]
    ]


def _line(axes: Axes, points: Sequence[tuple[float, float]], look: Look, label: str) -> None:
    axes.plot(
        [x for x, _ in points],
        [y for _, y in points],
        color=look.colour,
        marker=look.marker,
        linestyle=look.dashes,
        markersize=6,
        markeredgecolor="#333333",
        markeredgewidth=0.6,
        label=label,
    )


def _powers_of_two(rates: Sequence[float]) -> list[float]:
    """From below the least to above the most."""
    low, high = math.floor(math.log2(min(rates))), math.ceil(math.log2(max(rates)))
    return [2.0**power for power in range(low, high + 1)]


def staleness(document: Document) -> Figure:
    """Rate and age of data over slack, one line per configuration; and success, where it was measured."""
    rows, success = document["rows"], document.get("success")
    num_panels = 3 if success else 2
    figure = new_figure(
        document, "ebrl: what slack brings, and what it costs", width=4.3 * num_panels + 0.6, height=5.6
    )
    panels = list(figure.subplots(1, num_panels))
    for index, name in enumerate(dict.fromkeys(row["config"] for row in rows)):
        played = [row for row in rows if row["config"] == name and row["trajectories_per_s"]]
        _one_staleness(panels[0], panels[1], played, look_at(index))
    worth = any("effective_per_s" in row for row in rows)
    panels[0].set(ylabel="trajectories/s over those of slack 1" + (" (dotted: × ESS / n)" if worth else ""))
    slacks = sorted({row["slack"] for row in rows})
    panels[1].plot(slacks, slacks, color=GREY, linewidth=1.0)
    panels[1].annotate("bound", (slacks[-1], slacks[-1]), (-8, 0), textcoords="offset points", ha="right", color=GREY)
    panels[1].set(ylabel="mean staleness of trained trajectories, versions")
    if success:
        _success(panels[2], success, document.get("success_task", ""))
    for panel in panels:
        panel.set_xticks(slacks)
        panel.set_xlabel("slack")
        panel.grid(alpha=0.3)
    figure.legend(loc="outside lower center", ncols=num_panels + 1, frameon=False, fontsize=8.5)
    return figure


def _one_staleness(rates: Axes, ages: Axes, rows: Sequence[Document], look: Look) -> None:
    """One configuration; without a rate at slack 1 there is nothing to compare with."""
    base = next((median(row["trajectories_per_s"]) for row in rows if row["slack"] == 1), None)
    if base is None:
        return
    _line(rates, [(row["slack"], median(row["trajectories_per_s"]) / base) for row in rows], look, rows[0]["config"])
    worth = [(row["slack"], row["effective_per_s"] / base) for row in rows if "effective_per_s" in row]
    rates.plot([x for x, _ in worth], [y for _, y in worth], linestyle=":", linewidth=1.2, color=look.colour)
    _line(ages, [(row["slack"], row["staleness_mean"]) for row in rows if "staleness_mean" in row], look, "")


def _success(axes: Axes, success: Document, task: str) -> None:
    points = sorted((int(slack), found) for slack, found in success.items())
    across, middles = [slack for slack, _ in points], [found["median"] for _, found in points]
    below = [found["median"] - found["low"] for _, found in points]
    above = [found["high"] - found["median"] for _, found in points]
    axes.errorbar(across, middles, yerr=[below, above], color=VERMILION, marker="o", capsize=3)
    axes.set(ylim=(-0.03, 1.03), ylabel=" ".join(filter(None, ["final success", task, "(median, range of seeds)"])))


_ACROSS = (("seconds", "seconds", 1.0), ("env_steps", "env steps (thousands)", 1000.0))
"""Key of a curve, label and unit of its axis."""


def convergence(document: Document) -> Figure:
    """Success against time and against env steps, a line with its band per mode; below, ebrl by slack."""
    curves = document["curves"]
    by_mode = {name: look_of(name) for name in curves if ", slack " not in name}
    others = [name for name in curves if name not in by_mode]
    by_slack = {name: look_at(2 * index + 2) for index, name in enumerate(others)}
    if by_slack and "ebrl" in by_mode:
        by_slack = {"ebrl": by_mode["ebrl"]} | by_slack
    groups = [looks for looks in (by_mode, by_slack) if looks]
    title = " ".join(["Success while training", *filter(None, [document.get("task")])])
    figure = new_figure(document, title, width=11.0, height=1.2 + 3.7 * len(groups))
    rows = figure.subplots(len(groups), 2, sharey=True, squeeze=False)
    for row, looks in zip(rows, groups, strict=True):
        for panel, (key, label, unit) in zip(row, _ACROSS, strict=True):
            for name, look in looks.items():
                _curve(panel, curves[name][key], unit, look, name)
            panel.axhline(document.get("level", 0.9), color=GREY, linewidth=0.8, linestyle=":")
            panel.set(xlabel=label, ylim=(-0.03, 1.03))
            panel.margins(x=0.01)
            panel.grid(alpha=0.3)
        row[0].set_ylabel("success: median, all seeds")
        row[1].legend(loc="lower right", fontsize=8.5)
    return figure


def _curve(axes: Axes, curve: Document, unit: float, look: Look, label: str) -> None:
    points = [
        (at, middle, low, high)
        for at, middle, low, high in zip(curve["at"], curve["median"], curve["low"], curve["high"], strict=True)
        if None not in (middle, low, high)
    ]
    at = [point[0] / unit for point in points]
    axes.plot(
        at,
        [point[1] for point in points],
        color=look.colour,
        linestyle=look.dashes,
        marker=look.marker,
        markevery=max(1, len(at) // 10),
        markeredgecolor="#333333",
        markeredgewidth=0.6,
        label=label,
    )
    axes.fill_between(at, [p[2] for p in points], [p[3] for p in points], color=look.colour, alpha=0.18, linewidth=0)
