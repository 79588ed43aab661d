"""What every way of sharing a device between generation and training looks like from outside.

A back-end has a table of splits, and no other split can be reached. A switch from one entry to another begins
with ``request`` and ends when both stages have taken it up, each at its own safe point (``gate``). Nothing
that a stage calls at a safe point waits for the other stage.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Literal, Protocol

from ebrl.errors import UsageError

Stage = Literal["generation", "training"]

STAGES: tuple[Stage, Stage] = ("generation", "training")


def other(stage: Stage) -> Stage:
    """The stage that ``stage`` shares with."""
    return "training" if stage == "generation" else "generation"


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """How many units each stage has: SMs of a GPU, CPUs, or percent of the time."""

    generation: int
    training: int
    shared: bool = False
    """Both stages may use the same units; otherwise no unit belongs to both."""

    def of(self, stage: Stage) -> int:
        """Units of one stage."""
        return self.generation if stage == "generation" else self.training

    def __str__(self) -> str:
        return f"{self.generation}/{self.training}" + (" shared" if self.shared else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What a probe found."""

    works: bool
    reason: str = ""
    """Why it does not work; what is restricted, where it does."""
    unit: Literal["SM", "CPU", "percent of time"] = "SM"
    total: int = 0
    """Units that there are."""
    step: int = 0
    """Units by which neighbouring splits differ, where they differ evenly; 0 without a choice of splits."""
    live_resplit: bool = False
    """A running process can take up another split; otherwise another process has to replace it."""
    exclusive: bool = False
    """A stage cannot use what the other one has."""
    memory_cap: bool = False
    """Device memory can be limited per stage, and not by the stage itself."""
    fault_isolation: bool = False
    """A device fault of one stage does not reach the other."""
    processes: int = 1
    """Processes that the two stages run in: 1 for threads of one process, 2 for one process each, 0 for either."""


def refused(reason: str) -> Capabilities:
    """The result of a probe that found an obstacle."""
    return Capabilities(works=False, reason=reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What one stage really has, as the kernel, the driver or the stage's own process tells."""

    units: int
    ids: tuple[int, ...] = ()
    """Which units, where they have numbers."""
    pids: tuple[int, ...] = ()
    """Processes that were looked at."""
    used_s: float = 0.0
    """Time that the stage had the device to itself, where that is measured."""
    remark: str = ""
    """What is not as it should be; empty if all is well."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """What is in force, to be recorded beside what was wanted."""

    generation: Held
    training: Held
    epoch: int
    """Switches begun so far."""
    forced: int
    """Times that a stage took units which the other one had not given up in time."""

    def of(self, stage: Stage) -> Held:
        """What one stage has."""
        return self.generation if stage == "generation" else self.training


class Sharing(Protocol):
    """One way of sharing.

    ``request`` belongs to whoever decides on splits, ``gate``, ``park`` and ``lane`` to the stage that they name.
    They may be called from different threads.
    """

    @property
    def name(self) -> str:
        """As in the configuration."""

    def probe(self) -> Capabilities:
        """Whether it works here, and what it can do. Never raises, and takes seconds at most."""

    def table(self) -> tuple[Split, ...]:
        """Every split that can be reached, by ascending share of generation; a shared one comes last.

        Raises:
            UsageError: it does not work here.
        """

    def prepare(self, split: Split) -> None:
        """Make all that a switch to ``split`` needs. May be slow: for start-up and quiet times."""

    def lane(self, stage: Stage) -> AbstractContextManager[object]:
        """What the stage runs its work under, at the split that it has now."""

    def request(self, split: Split, now: float) -> bool:
        """Begin a switch; False if one is still going on, or ``split`` is not in the table."""

    def gate(self, stage: Stage, now: float) -> bool:
        """The stage is at a safe point: take up the wanted split if that can be done without waiting.

        True if the stage's split is another one than at its last gate. Where ``live_resplit`` is False this
        means that its process is to end, and one with ``environment(stage, …)`` to go on in its place.
        """

    def park(self, stage: Stage, now: float) -> None:
        """The stage gives the device no work until its next ``gate``; the other stage need not wait for it."""

    def split(self, stage: Stage) -> Split:
        """The table entry that the stage has taken up."""

    def add(self, stage: Stage, pid: int, units: int = 0) -> None:
        """A process works for ``stage`` from now on; ``units`` is how many it says it sees (SMs, as torch counts them).

        Where a process cannot take up another split, it takes the place of the one before.
        """

    def remove(self, stage: Stage, pid: int) -> None:
        """A process that was added has ended, or works for the stage no longer."""

    def readback(self) -> Applied:
        """What is really in force."""

    def environment(self, stage: Stage, split: Split) -> Mapping[str, str]:
        """Variables that a process of ``stage`` must be started with to run at ``split``."""

    def close(self) -> None:
        """Give everything back, once no stage has work in flight; a second call does nothing."""


def nested_table(total: int, step: int) -> tuple[Split, ...]:
    """Splits in steps of ``step``; what is left over by the last step goes with training.

    Generation has the first units and training the last, so that neighbours differ by one step.
    """
    inner = (Split(generation=units, training=total - units) for units in range(step, total - step + 1, step))
    return (Split(generation=0, training=total), *inner, Split(generation=total, training=0))


def most_even(table: tuple[Split, ...]) -> Split:
    """The split to begin with when nobody has chosen one."""
    return min(table, key=lambda split: (split.shared, abs(split.generation - split.training), split.generation))


def in_table(split: Split, table: tuple[Split, ...], name: str) -> Split:
    """``split``, if it can be reached.

    Raises:
        UsageError: it cannot; names the nearest that can.
    """
    if split in table:
        return split
    near = min(table, key=lambda one: (one.shared != split.shared, abs(one.generation - split.generation)))
    raise UsageError(f"sharing {name}: cannot split {split}; the nearest that it can is {near}")


@dataclass(slots=True)
class Processes:
    """Processes of each stage, and how many units each of them says it sees."""

    seen: dict[Stage, dict[int, int]] = field(default_factory=lambda: {stage: {} for stage in STAGES})

    def add(self, stage: Stage, pid: int, units: int) -> None:
        """A process takes the stage over; the one before it has ended or is about to."""
        self.seen[stage] = {pid: units}

    def remove(self, stage: Stage, pid: int) -> None:
        """A process has ended; no matter if another has taken over already."""
        self.seen[stage].pop(pid, None)

    def held(self, stage: Stage) -> Held:
        """What the stage's process reported."""
        found = self.seen[stage]
        remark = "" if found else f"no process of {stage} has reported"
        return Held(units=sum(found.values()), pids=tuple(found), remark=remark)


def remarked(held: Held, *remarks: str) -> Held:
    """The same with more remarks; empty ones are dropped."""
    return dataclasses.replace(held, remark="; ".join(text for text in (held.remark, *remarks) if text))
