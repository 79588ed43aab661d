"""The roofline: how fast a run can be, from stage times alone.

Formulas of ``research/formulas.md`` part B. Rates are chunks per second unless a name says
trajectories; N environments circulate, each with at most one request out. Shards of several environments
may stand for environments: then chunks, trajectories and batches are those of shards.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

NEAR = 0.95
"""Share of its own limit above which a stage is said to limit both."""
MUCH_SLOWER = 0.75
"""Share of simulation's limit below which generation is said to limit both."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Throughput of a closed network lies between these; the balanced-job pair is the tighter one."""

    lower: float
    balanced_lower: float
    balanced_upper: float
    upper: float


def bounds(num_jobs: int, demands_s: tuple[float, ...], delay_s: float = 0.0) -> Bounds:
    """Asymptotic and balanced-job bounds (formulas B.2).

    Args:
        num_jobs: environments that circulate.
        demands_s: seconds per chunk at each station with a queue.
        delay_s: seconds per chunk without a queue.
    """
    total, largest = sum(demands_s), max(demands_s)
    mean = total / len(demands_s)
    fewest = num_jobs * total + delay_s
    crowd = num_jobs - 1
    return Bounds(
        lower=num_jobs / fewest,
        balanced_lower=num_jobs / (total + delay_s + crowd * largest / (1 + delay_s / (num_jobs * total))),
        balanced_upper=min(1 / largest, num_jobs / (total + delay_s + crowd * mean / (1 + delay_s / total))),
        upper=min(1 / largest, num_jobs / (total + delay_s)),
    )


def greedy(
    num_envs: float,
    num_cpus: int,
    chunk_s: float,
    alpha_s: float,
    beta_s: float,
    *,
    num_generators: int = 1,
    max_batch: int | None = None,
) -> float:
    """Simulation and a greedy batch server in equilibrium (formulas B.3).

    A chunk spends 1.5 batch times at the generator: it waits for the rest of one batch and is
    served by the next. Little's law N = X·c + 1.5·b·(generators), with X = generators · b / (α + β·b), fixes the
    batch b: the positive root of 1.5·β·b² + (c + 1.5·α − n·β)·b − n·α, where n = N / generators.
    """
    members = num_envs / num_generators
    linear = chunk_s + 1.5 * alpha_s - members * beta_s
    root = math.sqrt(linear * linear + 6.0 * beta_s * members * alpha_s)
    # Of the two forms of the root the one in which nothing cancels.
    batch = 2.0 * members * alpha_s / (linear + root) if linear > 0 else (root - linear) / (3.0 * beta_s)
    batch = min(batch, members, float(max_batch or num_envs))
    circulating = (num_envs - 1.5 * num_generators * batch) / chunk_s  # equal to the next, unless the batch was cut
    served = num_generators * batch / (alpha_s + beta_s * batch) if batch else circulating
    return min(circulating, served, num_cpus / chunk_s)


def expected_max(count: int) -> float:
    """Expected largest of ``count`` standard normal numbers (Blom's approximation)."""
    return NormalDist().inv_cdf((count - 0.375) / (count + 0.25)) if count > 1 else 0.0


def groups(
    num_envs: float,
    num_cpus: int,
    num_groups: int,
    chunk_s: float,
    sd_s: float,
    alpha_s: float,
    beta_s: float,
    *,
    num_generators: int = 1,
    max_batch: int | None = None,
) -> float:
    """``num_groups`` groups, each served when its last member waits (formulas B.4, which has one generator).

    A group makes one batch, or as many as ``max_batch`` says; generators share the batches of all groups, and those of
    one group come back when the last of them is done.
    """
    members = num_envs / num_groups
    batch = min(members, float(max_batch or num_envs))
    num_batches = math.ceil(members / batch - 1e-9)
    batch_s = (alpha_s + beta_s * batch) * math.ceil(num_batches / num_generators)
    served_s = num_groups * (alpha_s * num_batches + beta_s * members) / num_generators
    rounds_s = chunk_s * max(1.0, members / num_cpus)
    rounds_s += sd_s * expected_max(int(min(members, num_cpus)))
    return num_envs / max(served_s, rounds_s + batch_s, num_envs * chunk_s / num_cpus)


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTimes:
    """What the roofline needs of a run; seconds."""

    num_envs: int
    num_cpus: int
    """Of the simulation stage."""
    num_generators: int
    max_batch: int
    chunk_s: float
    """Simulation of one chunk, its share of resets included."""
    chunk_sd_s: float
    alpha_s: float
    beta_s: float
    update_s: float
    """Publication included, as far as it is waited for."""
    batch: int
    slack: int
    trajectory_chunks: float
    """Mean number, where trajectories differ."""
    env_groups: int = 0
    """0 is greedy."""
    host_cpus: int = 0
    """CPUs that all stages share; 0 if each has its own."""
    host_chunk_s: float = 0.0
    """CPU seconds of all stages and control together per chunk."""


@dataclass(frozen=True, slots=True)
class Roofline:
    """Upper limits in trajectories per second, and which of them is the lowest."""

    limits: dict[str, float]
    binding: str
    trajectories_per_s: float
    """The lowest limit; with slack 0 the stages of rollout and training add up instead."""
    network: Bounds
    """Of simulation and generation as a closed network of single requests, chunks per second."""


def rollout_rate(times: StageTimes, num_envs: float) -> float:
    """Chunks per second of simulation and generation alone, with so many environments on their way."""
    if times.env_groups:
        return groups(
            num_envs,
            times.num_cpus,
            min(times.env_groups, max(1, int(num_envs))),
            times.chunk_s,
            times.chunk_sd_s,
            times.alpha_s,
            times.beta_s,
            num_generators=times.num_generators,
            max_batch=times.max_batch,
        )
    return greedy(
        num_envs,
        times.num_cpus,
        times.chunk_s,
        times.alpha_s,
        times.beta_s,
        num_generators=times.num_generators,
        max_batch=times.max_batch,
    )


def limits(times: StageTimes) -> dict[str, float]:
    """Every limit of a run, in trajectories per second."""
    chunks = times.trajectory_chunks
    largest = min(times.max_batch, times.num_envs)
    rollout = rollout_rate(times, times.num_envs) / chunks
    return {
        "simulation": times.num_cpus / times.chunk_s / chunks,
        "generation": times.num_generators * largest / (times.alpha_s + times.beta_s * largest) / chunks,
        "training": times.batch / times.update_s,
        "simulation with generation": rollout,
        "staleness": _slots_rate(times),
        **({"host CPUs": times.host_cpus / times.host_chunk_s / chunks} if times.host_cpus else {}),
    }


def _slots_rate(times: StageTimes) -> float:
    """Trajectories per second that the admission rule allows.

    K = (S + 1)·B slots go round. They come free B at a time, so trajectories begin together: their first chunks queue
    up for a batch and for CPUs, and the batch is complete with its last trajectory. A round of all slots takes the
    makespan M(n) of such trajectories and one update, T; of the slots, n = K·M(n)/(M(n) + T) are in rollout
    meanwhile. With slack 0 rollout and training take turns, and who is beyond the number of environments begins late.
    """
    slots = (times.slack + 1) * times.batch
    moving = float(min(times.num_envs, slots))
    starting = min(times.num_envs, times.batch)
    each = starting / times.num_generators
    first_s = times.alpha_s * max(1.0, each / times.max_batch) + times.beta_s * each
    first_s += times.chunk_s * max(1.0, starting / times.num_cpus)
    first_s += times.chunk_sd_s * math.sqrt(times.trajectory_chunks) * expected_max(starting)
    more = max(0.0, times.trajectory_chunks - 1)

    def makespan_s(members: float) -> float:
        return first_s + more * members / rollout_rate(times, members)

    if not times.slack:
        late_s = (times.batch - starting) * times.trajectory_chunks / rollout_rate(times, moving)
        return times.batch / (makespan_s(moving) + late_s + times.update_s)
    low, high = 1.0, moving
    for _ in range(8):
        middle = (low + high) / 2
        lasts_s = makespan_s(middle)
        low, high = (middle, high) if slots * lasts_s / (lasts_s + times.update_s) > middle else (low, middle)
    return slots / (makespan_s(high) + times.update_s)


def binding(limits: dict[str, float]) -> str:
    """Name of the lowest limit.

    Simulation with generation is limited by the stage that is near its own limit, or that is much slower than the
    other; where neither is, environments are too few to keep both busy, and more of either would gain little.
    """
    lowest = min(limits, key=lambda name: limits[name])
    if lowest != "simulation with generation":
        return lowest
    simulation, generation = limits["simulation"], limits["generation"]
    if limits[lowest] >= NEAR * simulation:
        return "simulation"
    if limits[lowest] >= NEAR * generation or generation < MUCH_SLOWER * simulation:
        return "generation"
    return "environments"


def roofline(times: StageTimes) -> Roofline:
    """Limits of a run, the lowest, and the bounds of its closed network."""
    found = limits(times)
    extra = times.num_cpus - 1
    network = bounds(
        times.num_envs,
        (times.chunk_s / times.num_cpus, (times.alpha_s + times.beta_s) / times.num_generators),
        times.chunk_s * extra / times.num_cpus,
    )
    return Roofline(found, binding(found), min(found.values()), network)
