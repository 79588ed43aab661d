"""Losses and one whole update against numbers worked by hand."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import torch
from subjects import Scalar, rng

from ebrl.algorithms.base import TrainingBatch
from ebrl.algorithms.ppo import Ppo, PpoConfig, Targets, explained_variance, value_loss
from ebrl.algorithms.surrogate import policy_loss
from ebrl.policies.denoising import normal_log_prob

torch.set_num_threads(1)


@pytest.mark.parametrize(
    ("weight", "mask", "expected"),
    [
        # A = 2: min(3, 2.4) = 2.4, min(1, 1.6) = 1. A = -1: min(-1.5, -1.2) = -1.5, min(-.5, -.8) = -.8.
        ([[1.0, 1.0], [1.0, 1.0]], [[1.0, 1.0], [1.0, 1.0]], -(2.4 + 1.0 - 1.5 - 0.8) / 4),
        ([[1.0, 0.0], [2.0, 1.0]], [[1.0, 1.0], [1.0, 1.0]], -(2.4 - 3.0 - 0.8) / 4),
        ([[1.0, 1.0], [1.0, 1.0]], [[1.0, 1.0], [1.0, 0.0]], -(2.4 + 1.0 - 1.5) / 3),
    ],
)
def test_policy_loss(weight: list[list[float]], mask: list[list[float]], expected: float) -> None:
    ratio = torch.tensor([[1.5, 0.5], [1.5, 0.5]])
    advantage = torch.tensor([2.0, -1.0])
    loss = policy_loss(ratio, advantage, torch.tensor(weight), torch.tensor(mask), PpoConfig())
    assert loss.item() == pytest.approx(expected)


def test_dual_clip_limits_the_loss_of_bad_chunks_only() -> None:
    ratio, ones = torch.tensor([[5.0], [0.1]]), torch.ones(2, 1)
    loss = policy_loss(ratio, torch.tensor([-1.0, 1.0]), ones, ones, PpoConfig(dual_clip=3.0))
    assert loss.item() == pytest.approx((3.0 - 0.1) / 2)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        # Errors 3 and 0.5: Huber 2.5 and 0.125; squared 4.5 and 0.125.
        ({"value_loss": "huber"}, (2.5 + 0.125) / 2),
        ({"value_loss": "squared"}, (4.5 + 0.125) / 2),
        # Clipped values 1.2 (error 3.8) and 0.5 (its old value is within reach): 7.22 and 0.125.
        ({"value_loss": "squared", "value_clip": 0.2}, (7.22 + 0.125) / 2),
    ],
)
def test_value_loss(options: dict[str, Any], expected: float) -> None:
    targets = Targets(return_N=torch.tensor([5.0, 1.0]), old_value_N=torch.tensor([1.0, 0.4]))
    assert value_loss(torch.tensor([2.0, 0.5]), targets, PpoConfig(**options)).item() == pytest.approx(expected)


def test_explained_variance() -> None:
    returns = torch.tensor([0.0, 2.0])
    assert explained_variance(returns, returns) == 1.0
    assert explained_variance(torch.tensor([0.5, 1.5]), returns) == pytest.approx(0.75)
    assert explained_variance(returns, torch.ones(2)) == 0.0


def scalar_batch() -> TrainingBatch:
    """Two chunks of two actions (0, 0) and (1, 0), made with mean 0.5; the episode ends with the second."""
    path = torch.tensor([[0.0, 0.0], [1.0, 0.0]]).reshape(1, 2, 1, 2, 1)
    behavior_mean = torch.full_like(path, 0.5)
    return TrainingBatch(
        obs={"state": torch.zeros(1, 2, 1)},
        final_obs={"state": torch.zeros(1, 2, 1)},
        record={"path": path},
        log_prob=normal_log_prob(path, behavior_mean, torch.ones(1)),
        mean=behavior_mean,
        value=torch.zeros(1, 2),
        reward=torch.tensor([[[1.0, 0.0], [0.0, 2.0]]]),
        num_executed=torch.tensor([[2, 2]]),
        terminated=torch.tensor([[False, True]]),
        truncated=torch.tensor([[False, False]]),
        behavior_version=torch.tensor([[3, 4]]),
        episode=torch.zeros(1, 2, dtype=torch.int64),
    )


# Both: R = 1, 0 + 2/2 = 1; A = 1 + (1/4)(1/2) 1 = 1.125 and 1, targets alike; Huber of them from V = 0
# is 0.625 and 0.5. Densities at theta = 0 over those at 0.5: 0.125 more for an action 0, 0.375 less for
# a 1, so e^0.25 and e^-0.25.
UP, DOWN = math.exp(0.25), math.exp(-0.25)


@pytest.mark.parametrize(
    ("correction", "loss", "kl", "clip_fraction"),
    [
        ("decoupled", -(1.125 * UP + 1.0 * DOWN) / 2, 0.0, 0.0),  # first ratio 1, weights e^±0.25
        # Ratios e^±0.25, both outside 0.8 to 1.2. KL is 0: it is measured from the anchor in both, since
        # the behaviour policy's mean with the anchor's deviation is no policy at all.
        ("none", -(1.125 * 1.2 + 1.0 * DOWN) / 2, 0.0, 1.0),
    ],
)
def test_one_update_by_hand(correction: Any, loss: float, kl: float, clip_fraction: float) -> None:
    config = PpoConfig(
        gamma=0.5, gae_lambda=0.5, correction=correction, normalize_advantage=False, epochs=1, critic_warmup_updates=0
    )
    policy = Scalar()
    metrics = Ppo(config, policy).update(scalar_batch(), learner_version=4, rng=rng())
    assert metrics["policy_loss"] == pytest.approx(loss)
    assert metrics["value_loss"] == pytest.approx((0.625 + 0.5) / 2)
    assert metrics["kl"] == pytest.approx(kl)
    assert metrics["clip_fraction"] == clip_fraction
    assert metrics["ess"] == pytest.approx((UP + DOWN) ** 2 / (2 * (UP**2 + DOWN**2)))
    assert metrics["ratio_max_deviation_first"] == pytest.approx(1 - DOWN), "of the second chunk alone"
    assert metrics["ratio_checked_chunks"] == 1.0
    assert metrics["return_mean"] == pytest.approx(1.0625)
    assert metrics["advantage_std"] == pytest.approx(0.0625)
    assert metrics["behavior_masked_fraction"] == 0.0
    assert metrics["entropy"] == pytest.approx(math.log(2 * math.pi * math.e))
    assert (metrics["skipped"], metrics["actor_minibatches"], metrics["critic_minibatches"]) == (0.0, 1.0, 1.0)
    # Adam's first move is the learning rate against the sign of the gradient. The second chunk
    # (1, 0) wants theta up; the first (0, 0) has no slope at theta = 0.
    assert policy.theta.item() == pytest.approx(2e-4, rel=1e-3)
    assert policy.c.item() == pytest.approx(1e-3, rel=1e-3)
    assert policy.observed == 2


@pytest.mark.parametrize(
    ("correction", "loss"),
    [
        ("decoupled", (0.625 + 0.5) / 2),  # within 0.1 of the anchor's value, which is 0
        # V = 0 is clipped to -0.5 + 0.1: errors 1.525 and 1.4, of which Huber takes 0.5 off.
        ("none", (1.025 + 0.9) / 2),
    ],
)
@pytest.mark.parametrize("behavior_value", [-0.5, 40.0])
def test_advantages_are_of_one_critic_and_behaviour_values_only_clip(
    correction: Any, loss: float, behavior_value: float
) -> None:
    """V(s) of the behaviour policy beside V(s') of today would be a temporal difference of two critics."""
    batch = dataclasses.replace(scalar_batch(), value=torch.full((1, 2), behavior_value))
    config = PpoConfig(gamma=0.5, gae_lambda=0.5, correction=correction, value_clip=0.1, epochs=1)
    metrics = Ppo(config, Scalar()).update(batch, learner_version=4, rng=rng())
    assert metrics["value_mean"] == 0.0
    assert metrics["return_mean"] == pytest.approx((1.125 + 1.0) / 2)
    assert metrics["advantage_std"] == pytest.approx(0.0625)
    if behavior_value == -0.5:
        assert metrics["value_loss"] == pytest.approx(loss)


def test_advantages_are_normalised_over_the_batch() -> None:
    """1.125 and 1 become 1 and -1."""
    config = PpoConfig(gamma=0.5, gae_lambda=0.5, epochs=1, critic_warmup_updates=0)
    metrics = Ppo(config, Scalar()).update(scalar_batch(), learner_version=4, rng=rng())
    assert metrics["policy_loss"] == pytest.approx(-(UP - DOWN) / 2, abs=1e-6)


def test_a_cap_on_the_behaviour_weight_is_counted() -> None:
    config = PpoConfig(behavior_cap=1.1, epochs=1, normalize_advantage=False, critic_warmup_updates=0)
    metrics = Ppo(config, Scalar()).update(scalar_batch(), learner_version=4, rng=rng())
    assert metrics["behavior_masked_fraction"] == 0.5


def test_actions_that_never_ran_do_not_count() -> None:
    batch = scalar_batch()
    path = batch.record["path"].clone()
    path[0, 1, 0, 1] = 7.0
    batch = dataclasses.replace(batch, num_executed=torch.tensor([[2, 1]]))
    changed = dataclasses.replace(batch, record={"path": path})
    first, second = Scalar(), Scalar()
    assert Ppo(PpoConfig(critic_warmup_updates=0), first).update(batch, learner_version=0, rng=rng()) == Ppo(
        PpoConfig(critic_warmup_updates=0), second
    ).update(changed, learner_version=0, rng=rng())
    assert first.theta.item() == second.theta.item()
