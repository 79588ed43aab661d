"""Which CPUs the threads of a process may run on, as the kernel has it."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable


def bind_thread(tid: int, cpus: Iterable[int]) -> bool:
    """Let one thread run on these CPUs only; says whether any of them may be used, else it stays where it is.

    CPUs go while a run goes on: a container is given fewer, a machine loses one.

    Raises:
        OSError: there is no such thread.
    """
    try:
        os.sched_setaffinity(tid, cpus)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return False
    return True


def bind_every_thread(pid: int, cpus: Iterable[int]) -> bool:
    """Let every thread of a process run on these CPUs only; those that it starts later inherit them.

    Says whether any of them may be used; else everything stays where it is.

    ``os.sched_setaffinity`` moves one thread. While the others are being moved the process may start new ones, so
    this goes on until a round finds none that it has not moved. The kernel leaves out CPUs that are gone.

    Raises:
        OSError: there is no such process.
    """
    wanted = set(cpus)
    moved: set[int] = set()
    for _ in range(100):
        others = {tid for tid, allowed in cpus_of_threads(pid).items() if set(allowed) != wanted} - moved
        if not others:
            return True
        for tid in others:
            try:
                if not bind_thread(tid, wanted):
                    return False
            except ProcessLookupError:
                pass  # the thread has ended meanwhile
        moved |= others
    raise OSError(f"process {pid} starts threads faster than they can be bound to CPUs {sorted(wanted)}")


def cpus_of_threads(pid: int) -> dict[int, tuple[int, ...]]:
    """CPUs that each thread of a process may run on, by thread id.

    Raises:
        OSError: there is no such process.
    """
    found: dict[int, tuple[int, ...]] = {}
    for name in os.listdir(f"/proc/{pid}/task"):
        try:
            found[int(name)] = tuple(sorted(os.sched_getaffinity(int(name))))
        except ProcessLookupError:
            pass  # the thread has ended meanwhile
    return found
