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


class Barrier:
    """Lets the shards of an env group through together, one env step at a time."""

    def __init__(self, num_groups: int) -> None:
        self._held: list[list[tuple[float, ShardId]]] = [[] for _ in range(num_groups)]
        self._through = [0] * num_groups
        """Shards of each group that were let through and have not come back."""

    def arrive(self, group: int, entry: tuple[float, ShardId]) -> None:
        """A shard wants its next env step."""
        self._held[group].append(entry)

    def leave(self, group: int) -> None:
        """A shard that was let through has ended its env step, or was lost."""
        self._through[group] -= 1

    def holds(self, group: int, shard: ShardId) -> bool:
        """Whether the shard stands before the barrier."""
        return any(held == shard for _, held in self._held[group])

    def forget(self, group: int, shard: ShardId) -> None:
        """A shard that stood before the barrier was lost."""
        self._held[group] = [entry for entry in self._held[group] if entry[1] != shard]

    def let_through(self) -> list[tuple[float, ShardId]]:
        """Let every group through whose shards are all back."""
        let: list[tuple[float, ShardId]] = []
        for group, held in enumerate(self._held):
            if held and not self._through[group]:
                let += held
                self._through[group] = len(held)
                self._held[group] = []
        return let


class StepLevel:
    """Phases of the node's shards and the CPUs they run on."""

    def __init__(
        self,
        *,
        group_of: tuple[int, ...],
        cpus: tuple[CpuId, ...],
        chunk_len: int,
        quantum: int = 0,
        step_barrier: bool = False,
        first_episode: int = 0,
    ) -> None:
        """Every shard starts ``Down``.

        Args:
            group_of: env group of each shard of this node, dense from 0.
            cpus: what simulation may use.
            chunk_len: actions of a chunk that are executed.
            quantum: env steps per grant; 0 grants the rest of the chunk.
            step_barrier: no shard of an env group begins an env step before all of the group that
                step have ended the one before, as in a lock-step vector environment.
            first_episode: episodes that every shard played in the run this one resumes.
        """
        num_shards, num_groups = len(group_of), max(group_of) + 1
        self.chunk_len = chunk_len
        self.quantum = 1 if step_barrier else quantum or chunk_len
        self.estimates = Estimates(num_shards)
        self.phases: list[Phase] = [Down() for _ in range(num_shards)]
        self.num_moving = [0] * num_groups
        """By env group: shards with a trajectory that will wait for a chunk without anybody's help."""
        self.num_preparing = [group_of.count(group) for group in range(num_groups)]
        """By env group: shards without a trajectory that will have an observation without anybody's help."""
        self._group_of = group_of
        self._barrier = Barrier(num_groups) if step_barrier else None
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
        old, group = self.phases[shard], self._group_of[shard]
        assert type(phase) in SHARD_TRANSITIONS[type(old)], f"shard {shard}: {old} cannot become {phase}"
        self._count(old, group, -1)
        self._count(phase, group, +1)
        self.phases[shard] = phase
        match old:
            case Running(cpu=cpu):
                heappush(self._free, cpu)
                if self._barrier is not None:
                    self._barrier.leave(group)
            case Resetting(cpu=cpu):
                heappush(self._free, cpu)
            case Idle():
                del self._idle[shard]
            case Ready() | NeedsReset() if isinstance(phase, Down):
                self._forget(shard, group, isinstance(old, Ready))
        match phase:
            case Ready(first_step=first):
                left_s = (self.chunk_len - first) * self.estimates.env_step_s(shard)
                entry = (now - PATIENCE * left_s, shard)
                if self._barrier is not None:
                    self._barrier.arrive(group, entry)
                else:
                    heappush(self._wanting, entry)
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
        if self._barrier is not None:
            for entry in self._barrier.let_through():
                heappush(self._wanting, entry)
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

    def wants_cpu(self, shard: ShardId) -> bool:
        """Whether a free CPU could be given to this shard now."""
        at_barrier = self._barrier is not None and self._barrier.holds(self._group_of[shard], shard)
        return isinstance(self.phases[shard], Ready | NeedsReset) and not at_barrier

    def _forget(self, shard: ShardId, group: int, was_ready: bool) -> None:
        """A shard that wanted a CPU was lost."""
        if was_ready and self._barrier is not None:
            if self._barrier.holds(group, shard):
                self._barrier.forget(group, shard)
                return
            self._barrier.leave(group)
        self._wanting = [entry for entry in self._wanting if entry[1] != shard]
        heapify(self._wanting)

    def _count(self, phase: Phase, group: int, change: int) -> None:
        """Idle and waiting shards are in neither number: they need somebody's help."""
        match phase:
            case NeedsReset(place=None) | Resetting(place=None) | Down():
                self.num_preparing[group] += change
            case NeedsReset() | Resetting() | Ready() | Running() | Generating():
                self.num_moving[group] += change
