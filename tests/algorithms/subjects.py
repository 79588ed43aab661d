"""Small policies, batches that they made, and batches of whole episodes."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ebrl.algorithms.base import TrainingBatch
from ebrl.algorithms.ppo import PpoConfig
from ebrl.algorithms.surrogate import SurrogateAlgorithm
from ebrl.data.spec import ArraySpec, EnvSpec
from ebrl.policies.base import Evaluation, Policy, RowStreams, make_policy
from ebrl.policies.denoising import normal_entropy, normal_log_prob
from ebrl.policies.flow import FlowPolicy
from ebrl.policies.mlp import MlpPolicy

S, H, A = 4, 3, 2
SPEC = EnvSpec({"state": ArraySpec((S,), "float32")}, (-1.0,) * A, (1.0,) * A, 50)
SMALL: dict[str, tuple[Any, dict[str, Any]]] = {
    "mlp": (MlpPolicy, {"hidden": (16,), "critic_hidden": (16,)}),
    "flow": (FlowPolicy, {"hidden": (16,), "critic_hidden": (16,)}),
    "mixed": (FlowPolicy, {"hidden": (16,), "critic_hidden": (16,), "sampler": "mixed"}),
    "learned": (FlowPolicy, {"hidden": (16,), "critic_hidden": (16,), "learn_std": True}),
}


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
        episode=torch.zeros(shape, dtype=torch.int64),
    )


def rng(seed: int = 1) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def bits(policy: Policy, algorithm: SurrogateAlgorithm) -> dict[str, bytes]:
    state = policy.state_dict() | algorithm.state_dict()
    return {name: x.numpy().tobytes() for name, x in state.items()}


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


class Counting(MlpPolicy):
    """Counts the rows that each of its methods is given."""

    def __init__(self, config: Any, env_spec: Any, chunk_len: int) -> None:
        super().__init__(config, env_spec, chunk_len)
        self.rows = {"evaluate": 0, "value": 0, "observe": 0}

    def evaluate(self, obs: Mapping[str, Tensor], record: Mapping[str, Tensor]) -> Evaluation:
        self.rows["evaluate"] += len(obs["state"])
        return super().evaluate(obs, record)

    def value(self, obs: Mapping[str, Tensor]) -> Tensor:
        self.rows["value"] += len(obs["state"])
        return super().value(obs)

    def observe(self, obs: Mapping[str, Tensor]) -> None:
        self.rows["observe"] += len(obs["state"])
        super().observe(obs)


def counting() -> Counting:
    policy: Policy = make_policy(Counting, MlpPolicy.Config(hidden=(16,), critic_hidden=(16,)), SPEC, H, seed=0)
    assert isinstance(policy, Counting)
    return policy


def each(batch: TrainingBatch, change: Callable[[str, Tensor], Tensor]) -> TrainingBatch:
    """The batch with ``change(field name, array)`` for every array."""
    values: dict[str, Any] = {}
    for field in dataclasses.fields(batch):
        value = getattr(batch, field.name)
        if isinstance(value, dict):
            values[field.name] = {name: change(field.name, x) for name, x in value.items()}
        else:
            values[field.name] = change(field.name, value)
    return TrainingBatch(**values)


def whole_episodes(policy: Policy, lengths: Sequence[int], *, siblings: int = 1, seed: int = 0) -> TrainingBatch:
    """Episodes of so many chunks; neighbours are siblings. Behind the shorter ones lie leftovers of other chunks."""
    batch = batch_of(policy, num_trajectories=len(lengths), num_chunks=max(lengths), seed=seed)
    place_BK = torch.arange(max(lengths)) - torch.tensor(lengths)[:, None]
    last_BK, behind_BK = place_BK == -1, place_BK >= 0
    executed = batch.num_executed.where(last_BK, H).where(~behind_BK, 0)
    by_rule = batch.terminated | (torch.arange(len(lengths))[:, None] % 2 == 0)
    return dataclasses.replace(
        batch,
        num_executed=executed,
        reward=batch.reward * ((torch.arange(H) < executed[..., None]) | behind_BK[..., None]),
        terminated=(last_BK & by_rule) | behind_BK,
        truncated=last_BK & ~by_rule,
        episode=(torch.arange(len(lengths)) // siblings)[:, None].expand(last_BK.shape).clone(),
    )


def filled_up(batch: TrainingBatch, num_chunks: int) -> TrainingBatch:
    """The same episodes in rows of ``num_chunks``, with the worst that can lie behind their ends."""
    executed_BK = batch.num_executed > 0
    rows = executed_BK.nonzero(as_tuple=True)

    def change(name: str, x: Tensor) -> Tensor:
        junk = 0 if name == "num_executed" else math.nan if x.is_floating_point() else 1
        out = torch.full((len(x), num_chunks, *x.shape[2:]), junk, dtype=x.dtype)
        out[rows] = x[rows]
        return out

    return each(batch, change)


def in_one_row(batch: TrainingBatch) -> TrainingBatch:
    """The same episodes one after the other, as one segment without anything between them."""
    executed_BK = batch.num_executed > 0
    return each(batch, lambda _, x: x[executed_BK][None])


def trajectories(batch: TrainingBatch, index: Sequence[int]) -> TrainingBatch:
    """Some trajectories of the batch, in this order."""
    return each(batch, lambda _, x: x[torch.tensor(index)])
