"""Trajectories that start from the same initial state and train together.

The staleness gate admits and consumes *groups*; this file deals a group's trajectories out to shards, one
slot each, and tells the gate when the last of them is complete. A trajectory that is lost is played again in
its slot, so that its group becomes complete all the same; where groups have one member it is simply dropped.
A whole group may be dropped too: then its slots are free when nobody writes to any of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush

from ebrl.ids import PolicyVersion, SlotId, TrajectoryId
from ebrl.scheduling.staleness import Batch, StalenessGate


@dataclass(slots=True)
class _Group:
    """A group that the gate holds, or whose slots are still written to."""

    first_slot: SlotId
    unplayed: list[int]
    """Members that nobody plays, a heap."""
    members: dict[int, TrajectoryId] = field(default_factory=dict)
    """Member → the trajectory that is played or complete."""
    oldest: dict[int, PolicyVersion] = field(default_factory=dict)
    """Complete member → oldest version in it."""
    written: int = 0
    """Slots that a shard or a generator may still write to."""
    dropped: bool = False


@dataclass(frozen=True, slots=True)
class Beginning:
    """A trajectory that somebody is to play."""

    trajectory: TrajectoryId
    slot: SlotId
    group: int
    """Number of its group."""
    opens_group: bool
    """It is the first of its group."""


class SiblingGroups:
    """The groups that the gate holds, and who of them is played."""

    def __init__(self, gate: StalenessGate, *, size: int) -> None:
        """No group is begun; each will have ``size`` members."""
        self.gate = gate
        self.size = size
        self.num_begun = 0
        self._groups: dict[TrajectoryId, _Group] = {}
        """By the gate's number, which is the group's."""
        self._by_slot: dict[SlotId, TrajectoryId] = {}
        """Group by its first slot."""
        self._group_of: dict[TrajectoryId, TrajectoryId] = {}
        """Group of each trajectory that is played."""
        self._with_unplayed: set[TrajectoryId] = set()
        """Groups with members that nobody plays."""
        self._next = 0

    @property
    def may_begin(self) -> bool:
        """Whether one more trajectory may begin."""
        return bool(self._with_unplayed) or self.gate.may_admit

    def begin(self) -> Beginning:
        """Begin a trajectory, of the oldest group that lacks one; only while ``may_begin``."""
        opens = not self._with_unplayed
        if opens:
            number, slot = self.gate.admit()
            first = SlotId(slot * self.size)
            self._groups[number] = _Group(first, list(range(self.size)))
            self._by_slot[first] = number
            self._with_unplayed.add(number)
            self.num_begun += 1
        number = min(self._with_unplayed)
        group = self._groups[number]
        member = heappop(group.unplayed)
        if not group.unplayed:
            self._with_unplayed.remove(number)
        trajectory = TrajectoryId(self._next)
        self._next += 1
        group.members[member] = trajectory
        group.written += 1
        self._group_of[trajectory] = number
        return Beginning(trajectory, SlotId(group.first_slot + member), number, opens)

    def rank_of(self, trajectory: TrajectoryId | None) -> int:
        """Which update, counted from the first, probably trains on a trajectory; None is the next to begin."""
        number = self.gate.num_admitted if trajectory is None else self._group_of[trajectory]
        return number // self.gate.batch

    def complete(self, trajectory: TrajectoryId, slot: SlotId, oldest: PolicyVersion) -> None:
        """A trajectory is played to its end; the last of its group hands the group to the gate."""
        group = self._groups[self._group_of[trajectory]]
        number = self.leave(trajectory)
        if group.dropped:
            return
        group.oldest[slot - group.first_slot] = oldest
        if len(group.oldest) == self.size:
            self.gate.complete(number, min(group.oldest.values()))

    def leave(self, trajectory: TrajectoryId) -> TrajectoryId:
        """Nobody plays the trajectory any more, nor writes to its slot; returns its group."""
        number = self._group_of.pop(trajectory)
        self._groups[number].written -= 1
        self._forget_if_unwritten(number)
        return number

    def is_dropped(self, trajectory: TrajectoryId) -> bool:
        """Whether the group of a trajectory that is played was dropped."""
        return self._groups[self._group_of[trajectory]].dropped

    def drop(self, trajectory: TrajectoryId, slot: SlotId, reason: str, *, in_use: bool) -> bool:
        """A trajectory that is played will not be trained.

        Its slot may be used again at once, or if it is ``in_use`` (a generator still writes there) after
        ``release``.

        Returns:
            Whether this is new: a trajectory of a group that was dropped was dropped with it.
        """
        number = self._group_of.pop(trajectory)
        group = self._groups[number]
        is_new = not group.dropped
        if is_new and self.size == 1:
            group.dropped = True
            self.gate.drop(number, reason)
        elif is_new:
            self.gate.replace_one(reason)
            del group.members[slot - group.first_slot]
        if not in_use:
            self.release((slot,))
        return is_new

    def release(self, slots: Iterable[SlotId]) -> None:
        """Nobody writes to these slots of dropped trajectories any more."""
        for slot in slots:
            number = self._by_slot[SlotId(slot - slot % self.size)]
            group = self._groups[number]
            group.written -= 1
            self._forget_if_unwritten(number)
            if not group.dropped:
                heappush(group.unplayed, slot - group.first_slot)
                self._with_unplayed.add(number)

    def expire(self, number: int, reason: str) -> list[tuple[TrajectoryId, SlotId]]:
        """Drop a group unless it is complete; returns its trajectories and their slots."""
        key = TrajectoryId(number)
        group = self._groups.get(key)
        if group is None or group.dropped or len(group.oldest) == self.size:
            return []
        group.dropped = True
        self.gate.drop(key, reason)
        self._with_unplayed.discard(key)
        gone = [(trajectory, SlotId(group.first_slot + member)) for member, trajectory in sorted(group.members.items())]
        self._forget_if_unwritten(key)
        return gone

    def take_batch(self) -> Batch | None:
        """The gate's next batch, as single trajectories."""
        batch = self.gate.take_batch()
        if batch is None:
            return None
        groups = [self._groups[number] for number in batch.trajectories]
        each = [(group, member) for group in groups for member in range(self.size)]
        return replace(
            batch,
            trajectories=tuple(group.members[member] for group, member in each),
            slots=tuple(SlotId(group.first_slot + member) for group, member in each),
            oldest_versions=tuple(group.oldest[member] for group, member in each),
        )

    def trained(self, new_version: PolicyVersion) -> None:
        """The batch in training became ``new_version``."""
        for number in self.gate.trained(new_version):
            self._forget(number)

    def refuse_training(self, reason: str) -> list[tuple[TrajectoryId, SlotId]]:
        """The batch in training taught nothing; returns its trajectories, which are dropped, and their slots."""
        gone = []
        for number in self.gate.refuse_training(reason):
            group = self._forget(number)
            gone += [(group.members[member], SlotId(group.first_slot + member)) for member in range(self.size)]
        return gone

    def _forget_if_unwritten(self, number: TrajectoryId) -> None:
        group = self._groups[number]
        if group.dropped and group.written == 0:
            self._forget(number)
            self.gate.release((SlotId(group.first_slot // self.size),))

    def _forget(self, number: TrajectoryId) -> _Group:
        group = self._groups.pop(number)
        del self._by_slot[group.first_slot]
        return group
