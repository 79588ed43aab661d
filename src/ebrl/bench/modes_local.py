"""``ebrl bench modes --engine local``: the same modes with real processes, on emulated GPUs.

Two configurations have emulated CPUs too, in the proportions of the paper's machine (seven CPUs and 21 environments
for each GPU): env steps sleep through their time. Two have a real simulator on the real CPUs. All emulated times are
those of the workload, sped up so that an update takes seconds; every answer says so. Beside each measured cell stands
its forecast, which was made before (``modes_forecast``).

Where env steps sleep, episodes are shorter too. Speed alone would have a step last as long as this machine needs to
start it, and modes with a barrier after every env step would be slow for that reason and no other.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from ebrl.bench.emulated import beside_real, metaworld_costs
from ebrl.bench.modes_costs import HostCosts, kind_of, kinds_of, measure_costs, sleeps_of
from ebrl.bench.modes_forecast import forecast, forecast_of_emulation, steady_rate
from ebrl.bench.statistics import geomean_interval, geometric_mean, ratio_interval
from ebrl.config.load import make_config
from ebrl.config.modes import BASELINES, NAMES, Mode, in_mode, laid_over
from ebrl.config.schema import RunConfig
from ebrl.engines.local.engine import LocalEngine
from ebrl.errors import ConfigError, RunError, UsageError, nearest
from ebrl.host.meters import watch_others
from ebrl.host.probe import machine
from ebrl.plan.workloads import load_workload
from ebrl.resources.workload import Workload
from ebrl.runtime.local import local_setup
from ebrl.runtime.management import run_plan
from ebrl.scheduling.events import EnvWorkerLost, EnvWorkerReady
from ebrl.scheduling.plan import SchedulerPlan

TARGETS = {"geomean_over_best": 2.0, "geomean_over_best_low": 1.5, "forecast": 0.10}
"""The last is the largest error of a forecast."""

SEEDS = {True: 2, False: 10}
"""Runs on paper that make a forecast, by whether there is a barrier after every env step: then they hardly differ."""

HORIZON = 64
"""Env steps of an episode of Meta-World; its policy has learned nothing, so it never succeeds sooner."""

_LOOK_S = 0.5
"""Between two looks at what other programs do while a cell is measured."""

Document = dict[str, Any]
Say = Callable[[str], None]
Cell = tuple[str, Mode]
"""Name of a configuration, and a mode."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalConfiguration:
    """One run, in every mode."""

    name: str
    about: str
    document: Document
    workload: Workload | None = None
    """Emulated times, where they are not those of a workload that comes with ebrl."""
    updates: int = 1
    """That are measured in modes with a barrier after every env step; see ``updates_of``."""

    @property
    def emulated(self) -> Document:
        """What is emulated, for people."""
        emulation: Document = self.document["emulation"]
        return emulation if self.workload is None else emulation | {"workload": self.workload.name}

    def with_file(self, directory: Path) -> LocalConfiguration:
        """The same, whose workload a run can read."""
        if self.workload is None:
            return self
        path = directory / f"{self.name}.json"
        path.write_text(json.dumps(self.workload.to_json()))
        return replace(self, document=laid_over(self.document, {"emulation": {"workload": str(path)}}))


def _document(env: Document, *, num_envs: int, chunk_len: int, emulation: Document) -> Document:
    return {
        "env": env,
        "policy": {"name": "mlp", "chunk_len": chunk_len},
        "algorithm": {"config": {"epochs": 1, "minibatch_chunks": 4096}},
        "simulation": {"num_envs": num_envs},
        "generation": {"device": "emulated"},
        "training": {"device": "emulated", "batch_trajectories": num_envs, "trajectory": "episode"},
        "emulation": emulation,
        "checkpoint": {"every_updates": 0},
        "records": {"level": "off"},
    }


def shortened(workload: Workload, times: int) -> Workload:
    """Episodes so many times shorter; so is whatever is done once in an episode or an update, so proportions stay."""
    simulation = workload.simulation
    return replace(
        workload,
        name=f"{workload.name} with episodes {times} times shorter",
        trajectory_chunks=workload.trajectory_chunks / times,
        update_s=workload.update_s / times,
        hand_over_s=workload.hand_over_s / times,
        sync_s=workload.sync_s / times,
        simulation=replace(
            simulation,
            reset_s=simulation.reset_s / times,
            hard_reset_s=simulation.hard_reset_s / times,
            episode_steps=simulation.episode_steps / times,
            horizon_steps=round(simulation.horizon_steps / times),
        ),
    )


def _sleeping(name: str, about: str, *, workload: str, num_gpus: int, shorter: int, speed: float) -> LocalConfiguration:
    """A simulator that sleeps through the workload's times, seven CPUs and 21 environments for each GPU."""
    given = shortened(load_workload(workload), shorter)
    simulation = given.simulation
    config = {
        "step_s": simulation.env_step_s / speed,
        "tail_sigma": simulation.env_step_sd_s / simulation.env_step_s,
        "observe_s": simulation.observe_s / speed,
        "reset_s": simulation.reset_s / speed,
        "min_episode_steps": max(1, round(2 * simulation.episode_steps - simulation.horizon_steps)),
        "max_episode_steps": simulation.horizon_steps,
    }
    emulation = {"machine": "4xa100", "gpus": num_gpus, "cpus": 7 * num_gpus, "speed": speed}
    env = {"name": "toy/dial-v1", "config": config}
    document = _document(env, num_envs=21 * num_gpus, chunk_len=given.chunk_len, emulation=emulation)
    return LocalConfiguration(name=name, about=about, document=document, workload=given)


def _real(name: str, about: str, *, env: Document, frame_s: float, speed: float, updates: int) -> LocalConfiguration:
    """Meta-World on the CPUs that there are, with GPUs so fast that simulation begins to limit ``ebrl``."""
    simulation = replace(metaworld_costs(), observe_s=frame_s, episode_steps=float(HORIZON), horizon_steps=HORIZON)
    workload = beside_real("openpi-libero", simulation, speed=speed)
    emulation = {"machine": "4xa100", "gpus": 2, "speed": speed}
    document = _document(env, num_envs=8, chunk_len=8, emulation=emulation)
    return LocalConfiguration(name=name, about=about, document=document, workload=workload, updates=updates)


def configurations() -> tuple[LocalConfiguration, ...]:
    """Those of ``ebrl bench modes --engine local``."""
    camera = {"camera": "corner3", "image_size": 64, "max_episode_steps": HORIZON}
    return (
        _sleeping(
            "openpi-robocasa-2xa100",
            "emulated CPUs and GPUs",
            workload="openpi-robocasa",
            num_gpus=2,
            shorter=5,
            speed=2.5,
        ),
        _sleeping(
            "gr00t-libero-2xa100",
            "emulated CPUs and GPUs, a simulator that is fast beside its policy",
            workload="gr00t-libero",
            num_gpus=2,
            shorter=4,
            speed=7.0,
        ),
        _real(
            "metaworld-camera",
            "Meta-World drawer-open with a 64×64 camera on the real CPUs, emulated GPUs",
            env={"name": "metaworld/drawer-open-v3", "config": camera},
            frame_s=0.0057,  # of 64×64, rendered in software
            speed=40.0,
            updates=2,
        ),
        _real(
            "metaworld-state",
            "Meta-World reach with states on the real CPUs, emulated GPUs",
            env={"name": "metaworld/reach-v3", "config": {"max_episode_steps": HORIZON}},
            frame_s=0.0,
            speed=160.0,
            updates=12,
        ),
    )


def chosen(*, quick: bool, names: Iterable[str] = ()) -> tuple[LocalConfiguration, ...]:
    """All configurations, those that were named, or one for a quick look.

    Raises:
        UsageError: there is none of that name.
    """
    every = configurations()
    wanted, known = tuple(names), [one.name for one in every]
    for name in wanted:
        if name not in known:
            hint = nearest(name, known)
            raise UsageError(f"--config {name}: {hint + ' ' if hint else ''}want one of {', '.join(known)}")
    if wanted:
        return tuple(one for one in every if one.name in wanted)
    return every[:1] if quick else every


def updates_of(one: LocalConfiguration, *, step_barrier: bool) -> int:
    """Updates that are measured.

    In lock-step one round is like another: they differ by less than 1 %. Else a short one follows a long one, which is
    why there is an even number of them.
    """
    return one.updates if step_barrier else 4 * one.updates


def warm_up_of(slack: int) -> int:
    """Updates before those that are measured: with slack 0 every round is like the first."""
    return 2 if slack else 1


def config_of(one: LocalConfiguration, mode: Mode, *, seed: int = 0) -> RunConfig:
    """Of one cell.

    Raises:
        ConfigError: the emulated machine cannot run it.
    """
    document = in_mode(mode, one.document | {"run": {"seed": seed}})
    training, step_barrier = document["training"], document["simulation"]["step_barrier"]
    training["max_updates"] = warm_up_of(training["slack"]) + updates_of(one, step_barrier=step_barrier)
    return make_config(document)


def rate(config: RunConfig) -> float:
    """Trajectories per second of one run, in steady state."""
    plan = run_plan(config)
    with tempfile.TemporaryDirectory(prefix="ebrl-bench-modes-") as directory:
        engine = LocalEngine(local_setup(config, plan, Path(directory)))
        try:
            _start(engine, plan)
            return steady_rate(engine, plan, warm_up=warm_up_of(plan.slack))
        finally:
            engine.close()


def _start(engine: LocalEngine, plan: SchedulerPlan) -> None:
    """Every process is there before the first of them works, as in the forecast."""
    engine.start()
    engine.begin(evaluation=False)
    missing = plan.num_shards
    while missing:
        event, _ = engine.next_event()
        if isinstance(event, EnvWorkerLost):
            raise RunError(f"env worker {event.shard} failed while starting: {event.detail}")
        missing -= isinstance(event, EnvWorkerReady)
    engine.begin(evaluation=False)


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
    warm_up, seeds = warm_up_of(plan.slack), SEEDS[plan.step_barrier]
    found.rates[cell] = forecast(config, plan, host, warm_up=warm_up, seeds=seeds)
    text = f"{one.name}, {mode}: forecast {found.rates[cell]:.3f} trajectories/s"
    if sleeps_of(config):
        found.emulated[cell] = forecast_of_emulation(config, plan, host, warm_up=warm_up, seeds=seeds)
        text += f", {found.emulated[cell]:.3f} if this machine's own work took no time"
    say(text)


def measure(*, quick: bool, names: Iterable[str] = (), say: Say = lambda text: None) -> Document:
    """Every configuration in every mode that its emulated machine can run: forecasts, then interleaved runs."""
    repeats = 1 if quick else 3
    with tempfile.TemporaryDirectory(prefix="ebrl-bench-modes-workloads-") as directory:
        some = tuple(one.with_file(Path(directory)) for one in chosen(quick=quick, names=names))
        foretold = foretell(some, say)
        rates: dict[Cell, list[float]] = {(one.name, mode): [] for one in some for mode in NAMES}
        busy: list[float] = []
        for seed in range(repeats):
            for one in some:
                for mode in NAMES:
                    if (one.name, mode) in foretold.impossible:
                        continue
                    with watch_others(os.getpid(), every_s=_LOOK_S) as others:
                        found = rate(config_of(one, mode, seed=seed))
                    rates[one.name, mode].append(found)
                    busy.append(others.cpus)
                    say(f"{one.name}, {mode}, seed {seed}: {found:.3f} trajectories/s")
    looks = {"others_cpus": median(busy), "others_cpus_max": max(busy)}
    return summary(some, rates, foretold) | looks | {"repeats": repeats, "machine": machine()}


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
