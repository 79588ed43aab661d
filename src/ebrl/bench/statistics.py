"""Medians of few repeats, with what they are worth."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from statistics import median

RESAMPLES = 2000


def ratio_interval(above: Sequence[float], below: Sequence[float], *, share: float = 0.95) -> tuple[float, float]:
    """Bootstrap interval of median(above) / median(below); repeats of both are drawn independently.

    Args:
        above: one value per repeat.
        below: one value per repeat.
        share: of the resampled ratios that lies inside.
    """
    rng = random.Random(0)
    ratios = sorted(
        median(rng.choices(above, k=len(above))) / median(rng.choices(below, k=len(below))) for _ in range(RESAMPLES)
    )
    out = (1.0 - share) / 2.0
    return ratios[round(out * (RESAMPLES - 1))], ratios[round((1.0 - out) * (RESAMPLES - 1))]


def geometric_mean(values: Sequence[float]) -> float:
    """Of positive numbers."""
    return math.exp(sum(map(math.log, values)) / len(values))


def geomean_interval(
    pairs: Sequence[tuple[Sequence[float], Sequence[float]]], *, share: float = 0.95
) -> tuple[float, float]:
    """Bootstrap interval of the geometric mean of several ratios of medians."""
    rng = random.Random(0)
    means = sorted(
        geometric_mean([median(rng.choices(a, k=len(a))) / median(rng.choices(b, k=len(b))) for a, b in pairs])
        for _ in range(RESAMPLES)
    )
    out = (1.0 - share) / 2.0
    return means[round(out * (RESAMPLES - 1))], means[round((1.0 - out) * (RESAMPLES - 1))]
