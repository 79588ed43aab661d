"""``ebrl bench modes`` on the virtual engine, and what its studies (``mode_studies``) share with it.

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

from ebrl.bench.matrix import Configuration, configuration, configurations
from ebrl.bench.playing import Played, Switches, play, switches_of
from ebrl.bench.statistics import geomean_interval, geometric_mean, ratio_interval
from ebrl.config.modes import BASELINES, NAMES
from ebrl.config.schema import Padding
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
    """Configurations of the matrix: all, those that were named, or a few for a quick look.

    Raises:
        UsageError: there is none of that name.
    """
    if wanted := [configuration(name) for name in dict.fromkeys(names)]:
        return wanted
    every = configurations()
    return [_smaller(one) for one in every[:: max(1, len(every) // QUICK)][:QUICK]] if quick else list(every)


def _smaller(one: Configuration) -> Configuration:
    """For a quick look: a quarter of the environments and trajectories."""
    groups = max(1, one.siblings)
    envs = max(8, one.workload.num_envs // 4)
    batch = max(groups, one.workload.batch_trajectories // 4 // groups * groups)
    return replace(one, workload=replace(one.workload, num_envs=envs, batch_trajectories=batch))


def measure_modes(
    *, quick: bool, names: Iterable[str] = (), padding: Padding = "left_out", say: Say = lambda text: None
) -> Document:
    """Every configuration in every mode.

    Args:
        quick: few configurations, smaller ones, and few repeats.
        names: of configurations; none means all.
        padding: whether chunks that were never executed take training's time (``masked``), as in systems that only
            mask their losses.
        say: is told how it goes.

    Raises:
        UsageError: there is no such configuration.
    """
    matrix = chosen(quick, names)
    masked = padding == "masked"
    cells = [Cell(one, mode, replace(switches_of(mode), trains_on_padding=masked)) for one in matrix for mode in NAMES]
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
        "rows": [row.to_json() | _idle_seconds(row) for row in rows],
        "ratios": ratios,
        "geomean_over_best": geometric_mean([r["ebrl_over_best"] for r in ratios]),
        "geomean_over_best_ci95": geomean_interval(pairs),
        "geomean_over_paper": geometric_mean([r["ebrl_over_paper"] for r in ratios if r["ebrl_over_paper"]])
        if papers
        else None,
        "geomean_over_paper_ci95": geomean_interval(papers) if papers else None,
        "padding": padding,
        "quick": quick,
        "repeats": repeats,
        "targets": TARGETS,
        "machine": machine(),
    }
    return document | {"met": met(document)}


def _idle_seconds(row: Row) -> Document:
    """Of the first repeat, to the millisecond; shares of time are in the row already."""
    if not row.played:
        return {}
    idle_s = row.played[0].idle_s
    return {"idle_s": {stage: {why: round(s, 3) for why, s in found.items()} for stage, found in idle_s.items()}}


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
    paper = document["geomean_over_paper"]
    over_paper = {} if paper is None else {"geomean_over_paper": paper >= TARGETS["geomean_over_paper"]}
    return over_paper | {
        "ebrl_over_best": min(r["ebrl_over_best"] for r in ratios) >= TARGETS["ebrl_over_best"],
        "geomean_over_best": document["geomean_over_best"] >= TARGETS["geomean_over_best"],
        "roofline_share": min(r["roofline_share"] for r in ratios) >= TARGETS["roofline_share"],
    }
