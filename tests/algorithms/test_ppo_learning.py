"""PPO finds optima that are known exactly."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from ebrl.algorithms.base import TrainingBatch
from ebrl.algorithms.ppo import Ppo, PpoConfig
from ebrl.data.spec import ArraySpec, EnvSpec
from ebrl.policies.base import RowStreams, make_policy
from ebrl.policies.flow import FlowPolicy
from ebrl.policies.mlp import MlpPolicy

torch.set_num_threads(1)


def rng(seed: int = 1) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


# A decision process with two states, solved exactly.

REWARD = np.array([[0.0, -0.2], [0.0, 1.0]])  # [state, whether the action is positive]
NEXT_STATE = np.array([[0, 1], [0, 1]])
GAMMA = 0.8
PAIR = EnvSpec({"state": ArraySpec((2,), "float32")}, (-1.0,), (1.0,), 50)


def exact_values(positive_share: Any) -> Any:
    """Value of both states under a policy that is positive with the given probabilities."""
    share = np.stack([1 - positive_share, positive_share], axis=1)
    transition = np.zeros((2, 2))
    for state in range(2):
        for action in range(2):
            transition[state, NEXT_STATE[state, action]] += share[state, action]
    return np.linalg.solve(np.eye(2) - GAMMA * transition, (share * REWARD).sum(axis=1))


@pytest.mark.parametrize("correction", ["none", "decoupled"])
def test_solves_a_two_state_process_in_which_greed_fails(correction: Any) -> None:
    """From state 0 the reward says stay, but paying 0.2 once earns 1 at every step in state 1."""
    optimal = exact_values(np.array([1.0, 1.0]))
    assert optimal == pytest.approx([3.8, 5.0])
    assert optimal[0] > exact_values(np.array([0.0, 1.0]))[0]
    policy = make_policy(
        MlpPolicy,
        MlpPolicy.Config(hidden=(16,), critic_hidden=(16,), normalize="none", initial_std=0.5),
        PAIR,
        1,
        seed=0,
    )
    config = PpoConfig(gamma=GAMMA, correction=correction, minibatch_chunks=64, epochs=4, actor_lr=5e-3, critic_lr=1e-2)
    algorithm, generator = Ppo(config, policy), rng()
    state = np.arange(16) % 2
    one_hot = torch.eye(2)
    for update in range(60):
        columns: dict[str, list[Tensor]] = {name: [] for name in ("obs", "final", "path", "log_prob", "mean", "value")}
        reward = []
        for k in range(8):
            obs = one_hot[state]
            sample = policy.sample({"state": obs}, RowStreams([(update, k, b) for b in range(16)]))
            action = (sample.actions[:, 0, 0].numpy() > 0).astype(int)
            reward.append(torch.from_numpy(REWARD[state, action]).float())
            state = NEXT_STATE[state, action]
            parts = (obs, one_hot[state], sample.record["path"], sample.log_prob, sample.mean, sample.value)
            for name, part in zip(columns, parts, strict=True):
                columns[name].append(part)
        # Every other segment ends by truncation, after which the state is chosen afresh.
        state = np.arange(16) % 2
        x = {name: torch.stack(column, dim=1) for name, column in columns.items()}
        never = torch.zeros(16, 8, dtype=torch.bool)
        truncated = never.clone()
        truncated[::2, -1] = True
        batch = TrainingBatch(
            obs={"state": x["obs"]},
            final_obs={"state": x["final"]},
            record={"path": x["path"]},
            log_prob=x["log_prob"],
            mean=x["mean"],
            value=x["value"],
            reward=torch.stack(reward, dim=1)[..., None],
            num_executed=torch.ones(16, 8, dtype=torch.int64),
            terminated=never,
            truncated=truncated,
            behavior_version=torch.full((16, 8), update),
            episode=torch.zeros(16, 8, dtype=torch.int64),
        )
        metrics = algorithm.update(batch, learner_version=update, rng=generator)
        assert metrics["skipped"] == 0.0
        assert metrics["ratio_max_deviation_first"] < 1e-4
    many = policy.sample({"state": one_hot.repeat(500, 1)}, RowStreams([(9, i) for i in range(1000)]))
    share = (many.actions[:, 0, 0] > 0).double().reshape(500, 2).mean(dim=0).numpy()
    assert share.min() > 0.93, share
    np.testing.assert_allclose(policy.value({"state": one_hot}).detach().numpy(), exact_values(share), atol=0.35)


@pytest.mark.parametrize("sampler", ["flow_noise", "flow_sde", "mixed"])
def test_a_flow_policy_learns_a_target_from_reward_alone(sampler: Any) -> None:
    """One chunk of two actions per episode; reward is minus their squared distance from the two numbers seen."""
    config = FlowPolicy.Config(sampler=sampler, hidden=(64, 64), critic_hidden=(32,), normalize="none")
    policy = make_policy(FlowPolicy, config, PAIR, 2, seed=0)
    options = PpoConfig(epochs=4, minibatch_chunks=64, actor_lr=1e-3, critic_lr=3e-3, critic_warmup_updates=2)
    algorithm, generator = Ppo(options, policy), rng()
    rewards = []
    for update in range(60):
        obs = torch.rand(256, 2, generator=generator) - 0.5
        sample = policy.sample({"state": obs}, RowStreams([(update, i) for i in range(256)]))
        reward = -((sample.actions[..., 0] - obs) ** 2)
        rewards.append(reward.sum(dim=1).mean().item())
        over = torch.ones(256, 1, dtype=torch.bool)
        batch = TrainingBatch(
            obs={"state": obs[:, None]},
            final_obs={"state": obs[:, None]},
            record={name: x[:, None] for name, x in sample.record.items()},
            log_prob=sample.log_prob[:, None],
            mean=sample.mean[:, None],
            value=sample.value[:, None],
            reward=reward[:, None],
            num_executed=torch.full((256, 1), 2),
            terminated=over,
            truncated=~over,
            behavior_version=torch.full((256, 1), update),
            episode=torch.arange(256)[:, None],
        )
        metrics = algorithm.update(batch, learner_version=update, rng=generator)
        assert metrics["ratio_max_deviation_first"] < 1e-4
    assert np.mean(rewards[-5:]) > 0.4 * np.mean(rewards[:5]), rewards
