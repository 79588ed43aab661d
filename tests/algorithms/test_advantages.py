from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ebrl.algorithms.advantages import chunk_gae, sibling_advantages

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


def test_a_chunk_that_was_not_executed_hands_nothing_on() -> None:
    """Where an episode is followed by another one in the same row, after chunks that belong to neither."""
    one, executed = torch.ones(1, 3), torch.tensor([[2, 0, 2]])
    ends, no = torch.tensor([[True, False, False]]), torch.zeros(1, 3, dtype=torch.bool)
    advantage, _ = chunk_gae(one[..., None], executed, ends, no, 0 * one, 0 * one, gamma=0.9, gae_lambda=0.9)
    assert advantage.tolist() == [[1.0, 0.0, 1.0]]


@settings(max_examples=100, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    lengths=st.lists(st.integers(1, 5), min_size=1, max_size=4),
    more=st.integers(0, 3),
    closed=st.booleans(),
)
def test_chunks_behind_the_end_change_no_bit(seed: int, lengths: list[int], more: int, closed: bool) -> None:
    """Rows filled up with what was never executed equal each row alone, and the brute-force sum."""
    rng = np.random.default_rng(seed)
    horizon, shape = 3, (len(lengths), max(lengths) + more)
    inside = np.arange(shape[1]) < np.array(lengths)[:, None]
    last = np.arange(shape[1]) == np.array(lengths)[:, None] - 1
    executed = np.where(inside, np.where(last, rng.integers(1, horizon + 1, shape), horizon), 0)
    reward = rng.normal(size=(*shape, horizon)) * (np.arange(horizon) < executed[..., None])
    value, next_value = rng.normal(size=shape) * inside, rng.normal(size=shape) * inside
    next_value[:, :-1] = np.where(inside[:, 1:], value[:, 1:], next_value[:, :-1])
    by_rule = rng.random(shape) < 0.5
    terminated, truncated = last & by_rule & closed, last & ~by_rule & closed
    # Whatever an earlier trajectory left in the store.
    reward[~inside], terminated[~inside], truncated[~inside] = np.nan, True, True
    arrays = (reward, executed, terminated, truncated, value, next_value)
    advantage, target = chunk_gae(*map(torch.from_numpy, arrays), gamma=0.9, gae_lambda=0.8)
    assert not advantage[torch.from_numpy(~inside)].any()
    for b, length in enumerate(lengths):
        alone = [torch.from_numpy(x[b : b + 1, :length].copy()) for x in arrays]
        wanted, wanted_target = chunk_gae(*alone, gamma=0.9, gae_lambda=0.8)
        assert torch.equal(advantage[b, :length], wanted[0])
        assert torch.equal(target[b, :length], wanted_target[0])
        rows: list[Any] = [x[0].tolist() for x in alone]
        np.testing.assert_allclose(wanted[0].numpy(), brute_force(*rows, gamma=0.9, lam=0.8), atol=1e-9)


# Episode 7 succeeded in one of four, episode 3 earned 3 and 1; they stand in the batch interleaved.
RETURN = torch.tensor([0.0, 3.0, 1.0, 0.0, 1.0, 0.0], dtype=torch.float64)
EPISODE = torch.tensor([7, 3, 7, 7, 3, 7])
SPREAD = 3**0.5 / 4
"""Standard deviation of one success in four: the root of (1/4)(3/4)."""


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("centred", [-0.25, 1.0, 0.75, -0.25, -1.0, -0.25]),
        ("standardised", [-0.25 / SPREAD, 1.0, 0.75 / SPREAD, -0.25 / SPREAD, -1.0, -0.25 / SPREAD]),
        ("leave_one_out", [-1 / 3, 2.0, 1.0, -1 / 3, -2.0, -1 / 3]),
    ],
)
def test_advantages_among_siblings_by_hand(kind: Any, expected: list[float]) -> None:
    advantage, teaches = sibling_advantages(RETURN, EPISODE, kind)
    assert advantage.tolist() == pytest.approx(expected, rel=1e-5)
    assert teaches.all()


@pytest.mark.parametrize("kind", ["centred", "standardised", "leave_one_out"])
def test_equal_siblings_teach_nothing(kind: Any) -> None:
    """Three times 0.1 has a mean that is not 0.1 in floating point; equal is equal nevertheless."""
    returns = torch.tensor([0.1, 5.0, 0.1, 0.1, 4.0], dtype=torch.float64)
    advantage, teaches = sibling_advantages(returns, torch.tensor([1, 2, 1, 1, 2]), kind)
    assert teaches.tolist() == [False, True, False, False, True]
    assert advantage[~teaches].tolist() == [0.0, 0.0, 0.0]


def test_returns_that_are_not_finite_are_not_mistaken_for_equal_ones() -> None:
    returns = torch.tensor([1.0, 1.0, torch.inf, torch.inf, torch.nan, 1.0], dtype=torch.float64)
    advantage, teaches = sibling_advantages(returns, torch.tensor([0, 0, 1, 1, 2, 2]), "centred")
    assert teaches.tolist() == [False, False, True, True, True, True]
    assert advantage.isfinite().tolist() == [True, True, False, False, False, False]


def test_a_trajectory_without_sibling_is_an_error() -> None:
    with pytest.raises(ValueError) as caught:
        sibling_advantages(torch.zeros(4), torch.tensor([5, 8, 5, 9]), "centred")
    assert str(caught.value) == (
        "2 of 4 trajectories have no sibling in the training batch, the first of episode 8: want 2 or more from each "
        "initial state; set training.siblings"
    )
