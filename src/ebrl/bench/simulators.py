"""Real simulators under the loops of other systems and under ours. Nothing is emulated.

Every loop is the same program with other switches: the same scheduler, engine, policy and learner. So what
differs is what the switches say, and the usual loop is a fast one of its kind. A rate counts env steps that
are of use (none of an episode that is over) from the moment all environments stand at their first state until
each has on average played ``episodes`` more, the reset after the last one included.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from ebrl.config.load import make_config
from ebrl.config.modes import laid_over
from ebrl.config.schema import RunConfig
from ebrl.errors import RunError
from ebrl.host.probe import machine, usable_cpus
from ebrl.plan.plan import make_plan

TARGETS = {"speedup_over_lockstep": 3.0, "ebrl_over_paper": 2.0}
"""For LIBERO with two cameras (DESIGN.md section 14)."""

Document = dict[str, Any]
Say = Callable[[str], None]

_RUN: Document = {
    "policy": {"name": "mlp", "chunk_len": 8},
    "algorithm": {"config": {"epochs": 1}},
    "simulation": {"num_envs": 4},
    "training": {"batch_trajectories": 8, "trajectory_chunks": 4, "slack": 1},
    "checkpoint": {"every_updates": 0},
}

_LOCKSTEP: Document = {
    "simulation": {
        "step_barrier": True,
        "observe": "every_step",
        "finished_episodes": "run_to_horizon",
        "binding": "none",
    },
    "generation": {"env_groups": 1},
    "training": {"slack": 0},
}
_PAPER: Document = {
    "simulation": {"observe": "every_step", "finished_episodes": "run_to_horizon"},
    "generation": {"env_groups": 2},
}

_HARD: Document = {"env": {"config": {"reset": "hard"}}}


@dataclass(frozen=True)
class Setting:
    """One simulator."""

    env: Document
    has_hard_resets: bool = False
    """Whether its adapter can rebuild the simulation at every reset, as the simulator itself does."""
    episodes: int = 1
    """That each environment plays in a window."""
    min_batch: int = 1
    """Of greedy generation; half of the environments where env steps cost so little that generation, which shares
    their CPUs, must not waste any (``generation.min_batch``)."""


SETTINGS: dict[str, Setting] = {
    "libero": Setting({"name": "libero/libero_spatial/0"}, has_hard_resets=True),
    "robosuite": Setting(
        {"name": "robosuite/Lift", "config": {"cameras": ["agentview"], "image_size": 128}}, has_hard_resets=True
    ),
    "metaworld": Setting(
        {"name": "metaworld/drawer-open-v3", "config": {"camera": "corner3", "image_size": 128}}, episodes=2
    ),
    "maniskill": Setting({"name": "maniskill/PickCube-v1"}, episodes=20, min_batch=2),
}
"""By the name that ``--env`` takes: two cameras of 128×128 for LIBERO, one for robosuite and Meta-World,
state for ManiSkill."""

SWITCHES: dict[str, Document] = {
    "every frame is rendered": {"simulation": {"observe": "every_step"}},
    "hard resets": _HARD,
    "a barrier after every env step": {"simulation": {"step_barrier": True}, "generation": {"env_groups": 1}},
    "finished episodes run to the horizon": {"simulation": {"finished_episodes": "run_to_horizon"}},
    "no slack": {"training": {"slack": 0}},
}
"""One habit each, added to ``ebrl``."""


def loops(setting: Setting) -> dict[str, list[Document]]:
    """The three loops that are compared: what is laid over the setting, in this order."""
    hard = [_HARD] if setting.has_hard_resets else []
    return {"lockstep": [_LOCKSTEP, *hard], "paper": [_PAPER], "ebrl": []}


def measure(name: str, *, quick: bool, say: Say = lambda text: None) -> Document:
    """Rates of one simulator under each loop, interleaved, and of ``ebrl`` with one habit of others at a time.

    Args:
        name: of the setting.
        quick: one repeat with short episodes, for a look; else three.
        say: is told how it goes.

    Raises:
        RunError: a run failed.
        ConfigError: the simulator is not there.
    """
    setting = SETTINGS[name]
    repeats = 1 if quick else 3
    variants = loops(setting)
    for switch, document in SWITCHES.items():
        if document is not _HARD or setting.has_hard_resets:
            variants[switch] = [document]
    rates: dict[str, list[float]] = {variant: [] for variant in variants}
    for repeat in range(repeats):
        for variant, layers in variants.items():
            config = configure(setting, layers, seed=repeat, quick=quick)
            rates[variant].append(rate(config, episodes=setting.episodes))
            say(f"{name}, {variant}: {rates[variant][-1]:.1f} env steps/s")
    middle = {variant: median(values) for variant, values in rates.items()}
    return {
        "env": name,
        "config": configure(setting, [], seed=0, quick=quick).model_dump(include={"env", "simulation", "training"}),
        "env_steps_per_s": {variant: rates[variant] for variant in loops(setting)},
        "speedup_over_lockstep": middle["ebrl"] / middle["lockstep"],
        "speedups_over_lockstep": _ratios(rates["ebrl"], rates["lockstep"]),
        "ebrl_over_paper": middle["ebrl"] / middle["paper"],
        "ebrl_over_paper_by_repeat": _ratios(rates["ebrl"], rates["paper"]),
        "one_switch": {
            switch: {
                "env_steps_per_s": rates[switch],
                "ebrl_over": middle["ebrl"] / middle[switch],
                "ebrl_over_by_repeat": _ratios(rates["ebrl"], rates[switch]),
            }
            for switch in SWITCHES
            if switch in rates
        },
        "targets": TARGETS if name == "libero" else {},
        "repeats": repeats,
        "machine": machine(),
    }


def _ratios(above: list[float], below: list[float]) -> list[float]:
    return [a / b for a, b in zip(above, below, strict=True)]


def configure(setting: Setting, layers: list[Document], *, seed: int, quick: bool) -> RunConfig:
    """The run of one variant."""
    own = {"env": setting.env, "run": {"seed": seed}, "generation": {"min_batch": setting.min_batch}}
    document = laid_over(_RUN, own)
    if quick:
        document = laid_over(document, {"env": {"config": {"max_episode_steps": 24}}})
    for layer in layers:
        document = laid_over(document, layer)
    return make_config(document)


def rate(config: RunConfig, *, episodes: int) -> float:
    """Env steps per second of one run; see the module's docstring."""
    from ebrl.engines.local.engine import LocalEngine
    from ebrl.runtime.local import local_setup
    from ebrl.runtime.loop import run
    from ebrl.scheduling.commands import Command
    from ebrl.scheduling.events import Event, ResetDone
    from ebrl.scheduling.scheduler import Scheduler

    plan = make_plan(config, usable_cpus())
    scheduler = Scheduler(plan)
    num_resets, first, last = 0, 0.0, 0.0
    steps_before = steps = 0

    def record(now: float, event: Event, commands: list[Command]) -> None:
        nonlocal num_resets, first, last, steps_before, steps
        if not isinstance(event, ResetDone) or last:
            return
        num_resets += 1
        if num_resets == plan.num_shards:
            first, steps_before = now, scheduler.counters.env_steps
        elif num_resets == plan.num_shards * (1 + episodes):
            last, steps = now, scheduler.counters.env_steps
            engine.request_stop("measured")

    with tempfile.TemporaryDirectory(prefix="ebrl-bench-simulators-") as directory:
        engine = LocalEngine(local_setup(config, plan, Path(directory)))
        try:
            engine.start()
            engine.begin(evaluation=False)
            stop = run(scheduler.handle, engine, record)
        finally:
            engine.close()
    if stop.failed or not last:
        raise RunError(f"{config.env.name}: {stop.reason}\n{stop.detail}")
    return (steps - steps_before) / (last - first)
