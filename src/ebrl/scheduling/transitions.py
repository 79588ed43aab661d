"""The phases of a shard, and which may follow which.

    Down ──▶ NeedsReset ──▶ Resetting ──▶ Idle ──▶ Waiting ──▶ Generating ──▶ Ready ⇄ Running

A shard that has a trajectory carries its ``Place``; one without waits in ``Idle`` for the staleness
gate (in an evaluation: because it has no further episode). Where trajectories are whole episodes the
gate comes before the reset (Idle ──▶ NeedsReset), and a shard whose sibling group was dropped goes back to
``Idle`` as soon as nobody works for it. From anywhere a shard may fall to ``Down``: its env
worker was lost.
"""

from __future__ import annotations

from dataclasses import dataclass

from ebrl.ids import CpuId, GeneratorId, SlotId, TrajectoryId
from ebrl.scheduling.commands import EpisodeStart


@dataclass(frozen=True, slots=True)
class Place:
    """Where the next chunk of a shard is stored."""

    trajectory: TrajectoryId
    slot: SlotId
    chunk: int


@dataclass(frozen=True, slots=True)
class Down:
    """The env worker is being started; there is no environment."""


@dataclass(frozen=True, slots=True)
class NeedsReset:
    """An episode is over, or none was ever begun; wants a CPU for the reset."""

    place: Place | None
    starts: tuple[EpisodeStart, ...]


@dataclass(frozen=True, slots=True)
class Resetting:
    """Resets on its CPUs."""

    place: Place | None
    cpus: tuple[CpuId, ...]


@dataclass(frozen=True, slots=True)
class Idle:
    """May not start a trajectory yet; it has an observation, unless trajectories are whole episodes."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """Wants a chunk."""

    place: Place


@dataclass(frozen=True, slots=True)
class Generating:
    """Its chunk is being made."""

    place: Place
    generator: GeneratorId


@dataclass(frozen=True, slots=True)
class Ready:
    """Has actions; wants a CPU."""

    place: Place
    first_step: int


@dataclass(frozen=True, slots=True)
class Running:
    """Steps on its CPUs."""

    place: Place
    first_step: int
    num_steps: int
    cpus: tuple[CpuId, ...]


Phase = Down | NeedsReset | Resetting | Idle | Waiting | Generating | Ready | Running

SHARD_TRANSITIONS: dict[type[Phase], frozenset[type[Phase]]] = {
    Down: frozenset({NeedsReset, Idle}),
    NeedsReset: frozenset({Resetting, Down}),
    Resetting: frozenset({Idle, Waiting, NeedsReset, Down}),
    Idle: frozenset({Waiting, NeedsReset, Down}),
    Waiting: frozenset({Generating, Idle, Down}),
    Generating: frozenset({Ready, Waiting, Idle, Down}),
    Ready: frozenset({Running, Down}),
    Running: frozenset({Ready, Waiting, NeedsReset, Idle, Down}),
}
"""Phase → phases that may follow it. Everything else is an error of ours."""
