from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from ebrl import registry
from ebrl.algorithms.base import TrainingBatch
from ebrl.algorithms.optimizers import NamedAdam
from ebrl.algorithms.ppo import Ppo, PpoConfig, explained_variance, policy_loss, value_loss
from ebrl.data.spec import ArraySpec, EnvSpec
from ebrl.errors import ConfigError
from ebrl.policies.base import Evaluation, Policy, RowStreams, make_policy
from ebrl.policies.denoising import normal_entropy, normal_log_prob
from ebrl.policies.flow import FlowPolicy
from ebrl.policies.mlp import MlpPolicy

torch.set_num_threads(1)

S, H, A = 4, 3, 2
SPEC = EnvSpec({"state": ArraySpec((S,), "float32")}, (-1.0,) * A, (1.0,) * A, 50)
SMALL: dict[str, tuple[Any, dict[str, Any]]] = {
    "mlp": (MlpPolicy, {"hidden": (16,), "critic_hidden": (16,)}),
    "flow": (FlowPolicy, {"hidden": (16,), "critic_hidden": (16,)}),
    "mixed": (FlowPolicy, {"hidden": (16,), "critic_hidden": (16,), "sampler": "mixed"}),
}
QUICK = PpoConfig(epochs=2, minibatch_chunks=8, actor_lr=1e-2, critic_warmup_updates=1)


def small(name: str) -> Policy:
    cls, options = SMALL[name]
    return make_policy(cls, cls.Config(**options), SPEC, H, seed=0)


def batch_of(policy: Policy, *, num_trajectories: int = 4, num_chunks: int = 5, seed: int = 0) -> TrainingBatch:
    """Chunks that ``policy`` samples from random observations, with random rewards and ends."""
    shape = (num_trajectories, num_chunks)
    generator = torch.Generator().manual_seed(seed)
    obs = torch.randn(*shape, S, generator=generator)
    sample = policy.sample({"state": obs.flatten(0, 1)}, RowStreams([(seed, i) for i in range(math.prod(shape))]))
    over = torch.rand(shape, generator=generator) < 0.3
    by_rule = torch.rand(shape, generator=generator) < 0.5
    executed = torch.where(over, torch.randint(1, H + 1, shape, generator=generator), H)
    reward = torch.randn(*shape, H, generator=generator) * (torch.arange(H) < executed[..., None])
    return TrainingBatch(
        obs={"state": obs},
        final_obs={"state": torch.randn(*shape, S, generator=generator)},
        record={name: x.reshape(*shape, *x.shape[1:]) for name, x in sample.record.items()},
        log_prob=sample.log_prob.reshape(*shape, *sample.log_prob.shape[1:]),
        mean=sample.mean.reshape(*shape, *sample.mean.shape[1:]),
        value=sample.value.reshape(shape),
        reward=reward,
        num_executed=executed,
        terminated=over & by_rule,
        truncated=over & ~by_rule,
        behavior_version=torch.zeros(shape, dtype=torch.int64),
    )


def rng(seed: int = 1) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def bits(policy: Policy, algorithm: Ppo) -> dict[str, bytes]:
    state = policy.state_dict() | algorithm.state_dict()
    return {name: x.numpy().tobytes() for name, x in state.items()}


# The loss, by hand.


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
    value, target, old = torch.tensor([2.0, 0.5]), torch.tensor([5.0, 1.0]), torch.tensor([1.0, 0.4])
    assert value_loss(value, target, old, PpoConfig(**options)).item() == pytest.approx(expected)


def test_explained_variance() -> None:
    returns = torch.tensor([0.0, 2.0])
    assert explained_variance(returns, returns) == 1.0
    assert explained_variance(torch.tensor([0.5, 1.5]), returns) == pytest.approx(0.75)
    assert explained_variance(returns, torch.ones(2)) == 0.0


class Scalar(Policy):
    """Mean ``theta`` and value ``c`` everywhere, standard deviation 1."""

    Config = PpoConfig
    independent_actions = True

    def __init__(self) -> None:
        super().__init__()
        self.theta = nn.Parameter(torch.zeros(()))
        self.c = nn.Parameter(torch.zeros(()))
        self.observed = 0

    def evaluate(self, obs: Mapping[str, Tensor], record: Mapping[str, Tensor]) -> Evaluation:
        path = record["path"]
        mean, std = self.theta.expand_as(path), torch.ones(1)
        entropy = (normal_entropy(std) * path[0].numel()).expand(len(path))
        return Evaluation(normal_log_prob(path, mean, std), mean, std, entropy, self.value(obs))

    def value(self, obs: Mapping[str, Tensor]) -> Tensor:
        return self.c.expand(len(obs["state"]))

    def observe(self, obs: Mapping[str, Tensor]) -> None:
        self.observed += len(obs["state"])

    def actor_parameters(self) -> list[nn.Parameter]:
        return [self.theta]

    def critic_parameters(self) -> list[nn.Parameter]:
        return [self.c]


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
    )


# Both: R = 1, 0 + 2/2 = 1; A = 1 + (1/4)(1/2) 1 = 1.125 and 1, targets alike; Huber of them from V = 0
# is 0.625 and 0.5. Densities at theta = 0 over those at 0.5: 0.125 more for an action 0, 0.375 less for
# a 1, so e^0.25 and e^-0.25.
UP, DOWN = math.exp(0.25), math.exp(-0.25)


@pytest.mark.parametrize(
    ("correction", "loss", "kl", "clip_fraction"),
    [
        ("decoupled", -(1.125 * UP + 1.0 * DOWN) / 2, 0.0, 0.0),  # first ratio 1, weights e^±0.25
        ("none", -(1.125 * 1.2 + 1.0 * DOWN) / 2, 0.25, 1.0),  # ratios e^±0.25, both outside 0.8 to 1.2
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
    ("correction", "value_mean", "return_mean"),
    [
        ("decoupled", 0.0, (1.125 + 1.0) / 2),
        # V_old = 0.5: delta = 0.5 twice, A = 0.5 + 0.5 / 8 and 0.5, targets 1.0625 and 1.
        ("none", 0.5, (1.0625 + 1.0) / 2),
    ],
)
def test_decoupled_recomputes_old_values_and_none_keeps_them(
    correction: Any, value_mean: float, return_mean: float
) -> None:
    batch = dataclasses.replace(scalar_batch(), value=torch.full((1, 2), 0.5))
    config = PpoConfig(gamma=0.5, gae_lambda=0.5, correction=correction)
    metrics = Ppo(config, Scalar()).update(batch, learner_version=4, rng=rng())
    assert metrics["value_mean"] == value_mean
    assert metrics["return_mean"] == pytest.approx(return_mean)


def test_advantages_are_normalised_over_the_batch() -> None:
    """1.125 and 1 become 1 and -1."""
    config = PpoConfig(gamma=0.5, gae_lambda=0.5, epochs=1, critic_warmup_updates=0)
    metrics = Ppo(config, Scalar()).update(scalar_batch(), learner_version=4, rng=rng())
    assert metrics["policy_loss"] == pytest.approx(-(UP - DOWN) / 2, abs=1e-6)


@pytest.mark.parametrize("entropy_coef", [0.0, 0.1])
def test_only_an_entropy_bonus_moves_an_actor_without_advantages(entropy_coef: float) -> None:
    policy = small("mlp")
    with torch.no_grad():
        for p in policy.critic_parameters():
            p.zero_()
    batch = batch_of(policy)
    batch.reward.zero_()
    before = {name: x.clone() for name, x in policy.state_dict().items()}
    config = dataclasses.replace(QUICK, entropy_coef=entropy_coef, critic_warmup_updates=0)
    Ppo(config, policy).update(batch, learner_version=0, rng=rng())
    moved = {name for name, p in policy.named_parameters() if not torch.equal(p, before[name])}
    assert moved == ({"log_std"} if entropy_coef else set())
    if entropy_coef:
        assert (policy.state_dict()["log_std"] > before["log_std"]).all()


def test_gradients_are_clipped_to_the_configured_norm() -> None:
    parameter = nn.Parameter(torch.zeros(2))
    optimizer = NamedAdam({"x": parameter}, lr=0.1)
    (parameter * torch.tensor([3.0, 4.0])).sum().backward()  # type: ignore[no-untyped-call]
    assert optimizer.clip_gradients(1.0).item() == pytest.approx(5.0)
    assert parameter.grad is not None
    torch.testing.assert_close(parameter.grad, torch.tensor([0.6, 0.8]))
    ends = []
    for norm in (1e-4, 1e9):
        policy = small("mlp")
        algorithm = Ppo(dataclasses.replace(QUICK, max_grad_norm=norm), policy)
        algorithm.update(batch_of(policy), learner_version=0, rng=rng())
        ends.append(bits(policy, algorithm))
    assert ends[0] != ends[1]


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
    assert Ppo(QUICK, first).update(batch, learner_version=0, rng=rng()) == Ppo(QUICK, second).update(
        changed, learner_version=0, rng=rng()
    )
    assert first.theta.item() == second.theta.item()


# A whole update.


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("level", ["denoise", "chunk", "action", "token"])
def test_the_ratio_of_fresh_chunks_is_one(name: str, level: Any) -> None:
    policy = small(name)
    algorithm = Ppo(dataclasses.replace(QUICK, logprob_level=level, critic_warmup_updates=0), policy)
    fresh = algorithm.update(batch_of(policy), learner_version=0, rng=rng())
    assert fresh["ratio_checked_chunks"] == 20
    assert fresh["ratio_max_deviation_first"] < 1e-4
    assert fresh["ess"] == pytest.approx(1.0, abs=1e-4)
    stale = algorithm.update(batch_of(small(name)), learner_version=0, rng=rng())
    assert stale["ratio_max_deviation_first"] > 1e-2
    assert stale["ess"] < 0.99
    old = algorithm.update(batch_of(policy), learner_version=1, rng=rng())
    assert (old["ratio_max_deviation_first"], old["ratio_checked_chunks"]) == (0.0, 0.0)


@pytest.mark.parametrize("name", SMALL)
def test_same_inputs_same_bits(name: str) -> None:
    def run() -> tuple[dict[str, bytes], list[dict[str, float]]]:
        policy = small(name)
        algorithm = Ppo(QUICK, policy)
        generator = rng()
        metrics = [algorithm.update(batch_of(policy, seed=i), learner_version=0, rng=generator) for i in range(3)]
        return bits(policy, algorithm), metrics

    assert run() == run()


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("num_before", [0, 1, 3])
def test_saved_state_goes_on_to_the_same_weights(name: str, num_before: int) -> None:
    config = dataclasses.replace(QUICK, critic_warmup_updates=2)
    policy = small(name)
    algorithm = Ppo(config, policy)
    batches = [batch_of(policy, seed=i) for i in range(5)]
    for i in range(num_before):
        algorithm.update(batches[i], learner_version=0, rng=rng(i))
    saved = algorithm.state_dict()
    copy = {name: x.clone() for name, x in saved.items()}
    other = small(name)
    other.load_state_dict(policy.state_dict())
    resumed = Ppo(config, other)
    resumed.load_state_dict(saved)
    for i in range(num_before, 5):
        algorithm.update(batches[i], learner_version=0, rng=rng(i))
        resumed.update(batches[i], learner_version=0, rng=rng(i))
    assert bits(policy, algorithm) == bits(other, resumed)
    assert all(torch.equal(x, copy[name]) for name, x in saved.items()), "a saved state does not change"


def test_state_of_another_policy_is_refused() -> None:
    state = Ppo(QUICK, small("mlp")).state_dict()
    with pytest.raises(ValueError, match="does not fit the policy"):
        Ppo(QUICK, small("flow")).load_state_dict(state)
    state["actor/log_std/exp_avg"] = torch.zeros(7)
    with pytest.raises(ValueError, match=r"actor/log_std/exp_avg = \[7\]: want \[2\]"):
        Ppo(QUICK, small("mlp")).load_state_dict(state)


@pytest.mark.parametrize(
    ("field", "num_before"), [("reward", 0), ("obs", 0), ("reward", 2), ("obs", 2), ("log_prob", 2), ("path", 2)]
)
def test_a_batch_that_is_not_finite_changes_nothing(field: str, num_before: int) -> None:
    policy = small("flow")
    algorithm = Ppo(QUICK, policy)
    for i in range(num_before):
        algorithm.update(batch_of(policy, seed=i), learner_version=0, rng=rng(i))
    before, bad = bits(policy, algorithm), batch_of(policy)
    {"obs": bad.obs["state"], "path": bad.record["path"], "reward": bad.reward, "log_prob": bad.log_prob}[field][
        2, 1
    ] = math.nan
    metrics = algorithm.update(bad, learner_version=0, rng=rng())
    assert metrics["skipped"] == 1.0
    assert all(math.isfinite(x) for x in metrics.values())
    assert bits(policy, algorithm) == before


def test_a_gradient_that_overflows_late_takes_the_whole_update_back() -> None:
    policy = small("mlp")
    algorithm = Ppo(dataclasses.replace(QUICK, critic_warmup_updates=0), policy)
    algorithm.update(batch_of(policy), learner_version=0, rng=rng())
    before, calls = bits(policy, algorithm), 0

    def spoil(gradient: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        return gradient * math.nan if calls == 4 else gradient

    parameter = policy.actor_parameters()[0]
    hook = parameter.register_hook(spoil)  # type: ignore[no-untyped-call]
    metrics = algorithm.update(batch_of(policy), learner_version=0, rng=rng())
    hook.remove()
    assert (metrics["skipped"], calls) == (1.0, 4)
    assert bits(policy, algorithm) == before
    assert algorithm.update(batch_of(policy), learner_version=0, rng=rng())["skipped"] == 0.0
    assert bits(policy, algorithm) != before


def test_warm_up_trains_the_critic_alone() -> None:
    policy = small("flow")
    algorithm = Ppo(QUICK, policy)
    actor = [p.detach().clone() for p in policy.actor_parameters()]
    critic = [p.detach().clone() for p in policy.critic_parameters()]
    first = algorithm.update(batch_of(policy), learner_version=0, rng=rng())
    assert (first["actor_minibatches"], first["critic_minibatches"]) == (0.0, 6.0)
    assert all(map(torch.equal, actor, policy.actor_parameters()))
    assert not any(map(torch.equal, critic, policy.critic_parameters()))
    second = algorithm.update(batch_of(policy), learner_version=0, rng=rng())
    assert second["actor_minibatches"] == 6.0
    assert not all(map(torch.equal, actor, policy.actor_parameters()))


def test_the_actor_stops_at_the_kl_limit_and_the_critic_goes_on() -> None:
    free = dataclasses.replace(QUICK, epochs=4, critic_warmup_updates=0, kl_limit=1e9)
    policy = small("flow")
    unlimited = Ppo(free, policy).update(batch_of(policy), learner_version=0, rng=rng())
    assert (unlimited["actor_minibatches"], unlimited["critic_minibatches"]) == (12.0, 12.0)
    policy = small("flow")
    limited = Ppo(dataclasses.replace(free, kl_limit=1e-6), policy).update(
        batch_of(policy), learner_version=0, rng=rng()
    )
    # The first minibatch is at the anchor itself, where KL is 0; the second is beyond.
    assert (limited["actor_minibatches"], limited["critic_minibatches"]) == (1.0, 12.0)
    assert limited["kl"] > 1e-6


def test_minibatches_that_do_not_divide_the_batch_use_every_chunk() -> None:
    algorithm = Ppo(QUICK, Scalar())
    seen = torch.cat(list(algorithm._minibatches(20, rng(), torch.device("cpu"))))
    assert sorted(seen.tolist()) == sorted([*range(20)] * 2)
    assert seen[:20].tolist() != seen[20:].tolist()


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"gamma": 1.5}, r"gamma = 1.5: want 0 to 1"),
        ({"clip_low": 1.0}, r"clip_low = 1.0: want more than 0 and less than 1"),
        ({"kl_limit": 0}, r"kl_limit = 0.0: want more than 0"),
        ({"dual_clip": 0.5}, r"dual_clip = 0.5: want more than 1"),
        ({"value_clip": 0.0}, r"value_clip = 0.0: want more than 0"),
        ({"epochs": 0}, r"epochs = 0: want 1 or more"),
        ({"correction": "tis"}, r"want one of 'none', 'decoupled'"),
    ],
)
def test_a_wrong_config_names_its_field(section: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        registry.make_config(Ppo, section, "algorithm")
    assert registry.make_config(Ppo, {}, "algorithm") == PpoConfig()


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
        )
        metrics = algorithm.update(batch, learner_version=update, rng=generator)
        assert metrics["ratio_max_deviation_first"] < 1e-4
    assert np.mean(rewards[-5:]) > 0.4 * np.mean(rewards[:5]), rewards
