"""Who has which CPUs, and how many SMs: moved from one stage to another while the run goes on.

A move shrinks before it grows. First every stage gives up what is not its own in the new split, each at its own
safe point: env workers when their grants end, generators and the learner between two pieces of work. When the last
one has, everybody takes what is new. Nobody waits: a stage works on with what it has.

A process that would be left without a CPU in between takes its new ones at once; that it shares them for a moment
costs speed, not correctness, and is counted.

Besides, what a learner without a batch does not use of each GPU can be lent to the generators. It is called back as
soon as there is a batch, and the learner begins when the last generator has given it up.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Literal, NamedTuple

from ebrl.ids import CpuSet, Epoch

Stage = Literal["generation", "training"]
"""Those that processes of their own work on; env workers are bound at each grant."""


class Member(NamedTuple):
    """One process with a quota."""

    stage: Stage
    number: int = 0
    """Which generator; 0 of the learner."""

    def __str__(self) -> str:
        return f"generator {self.number}" if self.stage == "generation" else "the learner"


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """What each stage has."""

    simulation: CpuSet
    generation: CpuSet
    training: CpuSet
    """CPUs; a stage may share some with another."""
    generation_threads: int = 1
    training_threads: int = 1
    """torch threads of each process; 0 leaves them as they are."""
    generation_units: int = 0
    training_units: int = 0
    """SMs, or percent of the time, of each GPU; 0 without one."""
    min_batch: int = 0
    max_batch: int = 0
    """Fewest (unless no other can join) and most environments that a generator is given at once; 0 leaves it as it
    is."""

    def __post_init__(self) -> None:
        if not (self.simulation and self.generation and self.training):
            raise ValueError(f"{self}: every stage wants a CPU")

    def quota(self, member: Member) -> Quota:
        """What one process has."""
        if member.stage == "generation":
            return Quota(self.generation, self.generation_threads, self.generation_units)
        return Quota(self.training, self.training_threads, self.training_units)


class Quota(NamedTuple):
    """What one process has."""

    cpus: CpuSet
    threads: int
    units: int


@dataclass(slots=True)
class SwitchCounts:
    """What moves have done so far."""

    switches: int = 0
    """Moves that were carried out to their end."""
    overlaps: int = 0
    """Processes that took CPUs before another stage had left them."""
    mismatches: int = 0
    """Answers in which the kernel or the device did not have what was asked for."""
    loans: int = 0
    """Times that generators were lent what the learner did not use."""


class Quotas:
    """The moves of one run."""

    def __init__(self, split: Split, *, num_generators: int) -> None:
        self.split = split
        """What everybody has, or will have when the move that goes on is over."""
        self.counts = SwitchCounts()
        self._members = [Member("generation", index) for index in range(num_generators)] + [Member("training")]
        self._held = {member: split.quota(member) for member in self._members}
        """What was asked for last, of each process."""
        self._epochs = dict.fromkeys(self._members, Epoch(0))
        self._up: set[Member] = set()
        self._asked: dict[Member, deque[Quota]] = {member: deque() for member in self._members}
        """Of each process that is up: what it was told and has not answered, oldest first."""
        self.shrinking = False
        """Whether some stage has still to give something up."""
        self.growing = False
        """Whether some process has still to say that it took what is new."""
        self.lent = False
        """Whether generators have what is the learner's."""

    @property
    def moving(self) -> bool:
        """Whether a move goes on."""
        return self.shrinking or self.growing

    def ask(self, split: Split) -> dict[Member, Quota]:
        """Begin a move; what processes are to be told now. Not while another one goes on."""
        assert not self.moving, f"{split} while another move goes on"
        self.split = split
        self.shrinking, self.lent = True, False
        tell: dict[Member, Quota] = {}
        for member in self._members:
            old, new = self._held[member], split.quota(member)
            kept = tuple(cpu for cpu in old.cpus if cpu in new.cpus)
            if not kept:
                self.counts.overlaps += 1
            threads = min(old.threads, new.threads) if old.threads else new.threads
            self._set(member, Quota(kept or new.cpus, threads, min(old.units, new.units)), tell)
        return tell

    def grow(self, *, simulation_has_left: bool) -> dict[Member, Quota] | None:
        """Take what is new, once everybody has shrunk; what processes are to be told. None if it is not time."""
        if not self.shrinking or self.owing or not simulation_has_left:
            return None
        self.shrinking, self.growing = False, True
        tell: dict[Member, Quota] = {}
        for member in self._members:
            self._set(member, self.split.quota(member), tell)
        self._end_if_over()
        return tell

    @property
    def owing(self) -> tuple[Member, ...]:
        """Who was told something and has not answered."""
        return tuple(member for member in self._members if self._asked[member])

    def lend(self) -> dict[Member, Quota]:
        """Let generators have the SMs of a learner that has nothing to do; what they are to be told. Not during a move.

        A learner keeps its own quota, since it does not work until generators have theirs again.
        """
        assert not self.moving, "lent while a move goes on"
        self.lent = True
        self.counts.loans += 1
        return self._generators_have(self.split.generation_units + self.split.training_units)

    def call_back(self) -> dict[Member, Quota]:
        """Let generators have no more than their own; what they are to be told."""
        self.lent = False
        return self._generators_have(self.split.generation_units)

    def _generators_have(self, units: int) -> dict[Member, Quota]:
        tell: dict[Member, Quota] = {}
        for member in self._generators:
            self._set(member, self._held[member]._replace(units=units), tell)
        return tell

    @property
    def returned(self) -> bool:
        """Whether no generator can be at work with what is the learner's."""
        return not self.lent and not any(self._asked[member] for member in self._generators)

    @property
    def _generators(self) -> list[Member]:
        return self._members[:-1]

    def _set(self, member: Member, quota: Quota, tell: dict[Member, Quota]) -> None:
        if quota != self._held[member]:
            self._held[member] = quota
            if member in self._up:
                self._asked[member].append(quota)
                tell[member] = quota

    def applied(self, member: Member, epoch: Epoch, cpus: CpuSet, units: int) -> None:
        """A process has said what it has now."""
        if epoch != self._epochs[member] or member not in self._up:
            return
        asked = self._asked[member].popleft()
        if sorted(cpus) != sorted(asked.cpus) or (asked.units and units != asked.units):
            self.counts.mismatches += 1
        self._end_if_over()

    def started(self, member: Member, epoch: Epoch) -> Quota:
        """A process has started, and is told what it has."""
        self._epochs[member] = epoch
        self._up.add(member)
        self._asked[member] = deque([self._held[member]])
        return self._held[member]

    def lost(self, member: Member, epoch: Epoch) -> None:
        """A process is gone, and holds nothing; another one is told when it has started."""
        if epoch != self._epochs[member]:
            return
        self._up.discard(member)
        self._asked[member].clear()
        self._end_if_over()

    def _end_if_over(self) -> None:
        if self.growing and not self.owing:
            self.growing = False
            self.counts.switches += 1
