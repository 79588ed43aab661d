"""The virtual engine as judge of the allocator: is what it chooses the fastest in a run as well?

The formulas that the allocator relies on are approximations. Here every allocation of a grid is run, with chunks
that take varying times, batches that form as they do, and trajectories that wait for their update. Only ways of
sharing are judged that the virtual engine can express: each stage with CPUs of its own, GPUs split by SMs, and
whole GPUs. Allocations that cannot be the fastest, whatever the order of events, are not run.
"""

from __future__ import annotations

import dataclasses
import math
import random
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from ebrl.engines.virtual.costs import Costs
from ebrl.engines.virtual.engine import VirtualEngine
from ebrl.ids import CpuId
from ebrl.resources.allocation import Allocation, Shape
from ebrl.resources.allocator import Choice, allocate
from ebrl.resources.workload import BatchCosts, SimulationCosts, Workload
from ebrl.runtime.loop import run
from ebrl.scheduling.commands import Command
from ebrl.scheduling.events import Event, UpdateDone
from ebrl.scheduling.plan import SchedulerPlan
from ebrl.scheduling.scheduler import Scheduler

TARGET = 0.97
"""Rate of the choice over the best of the grid, in every setting."""

QUICK, FULL = 6, 60
"""Settings."""

CHUNK_LEN = 8
SIGMA = 0.2
"""Of the logarithm of a chunk's time."""

_CHUNKS = 2500
"""Of a run, about."""
_FINALISTS = 3
"""Allocations of the grid that are run again, with other seeds, beside the choice."""
_SEEDS = 3
_NOISE = 1.02
"""Above its limit a run can be by luck."""
_NO_MEMORY_LIMIT = 2**50


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """An allocation as the virtual engine sees it."""

    simulation_cpus: int
    num_generators: int
    max_batch: int
    alpha_s: float
    beta_s: float
    update_s: float
    name: str


def measure(*, seed: int = 0, quick: bool = False, say: Callable[[str], None] = lambda _: None) -> dict[str, Any]:
    """Rates of choices over those of the best of their grids."""
    count = QUICK if quick else FULL
    rows: list[dict[str, Any]] = []
    for number in range(count):
        rng = random.Random(f"{seed} virtual {number}")
        workload, shape = random_cpus(rng) if number % 2 else random_gpus(rng)
        rows.append(judge(workload, shape))
        if (number + 1) % 10 == 0:
            say(f"{number + 1} of {count} settings on the virtual engine")
    ratios = [row["ratio"] for row in rows]
    return {
        "worst_ratio": min(ratios),
        "median_ratio": statistics.median(ratios),
        "below_target": sum(ratio < TARGET for ratio in ratios),
        "settings": count,
        "runs": sum(row["runs"] for row in rows),
        "worst": sorted(rows, key=lambda row: float(row["ratio"]))[:5],
        "predicted_over_virtual": _spread([row["predicted_over_virtual"] for row in rows]),
    }


def _spread(values: list[float]) -> dict[str, float]:
    return {"min": min(values), "median": statistics.median(values), "max": max(values)}


# Random settings, small enough to be run some thousand times.


def random_cpus(rng: random.Random) -> tuple[Workload, Shape]:
    """A machine without GPUs, and a run on it of which no stage is negligible."""
    shape = Shape(num_nodes=1, num_cpus=rng.randint(4, 14), memory_bytes=_NO_MEMORY_LIMIT)
    return _random_workload(rng, shape, "cpu"), shape


def random_gpus(rng: random.Random) -> tuple[Workload, Shape]:
    """A machine with GPUs, and a run on it of which no stage is negligible."""
    num_sms, sm_step = rng.choice(((132, 8), (108, 4), (78, 8), (128, 8)))
    shape = Shape(
        num_nodes=1,
        num_cpus=rng.randint(6, 32),
        memory_bytes=_NO_MEMORY_LIMIT,
        num_gpus=rng.choice((1, 1, 2, 4, 8)),
        num_sms=num_sms,
        sm_step=sm_step,
        device_memory_bytes=_NO_MEMORY_LIMIT,
    )
    return _random_workload(rng, shape, "gpu"), shape


def _random_workload(rng: random.Random, shape: Shape, unit: str) -> Workload:
    num_envs = rng.randint(8, 64)
    batch = max(1, round(num_envs * rng.choice((0.5, 1.0, 1.0))))
    chunks = rng.choice((2, 4, 8))
    processes = max(1, shape.num_gpus)
    chunk_s = rng.uniform(0.1, 1.0)
    rollout_s = chunk_s / min(num_envs, shape.num_cpus)
    """For one chunk, at best."""
    alpha_s = rollout_s * num_envs * rng.uniform(0.02, 0.2)
    return Workload(
        name="random",
        num_envs=num_envs,
        chunk_len=CHUNK_LEN,
        trajectory_chunks=float(chunks),
        batch_trajectories=batch,
        slack=rng.choice((0, 1, 1, 2, 4)),
        epochs=1,
        unit="cpu" if unit == "cpu" else "gpu",
        simulation=SimulationCosts(chunk_s=chunk_s, chunk_sd_s=SIGMA * chunk_s),
        generation=_random_costs(rng, unit, alpha_s, rollout_s * processes * rng.uniform(0.05, 0.6)),
        training=_random_costs(rng, unit, alpha_s, rollout_s * processes * rng.uniform(0.1, 1.2)),
        host_cpus=1e-6,
        corun=rng.choice((1.0, 1.1)),
    )


def _random_costs(rng: random.Random, unit: str, fixed_s: float, item_s: float) -> BatchCosts:
    return BatchCosts(
        fixed_s=fixed_s,
        item_s=item_s,
        serial=rng.uniform(0.0, 0.4),
        saturation=rng.uniform(0.3, 1.2) if unit == "gpu" else rng.uniform(1.0, 5.0),
    )


# One setting.


def judge(workload: Workload, shape: Shape) -> dict[str, Any]:
    """The allocator's choice among the ways of sharing that can be run, and the fastest of their grid."""
    choice = allocate(workload, shape)
    assert isinstance(choice, Choice), f"memory is ample, and yet: {choice}"
    wanted = ("none", "none") if workload.unit == "cpu" else ("compute", "split"), ("compute", "whole")
    chosen = next(
        one
        for one in (choice.best, *choice.others)
        if (one.allocation.cpu_sharing, one.allocation.gpu_sharing) in wanted
    )
    point = _point_of(workload, shape, chosen.allocation)
    coarse = {point: rate(workload, point, seed=0)}
    for other in sorted(_grid(workload, shape), key=lambda one: -limit(workload, one)):
        if other not in coarse and limit(workload, other) * _NOISE > max(coarse.values()):
            coarse[other] = rate(workload, other, seed=0)
    finalists = sorted(coarse, key=lambda one: -coarse[one])[:_FINALISTS]
    fine = {
        one: statistics.fmean([coarse[one], *(rate(workload, one, seed=seed) for seed in range(1, _SEEDS))])
        for one in {point: None, **dict.fromkeys(finalists)}
    }
    fastest = max(fine, key=lambda one: fine[one])
    return {
        "ratio": fine[point] / fine[fastest],
        "chosen": {**dataclasses.asdict(point), "trajectories_per_s": fine[point]},
        "fastest": {**dataclasses.asdict(fastest), "trajectories_per_s": fine[fastest]},
        "predicted_over_virtual": chosen.prediction.trajectories_per_s / fine[point],
        "binding": chosen.prediction.binding,
        "runs": len(coarse) + len(fine) * (_SEEDS - 1),
        "workload": workload.to_json(),
        "shape": dataclasses.asdict(shape),
    }


def _point_of(workload: Workload, shape: Shape, one: Allocation) -> Point:
    if workload.unit == "cpu":
        return _on_cpus(workload, shape, one.generation_cpus, one.training_cpus)
    if one.gpu_sharing == "split":
        return _split(workload, shape, one.generation_units)
    return _whole(workload, shape, one.num_generators)


def _grid(workload: Workload, shape: Shape) -> Iterator[Point]:
    if workload.unit == "cpu":
        for generation in range(1, shape.num_cpus - 1):
            for training in range(1, shape.num_cpus - generation):
                yield _on_cpus(workload, shape, generation, training)
        return
    for units in range(shape.sm_step, shape.num_sms, shape.sm_step):
        yield _split(workload, shape, units)
    for generators in range(1, shape.num_gpus):
        yield _whole(workload, shape, generators)


def _on_cpus(workload: Workload, shape: Shape, generation: int, training: int) -> Point:
    return _point(
        workload,
        simulation_cpus=shape.num_cpus - generation - training,
        generators=1,
        learners=1,
        factors=(_stretch(workload.generation, generation), _stretch(workload.training, training)),
        name=f"{generation} CPUs for generation, {training} for training",
    )


def _split(workload: Workload, shape: Shape, units: int) -> Point:
    shares = units / shape.num_sms, 1 - units / shape.num_sms
    return _point(
        workload,
        simulation_cpus=shape.num_cpus - 1,
        generators=shape.num_gpus,
        learners=shape.num_gpus,
        factors=(
            workload.corun * _stretch(workload.generation, shares[0]),
            workload.corun * _stretch(workload.training, shares[1]),
        ),
        name=f"{units} of {shape.num_sms} SMs for generation",
    )


def _whole(workload: Workload, shape: Shape, generators: int) -> Point:
    return _point(
        workload,
        simulation_cpus=shape.num_cpus - 1,
        generators=generators,
        learners=shape.num_gpus - generators,
        factors=(1.0, 1.0),
        name=f"{generators} of {shape.num_gpus} GPUs for generation",
    )


def _stretch(costs: BatchCosts, quota: float) -> float:
    """Time over that at quota 1, of which a part is serial and the rest runs on at most ``saturation``."""
    return costs.serial + (1 - costs.serial) * min(1.0, costs.saturation) / min(quota, costs.saturation)


def _point(
    workload: Workload,
    *,
    simulation_cpus: int,
    generators: int,
    learners: int,
    factors: tuple[float, float],
    name: str,
) -> Point:
    """With the largest batches, since memory is ample."""
    items = workload.batch_trajectories * workload.trajectory_chunks / learners
    update_s = workload.training.fixed_s + workload.training.item_s * items
    return Point(
        simulation_cpus=simulation_cpus,
        num_generators=generators,
        max_batch=math.ceil(workload.num_envs / generators),
        alpha_s=factors[0] * workload.generation.fixed_s,
        beta_s=factors[0] * workload.generation.item_s,
        update_s=factors[1] * update_s,
        name=name,
    )


def limit(workload: Workload, point: Point) -> float:
    """Trajectories per second that no order of events exceeds: each stage always busy, with the largest batches."""
    chunks, batch = workload.trajectory_chunks, workload.batch_trajectories
    largest_s = point.alpha_s + point.beta_s * point.max_batch
    simulation = min(point.simulation_cpus, workload.num_envs) / workload.simulation.chunk_s / chunks
    generation = point.num_generators * point.max_batch / largest_s / chunks
    if workload.slack:
        return min(simulation, generation, batch / point.update_s)
    return 1 / (1 / min(simulation, generation) + point.update_s / batch)


def rate(workload: Workload, point: Point, *, seed: int) -> float:
    """Trajectories per second of a run on the virtual engine, its first updates left out."""
    batch, chunks = workload.batch_trajectories, int(workload.trajectory_chunks)
    updates = min(60, max(24, _CHUNKS // (batch * chunks)))
    plan = SchedulerPlan(
        num_shards=workload.num_envs,
        nodes=(tuple(CpuId(cpu) for cpu in range(point.simulation_cpus)),),
        num_generators=point.num_generators,
        chunk_len=CHUNK_LEN,
        trajectory_chunks=chunks,
        max_generation_batch=point.max_batch,
        batch=batch,
        slack=workload.slack,
        max_updates=updates,
    )
    costs = Costs(
        env_step_s=workload.simulation.chunk_s / CHUNK_LEN,
        env_step_sigma=SIGMA,
        reset_s=0.0,
        episode_steps=(10**9,),
        generation_alpha_s=point.alpha_s,
        generation_beta_s=point.beta_s,
        training_s=point.update_s,
        publish_s=0.0,
        checkpoint_s=0.0,
        start_s=0.0,
    )
    engine = VirtualEngine(
        num_shards=workload.num_envs,
        chunk_len=CHUNK_LEN,
        num_generators=point.num_generators,
        costs=costs,
        seed=seed,
    )
    ends: list[float] = []

    def record(now: float, event: Event, commands: list[Command]) -> None:
        if isinstance(event, UpdateDone):
            ends.append(now)

    run(Scheduler(plan).handle, engine, record)
    first = len(ends) // 3
    return (len(ends) - 1 - first) * batch / (ends[-1] - ends[first])
