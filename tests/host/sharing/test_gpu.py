"""The back-ends on a real card. Run with ``pytest -m gpu``; elsewhere skipped, with the reason.

No setting of the card is touched, and no process is killed. Figures are printed (``-rP``) and never decide.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeVar

import pytest
import torch

from ebrl.host.probe import usable_cpus
from ebrl.host.sharing.base import STAGES, Sharing, Split, Stage
from ebrl.host.sharing.choose import choose, on_host
from ebrl.host.sharing.green import Green
from ebrl.host.sharing.mig import Mig
from ebrl.host.sharing.mps import Mps
from ebrl.host.sharing.streams import Streams
from ebrl.host.sharing.time_slice import TimeSlice

S = TypeVar("S", bound=Sharing)

pytestmark = pytest.mark.gpu

LEAKED_SMS = 2
"""SMs that a context may use beyond its own once kernels start kernels: documented for sm_90."""

NUM_BLOCKS = 4224

PLACEMENT = f"""
import torch, triton
import triton.language as tl
from triton.language.extra.cuda import smid

@triton.jit
def kernel(out, a, n):
    p = tl.program_id(0)
    acc = 0.0
    for i in range(n):
        acc += tl.load(a + (p + i) % 4096)
    tl.store(a + 8192 + p, acc)
    tl.store(out + p, smid())

def buffers():
    out = torch.full(({NUM_BLOCKS},), -1, dtype=torch.int32, device="cuda")
    return out, torch.ones(8192 + {NUM_BLOCKS}, device="cuda")

def launch(out, a):
    kernel[({NUM_BLOCKS},)](out, a, 200)

def seen(out):
    torch.cuda.synchronize()
    return set(out.tolist()) - {{-1}}
"""

CLIENT = """
import os, sys, torch
torch.ones(1, device="cuda")
a = torch.ones(1024, 1024, device="cuda")
print(os.getpid(), torch.cuda.get_device_properties(0).multi_processor_count, flush=True)
sys.stdin.readline()
print(int((a @ a)[0, 0].item()), flush=True)
sys.stdin.readline()
"""


def working(sharing: S) -> S:
    found = sharing.probe()
    if not found.works:
        pytest.skip(f"{sharing.name}: {found.reason}")
    print(sharing.name, found)
    return sharing


@pytest.fixture
def green() -> Iterator[Green]:
    made = working(Green())
    yield made
    torch.cuda.synchronize()
    made.close()


@pytest.fixture
def placement(tmp_path: Path) -> Any:
    """A kernel that notes on which SMs it ran."""
    if importlib.util.find_spec("triton") is None:
        pytest.skip("triton is not installed: it compiles the kernel that looks where it runs")
    path = tmp_path / "placement.py"
    path.write_text(PLACEMENT)
    spec = importlib.util.spec_from_file_location("placement", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def sms_seen(placement: Any, sharing: Green, stage: Stage) -> set[int]:
    out, a = placement.buffers()
    torch.cuda.synchronize()
    with sharing.lane(stage):
        placement.launch(out, a)
    found: set[int] = placement.seen(out)
    return found


def switch(sharing: Sharing, split: Split) -> None:
    assert sharing.request(split, time.monotonic())
    for stage in (*STAGES, *STAGES):
        sharing.gate(stage, time.monotonic())
        if not sharing.split(stage).of(stage):
            sharing.park(stage, time.monotonic())
    assert sharing.split("generation") == sharing.split("training") == split


def spread(table: tuple[Split, ...], count: int) -> list[Split]:
    """Some entries in which both stages have something."""
    inner = [split for split in table if split.generation and split.training]
    return inner[:: max(1, len(inner) // count)]


def test_auto_takes_green_contexts_where_they_work(green: Green) -> None:
    chosen = choose("auto", on_host(device=0, cpus=usable_cpus()))
    assert chosen.name == "green"
    chosen.close()


def test_the_whole_device_or_all_but_a_remainder_is_given_out(green: Green) -> None:
    whole = torch.cuda.get_device_properties(0).multi_processor_count
    found = green.probe()
    assert whole - found.step < found.total <= whole
    assert torch.cuda.get_device_properties(0).multi_processor_count == whole


def test_every_split_has_the_sms_that_the_table_says(green: Green) -> None:
    for split in green.table():
        began = time.perf_counter()
        free_bytes = torch.cuda.mem_get_info()[0]
        green.prepare(split)
        cost_bytes = free_bytes - torch.cuda.mem_get_info()[0]
        print(split, f"made in {time.perf_counter() - began:.4f} s, {cost_bytes} bytes")
        switch(green, split)
        found = green.readback()
        assert (found.generation.units, found.training.units) == (split.generation, split.training)
        assert (found.generation.remark, found.training.remark) == ("", "")


def test_kernels_run_on_the_sms_of_their_lane_and_on_no_others(green: Green, placement: Any) -> None:
    for split in spread(green.table(), 5):
        switch(green, split)
        found = {stage: sms_seen(placement, green, stage) for stage in STAGES}
        print(split, {stage: len(sms) for stage, sms in found.items()})
        for stage in STAGES:
            assert split.of(stage) <= len(found[stage]) <= split.of(stage) + LEAKED_SMS
        assert len(found["generation"] & found["training"]) <= LEAKED_SMS


def test_the_backward_pass_stays_in_the_lane(green: Green, placement: Any) -> None:
    out, a = placement.buffers()
    x = torch.ones(4, device="cuda", requires_grad=True)

    def note(gradient: torch.Tensor) -> torch.Tensor:
        placement.launch(out, a)
        return gradient

    torch.cuda.synchronize()
    with green.lane("generation"):
        y = x * 1
        y.register_hook(note)  # type: ignore[no-untyped-call]
        y.sum().backward()  # type: ignore[no-untyped-call]
    units = green.split("generation").generation
    assert units <= len(placement.seen(out)) <= units + LEAKED_SMS


def test_a_captured_graph_keeps_the_sms_that_it_was_captured_on(green: Green, placement: Any) -> None:
    out, a = placement.buffers()
    with green.lane("generation"):
        placement.launch(out, a)  # compiled before the capture
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    lane = green.made("generation", green.split("generation"))
    assert lane is not None
    with torch.cuda.graph(graph, stream=lane.stream):
        placement.launch(out, a)
    counts = {}
    for stage in STAGES:
        out.fill_(-1)
        torch.cuda.synchronize()
        with green.lane(stage):
            graph.replay()
        counts[stage] = len(placement.seen(out))
    print("graph of generation replayed on the lane of", counts)
    assert counts["generation"] <= green.split("generation").generation + LEAKED_SMS


def test_a_stage_that_is_moved_at_work_loses_nothing_and_stays_in_order(green: Green) -> None:
    """Every launch depends on the one before: a lane that did not wait for the last one would lose an addition."""
    splits = spread(green.table(), 4)
    for split in splits:
        green.prepare(split)
    x = {stage: torch.zeros(1 << 22, device="cuda") for stage in STAGES}
    y = {stage: torch.empty_like(x[stage]) for stage in STAGES}
    torch.cuda.synchronize()
    rounds, switch_s = 0, []
    for split in splits * 5:
        for stage in STAGES:
            with green.lane(stage):
                for _ in range(20):
                    torch.add(x[stage], 1, out=y[stage])
                    x[stage].copy_(y[stage])
        rounds += 20
        began = time.perf_counter()
        switch(green, split)
        switch_s.append(time.perf_counter() - began)
    torch.cuda.synchronize()
    print(f"median switch {sorted(switch_s)[len(switch_s) // 2] * 1e6:.1f} us, of the host")
    for stage in STAGES:
        assert bool((x[stage] == rounds).all())
    assert green.readback().forced == 0


def test_a_stage_can_have_the_whole_device_for_a_while(green: Green) -> None:
    table = green.table()
    for split in (table[0], table[-1], table[len(table) // 2]):
        switch(green, split)
        for stage in STAGES:
            if split.of(stage):
                with green.lane(stage):
                    assert int(torch.ones(64, device="cuda").sum().item()) == 64


def test_two_threads_work_while_the_split_moves(green: Green) -> None:
    splits = spread(green.table(), 4)
    over, counts, failures = threading.Event(), dict.fromkeys(STAGES, 0), list[BaseException]()

    def stage_loop(stage: Stage) -> None:
        try:
            with green.lane(stage):
                a = torch.ones(512, 512, device="cuda")
            while not over.is_set():
                green.gate(stage, time.monotonic())
                with green.lane(stage):
                    a = (a @ a).clamp_(max=1.0)
                    torch.cuda.current_stream().synchronize()
                counts[stage] += 1
        except BaseException as error:
            failures.append(error)
        finally:
            green.park(stage, time.monotonic())

    threads = [threading.Thread(target=stage_loop, args=(stage,)) for stage in STAGES]
    for thread in threads:
        thread.start()
    try:
        for split in splits * 5:
            while not green.request(split, time.monotonic()):
                assert not failures
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert failures == []
    print(counts, green.readback())


def test_streams_have_their_priorities() -> None:
    sharing = working(Streams())
    found = {}
    for stage in STAGES:
        with sharing.lane(stage):
            found[stage] = torch.cuda.current_stream().priority
            assert int(torch.ones(64, device="cuda").sum().item()) == 64
    assert found["generation"] < found["training"]
    sharing.close()


@pytest.mark.parametrize("percent", [25, 50])
def test_turns_on_the_device_are_measured(percent: int) -> None:
    sharing = working(TimeSlice(initial=Split(generation=percent, training=100 - percent)))
    a = torch.ones(2048, 2048, device="cuda")
    a @ a
    torch.cuda.synchronize()

    def turns_of(stage: Stage) -> Callable[[], None]:
        def take() -> None:
            for _ in range(50):
                with sharing.lane(stage):
                    for _ in range(5):
                        a @ a

        return take

    threads = [threading.Thread(target=turns_of(stage)) for stage in STAGES]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = sharing.readback()
    print(f"{percent} %: generation {found.generation.used_s:.4f} s, training {found.training.used_s:.4f} s")
    assert min(found.generation.used_s, found.training.used_s) > 0
    sharing.close()


@pytest.mark.parametrize("percent", [25, 50])
def test_clients_of_mps_start_with_their_percentage(percent: int) -> None:
    sharing = working(Mps(step_percent=25))
    split = sharing.table()[percent // 25 - 1]
    whole = sharing.probe().total
    switch(sharing, split)
    with ExitStack() as stack:
        clients = {}
        for stage in STAGES:
            clients[stage] = client = stack.enter_context(client_of(sharing, stage, split))
            assert client.stdout is not None
            line = client.stdout.readline()
            assert line, f"the process of {stage} did not come up"
            pid, num_sms = map(int, line.split())
            sharing.add(stage, pid, num_sms)
        found = sharing.readback()
        print(split, found)
        for client in clients.values():  # they end by themselves: none is killed at work
            assert client.stdin is not None
            assert client.stdout is not None
            client.stdin.write("go\n")
            client.stdin.flush()
            assert client.stdout.readline() == "1024\n"
            client.stdin.close()
    for stage in STAGES:
        assert "no client" not in found.of(stage).remark
        assert 0 < found.of(stage).units <= max(1, whole * max(percent, 100 - percent) // 100)
        assert abs(found.of(stage).units - split.of(stage)) <= LEAKED_SMS
    sharing.close()


def client_of(sharing: Sharing, stage: Stage, split: Split) -> subprocess.Popen[str]:
    environment = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
    return subprocess.Popen(
        [sys.executable, "-c", CLIENT],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**environment, **sharing.environment(stage, split)},
    )


def test_instances_that_exist_can_be_used() -> None:
    sharing = working(Mig())
    split = sharing.split("generation")
    for stage in STAGES:
        with client_of(sharing, stage, split) as client:
            assert client.stdout is not None
            assert client.stdin is not None
            pid, num_sms = map(int, client.stdout.readline().split())
            sharing.add(stage, pid, num_sms)
            client.stdin.close()
    found = sharing.readback()
    assert {stage: found.of(stage).units for stage in STAGES} == {stage: split.of(stage) for stage in STAGES}
