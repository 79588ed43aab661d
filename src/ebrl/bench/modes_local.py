"""``ebrl bench modes --engine local``: the same modes with real processes, on emulated GPUs.

Two configurations have emulated CPUs too, in the proportions of the paper's machine (seven CPUs and 21 environments
for each GPU): env steps sleep through their time. Two have a real simulator on the real CPUs. All emulated times are
those of the workload, sped up so that an update takes seconds; every answer says so.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from ebrl.bench.statistics import geomean_interval, geometric_mean, ratio_interval
from ebrl.config.load import make_config
from ebrl.config.modes import BASELINES, NAMES, Mode, in_mode
from ebrl.config.schema import RunConfig
from ebrl.engines.local.engine import LocalEngine
from ebrl.errors import ConfigError, RunError
from ebrl.host.probe import machine
from ebrl.plan.workloads import load_workload
from ebrl.runtime.local import local_setup
from ebrl.runtime.loop import run
from ebrl.runtime.management import run_plan
from ebrl.scheduling.commands import Command
from ebrl.scheduling.events import Event, UpdateDone
from ebrl.scheduling.scheduler import Scheduler

WARM_UP, UPDATES = 1, 2
"""Updates before, and in, what is measured."""
TARGETS = {"geomean_over_best": 2.0, "geomean_over_best_low": 1.5}

Document = dict[str, Any]
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalConfiguration:
    """One run, in every mode."""

    name: str
    about: str
    document: Document


def _document(env: Document, *, num_envs: int, chunk_len: int, emulation: Document) -> Document:
    return {
        "env": env,
        "policy": {"name": "mlp", "chunk_len": chunk_len},
        "algorithm": {"config": {"epochs": 1, "minibatch_chunks": 4096}},
        "simulation": {"num_envs": num_envs},
        "generation": {"device": "emulated"},
        "training": {
            "device": "emulated",
            "batch_trajectories": num_envs,
            "trajectory": "episode",
            "max_updates": WARM_UP + UPDATES,
        },
        "emulation": emulation,
        "checkpoint": {"every_updates": 0},
        "records": {"level": "off"},
    }


def _sleeping(workload: str, machine_name: str, *, num_gpus: int, speed: float) -> Document:
    """A simulator that sleeps through the workload's times, seven CPUs and 21 environments for each GPU."""
    given = load_workload(workload)
    simulation = given.simulation
    config = {
        "step_s": simulation.env_step_s / speed,
        "tail_sigma": simulation.env_step_sd_s / simulation.env_step_s,
        "observe_s": simulation.observe_s / speed,
        "reset_s": simulation.reset_s / speed,
        "min_episode_steps": max(1, round(2 * simulation.episode_steps - simulation.horizon_steps)),
        "max_episode_steps": simulation.horizon_steps,
    }
    emulation = {
        "workload": workload,
        "machine": machine_name,
        "gpus": num_gpus,
        "cpus": 7 * num_gpus,
        "speed": speed,
    }
    env = {"name": "toy/dial-v1", "config": config}
    return _document(env, num_envs=21 * num_gpus, chunk_len=given.chunk_len, emulation=emulation)


def configurations() -> tuple[LocalConfiguration, ...]:
    """Those of ``ebrl bench modes --engine local``."""
    camera = {"camera": "corner3", "image_size": 64, "max_episode_steps": 64}
    gpu = {"workload": "openpi-libero", "machine": "4xa100", "gpus": 2}
    return (
        LocalConfiguration(
            name="openpi-robocasa-2xa100",
            about="emulated CPUs and GPUs",
            document=_sleeping("openpi-robocasa", "4xa100", num_gpus=2, speed=16.0),
        ),
        LocalConfiguration(
            name="gr00t-libero-2xa100",
            about="emulated CPUs and GPUs, a simulator that is fast beside its policy",
            document=_sleeping("gr00t-libero", "4xa100", num_gpus=2, speed=16.0),
        ),
        LocalConfiguration(
            name="metaworld-camera",
            about="Meta-World drawer-open with a 64×64 camera on the real CPUs, emulated GPUs",
            document=_document(
                {"name": "metaworld/drawer-open-v3", "config": camera},
                num_envs=8,
                chunk_len=8,
                emulation=gpu | {"speed": 40.0},
            ),
        ),
        LocalConfiguration(
            name="metaworld-state",
            about="Meta-World reach with states on the real CPUs, emulated GPUs",
            document=_document(
                {"name": "metaworld/reach-v3", "config": {"max_episode_steps": 64}},
                num_envs=8,
                chunk_len=8,
                emulation=gpu | {"speed": 40.0},
            ),
        ),
    )


def rate(config: RunConfig) -> float:
    """Trajectories per second of one run, in steady state."""
    plan = run_plan(config)
    scheduler = Scheduler(plan)
    times: list[float] = []

    def record(now: float, event: Event, commands: list[Command]) -> None:
        if isinstance(event, UpdateDone) and not event.skipped:
            times.append(now)

    with tempfile.TemporaryDirectory(prefix="ebrl-bench-modes-") as directory:
        engine = LocalEngine(local_setup(config, plan, Path(directory)))
        try:
            engine.start()
            engine.begin(evaluation=False)
            stop = run(scheduler.handle, engine, record)
        finally:
            engine.close()
    if stop.failed or len(times) <= WARM_UP:
        raise RunError(f"{config.env.name}: {stop.reason}\n{stop.detail}")
    return (len(times) - WARM_UP) * plan.batch / (times[-1] - times[WARM_UP - 1])


def measure(*, quick: bool, names: Iterable[str] = (), say: Say = lambda text: None) -> Document:
    """Every configuration in every mode that its emulated machine can run, interleaved."""
    repeats = 1 if quick else 3
    chosen = configurations()[:1] if quick else configurations()
    if wanted := set(names):
        chosen = tuple(one for one in configurations() if one.name in wanted)
    rates: dict[tuple[str, Mode], list[float]] = {(one.name, mode): [] for one in chosen for mode in NAMES}
    impossible: dict[tuple[str, Mode], str] = {}
    for seed in range(repeats):
        for one in chosen:
            for mode in NAMES:
                _play(one, mode, seed, rates, impossible, say)
    ratios = [_ratios(one, rates) for one in chosen]
    pairs = [(rates[r["config"], "ebrl"], rates[r["config"], r["best"]]) for r in ratios]
    papers = [(rates[r["config"], "ebrl"], rates[r["config"], "paper"]) for r in ratios]
    mean, interval = geometric_mean([r["ebrl_over_best"] for r in ratios]), geomean_interval(pairs)
    return {
        "kind": "emulated",
        "rows": [
            {"config": name, "mode": mode, "trajectories_per_s": values}
            | ({"impossible": impossible[name, mode]} if (name, mode) in impossible else {})
            for (name, mode), values in rates.items()
        ],
        "about": {one.name: one.about for one in chosen},
        "emulated": {one.name: one.document["emulation"] for one in chosen},
        "ratios": ratios,
        "geomean_over_best": mean,
        "geomean_over_best_ci95": interval,
        "geomean_over_paper": geometric_mean([r["ebrl_over_paper"] for r in ratios]),
        "geomean_over_paper_ci95": geomean_interval(papers),
        "repeats": repeats,
        "targets": TARGETS,
        "machine": machine(),
        "met": {
            "geomean_over_best": mean >= TARGETS["geomean_over_best"],
            "geomean_over_best_low": interval[0] > TARGETS["geomean_over_best_low"],
        },
    }


def _play(
    one: LocalConfiguration,
    mode: Mode,
    seed: int,
    rates: dict[tuple[str, Mode], list[float]],
    impossible: dict[tuple[str, Mode], str],
    say: Say,
) -> None:
    if (one.name, mode) in impossible:
        return
    try:
        config = make_config(in_mode(mode, one.document | {"run": {"seed": seed}}))
        found = rate(config)
    except ConfigError as error:
        impossible[one.name, mode] = str(error)
        say(f"{one.name}, {mode}: {error}")
        return
    rates[one.name, mode].append(found)
    say(f"{one.name}, {mode}, seed {seed}: {found:.3f} trajectories/s")


def _ratios(one: LocalConfiguration, rates: dict[tuple[str, Mode], list[float]]) -> Document:
    able = {mode: rates[one.name, mode] for mode in BASELINES if rates[one.name, mode]}
    best = max(able, key=lambda mode: median(able[mode]))
    ebrl, paper = rates[one.name, "ebrl"], rates[one.name, "paper"]
    return {
        "config": one.name,
        "best": best,
        "ebrl_over_best": median(ebrl) / median(able[best]),
        "ci95": ratio_interval(ebrl, able[best]),
        "ebrl_over_paper": median(ebrl) / median(paper),
        "ebrl_over_paper_ci95": ratio_interval(ebrl, paper),
    }
