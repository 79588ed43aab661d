"""What processes have used of the machine, as the kernel counts it."""

from __future__ import annotations

import os
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


def busy_s() -> float:
    """CPU seconds that anybody on this machine has used since it started, over all CPUs."""
    with open("/proc/stat") as file:
        user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, file.readline().split()[1:9])
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def nice_works() -> bool:
    """Whether a nice process yields to processes of other sessions: not where sessions are scheduled as groups."""
    try:
        with open("/proc/sys/kernel/sched_autogroup_enabled") as file:
            return file.read().strip() == "0"
    except OSError:
        return True
