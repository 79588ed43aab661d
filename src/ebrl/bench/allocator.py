"""How near the allocator comes to the best allocation, and how long it takes.

Pairs of a workload and a machine are drawn at random: small and large machines, with and without GPUs, ample and
scarce memory. For each the allocator's choice is held against the best of all allocations (``oracle``), which is
found without any code of the allocator. A second part (``virtual_allocations``) lets the virtual engine judge: it
knows nothing of the formulas that both rely on.
"""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ebrl.bench import oracle, virtual_allocations
from ebrl.resources.allocation import Shape
from ebrl.resources.allocator import Choice, allocate
from ebrl.resources.pool import Infeasible
from ebrl.resources.workload import BatchCosts, SimulationCosts, Unit, Workload

TARGETS = {
    "worst_ratio_to_exhaustive": 0.99,
    "only_one_infeasible": 0,
    "p95_ms": 50.0,
    "worst_ratio_to_best_virtual": 0.97,
}
"""What is asked of the headline figures."""

QUICK, FULL = 60, 1200
"""Pairs."""

CARDS = ((132, 8, 80), (132, 8, 141), (108, 4, 40), (128, 2, 24), (128, 4, 24), (78, 8, 40), (142, 2, 48), (82, 2, 24))
"""SMs, the step between two splits, and GiB of cards that are around."""

GIB = 2**30

_EVERY = 200
"""Pairs between two lines of progress."""


def _silent(_: str) -> None:
    pass


def measure(
    *, pairs: int = 0, seed: int = 0, quick: bool = False, say: Callable[[str], None] = _silent
) -> dict[str, Any]:
    """Ratio to the best of all allocations, time of ``allocate``, and what the virtual engine says.

    Args:
        pairs: how many are drawn; 0 is the usual number.
        seed: of all draws.
        quick: a smaller sample of the same.
        say: hears how far it is.
    """
    from ebrl.host.probe import machine

    count = pairs or (QUICK if quick else FULL)
    rows: list[Row] = []
    for number in range(count):
        rows.append(compare(*random_pair(random.Random(f"{seed} {number}"))))
        if (number + 1) % _EVERY == 0:
            say(f"{number + 1} of {count} pairs")
    figures = _figures(rows)
    virtual = virtual_allocations.measure(seed=seed, quick=quick, say=say)
    figures["worst_ratio_to_best_virtual"] = virtual["worst_ratio"]
    return figures | {
        "targets": TARGETS,
        "met": {name: _is_met(name, figures[name]) for name in TARGETS},
        "pairs": count,
        "seed": seed,
        "virtual": virtual,
        "machine": machine(),
    }


def _is_met(name: str, figure: float) -> bool:
    return figure >= TARGETS[name] if "ratio" in name else figure <= TARGETS[name]


# Random pairs.


def random_pair(rng: random.Random) -> tuple[Workload, Shape]:
    """A workload and a machine for it; for some there is too little memory."""
    unit: Unit = "cpu" if rng.random() < 0.3 else "gpu"
    shape = _random_shape(unit, rng)
    return _random_workload(unit, shape, rng), shape


def _random_shape(unit: Unit, rng: random.Random) -> Shape:
    nodes = rng.choice((1, 1, 1, 2))
    if unit == "cpu":
        cpus = rng.choice((2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64))
        return Shape(num_nodes=nodes, num_cpus=cpus, memory_bytes=cpus * rng.choice((1, 2, 4, 8)) * GIB)
    gpus = rng.choice((1, 1, 2, 4, 8, 8, 8))
    cpus = rng.choice([count for count in (8, 16, 32, 64, 96, 128, 192) if count >= 2 * gpus])
    sms, step, memory = rng.choice(CARDS)
    return Shape(
        num_nodes=nodes,
        num_cpus=cpus,
        memory_bytes=cpus * rng.choice((2, 4, 8)) * GIB,
        num_gpus=gpus,
        num_sms=sms,
        sm_step=step,
        device_memory_bytes=memory * GIB,
        can_split=rng.random() < 0.85,
    )


def _random_workload(unit: Unit, shape: Shape, rng: random.Random) -> Workload:
    memory = shape.device_memory_bytes if unit == "gpu" else shape.memory_bytes // 2
    num_envs = min(1024, 2 ** rng.randint(1, 10) + rng.choice((0, 0, 1, 7)))
    chunks = rng.choice((1.0, 4.0, 12.5, 16.0, 40.0, 64.3))
    batch = max(1, int(num_envs * rng.choice((0.25, 0.5, 1, 1, 2))))
    per_worker = rng.choice((1, 1, 1, 2, 4)) if shape.num_cpus >= 8 else 1
    chunk_s = between(rng, 0.01, 3.0)
    alike = rng.random() < 0.7
    """Whether all stages take about as long, so that the choice is a close one."""
    envs_at_once = min(num_envs, shape.num_nodes * max(1, shape.num_cpus // per_worker))
    rollout_s = chunk_s / envs_at_once if alike else between(rng, 1e-3, 0.1)
    """For one chunk."""
    processes = shape.num_nodes * max(1, shape.num_gpus)
    generation_s = rollout_s * processes * between(rng, 0.03, 2.0)
    heavy = rng.random() < 0.5
    weights = rng.choice((0.05, 0.2, 0.45 if heavy else 0.3))
    return Workload(
        name="random",
        num_envs=num_envs,
        chunk_len=8,
        trajectory_chunks=chunks,
        batch_trajectories=batch,
        slack=rng.choice((0, 1, 1, 2, 3, 4)),
        epochs=1,
        unit=unit,
        simulation=SimulationCosts(
            chunk_s=chunk_s,
            chunk_sd_s=chunk_s * rng.choice((0.0, 0.2)),
            cpus_per_worker=per_worker,
            memory_bytes=int(between(rng, 1e-3, 1.1 if heavy else 0.2) * shape.memory_bytes / num_envs),
            device_memory_bytes=int(memory * between(rng, 1e-3, 0.5) / num_envs) if rng.random() < 0.3 else 0,
        ),
        generation=_random_costs(rng, memory, unit, generation_s, weights),
        training=_random_costs(rng, memory, unit, rollout_s * processes * between(rng, 0.1, 4.0), 1.5 * weights),
        update_s=rng.choice((0.0, 0.1, 0.3)) * rollout_s * chunks * batch,
        sync_s=rng.choice((0.0, 0.05)) * rollout_s * chunks * batch,
        minibatch_chunks=rng.choice((0, 0, max(1, int(chunks * batch / 4)))),
        sharded_bytes=rng.choice((0, 0, int(memory * shape.num_nodes * weights))),
        host_cpus=rng.choice((0.0, 0.2, 1.0, 1.0, 2.0, 4.0)),
        corun=rng.choice((1.0, 1.05, 1.2)),
        shared_cpu_factor=rng.choice((1.0, 1.1, 1.4)),
        max_batch=rng.choice((8, 64, 256, 256)),
    )


def _random_costs(rng: random.Random, memory_bytes: int, unit: Unit, item_s: float, weights: float) -> BatchCosts:
    """Of one stage that takes about ``item_s`` for a chunk in a batch; ``weights`` is the largest share of the memory
    that is taken whatever the size of the batch.
    """
    return BatchCosts(
        fixed_s=rng.choice((1, 1, 1, 0)) * item_s * between(rng, 0.3, 40.0),
        item_s=item_s * rng.uniform(0.3, 1.0),
        serial=rng.uniform(0.0, 0.5),
        saturation=rng.uniform(0.1, 2.0) if unit == "gpu" else between(rng, 0.5, 16.0),
        memory_bytes=int(memory_bytes * rng.uniform(0.01, weights)),
        item_memory_bytes=int(memory_bytes * between(rng, 1e-5, 0.3)),
    )


def between(rng: random.Random, low: float, high: float) -> float:
    """A number whose logarithm is as likely anywhere between these."""
    return math.exp(rng.uniform(math.log(low), math.log(high)))


# One pair.


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One pair, and how the allocator did."""

    workload: Workload
    shape: Shape
    chosen: Choice | Infeasible
    exhaustive: oracle.Found | None
    cpu_ms: float
    wall_ms: float

    @property
    def ratio(self) -> float:
        """Rate of the choice over that of the best; 1 where both say that nothing fits, 0 where one does."""
        if isinstance(self.chosen, Infeasible) or self.exhaustive is None:
            return float(self.agree)
        return self.chosen.best.prediction.trajectories_per_s / self.exhaustive.trajectories_per_s

    @property
    def agree(self) -> bool:
        """Whether both found something, or neither did."""
        return isinstance(self.chosen, Infeasible) == (self.exhaustive is None)


def compare(workload: Workload, shape: Shape) -> Row:
    """The allocator's choice, timed, beside the best of all."""
    start, start_wall = time.process_time(), time.perf_counter()
    chosen = allocate(workload, shape)
    cpu_s, wall_s = time.process_time() - start, time.perf_counter() - start_wall
    return Row(
        workload=workload,
        shape=shape,
        chosen=chosen,
        exhaustive=oracle.best(workload, shape),
        cpu_ms=1e3 * cpu_s,
        wall_ms=1e3 * wall_s,
    )


# All of them.


def _figures(rows: list[Row]) -> dict[str, Any]:
    both = [row for row in rows if row.agree and row.exhaustive is not None]
    node = [row for row in rows if row.shape.num_gpus == 8 and row.shape.num_nodes == 1]
    ratios = sorted(row.ratio for row in both)
    times = {"8-GPU node": _times(node), "all pairs": _times(rows)}
    return {
        "worst_ratio_to_exhaustive": ratios[0],
        "highest_ratio_to_exhaustive": ratios[-1],
        "median_ratio_to_exhaustive": statistics.median(ratios),
        "below_target": sum(ratio < TARGETS["worst_ratio_to_exhaustive"] for ratio in ratios),
        "both_infeasible": sum(row.agree and row.exhaustive is None for row in rows),
        "only_one_infeasible": sum(not row.agree for row in rows),
        "p95_ms": times["8-GPU node"]["cpu"]["p95_ms"],
        "times": times,
        "worst": [_described(row) for row in sorted(rows, key=lambda row: row.ratio)[:10]],
    }


def _times(rows: list[Row]) -> dict[str, Any]:
    clocks = {"cpu": [row.cpu_ms for row in rows], "wall": [row.wall_ms for row in rows]}
    return {"count": len(rows), **{clock: _percentiles(values) for clock, values in clocks.items()}}


def _percentiles(values: list[float]) -> dict[str, float]:
    ordered = sorted(values) or [0.0]
    last = len(ordered) - 1
    return {
        "p50_ms": ordered[round(0.5 * last)],
        "p95_ms": ordered[round(0.95 * last)],
        "max_ms": ordered[-1],
    }


def _described(row: Row) -> dict[str, Any]:
    import dataclasses

    chosen = row.chosen.best if isinstance(row.chosen, Choice) else row.chosen
    return {
        "ratio": row.ratio,
        "cpu_ms": row.cpu_ms,
        "workload": row.workload.to_json(),
        "shape": dataclasses.asdict(row.shape),
        "chosen": dataclasses.asdict(chosen),
        "exhaustive": dataclasses.asdict(row.exhaustive) if row.exhaustive else None,
    }
