from __future__ import annotations

from typing import Any

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ebrl.algorithms.advantages import chunk_gae

torch.set_num_threads(1)


def brute_force(
    reward: list[list[float]],
    executed: list[int],
    terminated: list[bool],
    truncated: list[bool],
    value: list[float],
    next_value: list[float],
    *,
    gamma: float,
    lam: float,
) -> list[float]:
    """GAE as the lambda-weighted mean of all n-chunk returns, each summed env step by env step."""
    out = []
    for first in range(len(executed)):
        returns, total, steps = [], 0.0, 0
        for k in range(first, len(executed)):
            for h in range(executed[k]):
                total += gamma**steps * reward[k][h]
                steps += 1
            returns.append(total + (0.0 if terminated[k] else gamma**steps * next_value[k]))
            if terminated[k] or truncated[k]:
                break
        last = len(returns) - 1
        shares = [(1 - lam) * lam**n for n in range(last)] + [lam**last]
        out.append(sum(s * r for s, r in zip(shares, returns, strict=True)) - value[first])
    return out


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    num_chunks=st.integers(1, 7),
    horizon=st.integers(1, 4),
    end_share=st.sampled_from([0.0, 0.3, 1.0]),
    gamma=st.sampled_from([0.0, 0.7, 0.99, 1.0]),
    lam=st.sampled_from([0.0, 0.5, 0.95, 1.0]),
)
def test_equals_the_weighted_mean_of_all_returns(
    seed: int, num_chunks: int, horizon: int, end_share: float, gamma: float, lam: float
) -> None:
    rng = np.random.default_rng(seed)
    shape = (2, num_chunks)
    over, by_rule = rng.random(shape) < end_share, rng.random(shape) < 0.5
    executed = np.where(over, rng.integers(1, horizon + 1, shape), horizon)
    reward = rng.normal(size=(*shape, horizon)) * (np.arange(horizon) < executed[..., None])
    value, next_value = rng.normal(size=shape), rng.normal(size=shape)
    # Inside an episode the value after a chunk is the value before the next one.
    next_value[:, :-1] = np.where(over[:, :-1], next_value[:, :-1], value[:, 1:])
    terminated, truncated = over & by_rule, over & ~by_rule
    tensors = [torch.from_numpy(x) for x in (reward, executed, terminated, truncated, value, next_value)]
    advantage, target = chunk_gae(*tensors, gamma=gamma, gae_lambda=lam)
    for b in range(2):
        rows: list[Any] = [x[b].tolist() for x in (reward, executed, terminated, truncated, value, next_value)]
        np.testing.assert_allclose(advantage[b].numpy(), brute_force(*rows, gamma=gamma, lam=lam), atol=1e-9)
    np.testing.assert_allclose(target.numpy(), advantage.numpy() + value)


def test_a_hand_worked_segment() -> None:
    """gamma = lambda = 1/2, chunks of 2; the second chunk ends by its rules after one env step.

    R = 1 + 2/2 = 2, 3, 0. delta = 2 + 4/4 - 1 = 2, 3 - 4 = -1, 0 + 8/4 - 1 = 1.
    A = 2 + (1/4)(1/2)(-1) = 1.875, -1 (cut), 1 (end of segment).
    """
    advantage, target = chunk_gae(
        torch.tensor([[[1.0, 2.0], [3.0, 0.0], [0.0, 0.0]]]),
        torch.tensor([[2, 1, 2]]),
        torch.tensor([[False, True, False]]),
        torch.tensor([[False, False, False]]),
        torch.tensor([[1.0, 4.0, 1.0]]),
        torch.tensor([[4.0, 100.0, 8.0]]),
        gamma=0.5,
        gae_lambda=0.5,
    )
    assert advantage.tolist() == [[1.875, -1.0, 1.0]]
    assert target.tolist() == [[2.875, 3.0, 2.0]]


def test_a_value_that_is_not_finite_after_termination_does_no_harm() -> None:
    one, no = torch.ones(1, 1), torch.zeros(1, 1, dtype=torch.bool)
    advantage, _ = chunk_gae(one[..., None], one.long(), ~no, no, 0 * one, one * torch.nan, gamma=0.9, gae_lambda=0.9)
    assert advantage.tolist() == [[1.0]]
