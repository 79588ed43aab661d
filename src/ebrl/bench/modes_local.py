"""``ebrl bench modes --engine local``: the same modes with real processes, on emulated GPUs.

Two configurations have emulated CPUs too, in the proportions of the paper's machine (seven CPUs and 21 environments
for each GPU): env steps sleep through their time. Three have a real simulator on the real CPUs; one that is not
installed is left out, and every answer says so. All emulated times are those of the workload, sped up so that an update
takes seconds; every answer says that too. Rates count episodes; trajectories are segments as long as their mean. Beside
each measured cell stands its forecast, which was made before (``modes_forecast``).
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from ebrl.bench.emulated import start_everybody
from ebrl.bench.modes_costs import HostCosts, kind_of, kinds_of, measure_costs, sleeps_of
from ebrl.bench.modes_forecast import forecast, forecast_of_emulation, steady_rate
from ebrl.bench.modes_settings import LocalConfiguration, chosen, config_of, episodes_of, playable, warm_up_of
from ebrl.bench.statistics import geomean_interval, geometric_mean, ratio_interval
from ebrl.config.load import make_config
from ebrl.config.modes import BASELINES, NAMES, Mode
from ebrl.config.schema import Padding, RunConfig
from ebrl.engines.local.engine import LocalEngine
from ebrl.errors import ConfigError
from ebrl.host.meters import watch_others
from ebrl.host.probe import machine
from ebrl.runtime.local import local_setup
from ebrl.runtime.management import run_plan

TARGETS = {"geomean_over_best": 2.0, "geomean_over_best_low": 1.5, "forecast": 0.10}
"""The last is the largest error of a forecast."""

SEEDS = {True: 2, False: 10}
"""Runs on paper that make a forecast, by whether there is a barrier after every env step: then they hardly differ."""

_LOOK_S = 0.5
"""Between two looks at what other programs do while a cell is measured."""

Document = dict[str, Any]
Say = Callable[[str], None]
Cell = tuple[str, Mode]
"""Name of a configuration, and a mode."""


def rate(config: RunConfig) -> float:
    """Trajectories per second of one run, in steady state."""
    plan = run_plan(config)
    with tempfile.TemporaryDirectory(prefix="ebrl-bench-modes-") as directory:
        engine = LocalEngine(local_setup(config, plan, Path(directory)))
        try:
            start_everybody(engine, plan)
            return steady_rate(engine, plan, warm_up=warm_up_of(plan.slack))
        finally:
            engine.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class Foretold:
    """What was said before the first cell was measured."""

    rates: dict[Cell, float]
    """Trajectories per second of each cell that its machine can run."""
    emulated: dict[Cell, float]
    """The same if the work of this machine took no time; only where simulation is emulated."""
    impossible: dict[Cell, str]
    costs: dict[str, dict[Mode, HostCosts]]
    """By configuration, and by mode as far as modes differ in them."""
    took_s: float
    """Costs, and the runs on paper."""


def foretell(some: Iterable[LocalConfiguration], say: Say = lambda text: None) -> Foretold:
    """Measure what work costs, and forecast every cell with that.

    Args:
        some: configurations.
        say: is told how it goes.

    Raises:
        RunError: a process failed.
    """
    start = time.monotonic()
    found = Foretold(rates={}, emulated={}, impossible={}, costs={}, took_s=0.0)
    for one in some:
        say(f"{one.name}: measuring what its work costs here")
        kinds = kinds_of(make_config(one.document))
        found.costs[one.name] = {kind: measure_costs(one.document, kind) for kind in kinds}
        for mode in NAMES:
            _foretell_one(one, mode, found, say)
    return Foretold(
        rates=found.rates,
        emulated=found.emulated,
        impossible=found.impossible,
        costs=found.costs,
        took_s=time.monotonic() - start,
    )


def _foretell_one(one: LocalConfiguration, mode: Mode, found: Foretold, say: Say) -> None:
    cell, costs = (one.name, mode), found.costs[one.name]
    host = costs[kind_of(mode, costs)]
    try:
        config = config_of(one, mode)
        plan = run_plan(config)
    except ConfigError as error:
        found.impossible[cell] = str(error)
        say(f"{one.name}, {mode}: {error}")
        return
    warm_up, seeds, episodes = warm_up_of(plan.slack), SEEDS[plan.step_barrier], episodes_of(one, mode)
    found.rates[cell] = episodes * forecast(config, plan, host, warm_up=warm_up, seeds=seeds)
    text = f"{one.name}, {mode}: forecast {found.rates[cell]:.3f} trajectories/s"
    if sleeps_of(config):
        found.emulated[cell] = episodes * forecast_of_emulation(config, plan, host, warm_up=warm_up, seeds=seeds)
        text += f", {found.emulated[cell]:.3f} if this machine's own work took no time"
    say(text)


def measure(
    *, quick: bool, names: Iterable[str] = (), padding: Padding = "left_out", say: Say = lambda text: None
) -> Document:
    """Every configuration in every mode that its emulated machine can run: forecasts, then interleaved runs.

    Args:
        quick: one small configuration, one repeat.
        names: of configurations; none means all.
        padding: see ``emulation.padding`` of a run.
        say: is told how it goes.

    Raises:
        UsageError: there is no such configuration, or its simulator is not installed.
        RunError: a process failed.
    """
    repeats = 1 if quick else 3
    with tempfile.TemporaryDirectory(prefix="ebrl-bench-modes-workloads-") as directory:
        wanted = [one.with_file(Path(directory)).padded(padding) for one in chosen(quick=quick, names=names)]
        some, left_out = playable(wanted, named=bool(names), say=say)
        foretold = foretell(some, say)
        rates: dict[Cell, list[float]] = {(one.name, mode): [] for one in some for mode in NAMES}
        busy: list[float] = []
        for seed in range(repeats):
            for one in some:
                for mode in NAMES:
                    if (one.name, mode) in foretold.impossible:
                        continue
                    with watch_others(os.getpid(), every_s=_LOOK_S) as others:
                        found = episodes_of(one, mode) * rate(config_of(one, mode, seed=seed))
                    rates[one.name, mode].append(found)
                    busy.append(others.cpus)
                    say(f"{one.name}, {mode}, seed {seed}: {found:.3f} trajectories/s")
    looks = {"others_cpus": median(busy), "others_cpus_max": max(busy)}
    rest = {"padding": padding, "left_out": left_out, "repeats": repeats, "machine": machine()}
    return summary(some, rates, foretold) | looks | rest


def summary(some: Sequence[LocalConfiguration], rates: dict[Cell, list[float]], foretold: Foretold) -> Document:
    """Rows, ratios and verdicts of what was measured."""
    rows = [_row(cell, values, foretold) for cell, values in rates.items()]
    errors = [abs(row["forecast_error"]) for row in rows if "forecast_error" in row]
    ratios = [_ratios(one, rates, foretold) for one in some]
    pairs = [(rates[r["config"], "ebrl"], rates[r["config"], r["best"]]) for r in ratios]
    papers = [(rates[r["config"], "ebrl"], rates[r["config"], "paper"]) for r in ratios]
    mean, interval = geometric_mean([r["ebrl_over_best"] for r in ratios]), geomean_interval(pairs)
    worst = max(errors)
    return {
        "kind": "emulated",
        "rows": rows,
        "about": {one.name: one.about for one in some},
        "emulated": {one.name: one.emulated for one in some},
        "ratios": ratios,
        "geomean_over_best": mean,
        "geomean_over_best_ci95": interval,
        "geomean_over_paper": geometric_mean([r["ebrl_over_paper"] for r in ratios]),
        "geomean_over_paper_ci95": geomean_interval(papers),
        "max_abs_forecast_error": worst,
        "forecast_costs": {
            name: {kind: one.to_json() for kind, one in costs.items()} for name, costs in foretold.costs.items()
        },
        "forecast_took_s": foretold.took_s,
        "targets": TARGETS,
        "met": {
            "geomean_over_best": mean >= TARGETS["geomean_over_best"],
            "geomean_over_best_low": interval[0] > TARGETS["geomean_over_best_low"],
            "forecast": worst <= TARGETS["forecast"],
        },
    }


def _row(cell: Cell, values: list[float], foretold: Foretold) -> Document:
    row: Document = {"config": cell[0], "mode": cell[1], "trajectories_per_s": values}
    if cell in foretold.impossible:
        return row | {"impossible": foretold.impossible[cell]}
    row |= {"forecast": foretold.rates[cell], "forecast_error": foretold.rates[cell] / median(values) - 1}
    return row | ({"forecast_of_emulation": foretold.emulated[cell]} if cell in foretold.emulated else {})


def _ratios(one: LocalConfiguration, rates: dict[Cell, list[float]], foretold: Foretold) -> Document:
    able = {mode: rates[one.name, mode] for mode in BASELINES if rates[one.name, mode]}
    best = max(able, key=lambda mode: median(able[mode]))
    ebrl, paper = rates[one.name, "ebrl"], rates[one.name, "paper"]
    own = {mode: foretold.emulated[one.name, mode] for mode in able if (one.name, mode) in foretold.emulated}
    ratio: Document = {
        "config": one.name,
        "best": best,
        "ebrl_over_best": median(ebrl) / median(able[best]),
        "ci95": ratio_interval(ebrl, able[best]),
        "ebrl_over_paper": median(ebrl) / median(paper),
        "ebrl_over_paper_ci95": ratio_interval(ebrl, paper),
        "ebrl_over_best_forecast": foretold.rates[one.name, "ebrl"] / foretold.rates[one.name, best],
    }
    if own:
        ratio["ebrl_over_best_of_emulation"] = foretold.emulated[one.name, "ebrl"] / max(own.values())
    return ratio
