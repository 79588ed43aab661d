"""ebrl at the peers' settings: the only program here that runs under ebrl's own interpreter.

Its settings are those that a user with a light simulator is told to choose: one env worker to a CPU, with many
environments each. While it waits for its actions, the learner has its CPU.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from ebrl.algorithms.base import TrainingBatch
from ebrl.bench.peer_programs.tasks import Request, Window, answer, cpu_s_by_process, read_request
from ebrl.config.load import make_config
from ebrl.config.schema import RunConfig
from ebrl.engines.local.engine import LocalEngine
from ebrl.errors import RunError
from ebrl.host.probe import usable_cpus
from ebrl.plan.plan import make_plan
from ebrl.policies.base import Policy
from ebrl.runtime.local import local_setup
from ebrl.runtime.loop import run
from ebrl.scheduling.commands import Command
from ebrl.scheduling.events import ChunksReady, Event, StepsDone, UpdateDone
from ebrl.scheduling.scheduler import Scheduler

PROGRAM = "ebrl.bench.peer_programs"


class CollectOnly:
    """Takes every batch and learns nothing from it."""

    @dataclasses.dataclass(frozen=True)
    class Config:
        """No options."""

    def __init__(self, config: Config, policy: Policy) -> None:
        pass

    def update(self, batch: TrainingBatch, *, learner_version: int, rng: torch.Generator) -> dict[str, float]:
        """No update; the weights are published as they are."""
        return {"skipped": 0.0}

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Nothing."""
        return {}

    def load_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        """Nothing."""


def configure(request: Request, python: str, changes: Mapping[str, Any] | None = None) -> RunConfig:
    """The run that ``request`` stands for.

    Args:
        request: what every system is asked for.
        python: the simulator's interpreter.
        changes: fields of ``simulation``, ``generation`` and ``training`` by dotted name, for trying others.
    """
    suite, _, task = request.env.partition("/")
    if suite == "metaworld":
        options = {"reward": "dense", "terminate_on_success": False, "max_episode_steps": request.max_episode_steps}
        env = {"name": f"{PROGRAM}.metaworld_state:StateOnly/{task}", "config": options}
    else:
        env = {"name": request.env, "config": {"max_episode_steps": request.max_episode_steps}}
    learning = {
        "name": "ppo",
        "config": {
            "epochs": request.epochs,
            "minibatch_chunks": request.minibatch_steps // request.chunk_len,
            "critic_warmup_updates": 0,
            "actor_lr": request.learning_rate,
            "critic_lr": request.learning_rate,
        },
    }
    document: dict[str, Any] = {
        "run": {"seed": request.seed},
        "env": {**env, "python": python},
        "policy": {
            "name": "mlp",
            "chunk_len": request.chunk_len,
            "config": {
                "hidden": list(request.hidden),
                "critic_hidden": list(request.hidden),
                "initial_std": request.initial_std,
            },
        },
        "algorithm": learning if request.learn else {"name": f"{PROGRAM}.run_ebrl:CollectOnly"},
        "simulation": {
            "num_envs": request.num_envs,
            "envs_per_worker": request.num_envs // request.num_processes,
            "binding": "none",
        },
        "generation": {"min_batch": 1},
        "training": {
            "batch_trajectories": request.num_envs,
            "trajectory_chunks": request.rollout // request.chunk_len,
            "slack": 1,
            "max_env_steps": 2**31 - 1,
        },
        "checkpoint": {"every_updates": 0},
        "evaluation": {"episodes": 0},
        "records": {"level": "off"},
    }
    for name, value in (changes or {}).items():
        section, _, field = name.partition(".")
        document[section][field] = value
    return make_config(document)


class Watcher:
    """Counts within the window, which begins after the warm-up and not before every process is up."""

    def __init__(self, request: Request, scheduler: Scheduler, engine: LocalEngine) -> None:
        self.window = Window(request)
        self.over = False
        self.busy = dict.fromkeys(("simulation", "generation", "training"), 0.0)
        """Seconds that the processes say they were at it, since the window began."""
        self._scheduler, self._engine = scheduler, engine
        self._cpu_before: dict[str, float] = {}
        self._cpu_after: dict[str, float] = {}

    @property
    def cpu_s(self) -> dict[str, float]:
        """CPU time within the window, by role."""
        return {role: after - self._cpu_before[role] for role, after in self._cpu_after.items()}

    def record(self, now: float, event: Event, commands: list[Command]) -> None:
        """Look at an event."""
        if self.over:
            return
        match event:
            case StepsDone():
                self.busy["simulation"] += event.step_s
            case ChunksReady():
                self.busy["generation"] += event.generation_s
            case UpdateDone():
                self.busy["training"] += event.train_s
                self._update_ended()

    def _update_ended(self) -> None:
        fleet = self._engine.fleet
        if not self.window.has_begun and len(fleet.up) < len(fleet.processes):
            return  # somebody still builds environments; other systems begin when everything is built
        had_begun = self.window.has_begun
        self.over = self.window.update_ended(self._scheduler.counters.env_steps)
        if self.window.has_begun and not had_begun:
            self.busy.update(dict.fromkeys(self.busy, 0.0))
            self._cpu_before = _cpu_by_role(self._engine)
        if self.over:
            self._cpu_after = _cpu_by_role(self._engine)
            self._engine.request_stop("measured")


def measure(request: Request, config: RunConfig) -> dict[str, Any]:
    """Run until the window is over.

    Raises:
        RunError: the run ended before.
    """
    plan = make_plan(config, usable_cpus())
    scheduler = Scheduler(plan)
    with tempfile.TemporaryDirectory(prefix="ebrl-bench-peers-") as directory:
        engine = LocalEngine(
            local_setup(config, plan, Path(directory)),
            on_notice=lambda text: print(f"note: {text}", file=sys.stderr, flush=True),
        )
        watcher = Watcher(request, scheduler, engine)
        try:
            engine.start()
            engine.begin(evaluation=False)
            stop = run(scheduler.handle, engine, watcher.record)
        finally:
            engine.close()
    if not watcher.over:
        raise RunError(f"{stop.reason}\n{stop.detail}")
    return {"window": watcher.window, "stage_s": watcher.busy, "cpu_s_by_role": watcher.cpu_s}


def _cpu_by_role(engine: LocalEngine) -> dict[str, float]:
    """CPU time so far of env workers, generators, the learner, and of the process that controls them."""
    used = cpu_s_by_process()
    roles = {"env": 0.0, "generator": 0.0, "learner": 0.0, "control": used[os.getpid()]}
    for key, process in engine.fleet.processes.items():
        roles[key.kind] += used.get(process.pid, 0.0)
    return roles


def main() -> None:
    """Measure once."""
    request = read_request()
    changes = json.loads(os.environ.get("EBRL_BENCH_CHANGES", "{}"))
    found = measure(request, configure(request, os.environ.get("EBRL_BENCH_PYTHON", ""), changes))
    answer(found["window"], stage_s=found["stage_s"], cpu_s_by_role=found["cpu_s_by_role"])


if __name__ == "__main__":
    main()
