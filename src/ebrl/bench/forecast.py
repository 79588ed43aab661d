"""How well forecasts foretell real runs on this machine.

Repeat by repeat and setting by setting, a run is profiled and then really run, in a process of its own,
while somebody counts what other programs want of the CPUs. Its forecast is made with that profile and
that foreign load, and knows nothing else of the run.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from ebrl.config.load import load_config, make_config, to_toml
from ebrl.config.schema import RunConfig
from ebrl.errors import RunError
from ebrl.host.meters import Others, watch_others
from ebrl.host.probe import machine
from ebrl.profiling.measure import take_profile
from ebrl.records.eventlog import event_file
from ebrl.records.writer import write_json
from ebrl.report.forecast import figures, relative_error
from ebrl.report.run import activity_of
from ebrl.resources.profile import Profile
from ebrl.runtime.forecast import forecast

TARGET = 0.10
"""Largest error of the medians that is good enough (DESIGN.md section 14)."""

_RUN = {
    "policy": {"name": "flow", "chunk_len": 8},
    "simulation": {"num_envs": 8},
    "generation": {"min_batch": 4},
    "evaluation": {"episodes": 0},
    "checkpoint": {"every_updates": 0},
}
_DIAL = {"step_s": 0.001, "busy": True, "min_episode_steps": 40, "max_episode_steps": 80}
_TRAINING = {"batch_trajectories": 8, "trajectory_chunks": 8, "slack": 1}


def _dial(sigma: float) -> dict[str, Any]:
    env = {"name": "ebrl.bench.load:Load", "config": {**_DIAL, "tail_sigma": sigma}}
    return {**_RUN, "env": env, "training": _TRAINING}


def _reach(slack: int) -> dict[str, Any]:
    return {**_RUN, "env": {"name": "metaworld/reach-v3"}, "training": {**_TRAINING, "slack": slack}}


SETTINGS: dict[str, dict[str, Any]] = {
    "toy, light tail": _dial(0.0),
    "toy, heavy tail": _dial(1.0),
    "metaworld/reach-v3, slack 1": _reach(1),
    "metaworld/reach-v3, slack 0": _reach(0),
}
"""Eight environments, chunks of 8, updates of 8 trajectories of 8 chunks; so a short run has many updates."""

Say = Callable[[str], None]


def measure(*, quick: bool, say: Say = lambda text: None, keep: Path | None = None) -> dict[str, Any]:
    """Profile, run and forecast every setting.

    Args:
        quick: one short repeat of every other setting instead of three of all.
        say: is told how it goes.
        keep: directory that takes each repeat's profile and foreign load, to forecast again later.

    Raises:
        RunError: a run failed.
    """
    repeats, seconds, profile_s = (1, 4.0, 4.0) if quick else (3, 12.0, 8.0)
    chosen = dict(list(SETTINGS.items())[:: 2 if quick else 1])
    rows: dict[str, list[dict[str, Any]]] = {setting: [] for setting in chosen}
    with tempfile.TemporaryDirectory(prefix="ebrl-bench-forecast-") as name:
        for repeat in range(repeats):
            for setting, document in chosen.items():
                config = make_config(document)
                profile = take_profile(config, seconds=profile_s)
                row = _compare(config, profile, Path(name), seconds=seconds, seed=repeat, keep=keep)
                rows[setting].append(row | {"profile_s": profile.taken_s})
                say(
                    f"{setting}: measured {row['measured']:.2f}, forecast {row['forecast']:.2f} trajectories/s "
                    f"({row['forecast'] / row['measured'] - 1:+.1%}), "
                    f"others {row['others_cpus']:.2f} CPUs, {row['others_tasks']:.1f} tasks"
                )
    settings = [_summary(setting, rows[setting]) for setting in chosen]
    worst = max(abs(setting["error"]) for setting in settings)
    return {
        "settings": settings,
        "max_abs_error": worst,
        "target": TARGET,
        "met": worst <= TARGET,
        "repeats": repeats,
        "seconds_per_run": seconds,
        "machine": machine(),
    }


def _summary(setting: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    forecasts = [row["forecast"] for row in rows]
    measured = [row["measured"] for row in rows]
    middle = median(measured)
    return {
        "name": setting,
        "measured": measured,
        "forecast": forecasts,
        "forecast_without_others": [row["forecast_without_others"] for row in rows],
        "measured_median": middle,
        "forecast_median": median(forecasts),
        "measured_spread": (max(measured) - min(measured)) / middle,
        "error": relative_error(median(forecasts), measured),
        "errors_by_repeat": [f / m - 1 for f, m in zip(forecasts, measured, strict=True)],
        "repeats": rows,
    }


def _compare(
    config: RunConfig, profile: Profile, directory: Path, *, seconds: float, seed: int, keep: Path | None
) -> dict[str, Any]:
    real, others = _really_run(config, directory, seconds=seconds, seed=seed)
    updates = max(30, 3 * real["updates"])
    foretold = forecast(config, profile, updates=updates, background=tuple(others.looks), seed=seed)
    alone = forecast(config, profile, updates=updates, seed=seed)
    if keep is not None:
        document = {"config": config.model_dump(), "profile": profile.to_json(), "real": real, "looks": others.looks}
        write_json(
            keep / f"{config.env.name.split('/')[-1]}-slack{config.training.slack}-{time.time():.0f}.json", document
        )
    return {
        "measured": real["trajectories_per_s"],
        "forecast": foretold["trajectories_per_s"],
        "forecast_without_others": alone["trajectories_per_s"],
        "measured_env_steps_per_s": real["env_steps_per_s"],
        "forecast_env_steps_per_s": foretold["env_steps_per_s"],
        "measured_busy": real["busy"],
        "forecast_busy": foretold["busy"],
        "measured_idle": real["idle"],
        "forecast_idle": foretold["idle"],
        "host_cpu_share": foretold["host_cpu_share"],
        "updates": real["updates"],
        "others_cpus": others.cpus,
        "others_tasks": others.tasks,
    }


def _really_run(config: RunConfig, directory: Path, *, seconds: float, seed: int) -> tuple[dict[str, Any], Others]:
    """Figures of a real run, and what others did while it trained."""
    parent = Path(tempfile.mkdtemp(dir=directory))
    file = parent / "run.toml"
    file.write_text(to_toml(config))
    sets = [f"training.max_minutes={seconds / 60}", f"run.directory={parent}", f"run.seed={seed}"]
    load_config(file, sets)
    command = [sys.executable, "-m", "ebrl", "train", str(file), "--json"]
    for text in sets:
        command += ["--set", text]
    with (parent / "err").open("wb") as err:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=err)
    try:
        while process.poll() is None and not list(parent.glob(f"*/{event_file('')}")):
            time.sleep(0.02)
        with watch_others(process.pid) as others:
            time.sleep(seconds)
        out, _ = process.communicate()
    finally:
        process.kill()
        process.wait()
    if process.returncode:
        raise RunError(f"a run failed: {(parent / 'err').read_text()}")
    return figures(activity_of(Path(json.loads(out)["run_dir"]))), others
