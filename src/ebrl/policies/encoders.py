"""What the built-in policies share: observation encoders, normalisation, critic, action units.

Axes: E rows of a batch, S size of all vector observations together, H chunk horizon, A action size.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from ebrl.data.spec import ArraySpec, EnvSpec
from ebrl.policies.base import Policy

Normalize = Literal["running", "none"]

IMAGE_FEATURES = 64
INSTRUCTION_FEATURES = 32
STD_FLOOR = 0.01
MAX_NORMALIZED = 5.0


class _TanhBySigmoid(torch.autograd.Function):
    """2 sigmoid(2x) - 1, and the gradient from its value in one pass over memory instead of three."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = _tanh_by_sigmoid(x)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (y,) = ctx.saved_tensors
        return torch.ops.aten.tanh_backward(grad, y)  # type: ignore[no-any-return]


def _tanh_by_sigmoid(x: Tensor) -> Tensor:
    return (2.0 * x).sigmoid_().mul_(2.0).sub_(1.0)


class Tanh(nn.Module):
    """tanh; of float32 on CPUs as 2 sigmoid(2x) - 1, within 2e-7, for a third of the time that torch's tanh takes."""

    def forward(self, x: Tensor) -> Tensor:
        """Of each element."""
        if x.device.type != "cpu" or x.dtype != torch.float32:
            return x.tanh()
        if not torch.is_grad_enabled():
            return _tanh_by_sigmoid(x)
        found: Tensor = _TanhBySigmoid.apply(x)  # type: ignore[no-untyped-call]
        return found


def make_mlp(sizes: Sequence[int], activation: type[nn.Module], *, final_gain: float = 1.0) -> nn.Sequential:
    """Linear layers with ``activation`` between them; ``final_gain`` scales the last layer's initial weights."""
    layers: list[nn.Module] = []
    for n_in, n_out in pairwise(sizes):
        layers += [nn.Linear(n_in, n_out), activation()]
    layers.pop()
    shrink(layers[-1], final_gain)
    return nn.Sequential(*layers)


def shrink(layer: nn.Module, gain: float) -> None:
    """Scale a linear layer's initial weights and bias by ``gain``."""
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.mul_(gain)


def keep_scale(encoder: nn.Module) -> None:
    """He initialisation: what differs between two inputs is not lost on the way to the features."""
    for layer in encoder.modules():
        if isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)


def check_sizes(field: str, sizes: tuple[int, ...]) -> None:
    """Refuse layer sizes that are not positive; there must be at least one."""
    if not sizes or min(sizes) < 1:
        raise ValueError(f"{field} = {sizes!r}: want one or more positive sizes")


def check_positive(field: str, value: float) -> None:
    """Refuse a number that is not positive and finite."""
    if not (value > 0 and math.isfinite(value)):
        raise ValueError(f"{field} = {value!r}: want a positive number")


def is_vector(spec: ArraySpec) -> bool:
    """Whether an observation is a vector of real numbers."""
    return len(spec.shape) == 1 and spec.dtype.startswith("float")


def is_image(spec: ArraySpec) -> bool:
    """Whether an observation is ``[height, width, 3] uint8``."""
    return len(spec.shape) == 3 and spec.shape[2] == 3 and spec.dtype == "uint8"


class VectorNormalizer(nn.Module):
    """Joins all vector observations into ``[E, S]`` and brings them to mean 0, std 1, within ±5.

    Its statistics are buffers, so they are published with the weights, and a chunk is evaluated
    under the very numbers it was sampled under until they change.
    """

    center: Tensor
    scale: Tensor
    count: Tensor
    running_mean: Tensor
    running_m2: Tensor
    frozen: Tensor

    def __init__(self, env_spec: EnvSpec, mode: Normalize) -> None:
        super().__init__()
        self.mode = mode
        self.names = tuple(sorted(name for name, spec in env_spec.observation.items() if is_vector(spec)))
        self.size = sum(env_spec.observation[name].shape[0] for name in self.names)
        self.register_buffer("center", torch.zeros(self.size))
        self.register_buffer("scale", torch.ones(self.size))
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))
        self.register_buffer("running_mean", torch.zeros(self.size, dtype=torch.float64))
        self.register_buffer("running_m2", torch.zeros(self.size, dtype=torch.float64))
        self.register_buffer("frozen", torch.zeros((), dtype=torch.bool))

    def join(self, obs: Mapping[str, Tensor]) -> Tensor | None:
        """All vectors side by side, in order of their names; None where there are none."""
        if not self.names:
            return None
        return obs[self.names[0]] if len(self.names) == 1 else torch.cat([obs[n] for n in self.names], dim=-1)

    def forward(self, obs: Mapping[str, Tensor]) -> Tensor | None:
        """``[E, S]``, or None where no observation is a vector."""
        x_ES = self.join(obs)
        if x_ES is None:
            return None
        x_ES = x_ES.to(self.center.dtype)
        if self.mode == "none":
            return x_ES
        return ((x_ES - self.center) * self.scale).clamp(-MAX_NORMALIZED, MAX_NORMALIZED)

    @torch.no_grad()
    def observe(self, obs: Mapping[str, Tensor]) -> None:
        """Merge a batch into the running statistics (Chan's rule, float64), unless they are fixed."""
        if self.mode == "none" or bool(self.frozen):
            return
        x_ES = self.join(obs)
        if x_ES is None:
            return
        x_ES = x_ES.reshape(-1, self.size).to(self.running_mean.dtype)
        x_ES = x_ES[x_ES.isfinite().all(dim=1)]
        if not len(x_ES):
            return
        n, mean_S = len(x_ES), x_ES.mean(dim=0)
        total, delta_S = self.count + n, mean_S - self.running_mean
        self.running_m2 += ((x_ES - mean_S) ** 2).sum(dim=0) + delta_S**2 * (self.count * n / total)
        self.running_mean += delta_S * (n / total)
        self.count.copy_(total)
        std_S = (self.running_m2 / total).sqrt().clamp(min=STD_FLOOR)
        self.center.copy_(self.running_mean)
        self.scale.copy_(1.0 / std_S)

    @torch.no_grad()
    def fit(self, obs: Mapping[str, Tensor]) -> None:
        """Take the statistics of ``obs`` alone and keep them from now on."""
        for buffer in (self.count, self.running_mean, self.running_m2, self.frozen):
            buffer.zero_()
        self.observe(obs)
        self.frozen.fill_(True)


class ImageEncoder(nn.Module):
    """Three strided convolutions and one linear layer: ``[E, height, width, 3] uint8`` to 64 features."""

    def __init__(self, height: int, width: int) -> None:
        super().__init__()
        self.convolutions = nn.Sequential(
            nn.Conv2d(3, 16, kernel_size=4, stride=4, padding=2),
            nn.SiLU(),
            nn.Conv2d(16, 32, kernel_size=3, stride=2, padding=1),
            nn.SiLU(),
            nn.Conv2d(32, 32, kernel_size=3, stride=2, padding=1),
            nn.SiLU(),
            nn.Flatten(),
        )
        with torch.no_grad():
            size = self.convolutions(torch.zeros(1, 3, height, width)).shape[1]
        self.project = nn.Linear(size, IMAGE_FEATURES)
        keep_scale(self)

    def forward(self, image: Tensor) -> Tensor:
        """``[E, 64]``."""
        pixels = image.movedim(-1, -3).to(self.project.weight.dtype) / 127.5 - 1.0
        features: Tensor = nn.functional.silu(self.project(self.convolutions(pixels)))
        return features


class InstructionEncoder(nn.Module):
    """Byte embedding, one convolution along the text, mean over its bytes: ``[E, L] uint8`` to 32 features."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(256, 16)
        self.convolution = nn.Conv1d(16, INSTRUCTION_FEATURES, kernel_size=5, padding=2)
        keep_scale(self)

    def forward(self, text: Tensor) -> Tensor:
        """``[E, 32]``; zero bytes are padding and do not count.

        Each instruction of a batch is encoded once, however many rows have it: most runs have one instruction, and
        to encode it for every row would cost more than all else that a small policy computes.
        """
        if bool((text == text[:1]).all()):
            return self._encode(text[:1]).expand(len(text), -1)
        distinct_DL, row_E = torch.unique(text, dim=0, return_inverse=True)
        return self._encode(distinct_DL)[row_E]

    def _encode(self, text: Tensor) -> Tensor:
        present_EL = (text != 0).to(self.embed.weight.dtype)
        embedded_ELC = self.embed(text.long()) * present_EL[..., None]
        hidden_ECL = nn.functional.silu(self.convolution(embedded_ELC.mT)) * present_EL[:, None]
        return hidden_ECL.sum(dim=-1) / present_EL.sum(dim=-1, keepdim=True).clamp(min=1.0)


class ObservationEncoder(nn.Module):
    """Features of one observation: normalised vectors, then each image, then the instruction."""

    def __init__(self, env_spec: EnvSpec) -> None:
        super().__init__()
        self.images = nn.ModuleDict()
        self.instruction: InstructionEncoder | None = None
        self.size = 0
        for name, spec in sorted(env_spec.observation.items()):
            if is_vector(spec):
                self.size += spec.shape[0]
            elif is_image(spec):
                self.images[name] = ImageEncoder(spec.shape[0], spec.shape[1])
                self.size += IMAGE_FEATURES
            elif name == "instruction" and len(spec.shape) == 1 and spec.dtype == "uint8":
                self.instruction = InstructionEncoder()
                self.size += INSTRUCTION_FEATURES
            else:
                raise ValueError(
                    f"observation {name!r} = {spec.dtype}{list(spec.shape)}: want a float vector, "
                    "a [height, width, 3] uint8 image or an 'instruction' of uint8"
                )

    def forward(self, vectors: Tensor | None, obs: Mapping[str, Tensor]) -> Tensor:
        """``[E, size]``; ``vectors`` as the normaliser returns them."""
        parts = [] if vectors is None else [vectors]
        parts += [encoder(obs[name]) for name, encoder in self.images.items()]
        if self.instruction is not None:
            parts.append(self.instruction(obs["instruction"]))
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)


class Critic(nn.Module):
    """Value of an observation, with an encoder of its own so that it trains apart from the actions."""

    def __init__(self, env_spec: EnvSpec, hidden: tuple[int, ...]) -> None:
        super().__init__()
        self.encoder = ObservationEncoder(env_spec)
        self.head = make_mlp([self.encoder.size, *hidden, 1], Tanh)

    def forward(self, vectors: Tensor | None, obs: Mapping[str, Tensor]) -> Tensor:
        """``[E]``."""
        value: Tensor = self.head(self.encoder(vectors, obs)).squeeze(-1)
        return value


class EncodedPolicy(Policy):
    """A policy with the shared encoders, normaliser and critic; subclasses add what makes actions.

    Chunks are made, recorded and evaluated in units in which finite action limits are [-1, 1];
    a dimension with an infinite limit keeps the environment's units.
    """

    action_center: Tensor
    action_half_range: Tensor

    def __init__(
        self, env_spec: EnvSpec, chunk_len: int, *, critic_hidden: tuple[int, ...], normalize: Normalize
    ) -> None:
        super().__init__()
        self.chunk_shape = (chunk_len, env_spec.action_dim)
        self.normalizer = VectorNormalizer(env_spec, normalize)
        self.encoder = ObservationEncoder(env_spec)
        self.critic = Critic(env_spec, critic_hidden)
        low = torch.tensor(env_spec.action_low, dtype=torch.float32)
        high = torch.tensor(env_spec.action_high, dtype=torch.float32)
        bounded = low.isfinite() & high.isfinite()
        center = torch.where(bounded, (low + high) / 2, 0.0)
        half_range = torch.where(bounded, (high - low) / 2, 1.0)
        self.register_buffer("action_center", center, persistent=False)
        self.register_buffer("action_half_range", half_range, persistent=False)

    def to_env_units(self, chunk: Tensor) -> Tensor:
        """Actions as the environment takes them, ``[..., H, A]``."""
        return self.action_center + self.action_half_range * chunk

    def from_env_units(self, actions: Tensor) -> Tensor:
        """Inverse of ``to_env_units``."""
        return (actions.to(self.action_center.dtype) - self.action_center) / self.action_half_range

    def value(self, obs: Mapping[str, Tensor]) -> Tensor:
        """``[E]``: expected discounted return from ``obs``."""
        value: Tensor = self.critic(self.normalizer(obs), obs)
        return value

    def observe(self, obs: Mapping[str, Tensor]) -> None:
        """Merge a batch into the running normalisation; no effect once it is fitted or turned off."""
        self.normalizer.observe(obs)

    def fit_normalizer(self, obs: Mapping[str, Tensor]) -> None:
        """Take normalisation from demonstrations ``[E, ...]`` and keep it fixed from then on."""
        self.normalizer.fit(obs)

    def actor_parameters(self) -> list[nn.Parameter]:
        """Everything that shapes actions, in a fixed order."""
        return [p for name, p in self.named_parameters() if not name.startswith("critic.")]

    def critic_parameters(self) -> list[nn.Parameter]:
        """Everything that shapes values, in a fixed order."""
        return list(self.critic.parameters())
