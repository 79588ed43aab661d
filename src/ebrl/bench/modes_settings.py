"""The configurations of ``ebrl bench modes --engine local``.

Where env steps sleep, episodes are shorter too. Speed alone would have a step last as long as this machine needs to
start it, and modes with a barrier after every env step would be slow for that reason and no other.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ebrl.bench.emulated import beside_real, metaworld_costs
from ebrl.config.load import make_config
from ebrl.config.modes import Mode, in_mode, laid_over
from ebrl.config.schema import Padding, RunConfig
from ebrl.errors import UsageError, nearest
from ebrl.plan.workloads import load_workload
from ebrl.resources.uses import Habits, segment_like_episode
from ebrl.resources.workload import SimulationCosts, Workload
from ebrl.runtime.plugins import check_plugins

HORIZON, LIBERO_HORIZON = 64, 32
"""Env steps of an episode of Meta-World and of LIBERO; the policy has learned nothing, so it never succeeds sooner."""

Document = dict[str, Any]
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalConfiguration:
    """One run, in every mode."""

    name: str
    about: str
    document: Document
    workload: Workload | None = None
    """Emulated times and lengths of episodes; trajectories are segments as long. None: those of a workload that comes
    with ebrl, and trajectories are what the document says."""
    updates: int = 1
    """That are measured in modes with a barrier after every env step; see ``updates_of``."""

    @property
    def emulated(self) -> Document:
        """What is emulated, for people."""
        emulation: Document = self.document["emulation"]
        return emulation if self.workload is None else emulation | {"workload": self.workload.name}

    def padded(self, padding: Padding) -> LocalConfiguration:
        """The same, with another answer to what training does with chunks that were never executed."""
        return replace(self, document=laid_over(self.document, {"emulation": {"padding": padding}}))

    def with_file(self, directory: Path) -> LocalConfiguration:
        """The same, whose workload a run can read."""
        if self.workload is None:
            return self
        path = directory / f"{self.name}.json"
        path.write_text(json.dumps(self.workload.to_json()))
        return replace(self, document=laid_over(self.document, {"emulation": {"workload": str(path)}}))


def _document(env: Document, workload: Workload, *, num_envs: int, emulation: Document) -> Document:
    chunk_len = workload.chunk_len
    return {
        "env": env,
        "policy": {"name": "mlp", "chunk_len": chunk_len},
        "algorithm": {"config": {"epochs": 1, "minibatch_chunks": 4096}},
        "simulation": {"num_envs": num_envs},
        "generation": {"device": "emulated"},
        "training": {
            "device": "emulated",
            "batch_trajectories": num_envs,
            "trajectory": "segment",
            "trajectory_chunks": math.ceil(workload.simulation.horizon_steps / chunk_len),
        },
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
    document = _document(env, given, num_envs=21 * num_gpus, emulation=emulation)
    return LocalConfiguration(name=name, about=about, document=document, workload=given)


def _real(
    name: str, about: str, *, env: Document, simulation: SimulationCosts, num_envs: int, speed: float, updates: int
) -> LocalConfiguration:
    """A simulator on the CPUs that there are, with GPUs that are faster than real ones by as much as it has fewer."""
    workload = replace(beside_real("openpi-libero", simulation, speed=speed), chunk_len=8)
    emulation = {"machine": "4xa100", "gpus": 2, "speed": speed}
    document = _document(env, workload, num_envs=num_envs, emulation=emulation)
    return LocalConfiguration(name=name, about=about, document=document, workload=workload, updates=updates)


def _metaworld(observe_s: float) -> SimulationCosts:
    return replace(metaworld_costs(), observe_s=observe_s, episode_steps=float(HORIZON), horizon_steps=HORIZON)


def _libero() -> SimulationCosts:
    """Two cameras of 128×128, rendered in software; in real seconds (docs/simulators.md)."""
    return SimulationCosts(
        chunk_s=0.108,
        env_step_s=0.0046,
        observe_s=0.044,
        reset_s=0.111,
        episode_steps=float(LIBERO_HORIZON),
        horizon_steps=LIBERO_HORIZON,
    )


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
            simulation=_metaworld(observe_s=0.0057),  # of 64×64, rendered in software
            num_envs=8,
            speed=40.0,
            updates=2,
        ),
        _real(
            "metaworld-state",
            "Meta-World reach with states on the real CPUs, emulated GPUs",
            env={"name": "metaworld/reach-v3", "config": {"max_episode_steps": HORIZON}},
            simulation=_metaworld(observe_s=0.0),
            num_envs=8,
            speed=40.0,
            updates=3,
        ),
        _real(
            "libero-camera",
            "LIBERO spatial/0 with two 128×128 cameras on the real CPUs, emulated GPUs",
            env={"name": "libero/libero_spatial/0", "config": {"max_episode_steps": LIBERO_HORIZON}},
            simulation=_libero(),
            num_envs=4,
            speed=10.0,
            updates=2,
        ),
    )


def chosen(*, quick: bool, names: Iterable[str] = ()) -> tuple[LocalConfiguration, ...]:
    """All configurations, those that were named, or a small one for a quick look.

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
    return (_smaller(every[0]),) if quick else every


def _smaller(one: LocalConfiguration) -> LocalConfiguration:
    """A quarter of the CPUs, environments and trajectories, so that an update is over in a second or two."""
    emulation, envs = one.document["emulation"], one.document["simulation"]["num_envs"] // 4
    changes = {
        "simulation": {"num_envs": envs},
        "training": {"batch_trajectories": envs},
        "emulation": {"cpus": max(emulation["gpus"], emulation["cpus"] // 4)},
    }
    return replace(one, about=f"{one.about}; a quarter of it", document=laid_over(one.document, changes))


def playable(
    some: Iterable[LocalConfiguration], *, named: bool, say: Say = lambda text: None
) -> tuple[tuple[LocalConfiguration, ...], dict[str, str]]:
    """Those whose simulator is installed, and why the others are left out.

    Raises:
        UsageError: one is not installed, and they were asked for by name.
    """
    found, left_out = [], {}
    for one in some:
        try:
            check_plugins(make_config(one.document))
        except UsageError as error:
            if named:
                raise
            left_out[one.name] = str(error)
            say(f"{one.name} is left out: {error}")
        else:
            found.append(one)
    return tuple(found), left_out


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
    if one.workload is not None:
        training["trajectory_chunks"], _ = segment_like_episode(one.workload, _habits(mode))
    training["max_updates"] = warm_up_of(training["slack"]) + updates_of(one, step_barrier=step_barrier)
    return make_config(document)


def episodes_of(one: LocalConfiguration, mode: Mode) -> float:
    """Episodes that the chunks of one trajectory would be: rates count episodes, whatever trajectories are."""
    return 1.0 if one.workload is None else segment_like_episode(one.workload, _habits(mode))[1]


def _habits(mode: Mode) -> Habits:
    return Habits(run_to_horizon=in_mode(mode, {})["simulation"]["finished_episodes"] == "run_to_horizon")
