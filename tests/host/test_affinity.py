"""Every thread of a process, and not only its first."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from ebrl.host.affinity import bind_every_thread, cpus_of_threads
from ebrl.host.probe import usable_cpus

THREE_THREADS = """
import sys, threading
stay = threading.Event()
for _ in range(2):
    threading.Thread(target=stay.wait, daemon=True).start()
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def pid() -> Iterator[int]:
    with subprocess.Popen(
        [sys.executable, "-c", THREE_THREADS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process.pid
        process.kill()


def test_every_thread_is_bound(pid: int) -> None:
    everywhere = tuple(sorted(os.sched_getaffinity(0)))
    assert list(cpus_of_threads(pid).values()) == [everywhere] * 3
    for cpu in usable_cpus()[:2]:
        bind_every_thread(pid, [cpu])
        assert list(cpus_of_threads(pid).values()) == [(cpu,)] * 3
    bind_every_thread(pid, everywhere)
    assert list(cpus_of_threads(pid).values()) == [everywhere] * 3


def test_cpus_that_are_not_there_are_left_out(pid: int) -> None:
    """A container has been given fewer."""
    cpu = usable_cpus()[0]
    assert bind_every_thread(pid, [cpu, 1023])
    assert list(cpus_of_threads(pid).values()) == [(cpu,)] * 3
    assert not bind_every_thread(pid, [1023])


def test_a_process_that_is_gone_is_an_error() -> None:
    gone = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    with pytest.raises(OSError):
        bind_every_thread(int(gone.stdout), [0])
