"""GRPO: groups in any order, groups that teach nothing, batches it refuses, and a bandit that it solves."""

from __future__ import annotations

import dataclasses
import math
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from subjects import SMALL, SPEC, H, bits, counting, filled_up, rng, small, trajectories, whole_episodes

from ebrl import registry
from ebrl.algorithms.base import TrainingBatch
from ebrl.algorithms.grpo import Grpo, GrpoConfig
from ebrl.data.spec import ArraySpec, EnvSpec
from ebrl.errors import ConfigError
from ebrl.policies.base import RowStreams, make_policy
from ebrl.policies.mlp import MlpPolicy

torch.set_num_threads(1)

QUICK = GrpoConfig(epochs=2, minibatch_chunks=8, actor_lr=1e-2)
LENGTHS = [3, 1, 5, 2, 4, 4]


def test_what_episodes_are_called_does_not_matter() -> None:
    def update(change: int) -> Any:
        policy = small("flow")
        algorithm = Grpo(QUICK, policy)
        batch = whole_episodes(policy, LENGTHS, siblings=2)
        batch = dataclasses.replace(batch, episode=change - 3 * batch.episode)
        return algorithm.update(batch, learner_version=0, rng=rng()), bits(policy, algorithm)

    assert update(100) == update(7)


@pytest.mark.parametrize("aggregation", ["chunk_mean", "trajectory_mean"])
def test_groups_that_teach_nothing_are_left_out_of_the_mean(aggregation: Any) -> None:
    def update(change: Any) -> tuple[dict[str, float], dict[str, bytes]]:
        policy = make_policy(MlpPolicy, MlpPolicy.Config(hidden=(16,), normalize="none"), SPEC, H, seed=0)
        algorithm = Grpo(dataclasses.replace(QUICK, aggregation=aggregation), policy)
        batch = whole_episodes(policy, LENGTHS, siblings=2)
        batch.reward[2:4] = 0.0
        return algorithm.update(change(batch), learner_version=0, rng=rng()), bits(policy, algorithm)

    whole, state = update(lambda batch: batch)
    part, part_state = update(lambda batch: trajectories(batch, [0, 1, 4, 5]))
    assert state == part_state
    assert whole["degenerate_groups_fraction"] == pytest.approx(1 / 3)
    assert whole["sibling_groups"] == 3.0
    assert whole["return_mean"] == pytest.approx(part["return_mean"] * 4 / 6)
    about_the_batch = {"degenerate_groups_fraction", "sibling_groups", "return_mean"}
    assert {k: v for k, v in whole.items() if k not in about_the_batch} == {
        k: v for k, v in part.items() if k not in about_the_batch
    }


@pytest.mark.parametrize("num_before", [0, 1])
def test_where_no_group_teaches_nothing_changes(num_before: int) -> None:
    policy = small("mlp")
    algorithm = Grpo(QUICK, policy)
    for i in range(num_before):
        algorithm.update(whole_episodes(policy, LENGTHS, siblings=3, seed=i), learner_version=0, rng=rng(i))
    before = bits(policy, algorithm)
    batch = whole_episodes(policy, LENGTHS, siblings=3)
    batch.reward.fill_(0.0)
    for b, length in enumerate(LENGTHS):
        batch.reward[b, length - 1, 0] = 1.0
    metrics = algorithm.update(batch, learner_version=0, rng=rng())
    assert bits(policy, algorithm) == before
    assert metrics == {
        "return_mean": 1.0,
        "sibling_groups": 2.0,
        "degenerate_groups_fraction": 1.0,
        "ratio_checked_chunks": 0.0,
        "ratio_max_deviation_first": 0.0,
        "policy_loss": 0.0,
        "kl": 0.0,
        "clip_fraction": 0.0,
        "grad_norm": 0.0,
        "actor_minibatches": 0.0,
        "skipped": 0.0,
    }


def test_the_same_rewards_in_another_order_are_an_equal_return() -> None:
    """In float32 the sum would depend on the order."""
    policy = small("mlp")
    batch = whole_episodes(policy, [4, 4], siblings=2)
    batch.num_executed.fill_(3)
    batch.reward[1] = batch.reward[0].flip(0, 1)
    assert Grpo(QUICK, policy).update(batch, learner_version=0, rng=rng())["degenerate_groups_fraction"] == 1.0


@pytest.mark.parametrize("name", SMALL)
def test_only_the_actor_moves_and_fresh_ratios_are_one(name: str) -> None:
    policy = small(name)
    actor = [p.detach().clone() for p in policy.actor_parameters()]
    critic = [p.detach().clone() for p in policy.critic_parameters()]
    algorithm = Grpo(dataclasses.replace(QUICK, kl_limit=1e9), policy)
    metrics = algorithm.update(whole_episodes(policy, LENGTHS, siblings=2), learner_version=0, rng=rng())
    assert metrics["ratio_checked_chunks"] == 19.0
    assert metrics["ratio_max_deviation_first"] < 1e-4
    assert metrics["actor_minibatches"] == 6.0
    assert not all(map(torch.equal, actor, policy.actor_parameters()))
    assert all(map(torch.equal, critic, policy.critic_parameters()))
    assert not [key for key in algorithm.state_dict() if key.startswith("critic")]


@pytest.mark.parametrize("name", SMALL)
def test_saved_state_goes_on_to_the_same_weights(name: str) -> None:
    policy, other = small(name), small(name)
    algorithm = Grpo(QUICK, policy)
    batches = [whole_episodes(policy, LENGTHS, siblings=2, seed=i) for i in range(4)]
    for i in range(2):
        algorithm.update(batches[i], learner_version=0, rng=rng(i))
    other.load_state_dict(policy.state_dict())
    resumed = Grpo(QUICK, other)
    resumed.load_state_dict(algorithm.state_dict())
    for i in range(2, 4):
        algorithm.update(batches[i], learner_version=0, rng=rng(i))
        resumed.update(batches[i], learner_version=0, rng=rng(i))
    assert bits(policy, algorithm) == bits(other, resumed)


@pytest.mark.parametrize(("field", "bad"), [("reward", math.nan), ("reward", math.inf), ("obs", math.nan)])
def test_a_batch_that_is_not_finite_changes_nothing(field: str, bad: float) -> None:
    policy = small("flow")
    algorithm = Grpo(QUICK, policy)
    before, batch = bits(policy, algorithm), whole_episodes(policy, LENGTHS, siblings=2)
    {"reward": batch.reward, "obs": batch.obs["state"]}[field][:, 0] = bad
    metrics = algorithm.update(batch, learner_version=0, rng=rng())
    assert metrics["skipped"] == 1.0
    assert all(math.isfinite(x) for x in metrics.values())
    assert bits(policy, algorithm) == before


def test_an_update_ends_at_the_kl_limit() -> None:
    """The first minibatch is at the anchor itself, where KL is 0; the second is beyond."""
    policy = counting()
    config = dataclasses.replace(QUICK, kl_limit=1e-6)
    metrics = Grpo(config, policy).update(whole_episodes(policy, LENGTHS, siblings=2), learner_version=0, rng=rng())
    assert metrics["actor_minibatches"] == 1.0
    assert metrics["kl"] > 1e-6
    assert policy.rows == {"evaluate": 19 + 6 + 6, "value": 0, "observe": 19}


def _segment(batch: TrainingBatch) -> None:
    batch.terminated[3:], batch.truncated[3:] = False, False


def _two_episodes(batch: TrainingBatch) -> None:
    batch.truncated[2, 1] = True


def _nothing_executed(batch: TrainingBatch) -> None:
    batch.num_executed[1] = 0


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (_segment, "3 of 6 .* first is number 3"),
        (_two_episodes, "1 of 6 .* first is number 2"),
        (_nothing_executed, "1 of 6 .* first is number 1"),
    ],
)
def test_pieces_of_episodes_are_an_error(spoil: Any, message: str) -> None:
    policy = small("mlp")
    batch = filled_up(whole_episodes(policy, LENGTHS, siblings=2), 6)
    spoil(batch)
    with pytest.raises(ValueError, match=message + ': set training.trajectory = "episode"'):
        Grpo(QUICK, policy).update(batch, learner_version=0, rng=rng())


def test_a_batch_without_siblings_is_an_error() -> None:
    policy = small("mlp")
    with pytest.raises(ValueError, match=r"6 of 6 trajectories have no sibling .* set training.siblings"):
        Grpo(QUICK, policy).update(whole_episodes(policy, LENGTHS), learner_version=0, rng=rng())


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"advantage": "centered"}, r"algorithm.advantage: = 'centered': want one of 'centred', 'standardised'"),
        ({"aggregation": "mean"}, r"algorithm.aggregation: = 'mean': want one of 'chunk_mean', 'trajectory_mean'"),
        ({"clip_high": 0.0}, r"algorithm.clip_high: = 0.0: want more than 0"),
        ({"critic_lr": 1e-3}, r"algorithm.critic_lr: unknown field"),
    ],
)
def test_a_wrong_config_names_its_field(section: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        registry.make_config(Grpo, section, "algorithm")
    assert registry.make_config(Grpo, {}, "algorithm") == GrpoConfig()


def test_the_project_registers_every_algorithm_under_its_name() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    points = project["project"]["entry-points"]["ebrl.algorithm"]
    assert {name: registry.load("algorithm", point)[0].__name__ for name, point in points.items()} == {
        "grpo": "Grpo",
        "ppo": "Ppo",
    }


LINE = EnvSpec({"state": ArraySpec((1,), "float32")}, (-1.0,), (1.0,), 50)


@pytest.mark.parametrize(
    ("advantage", "aggregation"),
    [("centred", "chunk_mean"), ("standardised", "trajectory_mean"), ("leave_one_out", "chunk_mean")],
)
def test_solves_a_bandit_whose_siblings_share_the_state(advantage: Any, aggregation: Any) -> None:
    """Success is an action within 0.15 of half the number seen; nothing else is rewarded."""
    config = MlpPolicy.Config(hidden=(16,), critic_hidden=(1,), normalize="none", initial_std=0.5)
    policy = make_policy(MlpPolicy, config, LINE, 1, seed=0)
    options = GrpoConfig(
        advantage=advantage, aggregation=aggregation, epochs=4, minibatch_chunks=128, actor_lr=5e-3, kl_limit=10.0
    )
    algorithm, generator = Grpo(options, policy), rng()
    successes, over = [], torch.ones(256, 1, dtype=torch.bool)
    for update in range(50):
        seen = (2 * torch.rand(32, 1, generator=generator) - 1).repeat_interleave(8, dim=0)
        sample = policy.sample({"state": seen}, RowStreams([(update, i) for i in range(256)]))
        success = ((sample.actions[:, 0] - seen / 2).abs() < 0.15).float()
        successes.append(success.mean().item())
        batch = TrainingBatch(
            obs={"state": seen[:, None]},
            final_obs={"state": seen[:, None]},
            record={name: x[:, None] for name, x in sample.record.items()},
            log_prob=sample.log_prob[:, None],
            mean=sample.mean[:, None],
            value=sample.value[:, None],
            reward=success[:, None],
            num_executed=torch.ones(256, 1, dtype=torch.int64),
            terminated=over,
            truncated=~over,
            behavior_version=torch.full((256, 1), update),
            episode=torch.arange(32).repeat_interleave(8)[:, None],
        )
        metrics = algorithm.update(batch, learner_version=update, rng=generator)
        assert metrics["ratio_max_deviation_first"] < 1e-4
    assert np.mean(successes[:3]) < 0.3
    assert np.mean(successes[-5:]) > 0.8, successes
