"""A small flow-matching policy in the shape of a vision-language-action model.

An encoder reads the observation, an action expert turns noise into a chunk in K denoising
transitions, and a critic of its own estimates the value. The expert's first layer is applied to
observation, chunk and time apart, so the observation's part is computed once for all transitions.

Axes: E rows of a batch, K denoising transitions, D transitions with a density (K, or 1 for
``mixed``), H chunk horizon, A action size, C = H * A.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor, nn

from ebrl.data.spec import ArraySpec, EnvSpec
from ebrl.policies.base import Evaluation, RowStreams, Sample
from ebrl.policies.denoising import (
    NUM_TIME_FEATURES,
    Schedule,
    noise_schedule,
    normal_entropy,
    normal_log_prob,
    sde_schedule,
    time_features,
)
from ebrl.policies.encoders import EncodedPolicy, Normalize, check_positive, check_sizes


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FlowConfig:
    """Sampler and sizes of a ``FlowPolicy``; standard deviations are in normalised action units."""

    sampler: Literal["flow_noise", "flow_sde", "mixed"] = "flow_noise"
    """``flow_noise``: Euler transitions, each with added noise. ``flow_sde``: every transition of the
    stochastic equation. ``mixed``: one random transition of it, the others noiseless."""

    num_denoise_steps: int = 4
    """K."""

    noise_std: float = 0.2
    """Noise of each transition of ``flow_noise``."""

    learn_std: bool = False
    """Let a head choose the noise of ``flow_noise`` between ``std_low`` and ``std_high``."""

    std_low: float = 0.08
    std_high: float = 0.24
    a: float = 0.5
    """Noise level of the stochastic equation."""

    hidden: tuple[int, ...] = (256, 256, 256)
    """Hidden layers (SiLU) of the action expert."""

    critic_hidden: tuple[int, ...] = (256, 256)
    normalize: Normalize = "running"

    def __post_init__(self) -> None:
        check_sizes("hidden", self.hidden)
        check_sizes("critic_hidden", self.critic_hidden)
        for field in ("num_denoise_steps", "noise_std", "std_low", "a"):
            check_positive(field, getattr(self, field))
        if not self.std_low < self.std_high < math.inf:
            raise ValueError(f"std_high = {self.std_high!r}: want more than std_low ({self.std_low!r})")
        if self.learn_std and self.sampler != "flow_noise":
            raise ValueError(f"learn_std = True: want sampler = 'flow_noise', not {self.sampler!r}")


def make_schedule(config: FlowConfig) -> Schedule:
    """Transitions of the configured sampler; of ``mixed``, those that are noisy."""
    if config.sampler == "flow_noise":
        return noise_schedule(config.num_denoise_steps, config.noise_std)
    return sde_schedule(config.num_denoise_steps, config.a)


class ActionExpert(nn.Module):
    """Velocity of a noisy chunk, given observation features and flow time."""

    def __init__(self, num_features: int, chunk_size: int, hidden: tuple[int, ...], *, learn_std: bool) -> None:
        super().__init__()
        self.from_obs = nn.Linear(num_features, hidden[0])
        self.from_chunk = nn.Linear(chunk_size, hidden[0], bias=False)
        self.from_time = nn.Linear(NUM_TIME_FEATURES, hidden[0], bias=False)
        bound = 1.0 / math.sqrt(num_features + chunk_size + NUM_TIME_FEATURES)
        for layer in (self.from_obs, self.from_chunk, self.from_time):
            nn.init.uniform_(layer.weight, -bound, bound)
        nn.init.uniform_(self.from_obs.bias, -bound, bound)
        self.body = nn.Sequential(nn.SiLU())
        for n_in, n_out in pairwise(hidden):
            self.body.extend([nn.Linear(n_in, n_out), nn.SiLU()])
        self.velocity = nn.Linear(hidden[-1], chunk_size)
        self.spread = nn.Linear(hidden[-1], chunk_size) if learn_std else None

    def forward(self, obs_part: Tensor, chunk: Tensor, time_part: Tensor) -> tuple[Tensor, Tensor | None]:
        """Velocity ``[..., C]`` and, if learned, the raw spread ``[..., C]``.

        ``obs_part`` and ``time_part`` are outputs of ``from_obs`` and ``from_time``; all broadcast.
        """
        hidden = self.body(self.from_chunk(chunk) + (obs_part + time_part))
        return self.velocity(hidden), None if self.spread is None else self.spread(hidden)


class FlowPolicy(EncodedPolicy):
    """Flow matching with exact path densities: what samples a chunk is what trains on it."""

    Config = FlowConfig
    independent_actions = False

    time_KF: Tensor
    gains: Tensor
    """``[3, K]``: path gain, velocity gain and standard deviation of each transition."""

    def __init__(self, config: FlowConfig, env_spec: EnvSpec, chunk_len: int) -> None:
        super().__init__(env_spec, chunk_len, critic_hidden=config.critic_hidden, normalize=config.normalize)
        self.config = config
        chunk_size = chunk_len * env_spec.action_dim
        self.expert = ActionExpert(self.encoder.size, chunk_size, config.hidden, learn_std=config.learn_std)
        self.schedule = make_schedule(config)
        self.register_buffer("time_KF", time_features(torch.tensor(self.schedule.time)), persistent=False)
        gains = torch.tensor([self.schedule.path_gain, self.schedule.velocity_gain, self.schedule.std])
        self.register_buffer("gains", gains, persistent=False)

    def num_transitions(self) -> int:
        """K, or 1 where a single transition carries the noise."""
        return 1 if self.config.sampler == "mixed" else self.config.num_denoise_steps

    def record_spec(self) -> dict[str, ArraySpec]:
        """The whole path from noise to chunk in normalised units, and which transition was noisy."""
        spec = {"path": ArraySpec((self.config.num_denoise_steps + 1, *self.chunk_shape), "float32")}
        if self.config.sampler == "mixed":
            spec["denoise_index"] = ArraySpec((), "int64")
        return spec

    def _chunks(self, x: Tensor) -> Tensor:
        """``[..., C]`` as ``[..., H, A]``."""
        return x.reshape(*x.shape[:-1], *self.chunk_shape)

    def _std(self, raw: Tensor) -> Tensor:
        low, high = math.log(self.config.std_low), math.log(self.config.std_high)
        return (low + 0.5 * (raw.tanh() + 1.0) * (high - low)).exp()

    @torch.no_grad()
    def sample(self, obs: Mapping[str, Tensor], rng: RowStreams) -> Sample:
        """Denoise one chunk for each row."""
        vectors = self.normalizer(obs)
        if self.config.sampler == "mixed":
            record, mean, std = self._denoise_mixed(self.encoder(vectors, obs), rng)
        else:
            record, mean, std = self._denoise(self.encoder(vectors, obs), rng)
        path = record["path"]
        _, after = self._ends(record)
        return Sample(
            actions=self.to_env_units(path[:, -1]),
            record=record,
            log_prob=normal_log_prob(after, mean, std),
            mean=mean,
            value=self.critic(vectors, obs),
        )

    def _denoise(self, features: Tensor, rng: RowStreams) -> tuple[dict[str, Tensor], Tensor, Tensor]:
        """Record, means and standard deviations of chunks in which every transition is noisy."""
        num_steps = self.config.num_denoise_steps
        noise = rng.normal(num_steps + 1, *self.chunk_shape).to(features).flatten(2)
        obs_part, time_part_K = self.expert.from_obs(features), self.expert.from_time(self.time_KF)
        plan = self.schedule
        x = noise[:, 0]
        path, means, stds = [x], [], []
        for k in range(num_steps):
            velocity, raw = self.expert(obs_part, x, time_part_K[k])
            mean = torch.add(x * plan.path_gain[k], velocity, alpha=plan.velocity_gain[k])
            std = self._std(raw) if raw is not None else None
            x = torch.add(mean, noise[:, k + 1], alpha=plan.std[k]) if std is None else mean + std * noise[:, k + 1]
            path.append(x)
            means.append(mean)
            if std is not None:
                stds.append(std)
        table = self.gains[2][:, None, None]
        all_std = self._chunks(torch.stack(stds, dim=1)) if stds else table
        record = {"path": self._chunks(torch.stack(path, dim=1))}
        return record, self._chunks(torch.stack(means, dim=1)), all_std

    def _denoise_mixed(self, features: Tensor, rng: RowStreams) -> tuple[dict[str, Tensor], Tensor, Tensor]:
        """The same where one transition per row is noisy and the others follow the plain flow."""
        num_steps = self.config.num_denoise_steps
        index_E = rng.integers(num_steps).to(features.device)
        noise = rng.normal(2, *self.chunk_shape).to(features).flatten(2)
        obs_part, time_part_K = self.expert.from_obs(features), self.expert.from_time(self.time_KF)
        plan = self.schedule
        x = noise[:, 0]
        noisy_mean = torch.zeros_like(x)
        path = [x]
        for k in range(num_steps):
            velocity, _ = self.expert(obs_part, x, time_part_K[k])
            mean = torch.add(x * plan.path_gain[k], velocity, alpha=plan.velocity_gain[k])
            here_E1 = (index_E == k)[:, None]
            noisy_mean = torch.where(here_E1, mean, noisy_mean)
            x = torch.where(here_E1, mean + plan.std[k] * noise[:, 1], x - velocity / num_steps)
            path.append(x)
        record = {"path": self._chunks(torch.stack(path, dim=1)), "denoise_index": index_E}
        return record, self._chunks(noisy_mean)[:, None], self.gains[2][index_E, None, None, None]

    def _ends(self, record: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Chunk before and after each transition that has a density, ``[E, D, H, A]``."""
        path = record["path"]
        if self.config.sampler != "mixed":
            return path[:, :-1], path[:, 1:]
        rows, index_E = torch.arange(len(path), device=path.device), record["denoise_index"]
        return path[rows, index_E][:, None], path[rows, index_E + 1][:, None]

    def evaluate(self, obs: Mapping[str, Tensor], record: Mapping[str, Tensor]) -> Evaluation:
        """Path densities of recorded chunks under today's weights, all transitions in one pass."""
        vectors = self.normalizer(obs)
        before, after = self._ends(record)
        time_part, gains = self.expert.from_time(self.time_KF), self.gains
        if self.config.sampler == "mixed":
            index_E = record["denoise_index"]
            time_part, gains = time_part[index_E, None], gains[:, index_E, None]
        obs_part = self.expert.from_obs(self.encoder(vectors, obs))[:, None]
        velocity, raw = self.expert(obs_part, before.flatten(2), time_part)
        path_gain, velocity_gain, std = gains[..., None, None]
        mean = path_gain * before + velocity_gain * self._chunks(velocity)
        if raw is not None:
            std = self._chunks(self._std(raw))
            entropy_E = normal_entropy(std).sum(dim=(1, 2, 3))
        else:
            size = self.chunk_shape[0] * self.chunk_shape[1]
            entropy_E = (normal_entropy(std).sum(dim=(-3, -2, -1)) * size).expand(len(mean))
        return Evaluation(
            log_prob=normal_log_prob(after, mean, std),
            mean=mean,
            std=std,
            entropy=entropy_E,
            value=self.critic(vectors, obs),
        )

    def clone_loss(self, obs: Mapping[str, Tensor], actions: Tensor, rng: torch.Generator) -> Tensor:
        """Conditional flow matching: squared error of the velocity at a uniform random time."""
        target = self.from_env_units(actions).flatten(1)
        t = torch.rand(len(target), 1, generator=rng, device=rng.device).to(target)
        noise = torch.randn(target.shape, generator=rng, device=rng.device).to(target)
        time_part = self.expert.from_time(time_features(t[:, 0]))
        obs_part = self.expert.from_obs(self.encoder(self.normalizer(obs), obs))
        velocity, _ = self.expert(obs_part, t * noise + (1.0 - t) * target, time_part)
        return nn.functional.mse_loss(velocity, noise - target)
