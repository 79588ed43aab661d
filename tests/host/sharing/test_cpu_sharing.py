"""CPUs: the bookkeeping on a kernel that is made up, and the binding of real processes with several threads."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from sharing_fakes import FakeKernel

from ebrl.errors import RunError, UsageError
from ebrl.host.probe import usable_cpus
from ebrl.host.sharing.base import STAGES, Split, Stage
from ebrl.host.sharing.cpu import PASSES, Cpu, Linux, cpu_list
from ebrl.ids import CpuId

CHILD = """
import sys, threading
def idle(started, end):
    started.set()
    end.wait()
def begin(count):
    for _ in range(count):
        started = threading.Event()
        threading.Thread(target=idle, args=(started, end), daemon=True).start()
        started.wait()
end = threading.Event()
begin(3)
print("ready", flush=True)
for line in sys.stdin:
    begin(int(line))
    print("ready", flush=True)
"""

two_cpus = pytest.mark.skipif(len(usable_cpus()) < 2, reason="one CPU only")


def made(kernel: FakeKernel) -> Cpu:
    return Cpu(cpus=[CpuId(cpu) for cpu in sorted(kernel.all)], kernel=kernel)


def switch(sharing: Cpu, split: Split) -> None:
    assert sharing.request(split, 0.0)
    for stage in (*STAGES, *STAGES):
        sharing.gate(stage, 0.0)
    assert sharing.split("generation") == sharing.split("training") == split


@contextmanager
def process() -> Iterator[subprocess.Popen[str]]:
    """A process with four threads, more on request; it ends with its input."""
    with subprocess.Popen(
        [sys.executable, "-c", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        try:
            answered(child)
            yield child
        finally:
            assert child.stdin is not None
            child.stdin.close()


def answered(child: subprocess.Popen[str]) -> None:
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"


def more_threads(child: subprocess.Popen[str], count: int) -> None:
    assert child.stdin is not None
    child.stdin.write(f"{count}\n")
    child.stdin.flush()
    answered(child)


def ids(sharing: Cpu) -> dict[Stage, tuple[int, ...]]:
    found = sharing.readback()
    assert (found.generation.remark, found.training.remark) == ("", "")
    return {stage: found.of(stage).ids for stage in STAGES}


@two_cpus
def test_every_thread_of_a_real_process_is_moved_there_and_back() -> None:
    one, two = usable_cpus()[:2]
    sharing = Cpu(cpus=[one, two])
    alone, shared = sharing.table()
    with process() as generator, process() as learner:
        sharing.add("generation", generator.pid)
        sharing.add("training", learner.pid)
        assert len(Linux().threads(learner.pid)) == 4
        assert ids(sharing) == {"generation": (one,), "training": (two,)}
        switch(sharing, shared)
        assert ids(sharing) == {"generation": (one, two), "training": (one, two)}
        more_threads(learner, 2)
        switch(sharing, alone)
        assert ids(sharing) == {"generation": (one,), "training": (two,)}
        more_threads(learner, 3)
        assert len(Linux().threads(learner.pid)) == 9
        assert ids(sharing)["training"] == (two,)  # new threads take after those that made them
    sharing.close()


@two_cpus
def test_a_thread_that_somebody_else_moved_is_noticed() -> None:
    sharing = Cpu(cpus=usable_cpus()[:2])
    with process() as child:
        sharing.add("training", child.pid)
        thread = max(Linux().threads(child.pid))
        os.sched_setaffinity(thread, usable_cpus()[:2])
        found = sharing.readback().training
        assert found.units == 2
        assert found.remark == (
            f"on other CPUs than wanted: thread {thread} of process {child.pid}; has 2, should have 1"
        )


@two_cpus
def test_a_process_that_has_ended_is_in_nobodys_way() -> None:
    sharing = Cpu(cpus=usable_cpus()[:2])
    with process() as child:
        sharing.add("training", child.pid)
    switch(sharing, sharing.table()[-1])
    assert sharing.readback().training.remark == "no process of training is running; has 0, should have 2"
    sharing.remove("training", child.pid)
    assert sharing.readback().training.pids == ()


def test_threads_that_come_up_meanwhile_are_bound_too() -> None:
    kernel = FakeKernel(4)
    kernel.start(1, 3)
    kernel.births[1] = [901, 902, 903, 904, 905]
    sharing = made(kernel)
    sharing.add("training", 1)
    assert set(kernel.processes[1].values()) == {frozenset({2, 3})}
    assert len(kernel.processes[1]) == 8


def test_a_process_that_never_stops_making_threads_is_told() -> None:
    kernel = FakeKernel(4)
    kernel.start(1, 3)
    kernel.births[1] = list(range(900, 900 + 10 * PASSES))
    with pytest.raises(RunError, match=r"process 1 \(training\) starts threads faster than .* CPUs \[2, 3\]"):
        made(kernel).add("training", 1)


def test_a_process_that_joins_in_the_middle_of_a_switch_goes_where_its_stage_is() -> None:
    kernel = FakeKernel(4)
    kernel.start(1, 2)
    kernel.start(2, 2)
    sharing = made(kernel)
    sharing.request(Split(generation=3, training=1), 0.0)
    sharing.gate("training", 0.0)
    sharing.add("training", 1)
    sharing.add("generation", 2)
    assert kernel.processes[1][100] == {3}
    assert kernel.processes[2][200] == {0, 1}


def test_a_process_is_told_how_many_threads_to_compute_with() -> None:
    sharing = made(FakeKernel(4))
    split = Split(generation=1, training=3)
    assert sharing.environment("training", split) == dict.fromkeys(
        ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "3"
    )
    assert sharing.num_threads("training") == 2


def test_who_may_not_bind_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = FakeKernel(2)
    kernel.start(7, 1)

    def denied(thread: int, cpus: frozenset[int]) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(kernel, "bind", denied)
    with pytest.raises(
        UsageError, match=r"cannot bind thread 700 of process 7 \(training\) to CPUs \[1\]: Operation not permitted"
    ):
        made(kernel).add("training", 7)


def test_one_cpu_can_only_be_shared() -> None:
    sharing = made(FakeKernel(1))
    assert sharing.table() == (Split(generation=1, training=1, shared=True),)
    assert sharing.probe().reason == "one CPU: both stages share it"
    assert not sharing.probe().exclusive


@pytest.mark.parametrize(
    ("cpus", "reason"),
    [
        ([], "CPUs []: want at least one, and each once"),
        ([1, 1], "CPUs [1, 1]: want at least one, and each once"),
        ([0, 5, 7], "this process may not use CPUs [5, 7]; it may use [0, 1]"),
    ],
)
def test_cpus_that_cannot_be_had_are_an_obstacle(cpus: list[int], reason: str) -> None:
    assert Cpu(cpus=[CpuId(cpu) for cpu in cpus], kernel=FakeKernel(2)).probe().reason == reason


def test_elsewhere_than_on_linux_the_reason_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert Cpu(cpus=[CpuId(0)]).probe().reason == "processes can be bound to CPUs on Linux only; this is darwin"


def test_lists_of_cpus() -> None:
    assert cpu_list("\t0-2,5\n") == {0, 1, 2, 5}
    assert cpu_list("7") == {7}
    assert cpu_list("\n") == frozenset()
