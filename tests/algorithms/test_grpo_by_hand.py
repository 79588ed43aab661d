"""GRPO against arithmetic: losses of a tiny policy, and gradients against finite differences of the formula."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from subjects import Scalar, rng, trajectories
from torch import Tensor, nn

from ebrl.algorithms.base import TrainingBatch
from ebrl.algorithms.grpo import Grpo, GrpoConfig
from ebrl.policies.base import Evaluation, Policy
from ebrl.policies.denoising import normal_entropy, normal_log_prob

torch.set_num_threads(1)

# A success in two chunks, (0, 0) and (1, 0), and a failure in one, (0, 0), made with mean 0.5.
# Densities at theta = 0 over those at 0.5 are e^0.25, e^-0.25 and e^0.25. The success returns 1 + 2, so
# advantages are 1.5, 1.5 and -1.5.

UP, DOWN = math.exp(0.25), math.exp(-0.25)


def pair() -> TrainingBatch:
    path = torch.tensor([[[0.0, 0.0], [1.0, 0.0]], [[0.0, 0.0], [9.0, 9.0]]]).reshape(2, 2, 1, 2, 1)
    behavior_mean = torch.full_like(path, 0.5)
    return TrainingBatch(
        obs={"state": torch.zeros(2, 2, 1)},
        final_obs={"state": torch.zeros(2, 2, 1)},
        record={"path": path},
        log_prob=normal_log_prob(path, behavior_mean, torch.ones(1)),
        mean=behavior_mean,
        value=torch.zeros(2, 2),
        reward=torch.tensor([[[1.0, 0.0], [0.0, 2.0]], [[0.0, 0.0], [50.0, 50.0]]]),
        num_executed=torch.tensor([[2, 2], [2, 0]]),
        terminated=torch.tensor([[False, True], [False, False]]),
        truncated=torch.tensor([[False, False], [True, True]]),
        behavior_version=torch.tensor([[3, 4], [3, 4]]),
        episode=torch.tensor([[6, 6], [6, 0]]),
    )


@pytest.mark.parametrize(
    ("options", "loss"),
    [
        ({}, -1.5 * (UP + DOWN - UP) / 3),
        ({"aggregation": "trajectory_mean"}, -1.5 * ((UP + DOWN) / 2 - UP) / 2),
        ({"advantage": "leave_one_out"}, -3.0 * (UP + DOWN - UP) / 3),
        ({"advantage": "standardised"}, -1.0 * (UP + DOWN - UP) / 3),
        # Ratios around the behaviour policy, clipped to 0.8 ... 1.28 where that is worse for the objective.
        ({"correction": "none"}, -1.5 * (1.28 + DOWN - UP) / 3),
    ],
)
def test_one_update_by_hand(options: dict[str, Any], loss: float) -> None:
    policy = Scalar()
    algorithm = Grpo(GrpoConfig(epochs=1, **options), policy)
    metrics = algorithm.update(pair(), learner_version=4, rng=rng())
    assert metrics["policy_loss"] == pytest.approx(loss, rel=1e-5)
    assert metrics["return_mean"] == 1.5
    assert metrics["sibling_groups"] == 1.0
    assert metrics["degenerate_groups_fraction"] == 0.0
    assert metrics["ess"] == pytest.approx((2 * UP + DOWN) ** 2 / (3 * (2 * UP**2 + DOWN**2)))
    assert metrics["ratio_max_deviation_first"] == pytest.approx(1 - DOWN), "of the second chunk alone"
    assert metrics["ratio_checked_chunks"] == 1.0
    assert metrics["entropy"] == pytest.approx(math.log(2 * math.pi * math.e))
    assert metrics["kl"] == 0.0
    assert (metrics["skipped"], metrics["actor_minibatches"]) == (0.0, 1.0)
    # The one slope is that of the action 1, which succeeded: Adam moves theta up by the learning rate.
    assert policy.theta.item() == pytest.approx(2e-4, rel=1e-3)
    assert policy.c.item() == 0.0
    assert policy.observed == 3


class Linear(Policy):
    """Actions with mean ``w · observation`` and standard deviation 1/2."""

    Config = GrpoConfig
    independent_actions = True

    def __init__(self, w: list[float]) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor(w, dtype=torch.float64))
        self.c = nn.Parameter(torch.zeros(()))

    def evaluate(self, obs: Mapping[str, Tensor], record: Mapping[str, Tensor]) -> Evaluation:
        path, std = record["path"], torch.tensor([0.5], dtype=torch.float64)
        mean = (obs["state"] @ self.w)[:, None, None, None].expand_as(path)
        entropy = (normal_entropy(std) * path[0].numel()).expand(len(path))
        return Evaluation(normal_log_prob(path, mean, std), mean, std, entropy, self.c.expand(len(path)))

    def observe(self, obs: Mapping[str, Tensor]) -> None:
        pass

    def actor_parameters(self) -> list[nn.Parameter]:
        return [self.w]

    def critic_parameters(self) -> list[nn.Parameter]:
        return [self.c]


W_ANCHOR, W_BEHAVIOR = [0.3, -0.2], [0.2, -0.1]


def linear_batch() -> TrainingBatch:
    """Two groups of three, of 1 to 3 chunks of two actions, the last of which may be cut short."""
    generator = torch.Generator().manual_seed(5)
    shape, lengths = (6, 3), torch.tensor([3, 1, 2, 2, 3, 1])
    obs = torch.randn(*shape, 2, generator=generator, dtype=torch.float64)
    mean = (obs @ torch.tensor(W_BEHAVIOR, dtype=torch.float64))[..., None, None, None].expand(*shape, 1, 2, 1)
    path = mean + 0.5 * torch.randn(*shape, 1, 2, 1, generator=generator, dtype=torch.float64)
    last = torch.arange(3) == lengths[:, None] - 1
    cut = torch.tensor([1, 2, 2, 1, 2, 2])[:, None]
    executed = torch.where(last, cut, 2).where(torch.arange(3) < lengths[:, None], 0)
    return TrainingBatch(
        obs={"state": obs},
        final_obs={"state": obs},
        record={"path": path},
        log_prob=normal_log_prob(path, mean, torch.tensor([0.5], dtype=torch.float64)),
        mean=mean,
        value=torch.zeros(shape),
        reward=torch.randn(*shape, 2, generator=generator, dtype=torch.float64)
        * (torch.arange(2) < executed[..., None]),
        num_executed=executed,
        terminated=last,
        truncated=torch.zeros_like(last),
        behavior_version=torch.zeros(shape, dtype=torch.int64),
        episode=torch.tensor([4, 9, 4, 9, 9, 4])[:, None].expand(shape),
    )


def objective(w: Any, config: GrpoConfig, batch: TrainingBatch) -> float:
    """The formula in plain loops: J of A.3 with the advantages of A.2, one ratio per chunk."""

    def log_density(weights: Any, b: int, k: int) -> float:
        mean = float(np.dot(weights, batch.obs["state"][b, k].numpy()))
        actions = batch.record["path"][b, k, 0, : int(batch.num_executed[b, k]), 0].numpy()
        return float((-((actions - mean) ** 2) / (2 * 0.5**2)).sum())

    returns = [float(batch.reward[b, : int((batch.num_executed[b] > 0).sum())].sum()) for b in range(6)]
    by_trajectory = []
    for b in range(6):
        siblings = [returns[i] for i in range(6) if batch.episode[i, 0] == batch.episode[b, 0]]
        if config.advantage == "leave_one_out":
            siblings.remove(returns[b])
        advantage = returns[b] - float(np.mean(siblings))
        if config.advantage == "standardised":
            advantage /= float(np.std(siblings)) + 1e-6
        terms = []
        for k in range(int((batch.num_executed[b] > 0).sum())):
            new, anchor, behavior = (log_density(weights, b, k) for weights in (w, W_ANCHOR, W_BEHAVIOR))
            weight = math.exp(anchor - behavior) if config.correction == "decoupled" else 1.0
            weight *= weight <= config.behavior_cap
            ratio = math.exp(new - (anchor if config.correction == "decoupled" else behavior))
            clipped = min(max(ratio, 1 - config.clip_low), 1 + config.clip_high)
            terms.append(weight * min(ratio * advantage, clipped * advantage))
        by_trajectory.append(terms)
    if config.aggregation == "trajectory_mean":
        return float(np.mean([np.mean(terms) for terms in by_trajectory]))
    return float(np.mean([term for terms in by_trajectory for term in terms]))


@pytest.mark.parametrize("correction", ["none", "decoupled"])
@pytest.mark.parametrize("aggregation", ["chunk_mean", "trajectory_mean"])
@pytest.mark.parametrize("advantage", ["centred", "standardised", "leave_one_out"])
def test_the_first_gradient_is_that_of_the_formula(advantage: Any, aggregation: Any, correction: Any) -> None:
    config = GrpoConfig(epochs=1, advantage=advantage, aggregation=aggregation, correction=correction)
    batch, policy = linear_batch(), Linear(W_ANCHOR)
    gradients: list[Tensor] = []
    policy.w.register_hook(lambda gradient: gradients.append(gradient.clone()))  # type: ignore[no-untyped-call]
    metrics = Grpo(config, policy).update(batch, learner_version=1, rng=rng())
    assert metrics["policy_loss"] == pytest.approx(-objective(W_ANCHOR, config, batch), abs=1e-6)
    small_step = 1e-6
    wanted = [
        (objective(W_ANCHOR + small_step * e, config, batch) - objective(W_ANCHOR - small_step * e, config, batch))
        / (2 * small_step)
        for e in np.eye(2)
    ]
    assert len(gradients) == 1
    np.testing.assert_allclose(-gradients[0].numpy(), wanted, rtol=1e-5)


def test_the_first_gradient_of_fresh_chunks_is_the_policy_gradient() -> None:
    """Mean of A (a - w·o) o / std² over chunks, summed over executed actions: no ratio, no clip in it."""
    batch, policy = linear_batch(), Linear(W_BEHAVIOR)
    gradients: list[Tensor] = []
    policy.w.register_hook(lambda gradient: gradients.append(gradient.clone()))  # type: ignore[no-untyped-call]
    Grpo(GrpoConfig(epochs=1), policy).update(batch, learner_version=0, rng=rng())
    executed_BKH = torch.arange(2) < batch.num_executed[..., None]
    returns = (batch.reward * executed_BKH).sum(dim=(1, 2))
    advantage = torch.stack([returns[b] - returns[batch.episode[:, 0] == batch.episode[b, 0]].mean() for b in range(6)])
    score = ((batch.record["path"] - batch.mean)[:, :, 0, :, 0] * executed_BKH).sum(dim=2) / 0.5**2
    wanted = ((advantage[:, None] * score)[..., None] * batch.obs["state"]).sum(dim=(0, 1)) / 12
    torch.testing.assert_close(-gradients[0], wanted)


@pytest.mark.parametrize("order", [[5, 4, 3, 2, 1, 0], [2, 0, 4, 1, 5, 3]])
def test_the_order_of_trajectories_does_not_matter(order: list[int]) -> None:
    def update(batch: TrainingBatch) -> tuple[dict[str, float], Tensor]:
        policy = Linear(W_ANCHOR)
        metrics = Grpo(GrpoConfig(epochs=3), policy).update(batch, learner_version=0, rng=rng())
        return metrics, policy.w.detach()

    metrics, w = update(linear_batch())
    permuted, w_permuted = update(trajectories(linear_batch(), order))
    assert permuted == pytest.approx(metrics, rel=1e-6)
    torch.testing.assert_close(w_permuted, w)
