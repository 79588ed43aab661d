"""Arithmetic of learning curves: when a level is reached, bands over seeds, and how two modes compare.

A run that never reaches the level is censored. It is counted, and it stands for a number that can only flatter the
other side: the end of the run where a slow baseline is concerned, never where ebrl is.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from statistics import fmean, median
from typing import Any

from ebrl.bench.statistics import RESAMPLES, ratio_interval

GRID_POINTS = 41
"""Of a curve."""


def crossing(at: Sequence[float], value: Sequence[float], level: float) -> float | None:
    """Where ``value`` first reaches ``level``, between two neighbours on a straight line; None if it never does.

    Args:
        at: where the values were taken, ascending.
        value: one for each.
        level: that is to be reached.
    """
    for index, here in enumerate(value):
        if here < level:
            continue
        if index == 0:
            return at[0]
        share = (level - value[index - 1]) / (here - value[index - 1])
        return at[index - 1] + share * (at[index] - at[index - 1])
    return None


def interpolated(at: Sequence[float], value: Sequence[float], where: float) -> float:
    """``value`` at ``where``, on a straight line between neighbours; the nearest end's outside."""
    if where <= at[0]:
        return value[0]
    for index in range(1, len(at)):
        if where <= at[index]:
            share = (where - at[index - 1]) / (at[index] - at[index - 1])
            return value[index - 1] + share * (value[index] - value[index - 1])
    return value[-1]


def spaced(at: Sequence[float], every: float) -> list[int]:
    """Which points to look at: the first at or after each multiple of ``every``, and the last.

    So every mode has as many chances to reach a level by luck, however many checkpoints it wrote.
    """
    chosen: list[int] = []
    wanted = every
    for index, here in enumerate(at):
        if here >= wanted:
            chosen.append(index)
            wanted = (here // every + 1) * every
    if at and chosen[-1:] != [len(at) - 1]:
        chosen.append(len(at) - 1)
    return chosen


def band(curves: Sequence[tuple[Sequence[float], Sequence[float]]], *, points: int = GRID_POINTS) -> dict[str, Any]:
    """Median, least and most over seeds on a grid, up to where the shortest curve ends: every point rests on all.

    Args:
        curves: where, and the value there, of each seed.
        points: of the grid.
    """
    end = min(at[-1] for at, _ in curves)
    grid = [end * index / (points - 1) for index in range(points)]
    columns = [[interpolated(at, value, where) for at, value in curves] for where in grid]
    return {
        "at": grid,
        "median": [median(column) for column in columns],
        "low": [min(column) for column in columns],
        "high": [max(column) for column in columns],
    }


def sooner(
    ours: Sequence[float | None], others: Sequence[float | None], others_end: Sequence[float]
) -> tuple[float, tuple[float, float]]:
    """How many times sooner we get there: ratio of medians, with its bootstrap interval.

    Args:
        ours: time of each seed; None never got there, and counts as infinite. The ratio is 0 where that is the median.
        others: the same of whom we are compared with; None counts as there at the end of its run, so that the ratio is
            too low rather than too high.
        others_end: when their runs ended.
    """
    below = [math.inf if time is None else time for time in ours]
    above = [end if time is None else time for time, end in zip(others, others_end, strict=True)]
    return median(above) / median(below), ratio_interval(above, below)


def difference_interval(ours: Sequence[float], others: Sequence[float], *, share: float = 0.95) -> tuple[float, float]:
    """Bootstrap interval of mean(ours) − mean(others); seeds of both are drawn independently."""
    rng = random.Random(0)
    differences = sorted(
        fmean(rng.choices(ours, k=len(ours))) - fmean(rng.choices(others, k=len(others))) for _ in range(RESAMPLES)
    )
    out = (1.0 - share) / 2.0
    return differences[round(out * (RESAMPLES - 1))], differences[round((1.0 - out) * (RESAMPLES - 1))]
