"""Bar charts of ``ebrl bench modes`` and ``ablation``: what is compared is a rate over another, and 1 is a draw."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Any

from ebrl.bench.chart_style import BLACK, BLUE, GREY, VERMILION, YELLOW, look_of, new_figure
from ebrl.bench.statistics import ratio_interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Document = dict[str, Any]

_THICK = 0.13
"""Of a bar, in inches."""
_WHISKERS: dict[str, Any] = {"color": BLACK, "linestyle": "none", "elinewidth": 1.0, "capsize": 2.0}


def modes(document: Document) -> Figure:
    """Every mode over the fastest of the other systems', one group of bars per configuration."""
    ratios = document["ratios"]
    names = list(dict.fromkeys(row["mode"] for row in document["rows"]))
    rates = {(row["config"], row["mode"]): row["trajectories_per_s"] for row in document["rows"]}
    group = len(names) + 1.6
    figure = new_figure(
        document,
        "Execution modes, over the fastest mode of the other systems",
        width=9.5,
        height=2.0 + _THICK * group * len(ratios),
    )
    axes = figure.subplots()
    for place, name in enumerate(names):
        heights = [number * group + place for number in range(len(ratios))]
        _mode_bars(axes, name, heights, [_over_best(rates, ratio, name) for ratio in ratios])
    axes.axvline(1.0, color=BLACK, linewidth=1.2)
    middles = [number * group + (len(names) - 1) / 2 for number in range(len(ratios))]
    axes.set_yticks(middles, [ratio["config"] for ratio in ratios])
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(group * len(ratios) - 1.0, -1.2)
    axes.margins(x=0.08)
    axes.set_xlim(left=0.0)
    axes.set_xlabel("trajectories/s over those of the fastest other system; whiskers: 95 % interval")
    axes.grid(axis="x", alpha=0.3)
    axes.set_axisbelow(True)
    figure.legend(loc="outside lower center", ncols=len(names), frameon=False)
    return figure


def _over_best(
    rates: dict[tuple[str, str], list[float]], ratio: Document, name: str
) -> tuple[float, tuple[float, float]] | None:
    """A mode's rate over the best one's, with its interval; ``None`` if the machine cannot run it."""
    mine, best = rates.get((ratio["config"], name)), rates[ratio["config"], ratio["best"]]
    if not mine:
        return None
    middle = median(mine) / median(best)
    return middle, (middle, middle) if name == ratio["best"] else ratio_interval(mine, best)


def _mode_bars(
    axes: Axes, name: str, heights: list[float], bars: list[tuple[float, tuple[float, float]] | None]
) -> None:
    look = look_of(name)
    there = [(y, bar) for y, bar in zip(heights, bars, strict=True) if bar is not None]
    axes.barh(
        [y for y, _ in there],
        [middle for _, (middle, _) in there],
        height=0.92,
        color=look.colour,
        hatch=look.hatch,
        edgecolor="#333333",
        linewidth=0.4,
        label=name,
    )
    _whiskers(axes, [(middle, interval, y) for y, (middle, interval) in there])
    for y, (middle, (_, high)) in there:
        if name == "ebrl":
            text = f"{middle:.2f}"
            axes.annotate(text, (max(middle, high), y), (5, 0), textcoords="offset points", va="center", fontsize=8)
    for y, bar in zip(heights, bars, strict=True):
        if bar is None:
            axes.annotate(
                f"{name}: not possible",
                (0, y),
                (3, 0),
                textcoords="offset points",
                va="center",
                fontsize=6.5,
                color=GREY,
            )


def _whiskers(axes: Axes, points: list[tuple[float, tuple[float, float], float]]) -> None:
    """Intervals of bars that end at a value, each at a height."""
    if not points:
        return
    values, heights = [value for value, _, _ in points], [height for _, _, height in points]
    below = [max(0.0, value - low) for value, (low, _), _ in points]
    above = [max(0.0, high - value) for value, (_, high), _ in points]
    axes.errorbar(values, heights, xerr=[below, above], **_WHISKERS)


_SIDES = (
    ("removed_from_ebrl", "ebrl over ebrl without it", VERMILION, "", -0.2),
    ("added_to_async", "async with it over async without", BLUE, "//", 0.2),
)


def ablation(document: Document) -> Figure:
    """Every mechanism's gain in both directions, with its configurations and what the paper reports."""
    parts = document["parts"]
    figure = new_figure(document, "What each mechanism brings", width=9.0, height=1.9 + 0.85 * len(parts))
    axes = figure.subplots()
    for key, label, colour, hatch, shift in _SIDES:
        found = [(place + shift, part[key]) for place, part in enumerate(parts.values()) if part[key] is not None]
        axes.barh(
            [y for y, _ in found],
            [gain["geomean"] - 1.0 for _, gain in found],
            left=1.0,
            height=0.36,
            color=colour,
            hatch=hatch,
            edgecolor="#333333",
            linewidth=0.5,
            alpha=0.85,
            label=label,
        )
        for y, gain in found:
            single = list(gain["by_config"].values())
            axes.plot(single, [y] * len(single), "o", markersize=3.5, color="white", markeredgecolor=BLACK, alpha=0.8)
            low, high = gain["ci95"]
            text = f"{gain['geomean']:.2f} ({low:.2f}–{high:.2f})"
            axes.text(1.01, y, text, transform=axes.get_yaxis_transform(), va="center", fontsize=8.5)
        _whiskers(axes, [(gain["geomean"], tuple(gain["ci95"]), y) for y, gain in found])
    papers = [(1.0 + part["paper"], place) for place, part in enumerate(parts.values()) if part["paper"]]
    if papers:
        values, heights = zip(*papers, strict=True)
        axes.plot(values, heights, "D", color=YELLOW, markeredgecolor=BLACK, markersize=9, label="the paper's figure")
    axes.plot([], [], "o", color="white", markeredgecolor=BLACK, markersize=3.5, label="one configuration")
    axes.axvline(1.0, color=BLACK, linewidth=1.2)
    axes.set_yticks(range(len(parts)), list(parts))
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(len(parts) - 0.45, -0.55)
    axes.margins(x=0.04)
    axes.set_xlabel("trajectories/s with it over without; bar: geometric mean, whiskers: its 95 % interval")
    axes.grid(axis="x", alpha=0.3)
    axes.set_axisbelow(True)
    figure.legend(loc="outside lower center", ncols=4, frameon=False, fontsize=9)
    return figure
