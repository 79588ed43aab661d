"""The fastest allocation, found by trying every one: what the allocator is measured against.

Shares nothing with ``ebrl.resources`` but the records that say what a run costs and what a machine has. Formulas
are derived again (parts B.1, B.3 and B.5), where there is a choice by another route: the batch server is solved
for its rate, not for its batch. CPUs and SMs are always given out in full, since more of them never makes a stage
slower.

Axes: C batch caps, M micro-batches, U shares of a GPU, P ways of giving out CPUs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from ebrl.resources.allocation import Shape
from ebrl.resources.workload import BatchCosts, Workload

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

_BISECTIONS = 30
_TURN_STEP = 5
"""Percent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """Who shares what, and how many processes there are on each node."""

    cpu_sharing: str
    gpu_sharing: str
    num_generators: int
    num_learners: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The fastest of all allocations."""

    way: Way
    trajectories_per_s: float
    simulation_cpus: int
    generation_cpus: int
    training_cpus: int
    generation_units: float
    """SMs, or percent of the time, of each GPU that generates; 0 on CPUs."""
    max_batch: int
    micro_batch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Grid:
    """All that can be chosen within one way; each array has its place in the axes C, M, U, P."""

    cap: Floats
    micro: Floats
    units: Floats
    """Of generation, as in ``Found``."""
    generation_quota: Floats
    """Share of a GPU, or number of CPUs."""
    training_quota: Floats
    simulation_cpus: Floats
    generation_cpus: Floats
    training_cpus: Floats
    fits: Bools
    """Whether there is memory for a cap and a micro-batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Times:
    """Seconds of each stage, over the axes."""

    chunk_s: float
    alpha_s: Floats
    beta_s: Floats
    update_s: Floats
    training_cpu_s: Floats
    """CPU seconds of an update in one learner on CPUs that it shares."""


def best(workload: Workload, shape: Shape) -> Found | None:
    """The fastest allocation; None where nothing fits."""
    fastest: Found | None = None
    if shape.num_cpus < workload.simulation.cpus_per_worker:
        return None
    for way in ways(workload, shape):
        found = best_of(workload, shape, way)
        if found is not None and (fastest is None or found.trajectories_per_s > fastest.trajectories_per_s):
            fastest = found
    return fastest


def ways(workload: Workload, shape: Shape) -> Iterator[Way]:
    """Every way of sharing, with every number of processes."""
    if workload.unit == "cpu":
        for cpu_sharing in ("all", "rollout", "compute", "none"):
            yield Way(cpu_sharing=cpu_sharing, gpu_sharing="none", num_generators=1, num_learners=1)
        return
    gpus = shape.num_gpus
    everywhere = ["turns", "split"] if shape.can_split else ["turns"]
    for cpu_sharing in ("all", "compute"):
        for gpu_sharing in everywhere if gpus else ():
            yield Way(cpu_sharing=cpu_sharing, gpu_sharing=gpu_sharing, num_generators=gpus, num_learners=gpus)
        for count in range(1, gpus):
            yield Way(cpu_sharing=cpu_sharing, gpu_sharing="whole", num_generators=count, num_learners=gpus - count)


def best_of(workload: Workload, shape: Shape, way: Way) -> Found | None:
    """The fastest allocation of one way of sharing; None where nothing fits."""
    grid = _grid(workload, shape, way)
    if not grid.fits.any() or not grid.units.size or not grid.simulation_cpus.size:
        return None
    rates = _rates(workload, shape, way, grid)
    place = np.unravel_index(int(rates.argmax()), rates.shape)

    def at(values: Floats) -> float:
        return float(np.broadcast_to(values, rates.shape)[place])

    return Found(
        way=way,
        trajectories_per_s=at(rates),
        simulation_cpus=int(at(grid.simulation_cpus)),
        generation_cpus=int(at(grid.generation_cpus)),
        training_cpus=int(at(grid.training_cpus)),
        generation_units=at(grid.units),
        max_batch=int(at(grid.cap)),
        micro_batch=int(at(grid.micro)),
    )


# What can be chosen.


def _grid(workload: Workload, shape: Shape, way: Way) -> _Grid:
    generators = shape.num_nodes * way.num_generators
    cap = _sizes(min(workload.max_batch, math.ceil(workload.num_envs / generators)))[:, None, None, None]
    items = math.ceil(_items(workload, shape, way))
    if workload.minibatch_chunks:
        items = min(items, math.ceil(workload.minibatch_chunks / (shape.num_nodes * way.num_learners)))
    micro = _sizes(items)[:, None, None]
    simulation, generation, training = _cpu_counts(way.cpu_sharing, shape.num_cpus, workload.simulation.cpus_per_worker)
    units, shares, other_shares = _shares(workload, shape, way)
    on_cpus = workload.unit == "cpu"
    return _Grid(
        cap=cap,
        micro=micro,
        units=units[:, None],
        generation_quota=generation if on_cpus else shares[:, None],
        training_quota=training if on_cpus else other_shares[:, None],
        simulation_cpus=simulation,
        generation_cpus=generation,
        training_cpus=training,
        fits=_fits(workload, shape, way, cap, micro),
    )


def _items(workload: Workload, shape: Shape, way: Way) -> float:
    """Chunks of an update in each learner, which share them out evenly."""
    return workload.batch_trajectories * workload.trajectory_chunks / (shape.num_nodes * way.num_learners)


def _sizes(largest: int) -> Floats:
    """The largest, and every power of two below it."""
    largest = max(1, largest)
    return np.array(sorted({largest, *(2**power for power in range(32) if 2**power < largest)}), dtype=np.float64)


def _cpu_counts(sharing: str, total: int, least: int) -> tuple[Floats, Floats, Floats]:
    """CPUs of simulation (at least ``least``), generation and training."""
    counts = np.arange(1, total - least + 1, dtype=np.float64)
    if sharing == "all":
        whole = np.full(1, float(total))
        return whole, whole, whole
    if sharing == "compute":
        return total - counts, counts, counts
    if sharing == "rollout":
        return total - counts, total - counts, counts
    generation, training = (axis.ravel() for axis in np.meshgrid(counts, counts))
    left = total - generation - training
    enough = left >= least
    return left[enough], generation[enough], training[enough]


def _shares(workload: Workload, shape: Shape, way: Way) -> tuple[Floats, Floats, Floats]:
    """Units of generation, and the shares of a GPU that generation and training have."""
    if way.gpu_sharing == "split":
        units = np.arange(shape.sm_step, shape.num_sms, shape.sm_step, dtype=np.float64)
        return units, units / shape.num_sms, 1 - units / shape.num_sms
    if way.gpu_sharing == "turns" and workload.slack > 0:
        units = np.arange(_TURN_STEP, 100, _TURN_STEP, dtype=np.float64)
        return units, units / 100, 1 - units / 100
    units = np.full(1, {"turns": 100.0, "whole": float(shape.num_sms), "none": 0.0}[way.gpu_sharing])
    return units, np.ones(1), np.ones(1)


def _fits(workload: Workload, shape: Shape, way: Way, cap: Floats, micro: Floats) -> Bools:
    generation = workload.generation.memory_bytes + workload.generation.item_memory_bytes * cap
    training = workload.training.memory_bytes + workload.training.item_memory_bytes * micro
    training = training + math.ceil(workload.sharded_bytes / (shape.num_nodes * way.num_learners))
    workers = math.ceil(workload.num_envs / shape.num_nodes)
    host = np.full((1, 1, 1, 1), float(workers * workload.simulation.memory_bytes))
    if workload.unit == "cpu":
        host = host + way.num_generators * generation + way.num_learners * training
        return np.asarray(host <= shape.memory_bytes)
    generation = generation + math.ceil(workers / way.num_generators) * workload.simulation.device_memory_bytes
    apart = way.gpu_sharing == "whole"
    devices = np.maximum(generation, training) if apart else generation + training
    return np.asarray((devices <= shape.device_memory_bytes) & (host <= shape.memory_bytes))


# What it comes to.


def _rates(workload: Workload, shape: Shape, way: Way, grid: _Grid) -> Floats:
    """Trajectories per second: the lowest of what simulation with generation, training, slots and CPUs allow."""
    times = _times(workload, shape, way, grid)
    batch, chunks = workload.batch_trajectories, workload.trajectory_chunks

    def rollout(num_envs: Floats | float) -> Floats:
        return _rollout(workload, shape, way, grid, times, num_envs)

    everywhere = rollout(workload.num_envs)
    rates = np.minimum(everywhere / chunks, batch / times.update_s)
    if way.cpu_sharing != "none":
        rates = np.minimum(rates, _shared_cpus(workload, shape, way, grid, times, everywhere) / chunks)
    begin_s = _begin_s(workload, shape, way, grid, times)
    return _with_slots(workload, np.where(grid.fits, rates, -math.inf), times.update_s, begin_s, rollout)


def _begin_s(workload: Workload, shape: Shape, way: Way, grid: _Grid, times: _Times) -> Floats:
    """Seconds of the first chunks of trajectories that begin together, and by which the last of these is later."""
    together = min(workload.num_envs, workload.batch_trajectories)
    each = together / (shape.num_nodes * way.num_generators)
    batches_s = np.maximum(1.0, each / grid.cap) * times.alpha_s + each * times.beta_s
    rounds = np.maximum(1.0, together / _sets(workload, shape, grid))
    late = NormalDist().inv_cdf((together - 0.375) / (together + 0.25)) if together > 1 else 0.0
    late_s = workload.simulation.chunk_sd_s * math.sqrt(workload.trajectory_chunks) * late
    return np.asarray(batches_s + times.chunk_s * rounds + late_s)


def _with_slots(
    workload: Workload, rates: Floats, update_s: Floats, begin_s: Floats, rollout: Callable[[Floats | float], Floats]
) -> Floats:
    """The same rates, with what (S + 1)·B slots allow.

    Slots go round through a rollout, which takes M(n) if n of them are in it, and an update. n is found by bisection,
    unless the highest rate is known without: then the other rates are only at least as high as said here.
    """
    batch, chunks = workload.batch_trajectories, workload.trajectory_chunks
    slots = (workload.slack + 1) * batch
    moving = float(min(workload.num_envs, slots))

    def rollout_s(members: Floats | float) -> Floats:
        return np.asarray(begin_s + max(0.0, chunks - 1) * members / rollout(members))

    if not workload.slack:
        late_s = max(0, batch - workload.num_envs) * chunks / rollout(moving)
        return np.asarray(np.minimum(rates, batch / (rollout_s(moving) + late_s + update_s)))
    slowest_s = rollout_s(moving)
    least = np.minimum(rates, slots / (slowest_s + update_s))
    most = np.minimum(rates, np.minimum(slots / (rollout_s(1.0) + update_s), moving / slowest_s))
    most = np.maximum(most, least)  # where all slots move, in spite of rounding
    if (most <= least.max()).all():
        return np.asarray(least)
    low, high = np.ones_like(most), np.full_like(most, moving)
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        seconds = rollout_s(middle)
        enough = slots * seconds / (seconds + update_s) > middle
        low, high = np.where(enough, middle, low), np.where(enough, high, middle)
    return np.asarray(np.minimum(rates, slots / (rollout_s(high) + update_s)))


def _times(workload: Workload, shape: Shape, way: Way, grid: _Grid) -> _Times:
    slower = workload.shared_cpu_factor
    shares = {
        "simulation": way.cpu_sharing in ("all", "rollout"),
        "generation": way.cpu_sharing != "none",
        "training": way.cpu_sharing in ("all", "compute"),
    }
    if way.gpu_sharing == "turns":
        generation, training = 1 / grid.generation_quota, 1 / grid.training_quota
    else:
        generation = _stretch(workload.generation, grid.generation_quota)
        training = _stretch(workload.training, grid.training_quota)
    if workload.unit == "cpu":
        generation = generation * (slower if shares["generation"] else 1.0)
        training = training * (slower if shares["training"] else 1.0)
    elif way.gpu_sharing == "split":
        generation, training = generation * workload.corun, training * workload.corun
    items = _items(workload, shape, way)
    one = workload.training
    batches_s = workload.epochs * (np.ceil(items / grid.micro) * one.fixed_s + items * one.item_s)
    agree_s = workload.sync_s if shape.num_nodes * way.num_learners > 1 else 0.0
    return _Times(
        chunk_s=workload.simulation.chunk_s * (slower if shares["simulation"] else 1.0),
        alpha_s=workload.generation.fixed_s * generation,
        beta_s=workload.generation.item_s * generation,
        update_s=batches_s * training + workload.update_s + agree_s,
        training_cpu_s=batches_s * slower + workload.update_s,
    )


def _stretch(costs: BatchCosts, quota: Floats) -> Floats:
    """Time at a quota over that at quota 1: a serial part, and work that runs on at most ``saturation``."""
    work = (1 - costs.serial) * min(1.0, costs.saturation)
    return np.asarray(costs.serial + work / np.minimum(quota, costs.saturation))


def _rollout(
    workload: Workload, shape: Shape, way: Way, grid: _Grid, times: _Times, num_envs: Floats | float
) -> Floats:
    """Chunks per second of so many environments that circulate between CPUs and generators."""
    generators = shape.num_nodes * way.num_generators
    served = batch_server(num_envs / generators, times.chunk_s, times.alpha_s, times.beta_s, grid.cap)
    return np.asarray(np.minimum(generators * served, _sets(workload, shape, grid) / times.chunk_s))


def _sets(workload: Workload, shape: Shape, grid: _Grid) -> Floats:
    """Environments that are simulated at once."""
    return np.asarray(np.maximum(1, grid.simulation_cpus // workload.simulation.cpus_per_worker) * shape.num_nodes)


def batch_server(members: Floats | float, chunk_s: float, alpha_s: Floats, beta_s: Floats, cap: Floats) -> Floats:
    """The rate x of one generator for which x·c + 1.5·b is its share of environments, or that of the largest batch.

    Of a batch b = x·T(b), so b = x·α / (1 − x·β), and x solves c·β·x² − (c + 1.5·α + m·β)·x + m = 0.
    """
    middle = chunk_s + 1.5 * alpha_s + members * beta_s
    root = np.sqrt(np.maximum(middle * middle - 4 * chunk_s * beta_s * members, 0.0))
    return np.asarray(np.minimum(2 * members / (middle + root), cap / (alpha_s + beta_s * cap)))


def _shared_cpus(workload: Workload, shape: Shape, way: Way, grid: _Grid, times: _Times, rollout: Floats) -> Floats:
    """Chunks per second for which the CPUs that stages share suffice."""
    chunks = workload.batch_trajectories * workload.trajectory_chunks
    simulation_s = times.chunk_s * workload.simulation.cpus_per_worker
    generators = shape.num_nodes * way.num_generators
    generation_s: Floats
    training_s: Floats
    if workload.unit == "gpu":
        rate = rollout / generators
        idle = 1 - rate * times.beta_s
        batch = np.where(idle > 0, rate * times.alpha_s / np.where(idle > 0, idle, 1.0), math.inf)
        batch = np.clip(batch, 1.0, grid.cap)
        generation_s = workload.host_cpus * (times.alpha_s / batch + times.beta_s)
        training_s = workload.host_cpus * shape.num_nodes * way.num_learners * times.update_s / chunks
    else:
        waits = float(max(1, workload.num_envs // generators // 2)) if way.cpu_sharing != "compute" else 1.0
        one = workload.generation
        generation_s = (one.fixed_s / np.minimum(grid.cap, waits) + one.item_s) * workload.shared_cpu_factor
        training_s = shape.num_nodes * way.num_learners * times.training_cpu_s / chunks
    seconds = {
        "all": simulation_s + generation_s + training_s,
        "rollout": simulation_s + generation_s,
        "compute": generation_s + training_s,
    }[way.cpu_sharing]
    with np.errstate(divide="ignore"):
        return np.asarray(grid.generation_cpus * shape.num_nodes / seconds)
