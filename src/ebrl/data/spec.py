"""Shapes and limits that the data plane, environments and policies agree on.

Standard library only: env workers of every interpreter import this.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

INSTRUCTION_BYTES = 64
"""Usual length of an instruction once encoded."""


@dataclasses.dataclass(frozen=True, slots=True)
class ArraySpec:
    """Shape and dtype of one array; ``shape`` excludes every batch axis."""

    shape: tuple[int, ...]
    dtype: str

    def to_json(self) -> list[Any]:
        """For a message."""
        return [list(self.shape), self.dtype]

    @staticmethod
    def from_json(value: list[Any]) -> ArraySpec:
        """From a message."""
        return ArraySpec(tuple(value[0]), value[1])


@dataclasses.dataclass(frozen=True, slots=True)
class EnvSpec:
    """What the rest of the system must know before an environment runs."""

    observation: dict[str, ArraySpec]
    """By name. ``state`` is ``[S] float32``; an image is ``[height, width, 3] uint8``;
    ``instruction`` is ``[n] uint8`` (UTF-8, zero-padded), where n is ``INSTRUCTION_BYTES`` or what the longest
    text of the environment needs."""

    action_low: tuple[float, ...]
    """Smallest action, per dimension. Actions are clipped to the limits before they are executed; see ``chooses``."""

    action_high: tuple[float, ...]

    max_episode_steps: int
    """The runtime truncates an episode after so many env steps."""

    chooses: bool = False
    """Whether an action is a choice, of which the largest number decides. Then nothing is clipped: clipped numbers
    would be equal, and the first of them would always win."""

    @property
    def clip_limits(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """What actions are clipped to before they are executed, per dimension."""
        if self.chooses:
            return (-math.inf,) * self.action_dim, (math.inf,) * self.action_dim
        return self.action_low, self.action_high

    @property
    def action_dim(self) -> int:
        """A: numbers in one action."""
        return len(self.action_low)

    def to_json(self) -> dict[str, Any]:
        """For a message."""
        return {
            "observation": {name: spec.to_json() for name, spec in self.observation.items()},
            "action_low": list(self.action_low),
            "action_high": list(self.action_high),
            "max_episode_steps": self.max_episode_steps,
            "chooses": self.chooses,
        }

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> EnvSpec:
        """From a message."""
        return EnvSpec(
            observation={name: ArraySpec.from_json(spec) for name, spec in value["observation"].items()},
            action_low=tuple(value["action_low"]),
            action_high=tuple(value["action_high"]),
            max_episode_steps=value["max_episode_steps"],
            chooses=value["chooses"],
        )
