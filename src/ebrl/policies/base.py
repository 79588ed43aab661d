"""What a policy is to EBRL.

Axes: E rows of a batch, D denoising transitions (1 for a Gaussian policy), H chunk horizon,
A action size.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from ebrl.data.spec import ArraySpec, EnvSpec


class RowStreams:
    """Random numbers in which each row has its own stream.

    A row's numbers depend on its key alone, not on which rows share its batch, so what a policy
    draws does not depend on timing.

    Each draw has a stream of its own: a Philox generator whose key is the row's first two integers, and in whose
    counter the third one and the number of the draw are the two highest words. So one generator does for all rows, set
    anew for each: to make one takes several times as long as to draw an action.
    """

    def __init__(self, keys: Sequence[tuple[int, ...]]) -> None:
        """One stream for each key: two or three integers of at most 64 bits, e.g. run seed, row and chunk number.

        A third one that is not there is 0.

        Raises:
            ValueError: a key is shorter or longer.
        """
        if not {len(key) for key in keys} <= {2, 3}:
            raise ValueError(f"keys = {list(keys)[:3]!r}…: want two or three integers for each row")
        self._keys = keys
        self._bits = np.random.Philox(0)
        self._draw = np.random.Generator(self._bits)
        self._draws = 0

    def normal(self, *shape: int) -> Tensor:
        """Standard normal numbers ``[E, *shape] float32``."""
        found = np.empty((len(self._keys), math.prod(shape)), np.float32)
        for row, rng in zip(found, self._rows(), strict=True):
            rng.standard_normal(dtype=np.float32, out=row)
        return torch.from_numpy(found.reshape(len(found), *shape))

    def integers(self, high: int) -> Tensor:
        """One integer in [0, high) per row, ``[E] int64``."""
        return torch.tensor([int(row.integers(high)) for row in self._rows()], dtype=torch.int64)

    def _rows(self) -> Iterator[np.random.Generator]:
        """The generator, set to each row's stream of this draw in turn."""
        place: dict[str, tuple[int, ...]] = {}
        state: Any = {"bit_generator": "Philox", "state": place} | _NOTHING_DRAWN
        draw, self._draws = self._draws, self._draws + 1
        for first, second, *third in self._keys:
            place["key"] = first, second
            place["counter"] = 0, 0, third[0] if third else 0, draw
            self._bits.state = state
            yield self._draw


_NOTHING_DRAWN = {"buffer": (0, 0, 0, 0), "buffer_pos": 4, "has_uint32": 0, "uinteger": 0}


@dataclasses.dataclass(frozen=True, slots=True)
class Sample:
    """Action chunks and what is needed to evaluate them again."""

    actions: Tensor
    """``[E, H, A] float32``; the env worker clips them to the action limits."""

    record: dict[str, Tensor]
    """Named arrays ``[E, ...]`` as ``record_spec`` says; the input of ``evaluate``."""

    log_prob: Tensor
    """Behaviour log-density per transition and action dimension, ``[E, D, H, A] float32``."""

    mean: Tensor
    """Mean of each transition, ``[E, D, H, A] float32``: makes KL analytic."""

    value: Tensor
    """``[E] float32``."""


@dataclasses.dataclass(frozen=True, slots=True)
class Evaluation:
    """A recorded chunk under today's weights; same axes as ``Sample``."""

    log_prob: Tensor
    mean: Tensor
    std: Tensor
    """Standard deviation of each transition, broadcastable to ``[E, D, H, A]``."""
    entropy: Tensor
    """``[E]``, summed over transitions and dimensions, in nats."""
    value: Tensor
    """``[E]``."""


class Policy(nn.Module):
    """Base of every policy: makes action chunks, and evaluates them again.

    Made as ``cls(config, env_spec, chunk_len)`` with ``config`` its nested frozen dataclass.
    Everything that shapes its output is a parameter or a buffer, so that publishing
    ``state_dict()`` publishes the policy.
    """

    Config: ClassVar[type]

    independent_actions: ClassVar[bool]
    """True where the actions of one chunk are independent given the observation. Then actions
    that were never executed (the episode ended inside the chunk) can be left out of the
    log-probability; otherwise the density of the whole path is the exact ratio."""

    def num_transitions(self) -> int:
        """D: how many Gaussian transitions make one chunk."""
        raise NotImplementedError

    def record_spec(self) -> dict[str, ArraySpec]:
        """Arrays that one chunk's record holds, without the row axis."""
        raise NotImplementedError

    def sample(self, obs: Mapping[str, Tensor], rng: RowStreams) -> Sample:
        """Draw one chunk for each row of ``obs`` (``[E, ...]`` per name); called without gradient."""
        raise NotImplementedError

    def evaluate(self, obs: Mapping[str, Tensor], record: Mapping[str, Tensor]) -> Evaluation:
        """Log-densities and values of recorded chunks under today's weights, with gradient."""
        raise NotImplementedError

    def value(self, obs: Mapping[str, Tensor]) -> Tensor:
        """``[E]``: expected discounted return from ``obs``."""
        raise NotImplementedError

    def observe(self, obs: Mapping[str, Tensor]) -> None:
        """Update running normalisation from a batch; ``Algorithm.update`` calls it at its end."""

    def clone_loss(self, obs: Mapping[str, Tensor], actions: Tensor, rng: torch.Generator) -> Tensor:
        """Behaviour-cloning loss (scalar) towards ``actions`` ``[E, H, A]``, for the warm start."""
        raise NotImplementedError

    def fit_normalizer(self, obs: Mapping[str, Tensor]) -> None:
        """Set normalisation from demonstrations ``[E, ...]`` and keep it fixed from then on."""

    def actor_parameters(self) -> list[nn.Parameter]:
        """What shapes the actions."""
        raise NotImplementedError

    def critic_parameters(self) -> list[nn.Parameter]:
        """What shapes the value; shares nothing with the actor."""
        raise NotImplementedError


def make_policy(cls: Any, config: Any, env_spec: EnvSpec, chunk_len: int, seed: int) -> Policy:
    """A policy with initial weights that depend on ``seed`` alone."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        policy: Policy = cls(config, env_spec, chunk_len)
    return policy
