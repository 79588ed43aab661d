"""Who may start, who may train, and when a slot is free again.

With training batch B and slack S at most ``capacity = (S + 1)·B`` trajectories are held at once.
A slot is free when the weights trained on it are live, not when its batch is taken: freeing it
earlier admits work that is born stale. Batches are filled in admission order; a finished
trajectory may overtake unfinished ones only inside the window W that starts at the oldest
unconsumed one. A trajectory is then overtaken by at most ``capacity − 1`` older and W − 1 newer
ones, so no trajectory trains with a staleness above ``bound = ⌊(capacity + W − 2) / B⌋``.
With S = 0 a batch needs every slot, so nothing
overtakes anything and training is synchronous, whatever the window: the bound is 0.

What is counted here may be one trajectory, or several that are admitted and trained together (``unit``): then
B, the capacity and the window are in units, and only the ledger is in single trajectories.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

from ebrl.ids import PolicyVersion, SlotId, TrajectoryId


@dataclass(slots=True)
class Ledger:
    """What became of every admitted trajectory; each ends in exactly one of the last three."""

    admitted: int = 0
    trained: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    """Count by reason."""
    abandoned: int = 0
    """Unfinished or untrained when the run stopped."""

    def balances(self, held_untrained: int) -> bool:
        """Whether nothing was lost or counted twice, with so many still on their way."""
        return self.admitted == self.trained + sum(self.dropped.values()) + self.abandoned + held_untrained


@dataclass(frozen=True, slots=True)
class Batch:
    """Trajectories that train together, in admission order."""

    trajectories: tuple[TrajectoryId, ...]
    slots: tuple[SlotId, ...]
    oldest_versions: tuple[PolicyVersion, ...]
    """Oldest behaviour version in each."""


class StalenessGate:
    """Admission, order of consumption, and release of trajectory slots."""

    def __init__(self, *, batch: int, slack: int, window: int, unit: int = 1) -> None:
        """Nothing is held.

        Args:
            batch: units of an update.
            slack: updates that data may lag behind.
            window: how far a finished unit may overtake unfinished ones, in units.
            unit: trajectories that count as one here.
        """
        self.batch = batch
        self.unit = unit
        self.window = window
        self.capacity = (slack + 1) * batch
        self.bound = (self.capacity + window - 2) // batch if slack else 0
        self.ledger = Ledger()
        self.live_version = PolicyVersion(0)
        self._next = 0
        self._free = [SlotId(slot) for slot in range(self.capacity)]
        heapify(self._free)
        self._slot: dict[TrajectoryId, SlotId] = {}
        self._unconsumed: deque[TrajectoryId] = deque()
        self._complete: dict[TrajectoryId, PolicyVersion] = {}
        self._staged: list[tuple[TrajectoryId, PolicyVersion]] = []
        self._training: tuple[TrajectoryId, ...] = ()
        self._trained: deque[tuple[PolicyVersion, tuple[SlotId, ...]]] = deque()

    @property
    def may_admit(self) -> bool:
        """Whether one more trajectory may begin."""
        return bool(self._free)

    @property
    def num_admitted(self) -> int:
        """Units ever admitted."""
        return self._next

    @property
    def num_held_untrained(self) -> int:
        """Admitted trajectories whose end is still open."""
        return len(self._slot) * self.unit

    @property
    def num_held(self) -> int:
        """Slots in use, those that wait for their weights to go live included."""
        return self.capacity - len(self._free)

    @property
    def num_staged(self) -> int:
        """Members that the next training batch has already."""
        return len(self._staged)

    @property
    def num_complete(self) -> int:
        """Finished trajectories that no update has taken."""
        return len(self._complete) + len(self._staged)

    def admit(self) -> tuple[TrajectoryId, SlotId]:
        """Begin a trajectory; only while ``may_admit``."""
        trajectory = TrajectoryId(self._next)
        slot = heappop(self._free)
        self._next += 1
        self._slot[trajectory] = slot
        self._unconsumed.append(trajectory)
        self.ledger.admitted += self.unit
        return trajectory, slot

    def complete(self, trajectory: TrajectoryId, oldest_version: PolicyVersion) -> None:
        """A trajectory is finished and waits for its update."""
        self._complete[trajectory] = oldest_version
        self._stage()

    def drop(self, trajectory: TrajectoryId, reason: str) -> None:
        """A trajectory that no update has taken will not be trained; its slot is free after ``release``."""
        self._unconsumed.remove(trajectory)
        self._end_untrained(trajectory, reason)
        self._stage()

    def replace_one(self, reason: str) -> None:
        """One trajectory of a unit is dropped, and another admitted in its place."""
        self.ledger.admitted += 1
        self._count_dropped(reason, 1)

    def release(self, slots: Iterable[SlotId]) -> None:
        """Nobody reads or writes these slots any more."""
        for slot in slots:
            heappush(self._free, slot)

    @property
    def has_batch(self) -> bool:
        """Whether a full training batch waits."""
        return len(self._staged) >= self.batch

    def take_batch(self) -> Batch | None:
        """The next training batch, if it is full and no other is in training."""
        if self._training or not self.has_batch:
            return None
        members, self._staged = sorted(self._staged), []
        self._training = tuple(trajectory for trajectory, _ in members)
        self._stage()
        return Batch(
            trajectories=self._training,
            slots=tuple(self._slot[trajectory] for trajectory in self._training),
            oldest_versions=tuple(version for _, version in members),
        )

    def trained(self, new_version: PolicyVersion) -> tuple[TrajectoryId, ...]:
        """The batch in training, which is returned, became ``new_version``; its slots wait until that is live."""
        batch, self._training = self._training, ()
        slots = tuple(self._slot.pop(trajectory) for trajectory in batch)
        self.ledger.trained += len(slots) * self.unit
        self._trained.append((new_version, slots))
        return batch

    def refuse_training(self, reason: str) -> tuple[TrajectoryId, ...]:
        """The batch in training, which is returned, taught nothing; it is dropped and its slots are free."""
        batch, self._training = self._training, ()
        self.release([self._end_untrained(trajectory, reason) for trajectory in batch])
        return batch

    def live(self, version: PolicyVersion) -> None:
        """Every generator now answers with ``version`` or newer."""
        self.live_version = version
        while self._trained and self._trained[0][0] <= version:
            _, slots = self._trained.popleft()
            self.release(slots)

    def abandon_all(self) -> None:
        """The run stops: whatever is not trained never will be."""
        self.ledger.abandoned += self.num_held_untrained
        self.release(self._slot.values())
        self._slot.clear()
        self._unconsumed.clear()
        self._complete.clear()
        self._staged.clear()
        self._training = ()

    def _stage(self) -> None:
        """Move finished trajectories into the next batch as far as the window allows."""
        while self._unconsumed and len(self._staged) < self.batch:
            last = self._unconsumed[0] + self.window - 1
            chosen = next((t for t in self._unconsumed if t > last or t in self._complete), None)
            if chosen is None or chosen > last:
                return
            self._unconsumed.remove(chosen)
            self._staged.append((chosen, self._complete.pop(chosen)))

    def _end_untrained(self, trajectory: TrajectoryId, reason: str) -> SlotId:
        self._complete.pop(trajectory, None)
        self._count_dropped(reason, self.unit)
        return self._slot.pop(trajectory)

    def _count_dropped(self, reason: str, count: int) -> None:
        self.ledger.dropped[reason] = self.ledger.dropped.get(reason, 0) + count
