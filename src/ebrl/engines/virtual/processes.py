"""What the virtual engine keeps of each process, and of each environment."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from ebrl.ids import Epoch, PolicyVersion
from ebrl.scheduling import events as e


@dataclass(slots=True, eq=False)
class Process:
    """One process that could be replaced; all its numbers are those of the process that lives now."""

    lost: Callable[[Epoch], e.Event]
    """Makes the event of its loss."""
    loss_rate: float
    rng: random.Random
    kind: str = ""
    """Stage it works for."""
    alive: bool = True
    epoch: Epoch = Epoch(0)
    free_at: float = 0.0
    """When it will have done what it was told."""
    free_tie: float = 0.0
    """Place of its last answer among the events of that moment."""
    runner: object | None = None
    """What an engine with shared CPUs keeps of it."""


@dataclass(slots=True, eq=False)
class Env:
    """One environment; before its first reset its episode is over."""

    steps_left: int = 0
    """Env steps until the episode ends."""
    episode_steps: int = 0
    success: bool = False
    """Whether the episode will end so."""

    def episode_end(self, index: int) -> e.EpisodeEnd:
        """How it ends; the environment is number ``index`` of its shard."""
        return e.EpisodeEnd(
            env=index,
            terminated=self.success,
            success=self.success,
            episode_return=float(self.success),
            num_steps=self.episode_steps,
        )


@dataclass(slots=True, eq=False)
class EnvWorker(Process):
    """Steps the environments of a shard, which take up every chunk together."""

    envs: list[Env] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Generator(Process):
    """Makes chunks with the weights that it adopted last."""

    index: int = 0
    version: PolicyVersion = PolicyVersion(0)
