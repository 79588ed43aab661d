"""Whole episodes of different lengths: what lies behind the end of one influences nothing and costs nothing."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from subjects import SMALL, bits, counting, filled_up, in_one_row, rng, small, trajectories, whole_episodes

from ebrl.algorithms.chunks import ExecutedChunks
from ebrl.algorithms.grpo import Grpo, GrpoConfig
from ebrl.algorithms.ppo import Ppo, PpoConfig
from ebrl.algorithms.surrogate import SurrogateAlgorithm

torch.set_num_threads(1)

LENGTHS = [3, 1, 5, 2, 4, 4]
ALGORITHMS: dict[str, tuple[type[Any], Any]] = {
    "ppo": (Ppo, PpoConfig(epochs=2, minibatch_chunks=8, actor_lr=1e-2, critic_warmup_updates=1)),
    "plain ppo": (Ppo, PpoConfig(epochs=2, correction="none", value_clip=0.1, critic_warmup_updates=0)),
    "grpo": (Grpo, GrpoConfig(epochs=2, minibatch_chunks=8, actor_lr=1e-2)),
    "old grpo": (Grpo, GrpoConfig(epochs=2, advantage="standardised", aggregation="trajectory_mean")),
}
Updates = tuple[list[dict[str, float]], dict[str, bytes]]


def updates(name: str, kind: str, change: Any) -> Updates:
    """Metrics and state after two updates on ``change(batch)``."""
    policy = small(name)
    cls, config = ALGORITHMS[kind]
    algorithm: SurrogateAlgorithm = cls(config, policy)
    metrics = []
    for i in range(2):
        batch = change(whole_episodes(policy, LENGTHS, siblings=2, seed=i))
        metrics.append(cls.update(algorithm, batch, learner_version=0, rng=rng(i)))
    return metrics, bits(policy, algorithm)


@pytest.mark.parametrize("kind", ALGORITHMS)
@pytest.mark.parametrize("name", SMALL)
def test_neither_length_nor_content_of_what_fills_rows_up_matters(name: str, kind: str) -> None:
    found = updates(name, kind, lambda batch: batch)
    assert [metrics["skipped"] for metrics in found[0]] == [0.0, 0.0]
    assert found[0][1]["actor_minibatches"] > 0
    assert found == updates(name, kind, lambda batch: filled_up(batch, 5))
    assert found == updates(name, kind, lambda batch: filled_up(batch, 9))


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("kind", ["ppo", "plain ppo"])
def test_episodes_side_by_side_equal_the_same_episodes_in_one_segment(name: str, kind: str) -> None:
    """In the segment nothing is filled up: GAE ends where an episode does."""
    assert updates(name, kind, lambda batch: filled_up(batch, 7)) == updates(name, kind, in_one_row)


def test_only_executed_chunks_are_evaluated() -> None:
    """19 of 54: once for the anchor, once for the one epoch. Of what followed them, where three episodes were cut."""
    policy = counting()
    batch = filled_up(whole_episodes(policy, LENGTHS), 9)
    Ppo(PpoConfig(epochs=1, critic_warmup_updates=0), policy).update(batch, learner_version=0, rng=rng())
    assert policy.rows == {"evaluate": 2 * 19, "value": 3, "observe": 19}


def test_groups_that_teach_nothing_are_observed_but_not_evaluated() -> None:
    policy = counting()
    batch = filled_up(whole_episodes(policy, LENGTHS, siblings=2), 9)
    batch.reward[2:4] = 0.0
    Grpo(GrpoConfig(epochs=1), policy).update(batch, learner_version=0, rng=rng())
    assert policy.rows == {"evaluate": 2 * (3 + 1 + 4 + 4), "value": 0, "observe": 19}


def test_rows_and_grid() -> None:
    batch = whole_episodes(small("mlp"), [2, 1, 3])
    executed = ExecutedChunks(batch)
    numbers = torch.arange(9).view(3, 3)
    assert executed.rows(numbers).tolist() == [0, 1, 3, 6, 7, 8]
    assert executed.trajectory_N.tolist() == [0, 0, 1, 2, 2, 2]
    assert executed.grid(executed.rows(numbers + 1)).tolist() == [[1, 2, 0], [4, 0, 0], [7, 8, 9]]
    assert ExecutedChunks(batch, torch.tensor([True, False, True])).rows(numbers).tolist() == [0, 1, 6, 7, 8]
    full = trajectories(batch, [2])
    assert ExecutedChunks(full).obs["state"].data_ptr() == full.obs["state"].data_ptr(), "copied for nothing"


def test_chunks_of_a_batch_in_which_nothing_was_executed_are_an_error() -> None:
    batch = whole_episodes(small("mlp"), [2, 1])
    batch = dataclasses.replace(batch, num_executed=torch.zeros_like(batch.num_executed))
    with pytest.raises(ValueError, match="training batch of 2 trajectories: num_executed is 0 in every chunk"):
        ExecutedChunks(batch)


@pytest.mark.parametrize("name", SMALL)
def test_a_segment_of_episodes_that_were_over_teaches_ppo_nothing_and_is_no_failure(name: str) -> None:
    policy = small(name)
    algorithm = Ppo(PpoConfig(), policy)
    before = bits(policy, algorithm)
    batch = whole_episodes(policy, LENGTHS, siblings=2, seed=0)
    batch = dataclasses.replace(batch, num_executed=torch.zeros_like(batch.num_executed))
    metrics = algorithm.update(batch, learner_version=0, rng=rng(0))
    assert (metrics["executed_chunks"], metrics["skipped"], metrics["actor_minibatches"]) == (0.0, 0.0, 0.0)
    assert bits(policy, algorithm) == before
