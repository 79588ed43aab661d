"""Gaussian transitions that turn noise into an action chunk.

Flow time t runs from 1 (noise) to 0 (action) in K equal steps of size d = 1/K; the velocity v
points from the action to the noise. Every transition of every sampler here has the form
``x' ~ N(path_gain * x + velocity_gain * v, std^2)``. Sources: Flow-GRPO and pi_RL for the
stochastic differential equation, ReinFlow for the added noise.

Axes: E rows of a batch, D transitions, H chunk horizon, A action size.
"""

from __future__ import annotations

import dataclasses
import math

import torch
from torch import Tensor

LOG_TWO_PI = math.log(2.0 * math.pi)
NUM_TIME_FEATURES = 12


@dataclasses.dataclass(frozen=True, slots=True)
class Schedule:
    """Coefficients of the K transitions of one chunk, first transition first."""

    time: tuple[float, ...]
    """t at which the velocity of each transition is taken."""
    path_gain: tuple[float, ...]
    velocity_gain: tuple[float, ...]
    std: tuple[float, ...]


def noise_schedule(num_steps: int, std: float) -> Schedule:
    """Euler transitions with the same added noise after each; ``std`` 0 is the plain ODE."""
    return Schedule(
        time=tuple(1.0 - k / num_steps for k in range(num_steps)),
        path_gain=(1.0,) * num_steps,
        velocity_gain=(-1.0 / num_steps,) * num_steps,
        std=(std,) * num_steps,
    )


def sde_schedule(num_steps: int, a: float) -> Schedule:
    """Transitions of the stochastic equation that shares the flow's marginals as K grows.

    sigma_t = a sqrt(t / (1 - t)) is infinite at t = 1, so the first transition takes the
    denominator of the second.
    """
    d = 1.0 / num_steps
    time = tuple(1.0 - k * d for k in range(num_steps))
    variance_rate = tuple(a * a * t / (1.0 - t if k else d) for k, t in enumerate(time))
    drift = tuple(s / (2.0 * t) for s, t in zip(variance_rate, time, strict=True))
    return Schedule(
        time=time,
        path_gain=tuple(1.0 - d * g for g in drift),
        velocity_gain=tuple(-d * (1.0 + g * (1.0 - t)) for g, t in zip(drift, time, strict=True)),
        std=tuple(math.sqrt(s * d) for s in variance_rate),
    )


def normal_log_prob(x: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """Log-density of each dimension by itself, in nats; shapes broadcast."""
    z = (x - mean) / std
    return -0.5 * z * z - (std.log() + 0.5 * LOG_TWO_PI)


def normal_entropy(std: Tensor) -> Tensor:
    """Entropy of each dimension by itself, in nats."""
    return std.log() + 0.5 * (1.0 + LOG_TWO_PI)


def time_features(t: Tensor) -> Tensor:
    """Sines and cosines of flow time at six octaves, ``[..., 12]``."""
    octaves = 2.0 ** torch.arange(NUM_TIME_FEATURES // 2, dtype=t.dtype, device=t.device)
    angle = t[..., None] * octaves * (math.pi / 2.0)
    return torch.cat([angle.sin(), angle.cos()], dim=-1)
