"""Step level: binds ready shards to free CPUs; one instance per node.

A CPU never idles beside a shard that wants one. Among shards that want one, the one with the
longest estimated remaining work goes first, so that likely stragglers start early; resets are
work like any other. So that a short one cannot be overtaken for ever, time spent waiting counts
too: a shard waits at most ``PATIENCE`` times as long as the longest job before it goes first.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush

from ebrl.ids import CpuId, EpisodeId, ShardId
from ebrl.scheduling.commands import Command, ResetEnv, StepEnv
from ebrl.scheduling.estimates import Estimates
from ebrl.scheduling.transitions import (
    SHARD_TRANSITIONS,
    Down,
    Generating,
    Idle,
    NeedsReset,
    Phase,
    Place,
    Ready,
    Resetting,
    Running,
)

PATIENCE = 8.0
"""Seconds of waiting that outweigh one second of estimated work."""


class StepLevel:
    """Phases of the node's shards and the CPUs they run on."""

    def __init__(
        self, *, num_shards: int, cpus: tuple[CpuId, ...], chunk_len: int, quantum: int, first_episode: int
    ) -> None:
        """Every shard starts ``Down``.

        Args:
            num_shards: shards of this node, numbered from 0.
            cpus: what simulation may use.
            chunk_len: actions of a chunk that are executed.
            quantum: env steps per grant; 0 grants the rest of the chunk.
            first_episode: episodes that every shard played in the run this one resumes.
        """
        self.chunk_len = chunk_len
        self.quantum = quantum or chunk_len
        self.estimates = Estimates(num_shards)
        self.phases: list[Phase] = [Down() for _ in range(num_shards)]
        self.num_moving = 0
        """Shards with a trajectory that will wait for a chunk without anybody's help."""
        self.num_preparing = num_shards
        """Shards without a trajectory that will have an observation without anybody's help."""
        self._cpus = cpus
        self._free = list(cpus)
        heapify(self._free)
        self._last_cpu: list[CpuId | None] = [None] * num_shards
        self._episodes = [first_episode] * num_shards
        self._wanting: list[tuple[float, ShardId]] = []
        self._idle: dict[ShardId, None] = {}

    @property
    def free_cpus(self) -> tuple[CpuId, ...]:
        """CPUs that no shard runs on."""
        return tuple(sorted(self._free))

    @property
    def episodes_played(self) -> int:
        """Most episodes that any shard has begun."""
        return max(self._episodes)

    def set_next_episode(self, shard: ShardId, count: int) -> None:
        """Let the shard's next reset start its episode number ``count``."""
        self._episodes[shard] = count

    def set_phase(self, shard: ShardId, phase: Phase, now: float) -> None:
        """Move a shard, keeping every index of the step level true."""
        old = self.phases[shard]
        assert type(phase) in SHARD_TRANSITIONS[type(old)], f"shard {shard}: {old} cannot become {phase}"
        self._count(old, -1)
        self._count(phase, +1)
        self.phases[shard] = phase
        match old:
            case Running(cpu=cpu) | Resetting(cpu=cpu):
                heappush(self._free, cpu)
            case Idle():
                del self._idle[shard]
            case Ready() | NeedsReset() if isinstance(phase, Down):
                self._wanting = [entry for entry in self._wanting if entry[1] != shard]
                heapify(self._wanting)
        match phase:
            case Ready(first_step=first):
                left_s = (self.chunk_len - first) * self.estimates.env_step_s(shard)
                heappush(self._wanting, (now - PATIENCE * left_s, shard))
            case NeedsReset():
                heappush(self._wanting, (now - PATIENCE * self.estimates.reset_s(shard), shard))
            case Idle():
                self._idle[shard] = None

    def longest_idle(self) -> ShardId | None:
        """The shard that has waited longest for a trajectory."""
        return next(iter(self._idle), None)

    def bind(self, now: float) -> list[Command]:
        """Give every free CPU to a shard that wants one."""
        commands: list[Command] = []
        while self._free and self._wanting:
            _, shard = heappop(self._wanting)
            cpu = self._take_cpu(shard)
            phase = self.phases[shard]
            if isinstance(phase, Ready):
                commands.append(self._grant(shard, phase, cpu, now))
            else:
                assert isinstance(phase, NeedsReset), f"shard {shard} wants a CPU in {phase}"
                commands.append(self._reset(shard, phase.place, cpu, now))
        return commands

    def _grant(self, shard: ShardId, phase: Ready, cpu: CpuId, now: float) -> StepEnv:
        num_steps = min(self.quantum, self.chunk_len - phase.first_step)
        self.set_phase(shard, Running(phase.place, phase.first_step, num_steps, cpu), now)
        return StepEnv(
            shard=shard,
            slot=phase.place.slot,
            chunk=phase.place.chunk,
            first_step=phase.first_step,
            num_steps=num_steps,
            cpu=cpu,
        )

    def _reset(self, shard: ShardId, place: Place | None, cpu: CpuId, now: float) -> ResetEnv:
        episode = EpisodeId(self._episodes[shard] * len(self.phases) + shard)
        self._episodes[shard] += 1
        self.set_phase(shard, Resetting(place, cpu), now)
        return ResetEnv(shard=shard, episode=episode, cpu=cpu)

    def _take_cpu(self, shard: ShardId) -> CpuId:
        """The CPU the shard ran on last, whose caches know it, else the first free one."""
        last = self._last_cpu[shard]
        if last is not None and last in self._free:
            self._free.remove(last)
            heapify(self._free)
            return last
        cpu = self._last_cpu[shard] = heappop(self._free)
        return cpu

    def _count(self, phase: Phase, change: int) -> None:
        """Idle and waiting shards are in neither number: they need somebody's help."""
        match phase:
            case NeedsReset(place=None) | Resetting(place=None) | Down():
                self.num_preparing += change
            case NeedsReset() | Resetting() | Ready() | Running() | Generating():
                self.num_moving += change
