"""Advantages of action chunks.

Axes: B trajectories, K chunks, H chunk horizon.
"""

from __future__ import annotations

import torch
from torch import Tensor


def chunk_gae(
    reward_BKH: Tensor,
    num_executed_BK: Tensor,
    terminated_BK: Tensor,
    truncated_BK: Tensor,
    value_BK: Tensor,
    next_value_BK: Tensor,
    *,
    gamma: float,
    gae_lambda: float,
) -> tuple[Tensor, Tensor]:
    """Generalised advantages and value targets, both ``[B, K]``.

    ``gamma`` discounts per env step and ``gae_lambda`` per chunk. ``next_value_BK`` is the value of
    the true observation after each chunk, so truncation and the end of the segment bootstrap from
    it and nothing leaks over a reset. Rewards that were not executed must be zero.
    """
    steps_H = torch.arange(reward_BKH.shape[2], dtype=reward_BKH.dtype, device=reward_BKH.device)
    chunk_reward_BK = (reward_BKH * gamma**steps_H).sum(dim=2)
    discount_BK = gamma ** num_executed_BK.to(reward_BKH.dtype)
    delta_BK = chunk_reward_BK + discount_BK * next_value_BK.where(~terminated_BK, 0.0) - value_BK
    carry_BK = (discount_BK * gae_lambda).where(~(terminated_BK | truncated_BK), 0.0)
    advantage_BK = delta_BK.clone()
    for k in reversed(range(delta_BK.shape[1] - 1)):
        advantage_BK[:, k] += carry_BK[:, k] * advantage_BK[:, k + 1]
    return advantage_BK, advantage_BK + value_BK
