"""A Gaussian policy: one network gives the mean of a whole action chunk.

Axes: E rows of a batch, H chunk horizon, A action size; one transition (D = 1).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ebrl.data.spec import ArraySpec, EnvSpec
from ebrl.policies.base import Evaluation, RowStreams, Sample
from ebrl.policies.denoising import normal_entropy, normal_log_prob
from ebrl.policies.encoders import EncodedPolicy, Normalize, Tanh, check_positive, check_sizes, make_mlp


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class MlpConfig:
    """Sizes and noise of an ``MlpPolicy``; standard deviations are in normalised action units."""

    hidden: tuple[int, ...] = (128, 128)
    """Hidden layers (tanh) of the network that gives the mean."""

    critic_hidden: tuple[int, ...] = (128, 128)
    initial_std: float = 0.6
    min_std: float = 0.05
    max_std: float = 2.0
    normalize: Normalize = "running"

    def __post_init__(self) -> None:
        check_sizes("hidden", self.hidden)
        check_sizes("critic_hidden", self.critic_hidden)
        check_positive("min_std", self.min_std)
        if not self.min_std <= self.max_std:
            raise ValueError(f"max_std = {self.max_std!r}: want at least min_std ({self.min_std!r})")
        if not self.min_std <= self.initial_std <= self.max_std:
            raise ValueError(f"initial_std = {self.initial_std!r}: want min_std to max_std")


class _InwardClamp(torch.autograd.Function):
    """A clamp with a way back: outside its range only a gradient that leads out of it is stopped.

    With the gradient of an ordinary clamp, which is zero there, whatever once passes a limit stays beyond it.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, low: float, high: float) -> Tensor:
        ctx.save_for_backward(x)
        ctx.range = low, high
        return x.clamp(low, high)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (x,) = ctx.saved_tensors
        low, high = ctx.range
        outward = ((x < low) & (grad > 0)) | ((x > high) & (grad < 0))  # for steps against the gradient
        return grad.masked_fill(outward, 0.0), None, None


class MlpPolicy(EncodedPolicy):
    """Independent Gaussian actions whose spread does not depend on the observation."""

    Config = MlpConfig
    independent_actions = True

    def __init__(self, config: MlpConfig, env_spec: EnvSpec, chunk_len: int) -> None:
        super().__init__(env_spec, chunk_len, critic_hidden=config.critic_hidden, normalize=config.normalize)
        num_outputs = chunk_len * env_spec.action_dim
        self.head = make_mlp([self.encoder.size, *config.hidden, num_outputs], Tanh, final_gain=0.01)
        self.log_std = nn.Parameter(torch.full((env_spec.action_dim,), config.initial_std).log())
        self.std_range = (config.min_std, config.max_std)

    def num_transitions(self) -> int:
        """One."""
        return 1

    def record_spec(self) -> dict[str, ArraySpec]:
        """The chunk itself, in normalised units and before clipping."""
        return {"path": ArraySpec((1, *self.chunk_shape), "float32")}

    def _mean_and_std(self, vectors: Tensor | None, obs: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        mean = self.head(self.encoder(vectors, obs)).unflatten(-1, (1, *self.chunk_shape))
        std: Tensor = _InwardClamp.apply(self.log_std.exp(), *self.std_range)  # type: ignore[no-untyped-call]
        return mean, std

    @torch.no_grad()
    def sample(self, obs: Mapping[str, Tensor], rng: RowStreams) -> Sample:
        """Mean plus noise for each row."""
        vectors = self.normalizer(obs)
        mean, std = self._mean_and_std(vectors, obs)
        path = mean + std * rng.normal(1, *self.chunk_shape).to(mean)
        return Sample(
            actions=self.to_env_units(path[:, 0]),
            record={"path": path},
            log_prob=normal_log_prob(path, mean, std),
            mean=mean,
            value=self.critic(vectors, obs),
        )

    def evaluate(self, obs: Mapping[str, Tensor], record: Mapping[str, Tensor]) -> Evaluation:
        """Density of recorded chunks under today's weights."""
        vectors = self.normalizer(obs)
        mean, std = self._mean_and_std(vectors, obs)
        return Evaluation(
            log_prob=normal_log_prob(record["path"], mean, std),
            mean=mean,
            std=std,
            entropy=(normal_entropy(std).sum() * self.chunk_shape[0]).expand(len(mean)),
            value=self.critic(vectors, obs),
        )

    def clone_loss(self, obs: Mapping[str, Tensor], actions: Tensor, rng: torch.Generator) -> Tensor:
        """Mean squared error of the mean, in normalised units; the spread is left for exploration."""
        mean, _ = self._mean_and_std(self.normalizer(obs), obs)
        return nn.functional.mse_loss(mean[:, 0], self.from_env_units(actions))
