"""The phases of a shard, and which may follow which.

    Down ──▶ NeedsReset ──▶ Resetting ──▶ Idle ──▶ Waiting ──▶ Generating ──▶ Ready ⇄ Running

A shard that has a trajectory carries its ``Place``; one without waits in ``Idle`` for the staleness
gate (in an evaluation: because it has no further episode). From anywhere a shard may fall to
``Down``: its env worker was lost.
"""

from __future__ import annotations

from dataclasses import dataclass

from ebrl.ids import CpuId, GeneratorId, SlotId, TrajectoryId


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
    """The last episode is over; wants a CPU for the reset."""

    place: Place | None


@dataclass(frozen=True, slots=True)
class Resetting:
    """Resets on a CPU."""

    place: Place | None
    cpu: CpuId


@dataclass(frozen=True, slots=True)
class Idle:
    """Has an observation, but may not start a trajectory yet."""


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
    """Steps on a CPU."""

    place: Place
    first_step: int
    num_steps: int
    cpu: CpuId


Phase = Down | NeedsReset | Resetting | Idle | Waiting | Generating | Ready | Running

SHARD_TRANSITIONS: dict[type[Phase], frozenset[type[Phase]]] = {
    Down: frozenset({NeedsReset, Idle}),
    NeedsReset: frozenset({Resetting, Down}),
    Resetting: frozenset({Idle, Waiting, NeedsReset, Down}),
    Idle: frozenset({Waiting, Down}),
    Waiting: frozenset({Generating, Down}),
    Generating: frozenset({Ready, Waiting, Down}),
    Ready: frozenset({Running, Down}),
    Running: frozenset({Ready, Waiting, NeedsReset, Idle, Down}),
}
"""Phase → phases that may follow it. Everything else is an error of ours."""
