"""What processes have used of the machine, as the kernel counts it."""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import NamedTuple


class Usage(NamedTuple):
    """Seconds since a process began, summed over its threads."""

    run_s: float
    """On a CPU."""
    wait_s: float
    """Wanting a CPU that others had."""

    def since(self, before: Usage) -> Usage:
        """What was used after ``before``."""
        return Usage(self.run_s - before.run_s, self.wait_s - before.wait_s)


def usage(pid: int) -> Usage:
    """Usage of a process; exact to the nanosecond once it has fallen asleep.

    Raises:
        OSError: there is no such process, or the kernel does not count.
    """
    run_ns = wait_ns = 0
    for thread in os.listdir(f"/proc/{pid}/task"):
        try:
            with open(f"/proc/{pid}/task/{thread}/schedstat") as file:
                run, wait, _ = file.read().split()
        except FileNotFoundError:  # the thread has ended meanwhile
            continue
        run_ns += int(run)
        wait_ns += int(wait)
    return Usage(run_ns / 1e9, wait_ns / 1e9)


def nice_works() -> bool:
    """Whether a nice process yields to processes of other sessions: not where sessions are scheduled as groups."""
    try:
        with open("/proc/sys/kernel/sched_autogroup_enabled") as file:
            return file.read().strip() == "0"
    except OSError:
        return True


@dataclass
class Others:
    """What other programs did on this machine while somebody looked."""

    cpus: float = 0.0
    """CPUs that they kept busy, on average."""
    looks: list[tuple[float, int]] = field(default_factory=list)
    """Seconds since the first look, and how many of them ran or wanted to.

    Where the kernel schedules sessions as groups, a session counts once, however many of its tasks want a CPU.
    """

    @property
    def tasks(self) -> float:
        """Mean of the looks."""
        return sum(count for _, count in self.looks) / max(len(self.looks), 1)


class _Watch:
    """Looks at every process but this one, ``root`` and its children."""

    def __init__(self, root: int) -> None:
        self.others = Others()
        self._root = root
        self._grouped = not nice_works()
        self._start = time.monotonic()
        self._ticks: dict[int, int] = {}
        self._active: set[int] = set()
        self._searched = -math.inf
        self._used_s: tuple[float, float] | None = None
        """At the first look: everybody's CPU seconds, and those of the family and this process."""

    def look(self) -> None:
        """Take one look."""
        now = time.monotonic() - self._start
        pids = {int(name) for name in os.listdir("/proc") if name.isdecimal()}
        if now - self._searched > _SEARCH_EVERY_S:
            self._search(pids)
            self._searched = now
        else:  # who has come since is looked at too
            self._active |= pids - self._ticks.keys()
        wanting: set[int] = set()
        for pid in self._active:
            stat = _stat(pid)
            if stat is not None and stat.state == "R" and not self._is_family(pid, stat):
                wanting.add(stat.session if self._grouped else pid)
        self.others.looks.append((now, len(wanting)))
        self._count_cpus(pids, now)

    def _is_family(self, pid: int, stat: _Stat) -> bool:
        return pid in (os.getpid(), self._root) or stat.parent == self._root

    def _search(self, pids: set[int]) -> None:
        """Who has used a CPU since the last search."""
        self._active.clear()
        for pid in pids:
            stat = _stat(pid)
            if stat is None:
                continue
            if stat.ticks != self._ticks.get(pid) or stat.state == "R":
                self._active.add(pid)
            self._ticks[pid] = stat.ticks

    def _count_cpus(self, pids: set[int], now: float) -> None:
        if len(self.others.looks) % _COUNT_EVERY != 1:
            return
        own_s = 0.0
        for pid in pids:
            stat = _stat(pid)
            if stat is not None and self._is_family(pid, stat):
                with suppress(OSError):
                    own_s += usage(pid).run_s
        if self._used_s is None:
            self._used_s = (_everybody_s(), own_s)
            return
        used = _everybody_s() - self._used_s[0] - (own_s - self._used_s[1])
        self.others.cpus = max(0.0, used / max(now, 1e-9))


def _everybody_s() -> float:
    """CPU seconds that anybody on this machine has used since it started, over all CPUs."""
    with open("/proc/stat") as file:
        user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, file.readline().split()[1:9])
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


_COUNT_EVERY = 20
"""Looks between two counts of CPU seconds."""

_SEARCH_EVERY_S = 1.0


class _Stat(NamedTuple):
    state: str
    parent: int
    session: int
    ticks: int


def _stat(pid: int) -> _Stat | None:
    try:
        with open(f"/proc/{pid}/stat", errors="replace") as file:
            fields = file.read().rsplit(")", 1)[1].split()
    except OSError:
        return None
    return _Stat(fields[0], int(fields[1]), int(fields[3]), int(fields[11]) + int(fields[12]))


@contextmanager
def watch_others(root: int, *, every_s: float = 0.1) -> Iterator[Others]:
    """Measure, while inside, what everybody but this process, process ``root`` and its children does."""
    watch = _Watch(root)
    end = threading.Event()

    def go_on() -> None:
        while not end.wait(every_s):
            watch.look()

    thread = threading.Thread(target=go_on, daemon=True)
    thread.start()
    try:
        yield watch.others
    finally:
        end.set()
        thread.join()
