"""A whole run: warm start, evaluation, training, evaluation, and what is left of it on disk."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ebrl.config.schema import RunConfig
from ebrl.data.checkpoint import list_checkpoints, newest_checkpoint, read_state
from ebrl.engines.local.engine import LocalEngine
from ebrl.errors import EnvFailure, RatioMismatch, RunError, WorkerFailure
from ebrl.host.probe import machine, usable_cpus
from ebrl.records.metrics import RunMetrics
from ebrl.records.writer import write_json
from ebrl.report.learning import draw_learning_curve
from ebrl.runtime.display import Display, Silent
from ebrl.runtime.emulation import emulation_of
from ebrl.runtime.interrupts import Interrupts
from ebrl.runtime.local import local_setup
from ebrl.runtime.loop import run
from ebrl.runtime.management import by_hand, run_plan, summary_of
from ebrl.runtime.plugins import check_plugins
from ebrl.runtime.recording import Recording
from ebrl.runtime.rundir import (
    check_resumable,
    check_writable,
    held,
    make_run_dir,
    open_run_dir,
    with_whole_paths,
    write_config,
)
from ebrl.scheduling import commands as c
from ebrl.scheduling.commands import Command, Stop
from ebrl.scheduling.evaluation import EvaluationScheduler, Result
from ebrl.scheduling.events import Event, UpdateDone
from ebrl.scheduling.invariants import check
from ebrl.scheduling.plan import SchedulerPlan
from ebrl.scheduling.scheduler import REFUSED_DATA, Scheduler

_SHOW_EVERY_S = 0.5

_OF_ITS_END = ("error", "reason", "success_after", "evaluation_episodes_failed", "evaluation_episodes_retried")
"""What a summary says of how its run ended: nothing of it is true of one that goes on from there."""


@dataclass(frozen=True, slots=True)
class _Origin:
    """Where a run starts: from nothing, from a clone, or from the checkpoint of an earlier run."""

    checkpoint: Path | None
    state: dict[str, Any]
    """Counters of the earlier run; empty for a new one."""

    @property
    def resumes(self) -> bool:
        """Whether an earlier run goes on."""
        return bool(self.state)

    def count(self, name: str) -> int:
        """A counter of the earlier run; 0 for a new one."""
        return int(self.state.get(name, 0))


def train(
    config: RunConfig, display: Display | None = None, *, resume: Path | None = None, validate: bool = False
) -> dict[str, Any]:
    """Train to the end and return the summary, which is also in the run directory.

    Args:
        config: the run.
        display: is told how it goes; nobody by default.
        resume: directory of the run to go on with, in place.
        validate: check every invariant of the control plane after every event.

    Raises:
        UsageError: the request is wrong, or another process trains in that directory; nothing was started.
        RunError: the run failed; what was reached is in the run directory.
    """
    check_plugins(config)
    config = with_whole_paths(config)
    if resume is None:
        run_plan(config)  # says what is impossible before anything is made
        run_dir = make_run_dir(config)
    else:
        run_dir = resume
        check_resumable(run_dir, with_whole_paths(open_run_dir(run_dir)), config)
    with held(run_dir):
        write_config(run_dir, config)
        return _Session(config, run_dir, display or Silent(), validate=validate).train(resumes=resume is not None)


def evaluate(
    run_dir: Path,
    display: Display | None = None,
    *,
    episodes: int,
    checkpoint: Path | None = None,
) -> dict[str, Any]:
    """Success of a checkpoint (the newest by default) from initial states never trained on."""
    config = open_run_dir(run_dir)
    check_writable(run_dir)  # its processes have logs there
    chosen = checkpoint or newest_checkpoint(run_dir / "checkpoints")
    return _Session(config, run_dir, display or Silent(), validate=False).evaluate_only(chosen, episodes)


class _Session:
    """One run in its directory."""

    def __init__(self, config: RunConfig, run_dir: Path, display: Display, *, validate: bool) -> None:
        self.config = config
        self.run_dir = run_dir
        self.display = display
        self.validate = validate
        self.summary: dict[str, Any] = {
            "run_dir": str(run_dir),
            "env": config.env.name,
            "policy": config.policy.name,
            "algorithm": config.algorithm.name,
            "seed": config.run.seed,
            "evaluation_episodes": config.evaluation.episodes,
            "machine": machine(),
        }
        self._metrics_of_update: dict[str, float] = {}
        self._elapsed: Callable[[], float] = lambda: 0.0
        """Seconds of training so far, those of resumed runs included."""
        self._kill: Callable[[], None] = lambda: None
        self._started = time.monotonic()
        self._decisions_told = 0

    # The parts of a run.

    def train(self, *, resumes: bool) -> dict[str, Any]:
        """See the function ``train``."""
        earlier = self._earlier_summary() if resumes else {}
        kept = {name: value for name, value in earlier.items() if name not in _OF_ITS_END}
        self.summary = kept | self.summary | {"outcome": "failed"}
        try:
            with Interrupts(self._kill_everything) as interrupts:
                self._train(interrupts, resumes=resumes)
        except KeyboardInterrupt:
            self.summary = earlier or self.summary | {"outcome": "interrupted before training"}
            self.summary.pop("error", None)
        except BaseException as error:
            self.summary |= {"outcome": "failed", "error": str(error)}
            raise
        finally:
            self.summary["wall_seconds"] = time.monotonic() - self._started
            with self._written("summary.json"):
                write_json(self.run_dir / "summary.json", self.summary)
        return self.summary

    def _earlier_summary(self) -> dict[str, Any]:
        """Of the run that is resumed; nothing of it is lost if this one does not come to train."""
        try:
            earlier: dict[str, Any] = json.loads((self.run_dir / "summary.json").read_text())
        except (OSError, ValueError):
            return {}
        return earlier

    def _train(self, interrupts: Interrupts, *, resumes: bool) -> None:
        origin = self._origin(resumes=resumes)
        if (emulation := emulation_of(self.config, len(usable_cpus()))) is not None:
            self.summary["emulated"] = emulation.about
            self._notice(emulation.about)
        plan = run_plan(
            self.config,
            first_version=origin.count("policy_version"),
            first_env_step=origin.count("env_steps"),
            first_episode=origin.count("episodes_per_env"),
            first_serial=origin.count("chunks_per_env"),
        )
        scheduler = Scheduler(plan)
        engine = self._engine(origin, plan, scheduler)
        try:
            self._start(engine)
            interrupts.on_first = engine.request_stop
            self.summary["success_before"] = origin.state.get("success_before")
            if self.summary["success_before"] is None and plan.first_version == 0:
                self.summary["success_before"] = self._evaluate(engine, plan, "before training", interrupts)
                engine.execute(c.SaveCheckpoint(policy_version=plan.first_version))
            if interrupts.received:
                engine.request_stop(f"interrupted by {interrupts.received}")  # the evaluation used its own one up
            stop = self._loop(engine, scheduler, origin)
            self.summary["outcome"] = "interrupted" if interrupts.received else "finished"
            self.summary["reason"] = stop.reason
            if not interrupts.received:
                self.summary["success_after"] = self._evaluate(engine, plan, "after training", interrupts)
        finally:
            interrupts.on_first = _ignore
            engine.close()
            self.summary["recycled"] = engine.recycling.counts
        with self._written("learning_curve.png"):
            draw_learning_curve(self.run_dir, self.summary)

    def evaluate_only(self, checkpoint: Path, episodes: int) -> dict[str, Any]:
        """See the function ``evaluate``."""
        state = read_state(checkpoint)
        plan = run_plan(by_hand(self.config))  # no stage waits for another one here
        engine = self._engine(_Origin(checkpoint, {}), plan, Scheduler(plan))
        with Interrupts(self._kill_everything) as interrupts:
            try:
                self._start(engine)
                interrupts.on_first = engine.request_stop
                result = self._play(engine, plan, episodes, f"evaluation of {checkpoint.name}")
            finally:
                interrupts.on_first = _ignore
                engine.close()
        ends = result.ends
        return {
            "run_dir": str(self.run_dir),
            "checkpoint": checkpoint.name,
            "policy_version": state["policy_version"],
            "outcome": "interrupted" if interrupts.received else "finished",
            "episodes": len(ends) + result.failed,
            "episodes_failed": result.failed,
            "episodes_retried": result.retries,
            "success": result.success_rate,
            "return_mean": sum(end.episode_return for end in ends) / max(len(ends), 1),
            "episode_steps_mean": sum(end.num_steps for end in ends) / max(len(ends), 1),
        }

    # How each is done.

    def _notice(self, text: str) -> None:
        """Say it, and keep it with the run: where nobody looks now, somebody may later."""
        with contextlib.suppress(OSError), (self.run_dir / "notices.log").open("a") as file:
            file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n")
        self.display.notice(text)

    @contextlib.contextmanager
    def _written(self, what: str) -> Iterator[None]:
        """Say that a file could not be written, instead of ending with that: a disk is full, a quota used up."""
        try:
            yield
        except OSError as error:
            self._notice(f"{what} in {self.run_dir} cannot be written: {error.strerror or error}")

    def _origin(self, *, resumes: bool) -> _Origin:
        if resumes:
            checkpoint = newest_checkpoint(self.run_dir / "checkpoints")
            state = read_state(checkpoint)
            self.summary["resumed_from"] = checkpoint.name
            self._notice(f"resuming from {checkpoint.name}: {state['env_steps']} env steps")
            return _Origin(checkpoint, state)
        if not self.config.pretrain.enabled:
            return _Origin(None, {})
        from ebrl.runtime.pretrain import pretrain

        checkpoint, facts = pretrain(self.config, self.run_dir, self.display)
        self.summary["pretrain"] = facts
        return _Origin(checkpoint, {})

    def _engine(self, origin: _Origin, plan: SchedulerPlan, scheduler: Scheduler) -> LocalEngine:
        setup = local_setup(
            self.config, plan, self.run_dir, checkpoint=origin.checkpoint, restore_algorithm=origin.resumes
        )
        engine = LocalEngine(
            setup,
            on_metrics=self._take_metrics,
            on_notice=self._notice,
            checkpoint_state=lambda: self._checkpoint_state(scheduler),
        )
        self._kill = engine.close
        return engine

    def _start(self, engine: LocalEngine) -> None:
        setup = engine.setup
        self.display.phase(
            f"starting processes: {setup.num_shards} for {self.config.simulation.num_envs} environments, "
            f"{setup.num_generators} for generation, 1 for training"
        )
        start = time.monotonic()
        engine.start()
        self.summary["start_seconds"] = time.monotonic() - start
        self.summary["parameters"] = engine.fleet.built["num_parameters"]

    def _evaluate(self, engine: LocalEngine, plan: SchedulerPlan, when: str, interrupts: Interrupts) -> float | None:
        episodes = self.config.evaluation.episodes
        if not episodes or interrupts.received:
            return None
        result = self._play(engine, plan, episodes, f"evaluation {when}")
        for name, count in (("failed", result.failed), ("retried", result.retries)):
            name = f"evaluation_episodes_{name}"
            self.summary[name] = self.summary.get(name, 0) + count
        return None if interrupts.received else result.success_rate

    def _play(self, engine: LocalEngine, plan: SchedulerPlan, episodes: int, title: str) -> Result:
        self.display.phase(f"{title}: {episodes} episodes from initial states that are never trained on")
        control = EvaluationScheduler(plan, num_episodes=episodes)
        engine.begin(evaluation=True)
        shown = 0.0

        def record(now: float, event: Event, commands: list[Command]) -> None:
            nonlocal shown
            done = len(control.result.ends) + control.result.failed
            if now - shown >= _SHOW_EVERY_S or done >= episodes:
                shown = now
                self.display.progress(done, episodes, {"success": control.result.success_rate})

        stop = run(control.handle, engine, record)
        _raise_if_failed(stop)
        return control.result

    def _loop(self, engine: LocalEngine, scheduler: Scheduler, origin: _Origin) -> Stop:
        training = self.config.training
        self.display.phase(f"training: {training.max_env_steps} env steps")
        recording = self._recording(scheduler.plan, origin)
        metrics = RunMetrics(scheduler)
        self._elapsed = lambda: origin.state.get("seconds", 0.0) + metrics.now
        shown = 0.0
        row: dict[str, float] = {}

        def record(now: float, event: Event, commands: list[Command]) -> None:
            nonlocal shown, row
            if self.validate:
                check(scheduler)
            recording.event(now, event, commands)
            metrics.see(now, event)
            self._tell_moves(scheduler)
            if isinstance(event, UpdateDone):
                learned = {f"training/{name}": value for name, value in self._metrics_of_update.items()}
                row = self._row(metrics, engine, learned)
                recording.row(row)
            if now - shown >= _SHOW_EVERY_S:
                shown = now
                if recording.lost:
                    engine.request_stop(recording.lost)
                elif scheduler.stopping is None and self._elapsed() > training.max_minutes * 60:
                    engine.request_stop(f"{training.max_minutes} minutes", patient=True)
                steps = scheduler.counters.env_steps
                self.display.progress(steps, training.max_env_steps, {**row, "success": metrics.success_rate})

        try:
            engine.begin(evaluation=False)
            stop = run(scheduler.handle, engine, record)
        finally:
            recording.close()
            self.summary["events_not_recorded"] = recording.num_left_out
            self.summary |= metrics.totals()
            if scheduler.manager is not None:
                self.summary["resources"] = summary_of(scheduler.manager)
            self.summary["seconds"] = self._elapsed()
        _raise_if_failed(stop)
        if recording.lost:
            raise RunError(f"{recording.lost}; the run has stopped, with a checkpoint")
        return stop

    def _row(self, metrics: RunMetrics, engine: LocalEngine, learned: dict[str, float]) -> dict[str, float]:
        row = metrics.row() | learned
        row["training/effective_trajectories_per_s"] = row["training/trajectories_per_s"] * row.get("training/ess", 1.0)
        row["failures/recycled_workers"] = sum(engine.recycling.counts.values())
        row["seconds"] = self._elapsed()
        return row

    def _tell_moves(self, scheduler: Scheduler) -> None:
        """Say every decision once."""
        follower = scheduler.manager.follower if scheduler.manager is not None else None
        if follower is not None and len(follower.decisions) > self._decisions_told:
            decision = follower.decisions[self._decisions_told]
            self._decisions_told += 1
            self._notice(f"resources: {decision.reason}")

    def _recording(self, plan: SchedulerPlan, origin: _Origin) -> Recording:
        return Recording(
            self.run_dir,
            plan,
            level=self.config.records.level,
            machine=self.summary["machine"],
            keep_up_to_version=origin.count("policy_version") if origin.resumes else None,
            on_lost=self._notice,
        )

    def _take_metrics(self, metrics: dict[str, float]) -> None:
        self._metrics_of_update = metrics

    def _checkpoint_state(self, scheduler: Scheduler) -> dict[str, Any]:
        return {
            "env_steps": scheduler.counters.env_steps,
            "episodes_per_env": scheduler.episodes_begun,  # in sibling groups, where trajectories are whole episodes
            "chunks_per_env": max(scheduler.serials),
            "seconds": self._elapsed(),
            "success_before": self.summary.get("success_before"),
        }

    def _kill_everything(self) -> None:
        self._kill()


def _ignore(reason: str) -> None:
    """The run is ending already; a first signal must not cut that short."""


def _raise_if_failed(stop: Stop) -> None:
    if not stop.failed:
        return
    kind: type[RunError] = WorkerFailure
    if stop.reason.startswith("environment"):
        kind = EnvFailure
    elif stop.reason == REFUSED_DATA:
        kind = RatioMismatch
    raise kind(f"{stop.reason}\n{stop.detail}")


def first_and_last(run_dir: Path) -> list[Path]:
    """The run's first and newest checkpoint, for comparison; one of them if there is only one."""
    found = list_checkpoints(run_dir / "checkpoints")
    return [found[0], found[-1]] if len(found) > 1 else found


__all__ = ["RunError", "evaluate", "first_and_last", "train"]
