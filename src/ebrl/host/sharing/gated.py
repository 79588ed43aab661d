"""What all back-ends have in common: a table that is found out once, and a gate in front of it."""

from __future__ import annotations

import abc
import threading
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext

from ebrl.errors import EbrlError, UsageError
from ebrl.host.sharing.base import (
    Applied,
    Capabilities,
    Held,
    Split,
    Stage,
    in_table,
    most_even,
    refused,
    remarked,
)
from ebrl.host.sharing.gate import GRACE_S, Gate, Lanes, NoLanes


class Obstacle(Exception):
    """Why a back-end does not work here, in words for the user."""


class GatedSharing(abc.ABC):
    """A back-end, but for what its mechanism is about."""

    name: str

    def __init__(self, *, initial: Split | None, grace_s: float = GRACE_S) -> None:
        """Begin at ``initial``, or at the most even split."""
        self._initial = initial
        self._grace_s = grace_s
        self._opening = threading.Lock()
        self._table: tuple[Split, ...] = ()
        self._gate: Gate | None = None
        self._closed = False
        self._lanes: Lanes = NoLanes()

    @abc.abstractmethod
    def _examine(self) -> tuple[Capabilities, tuple[Split, ...]]:
        """What can be done here, and every split that can be reached.

        Raises:
            Obstacle: it does not work here.
        """

    @abc.abstractmethod
    def _held(self, stage: Stage) -> Held:
        """What the stage really has."""

    def _units(self, split: Split, stage: Stage) -> frozenset[int]:
        """Numbers of a stage's units: generation has the first, training the last."""
        total = max(one.generation if one.shared else one.generation + one.training for one in self._table)
        return frozenset(range(split.generation) if stage == "generation" else range(total - split.training, total))

    def probe(self) -> Capabilities:
        """Whether it works here, and what it can do."""
        if self._closed:
            return refused("it was closed")
        try:
            return self._examine()[0]
        except Exception as error:  # a driver's own error types are not known here
            return refused(in_words(error))

    def table(self) -> tuple[Split, ...]:
        """Every split that can be reached.

        Raises:
            UsageError: it does not work here.
        """
        self._opened()
        return self._table

    def prepare(self, split: Split) -> None:
        """Make all that a switch to ``split`` needs.

        Raises:
            UsageError: ``split`` is not in the table.
        """
        in_table(split, self.table(), self.name)

    def request(self, split: Split, now: float) -> bool:
        """Begin a switch; False if one is still going on, or ``split`` is not in the table."""
        gate = self._opened()
        if split not in self._table or gate.closed or gate.switching:
            return False
        self.prepare(split)
        return gate.request(split, now)

    def gate(self, stage: Stage, now: float) -> bool:
        """Take up the wanted split if that can be done without waiting."""
        return self._opened().gate(stage, now)

    def park(self, stage: Stage, now: float) -> None:
        """The stage gives the device no work until its next gate."""
        self._opened().park(stage)

    def split(self, stage: Stage) -> Split:
        """The table entry that the stage has taken up."""
        return self._opened().split(stage)

    def lane(self, stage: Stage) -> AbstractContextManager[object]:
        """What the stage runs its work under.

        Raises:
            RuntimeError: the stage has no units at its split, or the back-end was closed.
        """
        gate = self._opened()
        if gate.closed:
            raise RuntimeError(f"sharing {self.name} was closed; {stage} may give no more work")
        if not gate.split(stage).of(stage):
            raise RuntimeError(f"{stage} has nothing at split {gate.split(stage)}: it has to park until the next one")
        return self._lane(stage, gate.split(stage))

    def readback(self) -> Applied:
        """What is really in force; where it differs from the split that was taken up, a remark says so."""
        gate = self._opened()
        return Applied(
            generation=self._compared("generation", gate),
            training=self._compared("training", gate),
            epoch=gate.epoch,
            forced=gate.forced,
        )

    def add(self, stage: Stage, pid: int, units: int = 0) -> None:  # noqa: B027 - nothing to do for most
        """A process works for ``stage`` from now on; nothing depends on it here."""

    def remove(self, stage: Stage, pid: int) -> None:  # noqa: B027 - nothing to do for most
        """A process has ended; nothing depends on it here."""

    def environment(self, stage: Stage, split: Split) -> Mapping[str, str]:
        """Nothing special."""
        return {}

    def close(self) -> None:
        """Give everything back; a second call does nothing, or tries again what failed."""
        with self._opening:
            if not self._closed:
                if self._gate is not None:
                    self._gate.close()
                self._release()
                self._closed = True

    def _lane(self, stage: Stage, split: Split) -> AbstractContextManager[object]:
        return nullcontext()

    def _release(self) -> None:  # noqa: B027 - nothing to do for most
        """Give back what was taken, also by a probe alone; called once."""

    def _compared(self, stage: Stage, gate: Gate) -> Held:
        held, wanted = self._held(stage), gate.split(stage).of(stage)
        return remarked(held, f"has {held.units}, should have {wanted}" if held.units != wanted else "")

    def _opened(self) -> Gate:
        if self._gate is not None:
            return self._gate
        with self._opening:
            if self._gate is None:
                if self._closed:
                    raise RuntimeError(f"sharing {self.name} was closed")
                try:
                    self._table = self._examine()[1]
                except Exception as error:
                    raise UsageError(f"sharing {self.name} does not work here: {in_words(error)}") from error
                initial = most_even(self._table) if self._initial is None else self._initial
                in_table(initial, self._table, self.name)
                gate = Gate(initial, units=self._units, lanes=self._lanes, grace_s=self._grace_s)
                self._started(gate)
                self._gate = gate
            return self._gate

    def _started(self, gate: Gate) -> None:  # noqa: B027 - nothing to do for most
        """Put the initial split in force."""


def in_words(error: Exception) -> str:
    """An error as a reason: with its type, unless it was meant to be read."""
    return str(error) if isinstance(error, Obstacle | EbrlError) else f"{type(error).__name__}: {error}"
