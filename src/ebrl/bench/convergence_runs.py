"""One learning run on emulated GPUs with the real clock, and the success of its checkpoints without it.

Training episodes say too little of success: where finished episodes are replaced, quick successes are
over-represented. So checkpoints are kept, and once the run is over each plays the same episodes, from initial states
that nobody trains on.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from types import TracebackType
from typing import Any

from safetensors.torch import load_file

from ebrl.bench.emulated import start_everybody
from ebrl.config.schema import RunConfig
from ebrl.data.checkpoint import list_checkpoints
from ebrl.data.weights import Weights
from ebrl.engines.local.engine import LocalEngine
from ebrl.engines.local.setup import EmulatedTimes
from ebrl.errors import RunError
from ebrl.host.meters import watch_others
from ebrl.ids import GeneratorId, PolicyVersion
from ebrl.runtime.local import local_setup
from ebrl.runtime.loop import run
from ebrl.runtime.management import run_plan
from ebrl.scheduling import commands as c
from ebrl.scheduling import events as e
from ebrl.scheduling.commands import Command
from ebrl.scheduling.evaluation import EvaluationScheduler
from ebrl.scheduling.events import Event
from ebrl.scheduling.scheduler import Scheduler

_LOOK_S = 0.5
"""Between two looks at what other programs do; each costs a few milliseconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reached:
    """A checkpoint, and what it had cost."""

    checkpoint: Path
    at_s: float
    """Seconds from the start of training to the end of the update that made it."""
    env_steps: int
    """Simulated by then; those after the end of an episode do not count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Learned:
    """What became of a run."""

    reached: tuple[Reached, ...]
    """Oldest first."""
    facts: dict[str, Any]
    """Counts of the run as a whole, for its row."""


@dataclass(slots=True)
class Stretch:
    """How much longer work took than the emulated device would have."""

    took_s: float = 0.0
    emulated_s: float = 0.0

    def add(self, took_s: float, emulated_s: float) -> None:
        """One batch, or one update."""
        self.took_s += took_s
        self.emulated_s += emulated_s

    @property
    def fraction(self) -> float:
        """0 where everything took its emulated time."""
        return self.took_s / self.emulated_s - 1.0 if self.emulated_s else 0.0


@dataclass(slots=True)
class Watch:
    """Sees every event of a run; keeps when each update ended, and how true emulation was."""

    scheduler: Scheduler
    generator: EmulatedTimes | None
    start: float | None = None
    updates: dict[int, tuple[float, int]] = field(default_factory=dict)
    """By policy version: seconds since the start, env steps."""
    generation: Stretch = field(default_factory=Stretch)
    training: Stretch = field(default_factory=Stretch)
    learned: dict[str, float] = field(default_factory=dict)
    """What the learner said last."""
    ess: list[float] = field(default_factory=list)
    """Of each update: 1 means that the data is as good as fresh."""

    def hear(self, metrics: dict[str, float]) -> None:
        """What the learner says of an update, just before its event."""
        self.learned.update(metrics)
        if "ess" in metrics:
            self.ess.append(metrics["ess"])

    def record(self, now: float, event: Event, commands: list[Command]) -> None:
        """One turn of the loop."""
        if self.start is None:
            self.start = now
        manager = self.scheduler.manager
        if isinstance(event, e.ChunksReady):
            if manager is not None and manager.generates_faster:
                return  # with SMs that were lent it takes less than its own time
            num_chunks = len(event.shards) * self.scheduler.plan.envs_per_shard
            if self.generator is not None:
                fixed_s, item_s = self.generator.at_first
                self.generation.add(event.generation_s, fixed_s + item_s * num_chunks)
        elif isinstance(event, e.UpdateDone):
            if "emulation_device_s" in self.learned:
                self.training.add(event.train_s, self.learned["emulation_device_s"])
            if not event.skipped:
                self.updates[event.policy_version] = (now - self.start, self.scheduler.counters.env_steps)


def learn(
    config: RunConfig, directory: Path, *, clone: Path, say: Callable[[str], None] = lambda text: None
) -> Learned:
    """Train from the weights of ``clone`` to the run's end; every process is gone afterwards.

    Args:
        config: the run; its checkpoints are what is looked at later.
        directory: takes logs and checkpoints.
        clone: checkpoint to start from.
        say: is told what a user should know of.

    Raises:
        ConfigError: the run cannot be planned, e.g. the mode has too few GPUs.
        RunError: the run failed, or ended before its first update.
    """
    plan = run_plan(config)
    scheduler = Scheduler(plan)
    setup = local_setup(config, plan, directory, checkpoint=clone)
    watch = Watch(scheduler, setup.emulated_generator)
    engine = LocalEngine(setup, on_metrics=watch.hear, on_notice=_without_bindings(say))
    try:
        start_everybody(engine, plan)
        with watch_others(os.getpid(), every_s=_LOOK_S) as others:
            stop = run(scheduler.handle, engine, watch.record)
    finally:
        engine.close()
    if stop.failed or not watch.updates:
        raise RunError(f"{config.env.name}: {stop.reason}\n{stop.detail}")
    return Learned(reached=_reached(setup.checkpoint_dir, watch), facts=_facts(watch) | {"others_cpus": others.cpus})


def _without_bindings(say: Callable[[str], None]) -> Callable[[str], None]:
    def pass_on(text: str) -> None:
        if "runs on CPUs" not in text:  # said of every process at the start of a run
            say(text)

    return pass_on


def _reached(checkpoints: Path, watch: Watch) -> tuple[Reached, ...]:
    known = {int(path.name.rpartition("-")[2]): path for path in list_checkpoints(checkpoints)}
    return tuple(
        Reached(checkpoint=known[version], at_s=at_s, env_steps=env_steps)
        for version, (at_s, env_steps) in sorted(watch.updates.items())
        if version in known
    )


def _facts(watch: Watch) -> dict[str, Any]:
    scheduler = watch.scheduler
    staleness, learned = scheduler.learner.staleness_counts, watch.learned
    at_s, env_steps = watch.updates[max(watch.updates)]
    return {
        "updates": len(watch.updates),
        "seconds": at_s,
        "env_steps": env_steps,
        "updates_skipped": scheduler.counters.updates_skipped,
        "trajectories_dropped": sum(scheduler.gate.ledger.dropped.values()),
        "env_failures": sum(scheduler.counters.env_failures.values()),
        "restarts": sum(scheduler.counters.restarts.values()),
        "staleness_mean": sum(s * n for s, n in staleness.items()) / max(1, sum(staleness.values())),
        "staleness_max": scheduler.learner.staleness_max,
        "training_overruns": int(learned.get("emulation_overruns", 0)),
        "training_overrun_s": float(learned.get("emulation_overrun_s", 0.0)),
        "generation_stretch_fraction": watch.generation.fraction,
        "training_stretch_fraction": watch.training.fraction,
        **({"ess_mean": fmean(watch.ess)} if watch.ess else {}),
    }


class Evaluator:
    """Plays held-out episodes with the weights of one checkpoint after the other, on processes that stay.

    The episodes are the same for every checkpoint, and so are the random numbers of the policy.
    """

    def __init__(self, config: RunConfig, directory: Path, *, clone: Path) -> None:
        """Nothing is started before the ``with``.

        Args:
            config: environment, policy and their sizes, on real devices; its seed decides the initial states.
            directory: takes logs.
            clone: any checkpoint of the policy.
        """
        self._plan = run_plan(config)
        self._engine = LocalEngine(local_setup(config, self._plan, directory, checkpoint=clone))
        self._version = 0

    def __enter__(self) -> Evaluator:
        try:
            self._engine.start()
        except BaseException:
            self._engine.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._engine.close()

    def success(self, checkpoint: Path, num_episodes: int) -> float:
        """Share of successes.

        Raises:
            RunError: the episodes could not be played.
        """
        self._adopt(checkpoint)
        control = EvaluationScheduler(self._plan, num_episodes=num_episodes)
        self._engine.begin(evaluation=True)
        stop = run(control.handle, self._engine, lambda now, event, commands: None)
        if stop.failed:
            raise RunError(f"evaluation of {checkpoint.name}: {stop.reason}\n{stop.detail}")
        return control.result.success_rate

    def _adopt(self, checkpoint: Path) -> None:
        """Publish the checkpoint's weights in the learner's stead, who has nothing to do here."""
        self._version += 1
        Weights(self._engine.fleet.weights).write(self._version, load_file(checkpoint / "policy.safetensors"))
        for index in range(self._plan.num_generators):
            command = c.PublishWeights(generator=GeneratorId(index), policy_version=PolicyVersion(self._version))
            self._engine.execute(command)  # ``begin`` waits for the answer
