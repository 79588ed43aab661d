"""Chooses an allocation: the paper's Algorithm 1, derived anew.

What can be chosen is finite: who shares CPUs and how many each has, the reachable splits of a GPU, the batch cap
and the micro-batch under the memory that is there. For each way of sharing, rollout becomes slower and training
faster (or the other way round) as one number grows, so the best is where the two rates cross, and is found by
bisection. A larger batch is never slower, it only needs memory; so of the batch caps only those are tried that
leave training room for a larger micro-batch.

Where rates are equal, since simulation limits or slots do, the surplus goes to generation or training, whichever is
nearer to limiting as well: formulas have a sharp corner there, and a run a round one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cmp_to_key

from ebrl.resources.allocation import (
    PERCENT,
    Allocation,
    CpuSharing,
    GpuSharing,
    Prediction,
    Shape,
    chunks_per_learner,
    predict,
    shortage,
)
from ebrl.resources.pool import Infeasible
from ebrl.resources.workload import BatchCosts, Workload

TURN_STEP = 5
"""Percent between two shares of a GPU's time."""

NEARLY = 0.998
"""Of the best rate; so much may be given away for a smaller micro-batch."""

_EQUAL = 1e-9
"""Relative difference below which two rates are the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """The best allocation of one way of sharing."""

    allocation: Allocation
    prediction: Prediction


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What was chosen, and what was not."""

    best: Candidate
    others: tuple[Candidate, ...]
    """Of the other ways of sharing, best first."""
    refused: tuple[tuple[str, Infeasible], ...] = ()
    """Ways of sharing for which something is too small."""


Layout = tuple[CpuSharing, GpuSharing]


def name_of(layout: Layout) -> str:
    """A way of sharing in words."""
    cpus = {
        "all": "all stages share CPUs",
        "rollout": "simulation and generation share CPUs",
        "compute": "generation and training share CPUs",
        "none": "each stage has its own CPUs",
    }[layout[0]]
    gpus = {
        "none": "",
        "split": "; every GPU split by SMs",
        "turns": "; every GPU shared by time",
        "whole": "; whole GPUs for each stage",
    }[layout[1]]
    return cpus + gpus


def layouts(workload: Workload, shape: Shape) -> tuple[Layout, ...]:
    """Ways of sharing that the machine allows."""
    if workload.unit == "cpu":
        return ("all", "none"), ("rollout", "none"), ("compute", "none"), ("none", "none")
    ways: list[GpuSharing] = ["turns"]
    if shape.can_split:
        ways.append("split")
    if shape.num_gpus > 1:
        ways.append("whole")
    return tuple((cpus, gpus) for gpus in ways for cpus in ("compute", "all"))


def allocate(workload: Workload, shape: Shape, running: Allocation | None = None) -> Choice | Infeasible:
    """The allocation with the highest predicted rate.

    Args:
        workload: what the run costs.
        shape: the machine.
        running: of a run that goes on, whose processes, micro-batches and way of sharing GPUs stay as they are; None
            leaves everything open.

    Returns:
        The choice, or which budget is too small whatever the way of sharing.
    """
    if workload.unit == "gpu" and not shape.num_gpus:
        return Infeasible("GPUs", 1, 0, "generation and training run on GPUs, and the machine has none")
    if shape.num_cpus < workload.simulation.cpus_per_worker:
        per_worker = workload.simulation.cpus_per_worker
        return Infeasible("CPUs of each node", per_worker, shape.num_cpus, f"an env worker wants {per_worker}")
    found: list[Candidate] = []
    refused: list[tuple[str, Infeasible]] = []
    for layout in layouts(workload, shape):
        if running is not None and layout[1] != running.gpu_sharing:
            continue
        result = best_of(workload, shape, layout, running)
        if isinstance(result, Infeasible):
            refused.append((name_of(layout), result))
        else:
            found.append(result)
    if not found:
        return min((short for _, short in refused), key=lambda short: short.needed / max(short.available, 1e-9))
    found.sort(key=cmp_to_key(lambda a, b: -1 if _is_better(a, b) else int(_is_better(b, a))))
    return Choice(best=found[0], others=tuple(found[1:]), refused=tuple(refused))


def marginal_values(workload: Workload, shape: Shape) -> dict[str, float]:
    """Trajectories per second more, with one more of each resource (for each node, or each GPU)."""
    now = allocate(workload, shape)
    if isinstance(now, Infeasible):
        return {}
    more = {"CPU of each node": replace(shape, num_cpus=shape.num_cpus + 1)}
    more["GiB of each node"] = replace(shape, memory_bytes=shape.memory_bytes + 2**30)
    if workload.unit == "gpu":
        more["SM step of each GPU"] = replace(shape, num_sms=shape.num_sms + shape.sm_step)
        more["GiB of each GPU"] = replace(shape, device_memory_bytes=shape.device_memory_bytes + 2**30)
    values: dict[str, float] = {}
    for name, larger in more.items():
        then = allocate(_scaled(workload, shape, larger), larger)
        assert isinstance(then, Choice), f"more of {name} makes it impossible: {then}"
        values[name] = then.best.prediction.trajectories_per_s - now.best.prediction.trajectories_per_s
    return values


def _scaled(workload: Workload, shape: Shape, larger: Shape) -> Workload:
    """The same kernels on a GPU with more SMs: times are of the whole GPU, and shorter on a larger one."""
    if larger.num_sms == shape.num_sms:
        return workload
    ratio = larger.num_sms / shape.num_sms
    return replace(
        workload, generation=_on_more_sms(workload.generation, ratio), training=_on_more_sms(workload.training, ratio)
    )


def _on_more_sms(costs: BatchCosts, ratio: float) -> BatchCosts:
    faster = costs.factor(ratio)
    return replace(
        costs,
        fixed_s=costs.fixed_s * faster,
        item_s=costs.item_s * faster,
        saturation=costs.saturation / ratio,  # as many SMs as before
        serial=costs.serial / faster,
    )


# One way of sharing.


def best_of(
    workload: Workload, shape: Shape, layout: Layout, running: Allocation | None = None
) -> Candidate | Infeasible:
    """The best allocation of one way of sharing, over all numbers that it leaves open."""
    best: Candidate | None = None
    short: Infeasible | None = None
    for frame in _frames(workload, shape, layout):
        if running is not None and frame.num_generators != running.num_generators:
            continue
        for fitting in _batches(workload, shape, frame, running):
            if isinstance(fitting, Infeasible):
                short = min(short or fitting, fitting, key=lambda one: one.needed / max(one.available, 1e-9))
                continue
            found = _search(workload, shape, fitting)
            if found is not None and (best is None or _is_better(found, best)):
                best = found
    if best is not None:
        return best if running is not None else _smaller(workload, shape, best)
    wanted = {"all": 1, "none": 3}.get(layout[0], 2) - 1 + workload.simulation.cpus_per_worker
    return short or Infeasible("CPUs of each node", wanted, shape.num_cpus, f"too few where {name_of(layout)}")


def _smaller(workload: Workload, shape: Shape, best: Candidate) -> Candidate:
    """The same with the smallest micro-batch that is nearly as fast: memory that gains nothing is better left free."""
    for micro in reversed(sizes(best.allocation.micro_batch)):
        allocation = replace(best.allocation, micro_batch=micro)
        prediction = predict(workload, shape, allocation)
        if prediction.trajectories_per_s >= best.prediction.trajectories_per_s * NEARLY:
            return Candidate(allocation=allocation, prediction=prediction)
    return best


def _frames(workload: Workload, shape: Shape, layout: Layout) -> Iterator[Allocation]:
    """One allocation for each number of processes; its other numbers are still to be chosen."""
    gpus = shape.num_gpus
    pairs = [(1, 1)]
    if layout[1] == "whole":
        pairs = [(count, gpus - count) for count in range(1, gpus)]
    elif layout[1] != "none":
        pairs = [(gpus, gpus)]
    for generators, learners in pairs:
        yield Allocation(
            cpu_sharing=layout[0],
            gpu_sharing=layout[1],
            simulation_cpus=shape.num_cpus,
            generation_cpus=shape.num_cpus,
            training_cpus=shape.num_cpus,
            num_generators=generators,
            num_learners=learners,
            generation_units=shape.num_sms if layout[1] == "whole" else 0,
            training_units=shape.num_sms if layout[1] == "whole" else 0,
            min_batch=1,
            max_batch=1,
            micro_batch=1,
        )


def _batches(
    workload: Workload, shape: Shape, frame: Allocation, running: Allocation | None
) -> Iterator[Allocation | Infeasible]:
    """Batch caps, largest first, each with the largest micro-batch beside it; no more once that is the largest."""
    generators = shape.num_nodes * frame.num_generators
    largest = max(1, min(workload.max_batch, -(-workload.num_envs // generators)))
    items = max(1, math.ceil(chunks_per_learner(workload, shape, frame)))
    if workload.minibatch_chunks:
        items = min(items, -(-workload.minibatch_chunks // (shape.num_nodes * frame.num_learners)))
    micros = sizes(items) if running is None else [running.micro_batch]
    reached = 0
    for cap in sizes(largest):
        waits = max(1, min(cap, workload.num_envs // generators // 2))
        shares_cpus = workload.unit == "cpu" and frame.cpu_sharing in ("all", "rollout")
        one = replace(frame, max_batch=cap, min_batch=waits if shares_cpus else 1)
        short = shortage(workload, shape, replace(one, micro_batch=micros[-1]))
        if short is not None:
            yield short
            continue
        fits = next(m for m in micros if shortage(workload, shape, replace(one, micro_batch=m)) is None)
        if fits > reached:
            reached = fits
            yield replace(one, micro_batch=fits)
        if fits == micros[0]:
            return


def sizes(largest: int) -> list[int]:
    """Batch sizes that may be chosen: the largest, and the powers of two below it; descending."""
    return [largest] + [2**power for power in range(largest.bit_length(), -1, -1) if 2**power < largest]


def _search(workload: Workload, shape: Shape, one: Allocation) -> Candidate | None:
    """The best CPU counts and units of one way of sharing with fixed batches."""
    best: Candidate | None = None
    for with_units in _units(workload, shape, one):
        found = _search_cpus(workload, shape, with_units)
        if found is not None and (best is None or _is_better(found, best)):
            best = found
    return best


def _units(workload: Workload, shape: Shape, one: Allocation) -> Iterator[Allocation]:
    """Every reachable share of a GPU; the table is short."""
    match one.gpu_sharing:
        case "none" | "whole":
            yield one
        case "turns" if workload.slack == 0:  # they never work at the same time
            yield replace(one, generation_units=PERCENT, training_units=PERCENT)
        case "turns":
            for share in range(TURN_STEP, PERCENT, TURN_STEP):
                yield replace(one, generation_units=share, training_units=PERCENT - share)
        case "split":
            for sms in range(shape.sm_step, shape.num_sms, shape.sm_step):
                yield replace(one, generation_units=sms, training_units=shape.num_sms - sms)


def _search_cpus(workload: Workload, shape: Shape, one: Allocation) -> Candidate | None:
    """The best CPU counts; None where there are too few CPUs for this way of sharing."""
    total, least = shape.num_cpus, workload.simulation.cpus_per_worker
    most = -(-workload.num_envs // shape.num_nodes) * least

    def measure(allocation: Allocation) -> Candidate:
        return Candidate(allocation=allocation, prediction=predict(workload, shape, allocation))

    match one.cpu_sharing:
        case "all":
            return measure(one)
        case "rollout":  # the more training has, the less rollout

            def apart(count: int) -> Candidate:
                rest = total - count
                return measure(replace(one, simulation_cpus=rest, generation_cpus=rest, training_cpus=count))

            return _scan(apart, range(1, total - least + 1))
        case "compute" if workload.unit == "gpu":

            def hosts(count: int) -> Candidate:
                rest = total - count
                return measure(replace(one, simulation_cpus=rest, generation_cpus=count, training_cpus=count))

            return _cross(hosts, _leaving_sets(total, least, most), rising="shared CPUs")
        case "compute":

            def together(count: int) -> Candidate:
                rest = total - count
                return measure(replace(one, simulation_cpus=rest, generation_cpus=count, training_cpus=count))

            return _scan(together, range(1, total - least + 1))
        case "none":
            return _separate(measure, one, workload, total, most)


def _separate(
    measure: Callable[[Allocation], Candidate], one: Allocation, workload: Workload, total: int, most: int
) -> Candidate | None:
    """Three counts: every one for generation, and for each the crossing of rollout and training."""
    least, best = workload.simulation.cpus_per_worker, None
    useful = min(total, max(1, -int(-workload.generation.saturation // 1)))
    for generation in range(1, useful + 1):

        def apart(training: int, generation: int = generation) -> Candidate:
            rest = total - generation - training
            return measure(replace(one, simulation_cpus=rest, generation_cpus=generation, training_cpus=training))

        found = _cross(apart, _leaving_sets(total - generation, least, most), rising="training")
        if found is not None and (best is None or _is_better(found, best)):
            best = found
    return best


def _leaving_sets(total: int, size: int, most: int) -> range:
    """Counts that leave simulation whole CPU sets, and no more than its env workers can use."""
    if total <= size:
        return range(0)
    kept = min((total - 1) // size * size, max(size, most))
    return range(total - kept, total - size + 1, size)


def _cross(at: Callable[[int], Candidate], counts: range, *, rising: str) -> Candidate | None:
    """The best where the limit named ``rising`` grows with the count and those of rollout shrink.

    Slack 0, and a small one, are limited by the sum of both; that has one peak, but not at the crossing.
    """
    if not counts:
        return None
    low, high = 0, len(counts) - 1
    while low < high:
        middle = (low + high) // 2
        found = at(counts[middle]).prediction.limits
        if found.get(rising, math.inf) >= found["simulation with generation"]:
            high = middle
        else:
            low = middle + 1
    best = at(counts[low])
    if low > 0:
        before = at(counts[low - 1])
        best = before if _is_better(before, best) else best
    if best.prediction.binding not in ("staleness", "shared CPUs"):
        return best
    return _peak(at, counts)


def _peak(at: Callable[[int], Candidate], counts: range) -> Candidate:
    """The best of a function with one peak, by thirds."""
    low, high = 0, len(counts) - 1
    while high - low > 8:
        third = (high - low) // 3
        left, right = at(counts[low + third]), at(counts[high - third])
        if left.prediction.trajectories_per_s < right.prediction.trajectories_per_s:
            low += third
        else:
            high -= third
    result = _scan(at, counts[low : high + 1])
    assert result is not None
    return result


def _scan(at: Callable[[int], Candidate], counts: range) -> Candidate | None:
    best: Candidate | None = None
    for count in counts:
        found = at(count)
        if best is None or _is_better(found, best):
            best = found
    return best


def _is_better(one: Candidate, other: Candidate) -> bool:
    """Faster; of two that are as fast, the one whose other limits are further away."""
    a, b = one.prediction, other.prediction
    if abs(a.trajectories_per_s - b.trajectories_per_s) > _EQUAL * b.trajectories_per_s:
        return a.trajectories_per_s > b.trajectories_per_s
    return _nearest(a) > _nearest(b) * (1 + _EQUAL)


def _nearest(prediction: Prediction) -> float:
    """The lower one of the limits of the stages that a surplus can go to."""
    return min(prediction.limits["generation"], prediction.limits["training"])
