"""``ebrl bench modes``, ``ablation``, ``scaling`` and ``staleness`` on the virtual engine.

Repeats are interleaved: every cell of the table is played once with one seed before any is played with the next.
What is compared is the median of a cell's repeats, with a bootstrap interval; a configuration's baseline is the
fastest of the modes of other systems that its machine can run.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from statistics import median
from typing import Any

from ebrl.bench.matrix import Configuration, configurations
from ebrl.bench.playing import Played, Switches, play, switches_of
from ebrl.bench.statistics import geomean_interval, geometric_mean, ratio_interval
from ebrl.config.modes import BASELINES, NAMES
from ebrl.host.probe import machine, usable_cpus
from ebrl.resources.pool import Infeasible

TARGETS = {"ebrl_over_best": 1.3, "geomean_over_best": 2.3, "geomean_over_paper": 1.15, "roofline_share": 0.95}
"""DESIGN.md section 14: the first and the last hold for every configuration."""

QUICK = 3
"""Configurations of a quick look."""

Say = Callable[[str], None]
Document = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Cell:
    """One configuration under some switches."""

    configuration: Configuration
    name: str
    switches: Switches


@dataclass(frozen=True, slots=True)
class Row:
    """A cell with its repeats."""

    cell: Cell
    played: list[Played]
    impossible: str = ""
    """Why there are none."""

    @property
    def rates(self) -> list[float]:
        """Trajectories per second, of each repeat."""
        return [one.trajectories_per_s for one in self.played]

    def to_json(self) -> Document:
        """For the table."""
        document: Document = {
            "config": self.cell.configuration.name,
            "mode": self.cell.name,
            "trajectories_per_s": self.rates,
        }
        if self.impossible:
            return document | {"impossible": self.impossible}
        first = self.played[0]
        return document | {
            "predicted": first.predicted,
            "binding": first.binding,
            "busy": first.busy,
            "idle": first.idle,
            "allocation": first.allocation,
        }


def _play(cell: Cell, seed: int) -> Played | Infeasible:
    return play(cell.configuration, cell.switches, seed=seed)


def play_all(cells: Sequence[Cell], *, repeats: int, say: Say) -> list[Row]:
    """Every cell, interleaved, on as many processes as there are CPUs."""
    tasks = [(cell, seed) for seed in range(repeats) for cell in cells]
    results: list[Played | Infeasible] = []
    with ProcessPoolExecutor(len(usable_cpus()), mp_context=get_context("spawn"), initializer=_yield_cpus) as pool:
        for (cell, seed), result in zip(tasks, pool.map(_play, *zip(*tasks, strict=True)), strict=True):
            results.append(result)
            what = str(result) if isinstance(result, Infeasible) else f"{result.trajectories_per_s:.3f} trajectories/s"
            say(f"{len(results)}/{len(tasks)} {cell.configuration.name}, {cell.name}, seed {seed}: {what}")
    rows = []
    for index, cell in enumerate(cells):
        mine = results[index :: len(cells)]
        short = next((str(one) for one in mine if isinstance(one, Infeasible)), "")
        rows.append(Row(cell, [one for one in mine if isinstance(one, Played)], short))
    return rows


def _yield_cpus() -> None:
    os.nice(5)


def chosen(quick: bool, names: Iterable[str] = ()) -> list[Configuration]:
    """Configurations of the matrix: all, those that were named, or a few for a quick look."""
    every = configurations()
    wanted = set(names)
    if wanted:
        return [one for one in every if one.name in wanted]
    return [_smaller(one) for one in every[:: max(1, len(every) // QUICK)][:QUICK]] if quick else list(every)


def _smaller(one: Configuration) -> Configuration:
    """For a quick look: a quarter of the environments and trajectories."""
    groups = max(1, one.siblings)
    envs = max(8, one.workload.num_envs // 4)
    batch = max(groups, one.workload.batch_trajectories // 4 // groups * groups)
    return replace(one, workload=replace(one.workload, num_envs=envs, batch_trajectories=batch))


def measure_modes(*, quick: bool, names: Iterable[str] = (), say: Say = lambda text: None) -> Document:
    """Every configuration in every mode."""
    matrix = chosen(quick, names)
    cells = [Cell(one, mode, switches_of(mode)) for one in matrix for mode in NAMES]
    repeats = 2 if quick else 5
    rows = play_all(cells, repeats=repeats, say=say)
    table = {(row.cell.configuration.name, row.cell.name): row for row in rows}
    ratios = [_ratios(one, table) for one in matrix]
    pairs = [(table[r["config"], "ebrl"].rates, table[r["config"], r["best"]].rates) for r in ratios]
    papers = [
        (table[r["config"], "ebrl"].rates, table[r["config"], "paper"].rates) for r in ratios if r["ebrl_over_paper"]
    ]
    document = {
        "kind": "virtual",
        "rows": [row.to_json() for row in rows],
        "ratios": ratios,
        "geomean_over_best": geometric_mean([r["ebrl_over_best"] for r in ratios]),
        "geomean_over_best_ci95": geomean_interval(pairs),
        "geomean_over_paper": geometric_mean([r["ebrl_over_paper"] for r in ratios if r["ebrl_over_paper"]]),
        "geomean_over_paper_ci95": geomean_interval(papers),
        "repeats": repeats,
        "targets": TARGETS,
        "machine": machine(),
    }
    return document | {"met": met(document)}


def _ratios(one: Configuration, table: dict[tuple[str, str], Row]) -> Document:
    ebrl, paper = table[one.name, "ebrl"], table[one.name, "paper"]
    able = {mode: table[one.name, mode] for mode in BASELINES if table[one.name, mode].rates}
    best = max(able, key=lambda mode: median(able[mode].rates))
    middle = median(ebrl.rates)
    return {
        "config": one.name,
        "best": best,
        "ebrl_over_best": middle / median(able[best].rates),
        "ci95": ratio_interval(ebrl.rates, able[best].rates),
        "ebrl_over_paper": middle / median(paper.rates) if paper.rates else None,
        "ebrl_over_paper_ci95": ratio_interval(ebrl.rates, paper.rates) if paper.rates else None,
        "roofline_share": middle / ebrl.played[0].predicted,
        "binding": ebrl.played[0].binding,
        "not_possible": {mode: table[one.name, mode].impossible for mode in NAMES if not table[one.name, mode].rates},
    }


def met(document: Document) -> dict[str, bool]:
    """Which targets hold."""
    ratios = document["ratios"]
    return {
        "ebrl_over_best": min(r["ebrl_over_best"] for r in ratios) >= TARGETS["ebrl_over_best"],
        "geomean_over_best": document["geomean_over_best"] >= TARGETS["geomean_over_best"],
        "geomean_over_paper": document["geomean_over_paper"] >= TARGETS["geomean_over_paper"],
        "roofline_share": min(r["roofline_share"] for r in ratios) >= TARGETS["roofline_share"],
    }


PARTS: dict[str, dict[str, Any]] = {
    "observations": {"observe_every_step": False},
    "finished episodes": {"run_to_horizon": False},
    "step barrier and env groups": {"step_barrier": False, "env_groups": 0, "round_robin": False},
    "overlap with training": {"slack": 1},
    "GPU sharing": {"gpu_use": "best"},
}
"""Mechanisms, as the switches that have them; ``async`` with all of them is ``ebrl``."""

PAPER_SHARES = {"GPU sharing": 0.10, "step barrier and env groups": 0.31, "overlap with training": 0.26}
"""Gains that the paper's ablation reports for elastic allocation, group pipelining and overlap (its figure 16, as the
review has it)."""


def measure_ablation(*, quick: bool, names: Iterable[str] = (), say: Say = lambda text: None) -> Document:
    """What each mechanism brings: taken from ``ebrl``, and given to ``async``."""
    matrix = chosen(quick, names)
    ebrl, other = switches_of("ebrl"), switches_of("async")
    cells = []
    for one in matrix:
        cells += [Cell(one, "ebrl", ebrl), Cell(one, "async", other)]
        for part, switches in PARTS.items():
            without = {name: getattr(other, name) for name in switches}
            if part == "overlap with training":
                without = {"slack": 0}
            cells.append(Cell(one, f"ebrl without {part}", replace(ebrl, **without)))
            cells.append(Cell(one, f"async with {part}", replace(other, **switches)))
    repeats = 2 if quick else 5
    rows = play_all(cells, repeats=repeats, say=say)
    table = {(row.cell.configuration.name, row.cell.name): row.rates for row in rows if row.rates}
    parts: Document = {}
    for part in PARTS:
        parts[part] = {
            "removed_from_ebrl": _gain(table, matrix, "ebrl", f"ebrl without {part}"),
            "added_to_async": _gain(table, matrix, f"async with {part}", "async"),
            "paper": PAPER_SHARES.get(part),
        }
    document = {"kind": "virtual", "parts": parts, "rows": [row.to_json() for row in rows], "repeats": repeats}
    return document | {"machine": machine()}


def _gain(
    table: dict[tuple[str, str], list[float]], matrix: Sequence[Configuration], above: str, below: str
) -> Document | None:
    pairs = {
        one.name: (table[one.name, above], table[one.name, below])
        for one in matrix
        if (one.name, above) in table and (one.name, below) in table
    }
    if not pairs:
        return None
    ratios = {name: median(a) / median(b) for name, (a, b) in pairs.items()}
    return {
        "geomean": geometric_mean(list(ratios.values())),
        "ci95": geomean_interval(list(pairs.values())),
        "by_config": ratios,
    }


def measure_scaling(*, quick: bool, say: Say = lambda text: None) -> Document:
    """From few GPUs and environments to many: one workload, CPUs and environments in proportion to GPUs."""
    base = next(one for one in configurations() if one.shape.num_gpus * one.shape.num_nodes >= 8)
    cells = []
    for gpus in (1, 2, 4, 8, 16) if not quick else (1, 4):
        cells += [Cell(_sized(base, gpus), mode, switches_of(mode)) for mode in ("colocated", "async", "paper", "ebrl")]
    for envs in (32, 64, 128, 256, 512, 1024) if not quick else (32, 128):
        sized = replace(base, name=f"{envs} environments", workload=replace(base.workload, num_envs=envs))
        cells.append(Cell(sized, "ebrl", switches_of("ebrl")))
    repeats = 1 if quick else 3
    rows = play_all(cells, repeats=repeats, say=say)
    return {"kind": "virtual", "base": base.name, "rows": [row.to_json() for row in rows], "repeats": repeats} | {
        "machine": machine()
    }


def _sized(base: Configuration, gpus: int) -> Configuration:
    """The configuration on so many GPUs, with CPUs, memory, environments and trajectories in proportion."""
    had = base.shape.num_gpus * base.shape.num_nodes
    nodes = max(1, gpus // 8)
    per_gpu = max(1, base.shape.num_cpus * base.shape.num_nodes // had)
    shape = replace(
        base.shape,
        num_nodes=nodes,
        num_gpus=gpus // nodes,
        num_cpus=per_gpu * (gpus // nodes),
        memory_bytes=base.shape.memory_bytes * base.shape.num_nodes // had * (gpus // nodes),
    )
    groups = max(1, base.siblings)
    workload = base.workload
    envs = max(groups, workload.num_envs * gpus // had)
    batch = max(groups, workload.batch_trajectories * gpus // had // groups * groups)
    return replace(
        base, name=f"{gpus} GPUs", shape=shape, workload=replace(workload, num_envs=envs, batch_trajectories=batch)
    )


def measure_staleness(*, quick: bool, say: Say = lambda text: None) -> Document:
    """Throughput for slack 0 to 8; success is measured by ``ebrl bench convergence``."""
    matrix = chosen(quick)
    slacks = (0, 1, 4) if quick else (0, 1, 2, 3, 4, 6, 8)
    cells = [
        Cell(one, f"slack {slack}", replace(switches_of("ebrl"), slack=slack)) for one in matrix for slack in slacks
    ]
    repeats = 1 if quick else 3
    rows = play_all(cells, repeats=repeats, say=say)
    return {"kind": "virtual", "rows": [row.to_json() for row in rows], "repeats": repeats, "machine": machine()}
