"""Step level: binds ready shards to free CPUs of their node.

What is granted is a set of CPUs, mostly of one. No set is ever free beside a shard of its node that wants
one. Shards whose trajectory belongs to an earlier update go first (``rank_of``). Trajectories of two updates
that shared the CPUs alike would be ready together, and then the CPUs would wait for both updates. Among
shards of one update the one with the longest estimated remaining work goes first, so that likely stragglers
start early; resets are work like any other. So that a short one cannot be overtaken for ever, time spent
waiting counts too: a shard waits at most ``PATIENCE`` times as long as the longest job before it is the first
of its update.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush

from ebrl.ids import CpuSet, ShardId
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


Entry = tuple[int, float, ShardId]
"""Who wants a CPU set: rank, time (the earlier goes first), shard."""


class Barrier:
    """Lets the shards of an env group through together, one env step at a time."""

    def __init__(self, num_groups: int) -> None:
        self._held: list[list[Entry]] = [[] for _ in range(num_groups)]
        self._through = [0] * num_groups
        """Shards of each group that were let through and have not come back."""

    def arrive(self, group: int, entry: Entry) -> None:
        """A shard wants its next env step."""
        self._held[group].append(entry)

    def leave(self, group: int) -> None:
        """A shard that was let through has ended its env step, or was lost."""
        self._through[group] -= 1

    def holds(self, group: int, shard: ShardId) -> bool:
        """Whether the shard stands before the barrier."""
        return any(held == shard for *_, held in self._held[group])

    def forget(self, group: int, shard: ShardId) -> None:
        """A shard that stood before the barrier was lost."""
        self._held[group] = [entry for entry in self._held[group] if entry[2] != shard]

    def let_through(self) -> list[Entry]:
        """Let every group through whose shards are all back."""
        let: list[Entry] = []
        for group, held in enumerate(self._held):
            if held and not self._through[group]:
                let += held
                self._through[group] = len(held)
                self._held[group] = []
        return let


class Node:
    """CPU sets of one node, and who wants one."""

    def __init__(self, cpu_sets: tuple[CpuSet, ...]) -> None:
        self.free = sorted(cpu_sets)
        """A heap."""
        self.busy: set[CpuSet] = set()
        """Those that somebody runs on, whether or not simulation is to keep them."""
        self.wanting: list[Entry] = []
        """A heap; whoever comes first there goes first."""
        self.kept = frozenset(cpu_sets)
        """What simulation is to have."""
        self._last: dict[ShardId, CpuSet] = {}

    def want(self, entry: Entry) -> None:
        """A shard wants a CPU set."""
        heappush(self.wanting, entry)

    def forget(self, shard: ShardId) -> None:
        """A shard that wanted one was lost."""
        self.wanting = [entry for entry in self.wanting if entry[2] != shard]
        heapify(self.wanting)

    def give_back(self, cpus: CpuSet) -> None:
        """A grant or reset is over."""
        self.busy.remove(cpus)
        if cpus in self.kept:
            heappush(self.free, cpus)
        else:
            self._find_free()

    def set_cpus(self, cpu_sets: tuple[CpuSet, ...]) -> None:
        """Simulation has these from now on; what somebody runs on is left when the grant or reset is over."""
        self.kept = frozenset(cpu_sets)
        self._find_free()

    def _find_free(self) -> None:
        """Whatever is not run on; sets that are cut otherwise wait for the old ones that they overlap."""
        used = {cpu for cpus in self.busy for cpu in cpus}
        self.free = sorted(cpus for cpus in self.kept if used.isdisjoint(cpus))

    @property
    def has_left(self) -> bool:
        """Whether nobody runs on CPUs that simulation is not to have."""
        return self.busy <= self.kept

    def next_pair(self) -> tuple[ShardId, CpuSet] | None:
        """Bind the next shard, to the CPUs it ran on last, whose caches know it, else to the first free ones."""
        if not (self.free and self.wanting):
            return None
        *_, shard = heappop(self.wanting)
        last = self._last.get(shard)
        if last is not None and last in self.free:
            self.free.remove(last)
            heapify(self.free)
        else:
            last = self._last[shard] = heappop(self.free)
        self.busy.add(last)
        return shard, last


class StepLevel:
    """Phases of the shards, and the CPUs they run on."""

    def __init__(
        self,
        *,
        group_of: tuple[int, ...],
        cpu_sets: tuple[tuple[CpuSet, ...], ...],
        node_of: tuple[int, ...],
        chunk_len: int,
        quantum: int = 0,
        step_barrier: bool = False,
        rank_of: Callable[[Place | None], int] = lambda place: 0,
    ) -> None:
        """Every shard starts ``Down``.

        Args:
            group_of: env group of each shard, dense from 0.
            cpu_sets: what simulation may use, by node.
            node_of: node of each shard.
            chunk_len: actions of a chunk that are executed.
            quantum: env steps per grant; 0 grants the rest of the chunk.
            step_barrier: no shard of an env group begins an env step before all of the group that
                step have ended the one before, as in a lock-step vector environment.
            rank_of: a shard whose place, or whose lack of one, has a lower rank goes first, whatever else.
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
        self._nodes = [Node(sets) for sets in cpu_sets]
        self._node_of = [self._nodes[node] for node in node_of]
        self._idle: dict[ShardId, None] = {}
        self._rank_of = rank_of

    def free_cpus(self, node: int) -> tuple[CpuSet, ...]:
        """CPU sets of a node that no shard runs on."""
        return tuple(sorted(self._nodes[node].free))

    def set_cpus(self, node: int, cpu_sets: tuple[CpuSet, ...]) -> None:
        """Let simulation have these CPU sets of a node; see ``Node.set_cpus``."""
        self._nodes[node].set_cpus(cpu_sets)

    def cpu_sets(self, node: int) -> frozenset[CpuSet]:
        """What simulation is to have of a node."""
        return self._nodes[node].kept

    def has_left(self, node: int) -> bool:
        """Whether no shard runs on CPUs of the node that were taken from simulation."""
        return self._nodes[node].has_left

    def set_phase(self, shard: ShardId, phase: Phase, now: float) -> None:
        """Move a shard, keeping every index of the step level true."""
        old, group = self.phases[shard], self._group_of[shard]
        assert type(phase) in SHARD_TRANSITIONS[type(old)], f"shard {shard}: {old} cannot become {phase}"
        self._count(old, group, -1)
        self._count(phase, group, +1)
        self.phases[shard] = phase
        match old:
            case Running(cpus=cpus):
                self._node_of[shard].give_back(cpus)
                if self._barrier is not None:
                    self._barrier.leave(group)
            case Resetting(cpus=cpus):
                self._node_of[shard].give_back(cpus)
            case Idle():
                del self._idle[shard]
            case Ready() | NeedsReset() if isinstance(phase, Down):
                self._forget(shard, group, isinstance(old, Ready))
        match phase:
            case Ready(first_step=first):
                left_s = (self.chunk_len - first) * self.estimates.env_step_s(shard)
                entry = (self._rank_of(phase.place), now - PATIENCE * left_s, shard)
                if self._barrier is not None:
                    self._barrier.arrive(group, entry)
                else:
                    self._node_of[shard].want(entry)
            case NeedsReset():
                urgency = now - PATIENCE * self.estimates.reset_s(shard)
                self._node_of[shard].want((self._rank_of(phase.place), urgency, shard))
            case Idle():
                self._idle[shard] = None

    def longest_idle(self) -> ShardId | None:
        """The shard that has waited longest for a trajectory."""
        return next(iter(self._idle), None)

    def bind(self, now: float) -> list[Command]:
        """Give every free CPU set to a shard that wants one."""
        commands: list[Command] = []
        if self._barrier is not None:
            for entry in self._barrier.let_through():
                self._node_of[entry[2]].want(entry)
        for node in self._nodes:
            while (pair := node.next_pair()) is not None:
                shard, cpus = pair
                phase = self.phases[shard]
                if isinstance(phase, Ready):
                    commands.append(self._grant(shard, phase, cpus, now))
                else:
                    assert isinstance(phase, NeedsReset), f"shard {shard} wants a CPU in {phase}"
                    self.set_phase(shard, Resetting(phase.place, cpus), now)
                    commands.append(ResetEnv(shard=shard, starts=phase.starts, cpus=cpus))
        return commands

    def _grant(self, shard: ShardId, phase: Ready, cpus: CpuSet, now: float) -> StepEnv:
        num_steps = min(self.quantum, self.chunk_len - phase.first_step)
        self.set_phase(shard, Running(phase.place, phase.first_step, num_steps, cpus), now)
        return StepEnv(
            shard=shard,
            slot=phase.place.slot,
            chunk=phase.place.chunk,
            first_step=phase.first_step,
            num_steps=num_steps,
            cpus=cpus,
        )

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
        self._node_of[shard].forget(shard)

    def _count(self, phase: Phase, group: int, change: int) -> None:
        """Idle and waiting shards are in neither number: they need somebody's help."""
        match phase:
            case NeedsReset(place=None) | Resetting(place=None) | Down():
                self.num_preparing[group] += change
            case NeedsReset() | Resetting() | Ready() | Running() | Generating():
                self.num_moving[group] += change
