"""Probability ratios, their weights, and how far apart two policies are.

A *unit* is what one ratio is taken over: a denoising transition, a chunk, an action of one env step
in one transition, or a single number.

Axes: N chunks, U units of a chunk, D denoising transitions, H chunk horizon, A action size.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

LogprobLevel = Literal["denoise", "chunk", "action", "token"]
CapMode = Literal["mask", "clamp"]

MAX_LOG_RATIO = 20.0


def executed_mask(num_executed_N: Tensor, horizon: int) -> Tensor:
    """``[N, H] bool``: which actions of each chunk were executed."""
    return torch.arange(horizon, device=num_executed_N.device) < num_executed_N[:, None]


def ratio_units(log_prob_NDHA: Tensor, level: LogprobLevel, executed_NH: Tensor | None = None) -> Tensor:
    """Sum over each unit, ``[N, U]``, of log-densities or their differences; only actions in ``executed_NH`` count."""
    if executed_NH is not None:
        log_prob_NDHA = log_prob_NDHA.where(executed_NH[:, None, :, None], 0.0)
    if level == "denoise":
        return log_prob_NDHA.sum(dim=(2, 3))
    if level == "chunk":
        return log_prob_NDHA.sum(dim=(1, 2, 3))[:, None]
    if level == "action":
        return log_prob_NDHA.sum(dim=3).flatten(1)
    return log_prob_NDHA.flatten(1)


def unit_mask(shape_NDHA: torch.Size, level: LogprobLevel, executed_NH: Tensor) -> Tensor:
    """``[N, U] float32``: 1 for units that hold at least one executed action, else 0."""
    executed_NDHA = executed_NH[:, None, :, None].expand(shape_NDHA).float()
    return (ratio_units(executed_NDHA, level) > 0).float()


def ratio(new_NDHA: Tensor, old_NDHA: Tensor, level: LogprobLevel, executed_NH: Tensor | None = None) -> Tensor:
    """exp(new - old) of each unit, ``[N, U]``, with the exponent kept within ±20 so that it cannot overflow.

    Log-densities are subtracted before they are summed: those of a long chunk add up to thousands, of which float32
    keeps no more than three decimals.
    """
    units_NU = ratio_units(new_NDHA - old_NDHA, level, executed_NH)
    return units_NU.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()


def behavior_weight(ratio_NU: Tensor, mode: CapMode, cap: float) -> tuple[Tensor, Tensor]:
    """Weight of each unit in decoupled PPO, and whether the cap touched it, both ``[N, U]``.

    ``ratio_NU`` is the anchor's density over the behaviour policy's (no gradient). ``mask`` drops a
    unit beyond the cap (RLinf's choice), ``clamp`` keeps it with the cap as its weight.
    """
    over_NU = ratio_NU > cap
    return ratio_NU.where(~over_NU, 0.0 if mode == "mask" else cap), over_NU


def effective_sample_size(weight: Tensor, mask: Tensor) -> Tensor:
    """(sum w)² / (n sum w²) over the masked weights: 1 when all are equal, 1/n when one rules."""
    weight = weight.double() * mask
    return weight.sum() ** 2 / (mask.sum() * (weight**2).sum()).clamp(min=1e-300)


def gaussian_kl(old_mean: Tensor, old_std: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """KL(old || new) of each chunk in nats, summed over transitions and dimensions, ``[N]``.

    With equal standard deviations it is ``sum (old_mean - mean)² / (2 std²)``; it has no sampling
    noise, unlike an estimate from log-densities.
    """
    shift = ((old_mean - mean) / std) ** 2
    spread = old_std / std
    return (0.5 * (shift + spread**2 - 1.0) - spread.log()).sum(dim=(1, 2, 3))
