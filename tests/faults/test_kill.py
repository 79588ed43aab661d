"""Processes are killed for real at chosen moments of real runs; the run goes on and its books balance."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from drills import (
    DIAL,
    FLOW,
    Drill,
    make_plan,
    make_setup,
    pid_of,
    processes_of,
    shared_memory_of,
    started,
)
from ebrl.data.checkpoint import list_checkpoints, read_state
from ebrl.engines.local.fleet import Key
from ebrl.engines.local.setup import Deadlines
from ebrl.ids import PolicyVersion
from ebrl.scheduling import commands as c
from ebrl.scheduling import events as e
from ebrl.scheduling.scheduler import Scheduler

RESUMES_WITHIN_S = 5.0
"""From a process's death until its successor has done work; starting torch on a busy CPU is most of it."""

LOADED = max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
"""How much longer things may take because others use this machine."""

Commands = list[c.Command]


def kill(drill: Drill, kind: str, index: int = 0) -> None:
    os.kill(pid_of(drill.engine, kind, index), signal.SIGKILL)


def drill_of(engine: Any, hook: Callable[[Drill, e.Event, Commands], None], **plan: Any) -> Drill:
    return Drill(Scheduler(make_plan(engine.setup, **plan)), engine, hook)


class Plan:
    """Kills things when an event is seen for the first time, and when it was."""

    def __init__(self, **moments: Callable[[Drill, e.Event, Commands], bool]) -> None:
        self.moments = moments
        self.killed_at: dict[str, float] = {}

    def __call__(self, drill: Drill, event: e.Event, commands: Commands) -> None:
        for name, moment in self.moments.items():
            if name not in self.killed_at and moment(drill, event, commands):
                self.killed_at[name] = drill.events[-1][0]
                kind, _, index = name.partition("_")
                kill(drill, kind, int(index or 0))

    def resumed_after_s(self, drill: Drill, name: str, work: Callable[[Any], bool]) -> float:
        """Seconds from the death until the successor's first work."""
        start = self.killed_at[name]
        return next(now for now, event in drill.events if now > start and work(event)) - start


def after(version: int) -> Callable[[Drill, e.Event, Commands], bool]:
    """The moment at which control hears of this update."""
    return lambda drill, event, commands: isinstance(event, e.UpdateDone) and event.policy_version == version


def commanded(*kinds: type[Any], version: int = 1) -> Callable[[Drill, e.Event, Commands], bool]:
    """The moment, from this version on, at which one event leads to commands of all these kinds."""

    def moment(drill: Drill, event: e.Event, commands: Commands) -> bool:
        return drill.scheduler.learner.policy_version >= version and all(
            any(isinstance(command, kind) for command in commands) for kind in kinds
        )

    return moment


def assert_versions_continue(drill: Drill, last: int) -> None:
    assert drill.versions == list(range(1, last + 1))


def test_one_of_each_dies_in_the_middle_of_a_run(tmp_path: Path) -> None:
    plan = Plan(env_1=after(2), generator=after(4), learner=after(6))
    memory = shared_memory_of()
    with started(make_setup(tmp_path, policy="flow", policy_config=FLOW)) as engine:
        goal: int | None = None
        reborn: set[type[Any]] = set()

        def hook(drill: Drill, event: e.Event, commands: Commands) -> None:
            nonlocal goal
            plan(drill, event, commands)
            if isinstance(event, e.UpdateDone | e.ChunksReady | e.StepsDone) and event.epoch == 1:
                reborn.add(type(event))
            if goal is None and len(reborn) == 3:
                goal = drill.scheduler.learner.policy_version + 3
            if goal == drill.scheduler.learner.policy_version and isinstance(event, e.UpdateDone):
                engine.request_stop("all of them are back")

        drill = drill_of(engine, hook)
        stop = drill.run()
        assert (stop.failed, stop.reason) == (False, "all of them are back")
        drill.assert_balanced()
        assert drill.scheduler.counters.restarts == {"env_worker": 1, "generator": 1, "learner": 1}
        assert drill.scheduler.counters.env_failures == {"died": 1}
        assert goal is not None
        assert goal >= 9
        assert_versions_continue(drill, drill.scheduler.learner.policy_version)
        (checkpoint,) = list_checkpoints(engine.setup.checkpoint_dir)
        assert read_state(checkpoint)["policy_version"] == drill.versions[-1]
        delays = {
            "env_1": plan.resumed_after_s(drill, "env_1", lambda x: isinstance(x, e.StepsDone) and x.epoch == 1),
            "generator": plan.resumed_after_s(
                drill, "generator", lambda x: isinstance(x, e.ChunksReady) and x.epoch == 1
            ),
            "learner": plan.resumed_after_s(drill, "learner", lambda x: isinstance(x, e.UpdateDone) and x.epoch == 1),
        }
        print("resumed after", {name: round(delay, 2) for name, delay in delays.items()}, "s")
        assert max(delays.values()) < RESUMES_WITHIN_S * LOADED, delays
    assert shared_memory_of() == memory


def first(drill: Drill, event: e.Event, commands: Commands) -> bool:
    """The very first event."""
    return isinstance(event, e.RunStarted)


def saving(drill: Drill, event: e.Event, commands: Commands) -> bool:
    """The last checkpoint is asked for."""
    return drill.scheduler.stopping is not None and any(isinstance(x, c.SaveCheckpoint) for x in commands)


@pytest.mark.slow
def test_processes_die_at_the_worst_moments_of_one_engine(tmp_path: Path) -> None:
    """Several runs on one engine: each begins with what the one before left."""
    moments: list[tuple[str, Callable[[Drill, e.Event, Commands], bool]]] = [
        ("env_0", first),
        ("env_1", commanded(c.ResetEnv, version=0)),
        ("env_0", commanded(c.StepEnv)),
        ("generator", commanded(c.GenerateChunks, version=0)),
        ("generator", commanded(c.PublishWeights)),
        ("learner", first),
        ("learner", commanded(c.Train)),
        ("learner", saving),
    ]
    version = 0
    with started(make_setup(tmp_path)) as engine:
        for name, moment in moments:
            plan = Plan(**{name: moment})
            drill = drill_of(engine, plan, first_version=PolicyVersion(version), max_updates=version + 5)
            stop = drill.run()
            assert (stop.failed, list(plan.killed_at)) == (False, [name]), (name, moment, stop)
            drill.assert_balanced()
            assert drill.versions == list(range(version + 1, version + 6)), (name, moment)
            version += 5
            # An env worker may die when its run is over anyway.
            restarts = sum(drill.scheduler.counters.restarts.values())
            assert restarts == 1 or (restarts == 0 and name.startswith("env")), (name, moment)
            newest = list_checkpoints(engine.setup.checkpoint_dir)[-1]
            assert read_state(newest)["policy_version"] == version
        assert len(processes_of(os.getpid())) <= 4


def test_a_generator_dies_owing_chunks_and_weights(tmp_path: Path) -> None:
    """It is stopped first, so that both commands certainly are unanswered when it dies."""
    stopped: list[int] = []

    def hook(drill: Drill, event: e.Event, commands: Commands) -> None:
        pid = pid_of(drill.engine, "generator") if not stopped else 0
        learned = drill.scheduler.learner.policy_version > 0
        if not stopped and learned and any(isinstance(x, c.GenerateChunks) for x in commands):
            os.kill(pid, signal.SIGSTOP)
            stopped.append(pid)
        elif len(stopped) == 1 and any(isinstance(x, c.PublishWeights) for x in commands):
            owing.append(drill.engine.fleet.processes[Key("generator")].owes)
            os.kill(stopped[0], signal.SIGKILL)
            stopped.append(0)

    owing: list[bool] = []
    # Four environments and a batch of two: an update ends while chunks are being made.
    setup = make_setup(tmp_path, num_shards=4, num_slots=8, deadlines=Deadlines(generation_s=30.0))
    with started(setup) as engine:
        drill = drill_of(engine, hook, batch=2, slack=3, max_generation_batch=1, max_updates=8)
        stop = drill.run()
        assert not stop.failed, stop
        assert owing == [True]
        assert drill.versions == list(range(1, 9))
        assert drill.scheduler.counters.restarts == {"generator": 1}
        drill.assert_balanced()


def test_an_environment_that_always_raises_stops_the_run_with_its_own_words(tmp_path: Path) -> None:
    config = {"fail_at_step": 2}
    with started(make_setup(tmp_path, env=DIAL, env_config=config)) as engine:
        drill = drill_of(engine, lambda drill, event, commands: None, max_env_failures=2)
        stop = drill.run()
        assert stop.failed
        assert stop.reason in {f"environment {shard} failed 3 times in a row (raised)" for shard in (0, 1)}
        assert "RuntimeError: toy/dial-v1 was told to fail here" in stop.detail
        drill.assert_balanced()
        assert drill.versions == []


def test_a_learner_that_always_dies_stops_the_run(tmp_path: Path) -> None:
    def hook(drill: Drill, event: e.Event, commands: Commands) -> None:
        if isinstance(event, e.LearnerReady):
            kill(drill, "learner")

    with started(make_setup(tmp_path)) as engine:
        drill = drill_of(engine, hook)
        stop = drill.run()
        assert (stop.failed, stop.reason) == (True, "the learner was lost 4 times in a row")
        assert "learner ended: killed by SIGKILL" in stop.detail
        drill.assert_balanced()
