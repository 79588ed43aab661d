"""Turns: one stage at a time has the whole device, and over time each gets its share.

A lane is a turn. Whoever asks while the device is free has it at once; when both want it, the stage goes first that
has used less in proportion to its share. A turn is as long as what the stage does in it: nothing is cut short.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from ebrl.host.sharing.base import STAGES, Capabilities, Held, Split, Stage, other
from ebrl.host.sharing.driver import cuda_device
from ebrl.host.sharing.gate import GRACE_S
from ebrl.host.sharing.gated import GatedSharing

CREDIT_S = 1.0
"""So much time, weighted by shares, can a stage that did not ask save up at most."""


class Turns:
    """Whose turn it is. Only accounts: it neither waits nor reads a clock."""

    def __init__(self, shares: dict[Stage, int], *, credit_s: float = CREDIT_S) -> None:
        """Shares in any unit, each above 0."""
        self.shares = dict(shares)
        self.used_s: dict[Stage, float] = dict.fromkeys(STAGES, 0.0)
        self.holder: Stage | None = None
        self._credit_s = credit_s
        self._waiting: set[Stage] = set()
        self._spent: dict[Stage, float] = dict.fromkeys(STAGES, 0.0)
        """Time used over share of the time; who has spent less goes first."""
        self._waited_for: dict[Stage, float] = dict.fromkeys(STAGES, 0.0)
        """What the last turn cost that a stage had to wait for: so much it is owed, however long its own turns."""
        self._last: Stage = "training"
        self._since = 0.0

    def ask(self, stage: Stage) -> None:
        """The stage wants a turn. What it saved up while it wanted none is limited, or the other would starve."""
        if stage not in self._waiting:
            self._waiting.add(stage)
            credit_s = max(self._credit_s, self._waited_for[stage])
            self._spent[stage] = max(self._spent[stage], self._spent[other(stage)] - credit_s)

    def may_begin(self, stage: Stage) -> bool:
        """Whether the stage's turn can begin now."""
        rival = other(stage)
        if self.holder is not None or stage not in self._waiting:
            return False
        return rival not in self._waiting or self._rank(stage) < self._rank(rival)

    def begin(self, stage: Stage, now: float) -> None:
        """The turn begins."""
        assert self.may_begin(stage), f"{stage} may not begin: {self.holder} has the device, {self._spent} was spent"
        self._waiting.discard(stage)
        self.holder = self._last = stage
        self._since = now

    def end(self, now: float) -> None:
        """The turn is over."""
        assert self.holder is not None, "no turn has begun"
        stage, used_s = self.holder, now - self._since
        self.used_s[stage] += used_s
        cost_s = used_s * sum(self.shares.values()) / self.shares[stage]
        self._spent[stage] += cost_s
        if other(stage) in self._waiting:
            self._waited_for[other(stage)] = cost_s
        self.holder = None

    def give_up(self, stage: Stage) -> None:
        """The stage wants no turn any more."""
        self._waiting.discard(stage)

    def _rank(self, stage: Stage) -> tuple[float, bool]:
        return self._spent[stage], stage == self._last  # turns too short to measure alternate


class TimeSlice(GatedSharing):
    """Turns on the whole device, for stages that are threads of one process."""

    name = "time_slice"

    def __init__(
        self,
        *,
        synchronize: Callable[[], object] | None = None,
        clock: Callable[[], float] = time.monotonic,
        step_percent: int = 5,
        initial: Split | None = None,
        grace_s: float = GRACE_S,
    ) -> None:
        """Take turns.

        Args:
            synchronize: waits until the device has done everything that the thread gave it, because work that is
                still under way would run into the other's turn; without it, torch does so for its CUDA device.
            clock: seconds, monotonic.
            step_percent: by how much neighbouring splits differ.
            initial: split to begin with, in percent.
            grace_s: how long a stage that gains waits for the other.
        """
        super().__init__(initial=initial, grace_s=grace_s)
        self._synchronize = synchronize
        self._clock = clock
        self._step_percent = step_percent
        self._turns: Turns | None = None
        self._free = threading.Condition()

    def _examine(self) -> tuple[Capabilities, tuple[Split, ...]]:
        if self._synchronize is None:
            self._synchronize = cuda_device().synchronize
        step = self._step_percent
        found = Capabilities(
            works=True,
            reason="one stage at a time: nothing overlaps on the device",
            unit="percent of time",
            total=100,
            step=step,
            live_resplit=True,
            exclusive=True,
        )
        return found, tuple(Split(generation=part, training=100 - part) for part in range(step, 100, step))

    def _lane(self, stage: Stage, split: Split) -> AbstractContextManager[object]:
        return self._turn(stage)

    @contextmanager
    def _turn(self, stage: Stage) -> Iterator[None]:
        with self._free:
            turns = self._accounts()
            turns.ask(stage)
            try:
                self._free.wait_for(lambda: turns.may_begin(stage))
            except BaseException:  # interrupted: whoever waits for this stage must not wait for ever
                turns.give_up(stage)
                self._free.notify_all()
                raise
            turns.shares = {one: self.split(one).of(one) for one in STAGES}
            turns.begin(stage, self._clock())
        try:
            yield
        finally:
            try:
                assert self._synchronize is not None
                self._synchronize()
            finally:
                with self._free:
                    turns.end(self._clock())
                    self._free.notify_all()

    def _accounts(self) -> Turns:
        if self._turns is None:
            self._turns = Turns({stage: self.split(stage).of(stage) for stage in STAGES})
        return self._turns

    def _held(self, stage: Stage) -> Held:
        with self._free:
            turns = self._accounts()
            return Held(units=self.split(stage).of(stage), used_s=turns.used_s[stage])
