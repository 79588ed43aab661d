"""How many events a second the control plane answers, on one CPU and without any process.

Events come from the virtual engine. Each run is made once, with engine and control timed together;
then its events are fed to a fresh scheduler, which is what ``Scheduler.handle`` takes alone. Every
repeat is another run, with a seed of its own. Figures are events per second of this process's CPU time,
which is wall time on an idle machine, and repeatable on a busy one; wall time is given beside it.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from ebrl.engines.virtual.costs import Costs
from ebrl.engines.virtual.engine import VirtualEngine
from ebrl.ids import CpuId
from ebrl.scheduling.events import Event
from ebrl.scheduling.plan import SchedulerPlan
from ebrl.scheduling.scheduler import Scheduler

Record = tuple[Event, float]

CHUNK_LEN = 8

TARGETS = {"events_per_s": 50_000, "events_per_s_1024": 25_000}
"""What is asked of the headline figures."""

QUICK, FULL = (3, 10_000), (7, 40_000)
"""Repeats, and events in each."""

_QUANTA = {"one step": 1, "whole chunk": 0}

_COSTS = Costs(
    env_step_s=0.04,
    env_step_sigma=0.6,
    shard_factors=(1.0, 1.0, 1.0, 2.0),
    reset_s=0.5,
    reset_sigma=0.3,
    episode_steps=(40, 80, 120, 160),
    generation_alpha_s=0.02,
    generation_beta_s=0.001,
    training_s=0.5,
)
"""A heavy simulator: 40 ms for an env step, some shards twice as slow, episodes of all lengths."""


@dataclass(frozen=True, slots=True)
class Size:
    """How large a run is."""

    num_shards: int
    num_cpus: int
    batch: int
    """Trajectories of an update."""


SIZES = (Size(256, 48, 96), Size(1024, 112, 384))


def measure(*, quick: bool = False) -> dict[str, Any]:
    """Events per second of each size and quantum; ``quick`` is a smaller sample of the same."""
    from ebrl.host.probe import machine

    num_repeats, num_events = QUICK if quick else FULL
    settings = [_setting(size, name, num_repeats, num_events) for size in SIZES for name in _QUANTA]
    figures = {
        "events_per_s": _slower(settings, SIZES[0]),
        "events_per_s_1024": _slower(settings, SIZES[1]),
    }
    return figures | {
        "targets": TARGETS,
        "met": {name: figures[name] >= target for name, target in TARGETS.items()},
        "settings": settings,
        "repeats": num_repeats,
        "events_per_repeat": num_events,
        "machine": machine(),
    }


def _slower(settings: list[dict[str, Any]], size: Size) -> float:
    return float(min(s["control"]["median"] for s in settings if s["num_shards"] == size.num_shards))


def _setting(size: Size, quantum: str, num_repeats: int, num_events: int) -> dict[str, Any]:
    plan = SchedulerPlan(
        num_shards=size.num_shards,
        nodes=(tuple(CpuId(cpu) for cpu in range(size.num_cpus)),),
        chunk_len=CHUNK_LEN,
        trajectory_chunks=4,
        quantum=_QUANTA[quantum],
        batch=size.batch,
        slack=2,
    )
    alone, alone_wall, together = list[float](), list[float](), list[float]()
    for seed in range(num_repeats):
        records, cpu_s = _run(plan, seed, num_events)
        together.append(num_events / cpu_s)
        cpu_s, wall_s = _answer_again(plan, records)
        alone.append(num_events / cpu_s)
        alone_wall.append(num_events / wall_s)
    return {
        "num_shards": size.num_shards,
        "num_cpus": size.num_cpus,
        "quantum": quantum,
        "control": _spread(alone),
        "control_wall": _spread(alone_wall),
        "control_and_virtual_engine": _spread(together),
    }


def _run(plan: SchedulerPlan, seed: int, num_events: int) -> tuple[list[Record], float]:
    """The events of a run, and how long the last ``num_events`` took to make and to answer, in CPU seconds."""
    engine = VirtualEngine(num_shards=plan.num_shards, chunk_len=plan.chunk_len, costs=_COSTS, seed=seed)
    handle = Scheduler(plan).handle
    records: list[Record] = []

    def go(count: int) -> None:
        for _ in range(count):
            event, now = engine.next_event()
            records.append((event, now))
            for command in handle(event, now):
                engine.execute(command)

    go(_num_warm_up(plan))
    with _few_collections():
        start = time.process_time()
        go(num_events)
        return records, time.process_time() - start


def _answer_again(plan: SchedulerPlan, records: list[Record]) -> tuple[float, float]:
    """How long a fresh scheduler takes for the events after the warm-up: CPU seconds, and seconds."""
    handle = Scheduler(plan).handle
    first = _num_warm_up(plan)
    for event, now in records[:first]:
        handle(event, now)
    counted = records[first:]
    with _few_collections():
        start, start_wall = time.process_time(), time.perf_counter()
        for event, now in counted:
            handle(event, now)
        return time.process_time() - start, time.perf_counter() - start_wall


def _num_warm_up(plan: SchedulerPlan) -> int:
    """Events until every shard has started, was reset, and has had a few grants."""
    return 8 * plan.num_shards


@contextmanager
def _few_collections() -> Iterator[None]:
    """Recorded events, which no real run keeps, are not searched for garbage again and again."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _spread(values: list[float]) -> dict[str, float]:
    return {"min": min(values), "median": statistics.median(values), "max": max(values)}
