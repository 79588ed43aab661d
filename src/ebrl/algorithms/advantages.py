"""Advantages of action chunks, and of trajectories among their siblings.

Axes: B trajectories, K chunks, H chunk horizon.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

SiblingAdvantage = Literal["centred", "standardised", "leave_one_out"]


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
    it and nothing leaks over a reset. In an executed chunk, rewards of steps that were not executed
    must be zero. A chunk of which nothing was executed has advantage 0, whatever it holds.
    """
    steps_H = torch.arange(reward_BKH.shape[2], dtype=reward_BKH.dtype, device=reward_BKH.device)
    chunk_reward_BK = (reward_BKH * gamma**steps_H).sum(dim=2)
    discount_BK = gamma ** num_executed_BK.to(reward_BKH.dtype)
    delta_BK = chunk_reward_BK + discount_BK * next_value_BK.where(~terminated_BK, 0.0) - value_BK
    delta_BK = delta_BK.where(num_executed_BK > 0, 0.0)
    goes_on_BK = (num_executed_BK > 0) & ~(terminated_BK | truncated_BK)
    carry_BK = (discount_BK * gae_lambda).where(goes_on_BK, 0.0)
    advantage_BK = delta_BK.clone()
    for k in reversed(range(delta_BK.shape[1] - 1)):
        advantage_BK[:, k] += carry_BK[:, k] * advantage_BK[:, k + 1]
    return advantage_BK, advantage_BK + value_BK


def sibling_advantages(return_B: Tensor, episode_B: Tensor, kind: SiblingAdvantage) -> tuple[Tensor, Tensor]:
    """How much better each trajectory did than its siblings, ``[B]``, and whether its group teaches, ``[B] bool``.

    Siblings have equal numbers in ``episode_B``. A group whose returns are all equal teaches nothing:
    its advantages are 0. ``kind`` says what a return R is compared with, in a group of G (formulas A.2):

        centred         R - mean of the group. Dr.GRPO.
        standardised    (R - mean) / (std + 1e-6), std of the G returns themselves. GRPO, SimpleVLA-RL.
        leave_one_out   R - mean of the others, which is G / (G - 1) times ``centred``. RLOO.

    Raises:
        ValueError: a trajectory has no sibling.
    """
    siblings_BB = episode_B[:, None] == episode_B
    size_B = siblings_BB.sum(dim=1)
    if alone := episode_B[size_B == 1].tolist():
        raise ValueError(
            f"{len(alone)} of {len(episode_B)} trajectories have no sibling in the training batch, the first of "
            f"episode {alone[0]}: want 2 or more from each initial state; set training.siblings"
        )
    advantage_B = return_B - return_B.expand_as(siblings_BB).where(siblings_BB, 0.0).sum(dim=1) / size_B
    if kind == "standardised":
        square_BB = (advantage_B**2).expand_as(siblings_BB).where(siblings_BB, 0.0)
        advantage_B = advantage_B / ((square_BB.sum(dim=1) / size_B).sqrt() + 1e-6)
    elif kind == "leave_one_out":
        advantage_B = advantage_B * size_B / (size_B - 1)
    # What is not finite must reach the loss, which reports it.
    differs_BB = (return_B != return_B[:, None]) | ~return_B.isfinite()
    teaches_B = (differs_BB & siblings_BB).any(dim=1)
    return advantage_B.where(teaches_B, 0.0), teaches_B
