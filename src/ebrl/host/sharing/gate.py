"""How two stages change over from one split to another while both go on working.

    request   the wanted split is set; nobody moves yet
    gate      a stage that loses units moves at once; one that gains waits, on its old units, until
              the other has given them up, at most ``grace_s``
    park      a stage that is about to wait for data steps aside: it moves if it can, and whoever comes to
              the gate next moves it if not
    done      when both have moved; only then is the next request accepted

A gate only decides, and puts orders between pieces of device work. It never waits, so a stage that is
stuck anywhere else cannot make the other one hang. What is taken by force after ``grace_s`` costs speed while
both use it, and is counted; it is never an error.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol

from ebrl.host.sharing.base import STAGES, Split, Stage, other

GRACE_S = 0.25
"""How long a stage that gains units waits for the other one to give them up."""


class Lanes(Protocol):
    """What the gate tells the device."""

    def mark(self, stage: Stage, split: Split) -> object:
        """A point behind all work that the stage has given to its lane of ``split`` so far."""

    def follow(self, stage: Stage, split: Split, mark: object) -> None:
        """Whatever the lane is given from now on runs after the mark."""

    def move(self, stage: Stage, split: Split) -> None:
        """The stage has ``split`` from now on."""


class NoLanes:
    """For back-ends whose work needs no order on the device."""

    def mark(self, stage: Stage, split: Split) -> object:
        """Nothing to mark."""
        return None

    def follow(self, stage: Stage, split: Split, mark: object) -> None:
        """Nothing to order."""

    def move(self, stage: Stage, split: Split) -> None:
        """Nothing to do."""


class Gate:
    """Which split each stage has, and when it may have the wanted one."""

    def __init__(
        self,
        initial: Split,
        *,
        units: Callable[[Split, Stage], frozenset[int]],
        lanes: Lanes,
        grace_s: float = GRACE_S,
    ) -> None:
        """Both stages begin at ``initial``; ``units`` numbers what a stage has at a split."""
        self._units = units
        self._lanes = lanes
        self._grace_s = grace_s
        self._mutex = threading.Lock()
        self._wanted = initial
        self._now_at: dict[Stage, Split] = dict.fromkeys(STAGES, initial)
        self._told: dict[Stage, Split] = dict.fromkeys(STAGES, initial)
        """What the stage itself knows: another may have moved it while it was parked."""
        self._parked: set[Stage] = set()
        self._left: dict[Stage, object] = {}
        """In this switch: the mark behind the work on units that a stage has left."""
        self._ahead: set[Stage] = set()
        """In this switch: moved, while parked, onto units that the other is just leaving."""
        self._deadline = 0.0
        self._closed = False
        self.epoch = 0
        """Switches begun."""
        self.forced = 0
        """Times that a stage took units which the other had not given up."""

    @property
    def closed(self) -> bool:
        """Whether ``close`` was called."""
        return self._closed

    @property
    def switching(self) -> bool:
        """Whether a stage has yet to take up the wanted split."""
        return any(self._now_at[stage] != self._wanted for stage in STAGES)

    def split(self, stage: Stage) -> Split:
        """The split that the stage has."""
        return self._now_at[stage]

    def units(self, stage: Stage) -> frozenset[int]:
        """Numbers of the units that the stage has."""
        return self._units(self._now_at[stage], stage)

    def request(self, split: Split, now: float) -> bool:
        """Want ``split`` from now on; False while the last switch is going on, or after ``close``."""
        with self._mutex:
            if self._closed or self.switching:
                return False
            if split != self._wanted:
                self._wanted = split
                self._left.clear()
                self._ahead.clear()
                self._deadline = now + self._grace_s
                self.epoch += 1
                self._move_parked()
            return True

    def gate(self, stage: Stage, now: float) -> bool:
        """Take up the wanted split if it may be; True if the stage's split changed since its last gate."""
        if self._now_at[stage] == self._wanted and stage not in self._parked:
            return False
        with self._mutex:
            self._parked.discard(stage)
            if not self._closed and self._now_at[stage] != self._wanted:
                self._advance(stage, now)
                self._move_parked()
            changed = self._now_at[stage] != self._told[stage]
            self._told[stage] = self._now_at[stage]
            return changed

    def park(self, stage: Stage) -> None:
        """The stage gives no work until its next gate."""
        with self._mutex:
            self._parked.add(stage)
            if not self._closed:
                self._move_parked()

    def close(self) -> None:
        """No switch from now on."""
        with self._mutex:
            self._closed = True

    def _advance(self, stage: Stage, now: float) -> None:
        """Move a stage that is at its gate, unless it has to wait for the other one and can."""
        if self._awaited(stage):
            rival = other(stage)
            if rival in self._parked:
                self._move(rival)
            elif now < self._deadline:
                return
            else:
                self.forced += 1
        self._move(stage)

    def _move_parked(self) -> None:
        """Move parked stages as far as what they gain is free; twice, since one may wait for the other."""
        for stage in STAGES * 2:
            if stage in self._parked and self._now_at[stage] != self._wanted:
                rival = other(stage)
                if self._awaited(stage) and rival in self._parked:
                    self._move(rival)
                if not self._awaited(stage):
                    self._move(stage)

    def _gained(self, stage: Stage) -> frozenset[int]:
        return self._units(self._wanted, stage) - self.units(stage)

    def _awaited(self, stage: Stage) -> frozenset[int]:
        """Units that the stage gains and the other one has yet to give up."""
        rival = other(stage)
        given_up = self.units(rival) - self._units(self._wanted, rival)
        return self._gained(stage) & given_up

    def _move(self, stage: Stage) -> None:
        rival = other(stage)
        if self._awaited(stage) and stage in self._parked:
            self._ahead.add(stage)
        old = self._now_at[stage]
        mark = self._lanes.mark(stage, old)
        self._lanes.follow(stage, self._wanted, mark)  # the stage's own work stays in order
        if rival in self._left:
            self._lanes.follow(stage, self._wanted, self._left[rival])  # what it gains is empty by then
        if rival in self._ahead:
            self._lanes.follow(rival, self._wanted, mark)
        self._lanes.move(stage, self._wanted)
        self._left[stage] = mark
        self._now_at[stage] = self._wanted
