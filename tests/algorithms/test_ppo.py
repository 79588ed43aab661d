"""Updates of small policies: exact ratios, determinism, saved state, failures, limits."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from subjects import SMALL, batch_of, bits, counting, rng, small
from torch import Tensor, nn

from ebrl import registry
from ebrl.algorithms.optimizers import NamedAdam
from ebrl.algorithms.ppo import Ppo, PpoConfig
from ebrl.errors import ConfigError

torch.set_num_threads(1)

QUICK = PpoConfig(epochs=2, minibatch_chunks=8, actor_lr=1e-2, critic_warmup_updates=1)


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


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("level", ["denoise", "chunk", "action", "token"])
def test_the_ratio_of_fresh_chunks_is_one(name: str, level: Any) -> None:
    policy = small(name)
    algorithm = Ppo(dataclasses.replace(QUICK, logprob_level=level, critic_warmup_updates=0), policy)
    fresh = algorithm.update(batch_of(policy), learner_version=0, rng=rng())
    assert fresh["ratio_checked_chunks"] == 20
    assert fresh["ratio_max_deviation_first"] < 1e-4
    assert fresh["ess"] == pytest.approx(1.0, abs=1e-4)
    assert fresh["behavior_kl"] == pytest.approx(0.0, abs=1e-6)
    stale = algorithm.update(batch_of(small(name)), learner_version=0, rng=rng())
    assert stale["ratio_max_deviation_first"] > 1e-2
    assert stale["ess"] < 0.99
    assert stale["behavior_kl"] > 1e-3
    old = algorithm.update(batch_of(policy), learner_version=1, rng=rng())
    assert (old["ratio_max_deviation_first"], old["ratio_checked_chunks"]) == (0.0, 0.0)


@pytest.mark.parametrize("name", SMALL)
def test_the_anchor_is_the_same_whatever_the_size_of_minibatches(name: str) -> None:
    """A deviation for each row, of a minibatch of one row, looks like one deviation for all."""
    policy = small(name)
    for p in policy.actor_parameters():
        if p.dim() == 2:
            nn.init.normal_(p, std=0.3, generator=rng())
    batch = batch_of(policy)
    wanted = policy.evaluate(*({k: x.flatten(0, 1) for k, x in part.items()} for part in (batch.obs, batch.record)))
    for size in (1, 3, 19, 64):
        chunks, *_ = Ppo(dataclasses.replace(QUICK, minibatch_chunks=size), policy)._prepare(batch, 0)
        torch.testing.assert_close(chunks.anchor_mean, wanted.mean)
        std = wanted.std.expand_as(wanted.mean)
        torch.testing.assert_close(chunks.anchor_std.expand_as(wanted.mean), std)
        assert (std.std(dim=0).max() > 1e-4) == (name in ("mixed", "learned"))
        picked = chunks.select(torch.tensor([7]))
        torch.testing.assert_close(picked.anchor_std.expand_as(picked.anchor_mean), std[7:8])


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


def test_beyond_the_kl_limit_the_actor_is_not_evaluated_again() -> None:
    """Of 20 chunks in minibatches of 6, 7 and 7: the anchor, the first minibatch, and the one that is beyond."""
    policy = counting()
    config = dataclasses.replace(QUICK, critic_warmup_updates=0, kl_limit=1e-6)
    Ppo(config, policy).update(batch_of(policy), learner_version=0, rng=rng())
    # Values: after the six chunks that no other follows, then of all minibatches of two epochs but the first.
    assert policy.rows == {"evaluate": 20 + 6 + 7, "value": 6 + 2 * 20 - 6, "observe": 20}


def test_minibatches_that_do_not_divide_the_batch_use_every_chunk() -> None:
    algorithm = Ppo(QUICK, small("mlp"))
    seen = torch.cat(list(algorithm._minibatches(20, rng(), torch.device("cpu"))))
    assert sorted(seen.tolist()) == sorted([*range(20)] * 2)
    assert seen[:20].tolist() != seen[20:].tolist()


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"gamma": 1.5}, r"algorithm.gamma: = 1.5: want 0 to 1"),
        ({"clip_low": 1.0}, r"algorithm.clip_low: = 1.0: want more than 0 and less than 1"),
        ({"kl_limit": 0}, r"algorithm.kl_limit: = 0.0: want more than 0"),
        ({"dual_clip": 0.5}, r"algorithm.dual_clip: = 0.5: want more than 1"),
        ({"value_clip": 0.0}, r"algorithm.value_clip: = 0.0: want more than 0"),
        ({"epochs": 0}, r"algorithm.epochs: = 0: want 1 or more"),
        ({"entropy_coef": math.inf}, r"algorithm.entropy_coef: = inf: want a finite number"),
        ({"entropy_coef": math.nan}, r"algorithm.entropy_coef: = nan: want a number"),
        ({"actor_lr": math.inf}, r"algorithm.actor_lr: = inf: want a finite number"),
        ({"critic_lr": math.inf}, r"algorithm.critic_lr: = inf: want a finite number"),
        ({"correction": "tis"}, r"want one of 'none', 'decoupled'"),
    ],
)
def test_a_wrong_config_names_its_field(section: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        registry.make_config(Ppo, section, "algorithm")
    assert registry.make_config(Ppo, {}, "algorithm") == PpoConfig()


@given(seed=st.integers(0, 1000), num_chunks=st.integers(1, 6), limit=st.sampled_from([0, 3]))
@settings(max_examples=30, deadline=None)
def test_what_followed_a_chunk_is_valued_as_if_each_were_evaluated(seed: int, num_chunks: int, limit: int) -> None:
    policy = counting()
    batch = batch_of(policy, num_chunks=num_chunks, seed=seed)
    behind = torch.rand(4, num_chunks, generator=torch.Generator().manual_seed(seed)).argsort(dim=1) < seed % 3
    batch = dataclasses.replace(batch, num_executed=batch.num_executed.where(~behind, 0))
    wanted = (batch.num_executed > 0) & ~batch.terminated
    goes_on = wanted & ~batch.truncated
    goes_on[:, -1] = False
    goes_on[:, :-1] &= batch.num_executed[:, 1:] > 0
    obs, final_obs = batch.obs["state"], batch.final_obs["state"]
    final_obs[:, :-1] = final_obs[:, :-1].where(~goes_on[:, :-1, None], obs[:, 1:])
    with torch.no_grad():
        value, expected = policy.value({"state": obs}), policy.value({"state": final_obs}).where(wanted, 0.0)
        policy.rows["value"] = 0
        found = Ppo(dataclasses.replace(QUICK, micro_batch_chunks=limit), policy)._next_values(batch, value)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)
    assert policy.rows["value"] == int((wanted & ~goes_on).sum())
