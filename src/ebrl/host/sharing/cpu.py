"""CPUs of the host, bound to the processes of a stage: what is shared where generation and training compute on CPUs.

A process that already runs is rebound from outside, thread by thread, because the kernel keeps a set of CPUs per
thread and a new thread takes that of the thread which made it. How many threads a process computes with is its own
affair: ``num_threads`` says what fits, and the process has to set it.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from ebrl.errors import RunError, UsageError
from ebrl.host.sharing.base import STAGES, Capabilities, Held, Split, Stage, remarked
from ebrl.host.sharing.gate import GRACE_S, NoLanes
from ebrl.host.sharing.gated import GatedSharing, Obstacle
from ebrl.ids import CpuId

PASSES = 50
"""Looks at a process's list of threads, within which it must stop making new ones."""


class Kernel(Protocol):
    """What the kernel knows about threads and CPUs."""

    def usable(self) -> set[int]:
        """CPUs that this process may use."""

    def threads(self, pid: int) -> list[int]:
        """Threads of a process; none once it has ended."""

    def bind(self, thread: int, cpus: frozenset[int]) -> None:
        """Let a thread run on these CPUs only.

        Raises:
            OSError: no such thread (``ProcessLookupError``), or it may not be done.
        """

    def bound(self, pid: int, thread: int) -> frozenset[int]:
        """CPUs that a thread may run on; empty once it has ended."""


class Linux:
    """The kernel that this runs on."""

    def usable(self) -> set[int]:
        """CPUs in this process's own set."""
        return os.sched_getaffinity(0)

    def threads(self, pid: int) -> list[int]:
        """As ``/proc`` lists them."""
        try:
            return [int(name) for name in os.listdir(f"/proc/{pid}/task")]
        except (FileNotFoundError, ProcessLookupError):
            return []

    def bind(self, thread: int, cpus: frozenset[int]) -> None:
        """Set the thread's CPU affinity."""
        os.sched_setaffinity(thread, cpus)

    def bound(self, pid: int, thread: int) -> frozenset[int]:
        """As the thread's status tells."""
        try:
            lines = Path(f"/proc/{pid}/task/{thread}/status").read_text().splitlines()
        except (FileNotFoundError, ProcessLookupError):
            return frozenset()
        listed = next(line.split(":", 1)[1] for line in lines if line.startswith("Cpus_allowed_list:"))
        return cpu_list(listed)


def cpu_list(text: str) -> frozenset[int]:
    """CPUs in a list such as ``0-2,5``."""
    ranges = [part.split("-") for part in text.strip().split(",") if part]
    return frozenset(cpu for ends in ranges for cpu in range(int(ends[0]), int(ends[-1]) + 1))


class Cpu(GatedSharing):
    """Every stage's processes on CPUs of their own, or both on all of them."""

    name = "cpu"

    def __init__(
        self,
        *,
        cpus: Sequence[CpuId],
        kernel: Kernel | None = None,
        initial: Split | None = None,
        grace_s: float = GRACE_S,
    ) -> None:
        """Share ``cpus``; generation is given the first of them and training the last, so order them by locality."""
        super().__init__(initial=initial, grace_s=grace_s)
        self.cpus = tuple(cpus)
        self._kernel = Linux() if kernel is None else kernel
        self._pids: dict[Stage, list[int]] = {stage: [] for stage in STAGES}
        self._at: dict[Stage, Split] = {}
        self._binding = threading.RLock()
        self._lanes = _Binding(self)

    def add(self, stage: Stage, pid: int, units: int = 0) -> None:
        """A process works for ``stage`` from now on; it is bound at once.

        Raises:
            UsageError: this user may not bind it.
            RunError: it starts threads faster than they can be bound.
        """
        self._opened()
        with self._binding:
            self._pids[stage].append(pid)
            self.bind(stage, self._at.get(stage, self.split(stage)))

    def remove(self, stage: Stage, pid: int) -> None:
        """A process has ended, or works for the stage no longer; it keeps its CPUs."""
        with self._binding:
            self._pids[stage].remove(pid)

    def num_threads(self, stage: Stage) -> int:
        """Threads that the stage's processes should compute with, all together, at its present split."""
        return self.split(stage).of(stage)

    def environment(self, stage: Stage, split: Split) -> Mapping[str, str]:
        """Thread counts of the usual numerical libraries, which read them once."""
        count = str(split.of(stage))
        return {"OMP_NUM_THREADS": count, "MKL_NUM_THREADS": count, "OPENBLAS_NUM_THREADS": count}

    def cpus_of(self, stage: Stage, split: Split) -> frozenset[int]:
        """CPUs of a stage at a split."""
        return frozenset(self.cpus[unit] for unit in self._units(split, stage))

    def bind(self, stage: Stage, split: Split) -> None:
        """Bind every thread of the stage's processes, also those that come up meanwhile.

        Raises:
            UsageError: this user may not bind one of them.
            RunError: one starts threads faster than they can be bound.
        """
        with self._binding:
            self._at[stage] = split
            for pid in self._pids[stage]:
                self._bind_process(stage, pid, self.cpus_of(stage, split))

    def _bind_process(self, stage: Stage, pid: int, cpus: frozenset[int]) -> None:
        done: set[int] = set()
        for _ in range(PASSES):
            astray = {thread for thread in self._kernel.threads(pid) if self._kernel.bound(pid, thread) != cpus} - done
            if not astray:
                return
            for thread in astray:
                self._bind_thread(stage, pid, thread, cpus)
            done |= astray
        raise RunError(
            f"sharing cpu: process {pid} ({stage}) starts threads faster than they can be bound to CPUs {sorted(cpus)}"
        )

    def _bind_thread(self, stage: Stage, pid: int, thread: int, cpus: frozenset[int]) -> None:
        try:
            self._kernel.bind(thread, cpus)
        except ProcessLookupError:
            pass  # it has ended; if its process has too, whoever started it will say so
        except OSError as error:
            whose = f"thread {thread} of process {pid} ({stage})"
            raise UsageError(f"sharing cpu: cannot bind {whose} to CPUs {sorted(cpus)}: {error.strerror}") from error

    def _examine(self) -> tuple[Capabilities, tuple[Split, ...]]:
        if isinstance(self._kernel, Linux) and not sys.platform.startswith("linux"):
            raise Obstacle(f"processes can be bound to CPUs on Linux only; this is {sys.platform}")
        if not self.cpus or len(set(self.cpus)) != len(self.cpus):
            raise Obstacle(f"CPUs {list(self.cpus)}: want at least one, and each once")
        if missing := sorted(set(self.cpus) - self._kernel.usable()):
            raise Obstacle(f"this process may not use CPUs {missing}; it may use {sorted(self._kernel.usable())}")
        num = len(self.cpus)
        found = Capabilities(
            works=True,
            reason="one CPU: both stages share it" if num == 1 else "",
            unit="CPU",
            total=num,
            step=1,
            live_resplit=True,
            exclusive=num > 1,
            fault_isolation=True,
            processes=2,
        )
        own = (Split(generation=count, training=num - count) for count in range(1, num))
        return found, (*own, Split(generation=num, training=num, shared=True))

    def _held(self, stage: Stage) -> Held:
        """What the kernel says of every thread, not what was asked for."""
        pids = tuple(self._pids[stage])
        sets = {
            (pid, thread): cpus
            for pid in pids
            for thread in self._kernel.threads(pid)
            if (cpus := self._kernel.bound(pid, thread))
        }
        union = frozenset[int]().union(*sets.values())
        held = Held(units=len(union), ids=tuple(sorted(union)), pids=pids)
        if not sets:
            return remarked(held, f"no process of {stage} is running")
        wanted = self.cpus_of(stage, self.split(stage))
        astray = [f"{thread} of process {pid}" for (pid, thread), cpus in sets.items() if cpus != wanted]
        return remarked(held, f"on other CPUs than wanted: thread {', '.join(astray)}" if astray else "")


class _Binding(NoLanes):
    """Moving a stage is binding its processes."""

    def __init__(self, owner: Cpu) -> None:
        self._owner = owner

    def move(self, stage: Stage, split: Split) -> None:
        """Bind every thread of the stage's processes."""
        self._owner.bind(stage, split)
