"""From a profile to what the allocator has to know: samples become means, tables become lines.

Times are of each stage alone; what stages that share CPUs cost more is one factor. ``sources`` says of every field
how it was derived.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, pstdev
from typing import Any

from ebrl.config.schema import RunConfig
from ebrl.errors import UsageError
from ebrl.profiling.learning import learning_of
from ebrl.profiling.sections import sections_of
from ebrl.resources.profile import BatchTime, Memory, Profile, Work, alpha_beta, episode_lengths, line
from ebrl.resources.workload import BatchCosts, SimulationCosts, Unit, Workload, check

_HELPS = 0.98
"""More threads, or a larger share, help if they bring the time below this part of what it was."""


def workload_of(profile: Profile, config: RunConfig) -> Workload:
    """The workload of a run whose costs were measured.

    Args:
        profile: what its work costs; of the same environment, policy, algorithm and training batch. Threads and
            micro-batches may differ, for the profile has tables of them.
        config: the run.

    Raises:
        UsageError: the profile is of another run.
    """
    _check_fits(profile, config)
    generation, training = config.generation, config.training
    unit: Unit = "cpu" if generation.device == training.device == "cpu" else "gpu"
    simulation = _simulation(profile, config)
    workload = Workload(
        name=config.run.name,
        num_envs=config.simulation.num_envs,
        chunk_len=config.policy.chunk_len,
        trajectory_chunks=float(training.trajectory_chunks),
        batch_trajectories=training.batch_trajectories,
        slack=training.slack,
        epochs=profile.training.epochs,
        unit=unit,
        simulation=simulation,
        generation=_generation(profile, unit),
        training=_training(profile, unit),
        update_s=sum(profile.generation.adopt),
        host_cpus=_cpu_share(profile.training.updates) if unit == "gpu" else 1.0,
        shared_cpu_factor=_shared_cpu_factor(profile, simulation),
        max_batch=generation.max_batch,
        minibatch_chunks=learning_of(config).minibatch,
        device="" if unit == "cpu" else str(profile.hardware.get("gpu", training.device)),
        sources=_sources(unit),
    )
    check(workload)
    return workload


def _check_fits(profile: Profile, config: RunConfig) -> None:
    asked, measured = (_what_matters(one) for one in (sections_of(config), profile.sections))
    for section, value in asked.items():
        if measured.get(section) != value:
            raise UsageError(
                f"the profile was taken with {section} = {measured.get(section)}, the run has {value}; profile again"
            )


def _what_matters(sections: Mapping[str, Any]) -> dict[str, Any]:
    """Without what the profile's tables are over."""
    kept = {name: dict(section) for name, section in sections.items()}
    for stage in ("generation", "training"):
        kept.get(stage, {}).pop("threads", None)
    algorithm = kept.get("algorithm", {})
    if "config" in algorithm:
        algorithm["config"] = {n: x for n, x in algorithm["config"].items() if n != "micro_batch_chunks"}
    return kept


def _simulation(profile: Profile, config: RunConfig) -> SimulationCosts:
    """As the roofline of a forecast has it, but alone, and of one environment."""
    simulation, width = profile.simulation, config.simulation.envs_per_worker
    rates = [(g.cpu_s + g.other_s) / g.num_steps for tape in simulation.tapes for g in tape]
    lengths = [length for length, _ in episode_lengths(simulation)]
    episode_chunks = fmean(math.ceil(length / profile.chunk_len) for length in lengths)
    chunk_steps = fmean(lengths) / episode_chunks
    reset_s = fmean(w.cpu_s + w.other_s for w in simulation.resets)
    return SimulationCosts(
        chunk_s=fmean(rates) * chunk_steps + reset_s / episode_chunks,
        chunk_sd_s=pstdev(rates) * profile.chunk_len,
        cpus_per_worker=config.simulation.cpus_per_worker,
        memory_bytes=-(-simulation.own_bytes // width),
    )


def _generation(profile: Profile, unit: Unit) -> BatchCosts:
    generation = profile.generation
    quota = quota_of(generation.by_threads) if unit == "cpu" else share_of(generation.share_scale)
    fixed_s, item_s = alpha_beta(generation)
    own_threads = profile.sections.get("generation", {}).get("threads", 1)
    single = [(float(row.num_chunks), row.seconds) for row in generation.by_threads if row.threads == 1]
    if unit == "cpu" and own_threads != 1 and single:
        fixed_s, item_s = line(single)
    return _costs(fixed_s, item_s, quota, generation.memory, unit)


def _training(profile: Profile, unit: Unit) -> BatchCosts:
    """``fixed_s`` and ``item_s`` such that an update of the run's own micro-batch takes what was measured."""
    training = profile.training
    num_chunks, epochs = profile.batch_trajectories * profile.trajectory_chunks, training.epochs
    own_size = training.micro_batch or num_chunks
    own_threads = profile.sections.get("training", {}).get("threads", 1)
    base = own_threads if unit == "gpu" else 1
    rows = {row.num_chunks: row.seconds for row in training.by_threads if row.threads == base}
    own_s = fmean(w.cpu_s + w.other_s for w in training.updates)
    if own_threads != base:
        own_s = rows.get(own_size, own_s)
    rows.setdefault(own_size, own_s)
    _, slope = line([(float(-(-num_chunks // size)), seconds) for size, seconds in rows.items()])
    micro_batches = -(-num_chunks // own_size)
    fixed_s = min(slope, own_s / micro_batches)
    item_s = max(0.0, own_s - fixed_s * micro_batches) / num_chunks
    quota = quota_of(training.by_threads) if unit == "cpu" else Quota(serial=0.0, saturation=1.0)
    return _costs(fixed_s / epochs, item_s / epochs, quota, training.memory, unit)


def _costs(fixed_s: float, item_s: float, quota: Quota, memory: Memory, unit: Unit) -> BatchCosts:
    """Memory of processes is not memory of GPUs, so of those nothing is known."""
    on_cpus = unit == "cpu"
    return BatchCosts(
        fixed_s=fixed_s,
        item_s=item_s,
        serial=quota.serial,
        saturation=quota.saturation,
        memory_bytes=memory.fixed_bytes if on_cpus else 0,
        item_memory_bytes=memory.chunk_bytes if on_cpus else 0,
    )


# How times change with the quota.


@dataclass(frozen=True, slots=True)
class Quota:
    """The two numbers of ``BatchCosts.factor``."""

    serial: float
    saturation: float


def quota_of(table: Sequence[BatchTime]) -> Quota:
    """How threads shorten the work: mean over the batches that were measured with 1 thread and with several."""
    single = {row.num_chunks: row.seconds for row in table if row.threads == 1}
    ratios: dict[float, list[float]] = {}
    for row in table:
        if single.get(row.num_chunks, 0.0) > 0:
            ratios.setdefault(float(row.threads), []).append(row.seconds / single[row.num_chunks])
    if len(ratios) < 2:
        return Quota(serial=1.0, saturation=1.0)  # nothing says that more threads help
    return _fit([(threads, fmean(factors)) for threads, factors in sorted(ratios.items())])


def share_of(scale: Sequence[tuple[float, float]]) -> Quota:
    """How a smaller share of a GPU stretches the work; without a table in proportion, which is the worst case."""
    return _fit(list(scale)) if len(scale) > 1 else Quota(serial=0.0, saturation=1.0)


def _fit(points: Sequence[tuple[float, float]]) -> Quota:
    """From quotas, ascending, and the factors on the time at quota 1.

    Saturation is the last quota that helped; the serial share follows by least squares of
    factor = serial + (1 − serial) · x.
    """
    saturation, best = points[0]
    for quota, factor in points[1:]:
        if factor <= _HELPS * best:
            saturation, best = quota, factor
    xs = [min(1.0, saturation) / min(quota, saturation) for quota, _ in points]
    squares = sum((1.0 - x) ** 2 for x in xs)
    if not squares:
        return Quota(serial=1.0, saturation=saturation)
    serial = sum((factor - x) * (1.0 - x) for x, (_, factor) in zip(xs, points, strict=True)) / squares
    return Quota(serial=min(1.0, max(0.0, serial)), saturation=saturation)


# What stages that share CPUs, and hosts of GPUs, cost.


def _cpu_share(works: Sequence[Work]) -> float:
    """CPUs that a process keeps busy while it works."""
    return sum(w.cpu_s for w in works) / max(sum(w.cpu_s + w.other_s for w in works), 1e-12)


def _shared_cpu_factor(profile: Profile, simulation: SimulationCosts) -> float:
    """``corun`` of the three stages, weighed by their CPU seconds for one chunk; at least 1.

    A batch of generation is taken to be of the middle size that was measured.
    """
    grants = [g for tape in profile.simulation.tapes for g in tape]
    usual = profile.generation.table[len(profile.generation.table) // 2]
    num_chunks = profile.batch_trajectories * profile.trajectory_chunks
    parts = [
        (_cpu_share([Work(g.cpu_s, g.other_s) for g in grants]) * simulation.chunk_s, profile.simulation.corun),
        (usual.cpu_s / usual.num_chunks, profile.generation.corun),
        (fmean(w.cpu_s for w in profile.training.updates) / num_chunks, profile.training.corun),
    ]
    total = sum(seconds for seconds, _ in parts)
    return max(1.0, sum(seconds * corun for seconds, corun in parts) / total) if total else 1.0


_MEASURED = {
    "simulation.chunk_s": "mean grants and resets of one env worker at a time; episode lengths as they were seen",
    "simulation.chunk_sd_s": "of the grants of one env worker at a time",
    "simulation.memory_bytes": "what the largest env worker shares with nobody, for each of its environments",
    "generation.fixed_s": "a line over batch sizes by least squares, one process at a time",
    "generation.item_s": "a line over batch sizes by least squares, one process at a time",
    "training.fixed_s": "a line over the number of micro-batches of an update by least squares",
    "training.item_s": "the rest of an update of the run's own micro-batch",
    "update_s": "a generator's taking of new weights",
    "shared_cpu_factor": "CPU seconds in company over those alone, of all stages by their weight",
}
_MEASURED_ON_CPUS = {
    "generation.serial": "seconds by threads over those of 1 thread",
    "generation.saturation": "the most threads that helped",
    "generation.memory_bytes": "peak of the process, a line over batch sizes",
    "generation.item_memory_bytes": "peak of the process, a line over batch sizes",
    "training.serial": "seconds by threads over those of 1 thread",
    "training.saturation": "the most threads that helped",
    "training.memory_bytes": "peak of the process, a line over micro-batches",
    "training.item_memory_bytes": "peak of the process, a line over micro-batches",
}
_ASSUMED_ON_GPUS = {
    "generation.serial": "in proportion to the share of the GPU, unless the profile has share_scale",
    "generation.saturation": "in proportion to the share of the GPU, unless the profile has share_scale",
    "training.serial": "in proportion to the share of the GPU",
    "training.saturation": "in proportion to the share of the GPU",
    "generation.memory_bytes": "device memory was not measured",
    "training.memory_bytes": "device memory was not measured",
    "corun": "stages on one GPU do not slow each other; not measured",
    "sync_s": "several learners agree in no time; one was measured",
}


def _sources(unit: Unit) -> dict[str, str]:
    """Of the numbers that were not chosen."""
    if unit == "cpu":
        return {name: f"measured: {how}" for name, how in (_MEASURED | _MEASURED_ON_CPUS).items()}
    measured = {name: f"measured: {how}" for name, how in _MEASURED.items()}
    measured["host_cpus"] = "measured: CPU seconds of an update over its seconds"
    return measured | {name: f"assumed: {how}" for name, how in _ASSUMED_ON_GPUS.items()}
