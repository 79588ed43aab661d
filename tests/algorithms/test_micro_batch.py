"""A minibatch in pieces teaches what it teaches as a whole: gradients, metrics and the KL limit, but for rounding."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from subjects import SMALL, SPEC, H, bits, filled_up, rng, small, whole_episodes
from torch import Tensor

from ebrl import registry
from ebrl.algorithms.base import TrainingBatch
from ebrl.algorithms.corrections import LogprobLevel
from ebrl.algorithms.grpo import Grpo, GrpoConfig
from ebrl.algorithms.ppo import Ppo, PpoConfig
from ebrl.algorithms.surrogate import Tally
from ebrl.errors import ConfigError
from ebrl.policies.base import Evaluation, Policy, make_policy
from ebrl.policies.mlp import MlpPolicy

torch.set_num_threads(1)

LENGTHS = [3, 1, 5, 2, 4, 4]
LEVELS: tuple[LogprobLevel, ...] = ("denoise", "chunk", "action", "token")
WHOLE: dict[str, Any] = {"epochs": 1, "minibatch_chunks": 1000, "max_grad_norm": 1e9, "kl_limit": 1e9}
"""One minibatch of everything, whose gradients are left as they are."""
KINDS: dict[str, Any] = {
    "ppo": PpoConfig(**WHOLE, critic_warmup_updates=0),
    "ppo, everything on": PpoConfig(
        **WHOLE, critic_warmup_updates=0, value_clip=0.05, dual_clip=1.5, entropy_coef=0.1, behavior_cap_mode="clamp"
    ),
    "ppo, critic alone": PpoConfig(**WHOLE, critic_warmup_updates=1, value_loss="squared"),
    "plain ppo": PpoConfig(**WHOLE, critic_warmup_updates=0, correction="none"),
    "grpo": GrpoConfig(**WHOLE),
    "old grpo": GrpoConfig(**WHOLE, aggregation="trajectory_mean", advantage="standardised", entropy_coef=0.1),
}


def learned(config: Any, policy: Policy, batch: TrainingBatch) -> tuple[dict[str, Tensor], dict[str, float]]:
    """Gradients of the last minibatch and means of what was tallied, with weights a little away from the anchor."""
    tally = Tally(Ppo.TALLIED)
    algorithm = Ppo(config, policy) if isinstance(config, PpoConfig) else Grpo(config, policy)
    if isinstance(algorithm, Ppo):
        chunks, targets, _ = algorithm._prepare(batch, 0)
        move(policy)
        algorithm._train(chunks, targets, tally, rng())
    else:
        advantage_B, teaches_B, _ = algorithm._compare(batch)
        chunks, _ = algorithm._prepare(batch, advantage_B, teaches_B, 0)
        move(policy)
        algorithm._train(chunks, tally, rng())
    gradients = {name: p.grad.clone() for name, p in policy.named_parameters() if p.grad is not None}
    return gradients, tally.means()


@torch.no_grad()
def move(policy: Policy) -> None:
    noise = rng(7)
    for p in policy.parameters():
        p.add_(0.05 * torch.randn(p.shape, generator=noise))


def assert_same(
    found: tuple[dict[str, Tensor], dict[str, float]], wanted: tuple[dict[str, Tensor], dict[str, float]]
) -> None:
    assert found[0].keys() == wanted[0].keys()
    for name, gradient in wanted[0].items():
        scale = gradient.abs().max().item()
        torch.testing.assert_close(found[0][name], gradient, rtol=1e-4, atol=1e-5 * scale + 1e-8)
    assert found[1] == pytest.approx(wanted[1], rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", ["mlp", "flow", "mixed", "learned"])
def test_gradients_and_metrics_are_those_of_the_whole_minibatch(name: str, level: LogprobLevel, kind: str) -> None:
    config = dataclasses.replace(KINDS[kind], logprob_level=level)
    batch = filled_up(whole_episodes(small(name), LENGTHS, siblings=2), 7)
    wanted = learned(config, small(name), batch)
    assert any(gradient.abs().max() > 0 for gradient in wanted[0].values())
    for size in (1, 3, 19):
        assert_same(learned(dataclasses.replace(config, micro_batch_chunks=size), small(name), batch), wanted)


@settings(max_examples=40, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 5), min_size=2, max_size=4),
    spare=st.integers(0, 3),
    size=st.integers(1, 9),
    level=st.sampled_from(LEVELS),
    kind=st.sampled_from(sorted(KINDS)),
    seed=st.integers(0, 9),
)
def test_whatever_the_lengths_and_sizes(
    lengths: list[int], spare: int, size: int, level: LogprobLevel, kind: str, seed: int
) -> None:
    lengths = [length for length in lengths for _ in range(2)]
    config = dataclasses.replace(KINDS[kind], logprob_level=level)
    batch = filled_up(whole_episodes(small("mlp"), lengths, siblings=2, seed=seed), max(lengths) + spare)
    wanted = learned(config, small("mlp"), batch)
    assert_same(learned(dataclasses.replace(config, micro_batch_chunks=size), small("mlp"), batch), wanted)


@pytest.mark.parametrize("kind", ["ppo", "grpo"])
def test_the_kl_limit_is_that_of_the_whole_minibatch(kind: str) -> None:
    """Just within the mean KL of all chunks the actor trains, just beyond it does not; the critic does in both."""
    batch = whole_episodes(small("flow"), LENGTHS, siblings=2)
    _, free = learned(KINDS[kind], small("flow"), batch)
    for factor, trains in ((1.001, True), (0.999, False)):
        config = dataclasses.replace(KINDS[kind], kl_limit=free["kl"] * factor)
        wanted = learned(config, small("flow"), batch)
        for size in (1, 3, 19):
            found = learned(dataclasses.replace(config, micro_batch_chunks=size), small("flow"), batch)
            assert found[1] == pytest.approx(wanted[1], rel=1e-4, abs=1e-6)
            assert (found[1]["grad_norm"] > 0) == trains
            assert found[1]["critic_grad_norm"] == pytest.approx(wanted[1]["critic_grad_norm"], rel=1e-4)


def test_a_limit_that_the_first_micro_batch_breaks_leaves_the_critic_all_of_its_gradient() -> None:
    batch = whole_episodes(small("flow"), LENGTHS, siblings=2)
    config = dataclasses.replace(KINDS["ppo"], kl_limit=1e-9)
    whole, pieces = small("flow"), small("flow")
    wanted = learned(config, whole, batch)
    found = learned(dataclasses.replace(config, micro_batch_chunks=4), pieces, batch)
    critic = {id(p): name for name, p in whole.named_parameters()}
    names = [critic[id(p)] for p in whole.critic_parameters()]
    assert_same(({n: found[0][n] for n in names}, found[1]), ({n: wanted[0][n] for n in names}, wanted[1]))
    for p, q in zip(whole.actor_parameters(), pieces.actor_parameters(), strict=True):
        assert torch.equal(p, q)


@pytest.mark.parametrize("kind", ["ppo", "grpo"])
@pytest.mark.parametrize("name", SMALL)
def test_micro_batches_as_large_as_the_minibatch_change_no_bit(name: str, kind: str) -> None:
    def state(size: int) -> tuple[dict[str, bytes], dict[str, float]]:
        policy = small(name)
        config = dataclasses.replace(
            KINDS[kind], epochs=2, minibatch_chunks=8, max_grad_norm=1.0, micro_batch_chunks=size
        )
        algorithm: Any = (Ppo if kind == "ppo" else Grpo)(config, policy)
        batch = whole_episodes(policy, LENGTHS, siblings=2)
        metrics = algorithm.update(batch, learner_version=0, rng=rng())
        return bits(policy, algorithm), metrics

    assert state(0) == state(8) == state(99)


class Widest(MlpPolicy):
    """Remembers the most rows that it was given at once."""

    def __init__(self, config: Any, env_spec: Any, chunk_len: int) -> None:
        super().__init__(config, env_spec, chunk_len)
        self.widest = 0

    def evaluate(self, obs: Mapping[str, Tensor], record: Mapping[str, Tensor]) -> Evaluation:
        self.widest = max(self.widest, len(obs["state"]))
        return super().evaluate(obs, record)

    def value(self, obs: Mapping[str, Tensor]) -> Tensor:
        self.widest = max(self.widest, len(obs["state"]))
        return super().value(obs)


@pytest.mark.parametrize("kind", ["ppo", "ppo, critic alone", "grpo"])
def test_no_more_chunks_than_that_are_evaluated_at_once(kind: str) -> None:
    policy = make_policy(Widest, MlpPolicy.Config(hidden=(8,), critic_hidden=(8,)), SPEC, H, seed=0)
    assert isinstance(policy, Widest)
    config = dataclasses.replace(KINDS[kind], micro_batch_chunks=3)
    algorithm: Any = (Grpo if kind == "grpo" else Ppo)(config, policy)
    batch = whole_episodes(policy, LENGTHS, siblings=2)
    policy.widest = 0
    algorithm.update(batch, learner_version=0, rng=rng())
    assert policy.widest == 3


@pytest.mark.parametrize("kind", ["ppo", "grpo"])
def test_a_micro_batch_that_is_not_finite_takes_the_whole_update_back(kind: str) -> None:
    policy = small("flow")
    config = dataclasses.replace(KINDS[kind], micro_batch_chunks=2)
    algorithm: Any = (Ppo if kind == "ppo" else Grpo)(config, policy)
    batch = whole_episodes(policy, LENGTHS, siblings=2)
    before = bits(policy, algorithm)
    batch.record["path"][2, 1] = torch.nan
    assert algorithm.update(batch, learner_version=0, rng=rng())["skipped"] == 1.0
    assert bits(policy, algorithm) == before


def test_a_size_below_0_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"algorithm.micro_batch_chunks: = -1: want 0 or more"):
        registry.make_config(Ppo, {"micro_batch_chunks": -1}, "algorithm")


@given(st.integers(0, 700), st.integers(1, 200))
def test_minibatches_are_few_and_alike(num_chunks: int, size: int) -> None:
    """Each is a whole step of the optimizer, so a rest of one chunk would weigh as much as all others together."""
    algorithm = Ppo(dataclasses.replace(KINDS["ppo"], minibatch_chunks=size, epochs=1), small("mlp"))
    found = list(algorithm._minibatches(num_chunks, rng(), torch.device("cpu")))
    assert sorted(torch.cat(found).tolist() if found else []) == list(range(num_chunks))
    assert len(found) == -(-num_chunks // size)
    sizes = {len(one) for one in found}
    assert not sizes or max(sizes) - min(sizes) <= 1
