"""The local engine, command by command, with the test in control's place."""

from __future__ import annotations

import os
import re
import select
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from asking import SAVE, begin, generate, hear, kill, publish, reset, step, train, trajectory

from drills import (
    DIAL,
    is_alive,
    make_setup,
    num_descriptors,
    pid_of,
    processes_of,
    shared_memory_of,
    started,
    until,
)
from ebrl.data.checkpoint import list_checkpoints, read_state
from ebrl.engines.local.engine import LocalEngine
from ebrl.engines.local.fleet import LEARNER, Fleet, Key
from ebrl.engines.local.process import WorkerProcess
from ebrl.engines.local.setup import Deadlines
from ebrl.errors import ConfigError, EnvFailure, RunError, WorkerFailure
from ebrl.ids import Epoch, GeneratorId, PolicyVersion, ShardId
from ebrl.scheduling import commands as c
from ebrl.scheduling import events as e

GENERATOR_ID = GeneratorId(0)
ENV_0, GENERATOR = Key("env", 0), Key("generator", 0)


@pytest.fixture(scope="module")
def shared_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalEngine]:
    with started(make_setup(tmp_path_factory.mktemp("run"))) as engine:
        yield engine


@pytest.fixture
def engine(shared_engine: LocalEngine) -> LocalEngine:
    """An engine whose next event is its first."""
    begin(shared_engine)
    return shared_engine


def test_everybody_announces_himself_at_every_beginning(shared_engine: LocalEngine) -> None:
    for evaluation in (True, False):
        shared_engine.begin(evaluation=evaluation)
        events = [shared_engine.next_event()[0] for _ in range(5)]
        assert events[0] == e.RunStarted()
        assert {type(event) for event in events[1:3]} == {e.LearnerReady, e.GeneratorReady}
        envs = [event for event in events if isinstance(event, e.EnvWorkerReady)]
        assert sorted(event.shard for event in envs) == [0, 1]
        assert all(event.epoch == 0 for event in envs)


def test_each_command_is_answered_by_its_event(engine: LocalEngine) -> None:
    engine.execute(reset(1, episode=9))
    answer = hear(engine, e.ResetDone)
    assert (answer.shard, answer.epoch) == (1, 0)
    assert answer.reset_s > 0
    engine.execute(reset(0))
    hear(engine, e.ResetDone)
    engine.execute(generate((0, 2, 0), (1, 3, 0)))
    chunks = hear(engine, e.ChunksReady)
    assert (chunks.shards, chunks.generator, chunks.epoch) == ((0, 1), 0, 0)
    assert chunks.generation_s > 0
    engine.execute(step(0, slot=2, count=3))
    steps = hear(engine, e.StepsDone)
    assert (steps.shard, steps.num_steps, steps.env_steps) == (0, 3, 3)
    assert (steps.chunk_over, steps.episode_ends) == (False, ())
    engine.execute(step(0, slot=2, first=3, count=1))
    assert hear(engine, e.StepsDone).chunk_over
    engine.execute(c.SetTimer(name="soon", after_s=0.0))
    assert hear(engine, e.TimerFired).name == "soon"


def test_versions_go_from_the_learner_to_the_generator(engine: LocalEngine) -> None:
    told: list[dict[str, float]] = []
    engine._on_metrics = told.append
    engine.execute(reset())
    hear(engine, e.ResetDone)
    executed = trajectory(engine, 0) + trajectory(engine, 1)
    before = engine._version
    engine.execute(train(before, 0, 1))
    done = hear(engine, e.UpdateDone)
    assert (done.policy_version, done.skipped, done.epoch) == (before + 1, False, 0)
    assert executed > 0
    assert told[0]["ratio_checked_chunks"] == executed
    engine.execute(generate((0, 0, 0)))
    assert hear(engine, e.ChunksReady).policy_version == before
    engine.execute(publish(before + 1))
    assert hear(engine, e.WeightsLive).policy_version == before + 1
    engine.execute(generate((0, 0, 0)))
    assert hear(engine, e.ChunksReady).policy_version == before + 1
    engine._checkpoint_state = lambda: {"mark": 7}
    engine.execute(SAVE)
    assert hear(engine, e.CheckpointSaved).policy_version == before + 1
    (path,) = list_checkpoints(engine.setup.checkpoint_dir)
    assert read_state(path) == {"mark": 7, "policy_version": before + 1}


def test_what_was_asked_before_a_beginning_is_not_answered_after_it(engine: LocalEngine) -> None:
    engine.execute(reset(0))
    engine.execute(reset(1))
    engine.execute(c.SetTimer(name="old", after_s=0.0))
    assert not {type(event) for event in begin(engine)} & {e.ResetDone, e.TimerFired}
    engine.execute(c.SetTimer(name="new", after_s=0.3))
    assert hear(engine, e.TimerFired).name == "new"


def test_timers_fire_in_the_order_of_their_times(engine: LocalEngine) -> None:
    for name, after_s in (("third", 0.1), ("first", 0.0), ("second", 0.05)):
        engine.execute(c.SetTimer(name=name, after_s=after_s))
    events = [engine.next_event() for _ in range(3)]
    assert [getattr(event, "name", "") for event, _ in events] == ["first", "second", "third"]
    times = [now for _, now in events]
    assert times == sorted(times)


def test_a_stop_request_wakes_an_engine_that_waits(engine: LocalEngine) -> None:
    engine.execute(c.SetTimer(name="late", after_s=60.0))
    threading.Timer(0.05, engine.request_stop, ["enough"]).start()
    assert hear(engine, e.StopRequested).reason == "enough"


def test_a_stop_request_survives_a_beginning(engine: LocalEngine) -> None:
    engine.request_stop("enough")
    begin(engine)
    assert hear(engine, e.StopRequested).reason == "enough"


def test_a_run_that_stands_still_says_so(engine: LocalEngine) -> None:
    with pytest.raises(RunError, match="the run stands still: no process owes an answer and no timer is set"):
        engine.next_event()


def test_a_killed_process_is_an_event_and_its_successor_another(engine: LocalEngine) -> None:
    old = pid_of(engine, "env", 1)
    kill(engine, "env", 1)
    lost = hear(engine, e.EnvWorkerLost)
    assert (lost.shard, lost.epoch, lost.reason) == (1, 0, "died")
    assert "env worker 1 ended: killed by SIGKILL" in lost.detail
    assert not Path(f"/proc/{old}").exists()  # not even a zombie
    engine.execute(step(1))  # what control said before it heard of it goes nowhere
    engine.execute(c.StartEnvWorker(shard=ShardId(1), epoch=Epoch(1)))
    assert hear(engine, e.EnvWorkerReady) == e.EnvWorkerReady(shard=ShardId(1), epoch=Epoch(1))
    engine.execute(reset(1))
    assert hear(engine, e.ResetDone).epoch == 1


def test_epochs_begin_anew_with_every_run(engine: LocalEngine) -> None:
    kill(engine, "env", 0)
    hear(engine, e.EnvWorkerLost)
    engine.execute(c.StartEnvWorker(shard=ShardId(0), epoch=Epoch(1)))
    hear(engine, e.EnvWorkerReady)
    begin(engine)
    engine.execute(reset(0))
    assert hear(engine, e.ResetDone).epoch == 0


def test_a_process_lost_between_two_runs_is_there_in_the_second(engine: LocalEngine) -> None:
    engine.execute(reset(0))  # owed, so that the beginning waits and hears of the death
    kill(engine, "env", 1)
    events = begin(engine)
    ready = [event for event in events if isinstance(event, e.EnvWorkerReady)]
    lost = [event for event in events if isinstance(event, e.EnvWorkerLost)]
    if lost:  # heard only in the new run
        engine.execute(c.StartEnvWorker(shard=ShardId(1), epoch=Epoch(1)))
        ready.append(hear(engine, e.EnvWorkerReady))
    assert sorted(event.shard for event in ready) in ([0, 1], [0, 1, 1])
    engine.execute(reset(1))
    hear(engine, e.ResetDone)


def test_a_generator_killed_with_two_answers_owed_comes_back_with_the_newest_weights(engine: LocalEngine) -> None:
    version = engine._version
    os.kill(pid_of(engine, "generator"), signal.SIGSTOP)
    engine.execute(publish(version))
    engine.execute(generate((0, 0, 0)))
    engine.execute(publish(version))
    kill(engine, "generator")
    lost = hear(engine, e.GeneratorLost)
    assert (lost.reason, lost.epoch) == ("died", 0)
    engine.execute(c.StartGenerator(generator=GENERATOR_ID, epoch=Epoch(1)))
    assert hear(engine, e.GeneratorReady) == e.GeneratorReady(
        generator=GENERATOR_ID, epoch=Epoch(1), policy_version=PolicyVersion(version)
    )
    engine.execute(generate((0, 0, 0)))
    assert hear(engine, e.ChunksReady).policy_version == version
    with pytest.raises(RunError, match="stands still"):
        engine.next_event()


def test_respawning_leaks_no_descriptor_and_no_process(engine: LocalEngine) -> None:
    before = num_descriptors()
    for epoch in range(1, 21):
        kill(engine, "env", 0)
        hear(engine, e.EnvWorkerLost)
        engine.execute(c.StartEnvWorker(shard=ShardId(0), epoch=Epoch(epoch)))
        assert hear(engine, e.EnvWorkerReady).epoch == epoch
    assert num_descriptors() == before
    assert len(processes_of(os.getpid())) == 4
    begin(engine)


def test_a_learner_that_dies_before_it_can_say_that_it_is_done_takes_the_update_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)
    algorithm, options = "faulty_algorithms:DiesAfterItsUpdate", {"mark": str(tmp_path / "mark")}
    setup = make_setup(tmp_path, num_shards=1, algorithm=algorithm, algorithm_config=options)
    with started(setup) as engine:
        begin(engine)
        engine.execute(reset())
        hear(engine, e.ResetDone)
        trajectory(engine, 0)
        engine.execute(train(0, 0))
        lost = hear(engine, e.LearnerLost)
        assert lost.reason == "raised"
        engine.execute(publish(0))
        assert hear(engine, e.WeightsLive).policy_version == 0  # not of an update that nobody has heard of
        engine.execute(c.StartLearner(epoch=Epoch(1)))
        assert hear(engine, e.LearnerReady) == e.LearnerReady(epoch=Epoch(1), policy_version=PolicyVersion(0))
        engine.execute(train(0, 0))
        assert hear(engine, e.UpdateDone).policy_version == 1
        engine.execute(publish(1))
        assert hear(engine, e.WeightsLive).policy_version == 1


def test_an_algorithm_that_reports_only_what_it_must_trains_and_the_missing_check_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)
    setup = make_setup(tmp_path, num_shards=1, algorithm="minimal_algorithm:OnlySkipped", algorithm_config={})
    told: list[dict[str, float]] = []
    with started(setup, on_metrics=told.append) as engine:
        begin(engine)
        engine.execute(reset())
        hear(engine, e.ResetDone)
        trajectory(engine, 0)
        for version in range(2):
            engine.execute(train(version, 0))
            assert hear(engine, e.UpdateDone).policy_version == version + 1
        assert told == [{"skipped": 0.0, "updates_without_ratio_check": float(n)} for n in (1, 2)]
        engine.execute(SAVE)
        hear(engine, e.CheckpointSaved)


def test_an_algorithm_that_reports_less_is_told_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)
    setup = make_setup(tmp_path, num_shards=1, algorithm="minimal_algorithm:Silent", algorithm_config={})
    with started(setup) as engine:
        begin(engine)
        engine.execute(reset())
        hear(engine, e.ResetDone)
        trajectory(engine, 0)
        engine.execute(train(0, 0))
        assert "Silent.update reports loss: want a metric 'skipped'" in hear(engine, e.LearnerLost).detail


def test_a_generator_says_which_weights_it_holds_and_not_which_it_should(engine: LocalEngine) -> None:
    """The learner may finish an update between a new generator's start and its announcement."""
    kill(engine, "generator")
    hear(engine, e.GeneratorLost)
    engine.execute(reset())
    hear(engine, e.ResetDone)
    engine.execute(c.StartGenerator(generator=GENERATOR_ID, epoch=Epoch(1)))
    held = engine._version
    engine._version += 1  # as if UPDATED had been heard just before READY
    try:
        assert hear(engine, e.GeneratorReady).policy_version == held
    finally:
        engine._version = held


def hanging(tmp_path: Path, **changes: Any) -> Any:
    deadlines = Deadlines(start_s=60.0, step_s=0.3, reset_s=10.0, generation_s=0.5, training_s=10.0)
    config = {"fail_at_step": 2, "fail_kind": "hang"}
    return make_setup(tmp_path, num_shards=1, env=DIAL, env_config=config, deadlines=deadlines, **changes)


def test_what_hangs_shows_its_stack_and_is_killed(tmp_path: Path) -> None:
    notices: list[str] = []
    with started(hanging(tmp_path), on_notice=notices.append) as engine:
        begin(engine)
        engine.execute(reset())
        hear(engine, e.ResetDone)
        pid = pid_of(engine, "env")
        engine.execute(step(count=1))
        assert hear(engine, e.StepsDone).num_steps == 1
        engine.execute(step(first=1, count=3))
        lost = hear(engine, e.EnvWorkerLost)
        assert lost.reason == "deadline"
        assert "env worker 0 did not finish env steps in time" in lost.detail
        assert re.search(r'toy\.py", line \d+ in _fail_hard', lost.detail), lost.detail
        assert not is_alive(pid)
        assert any("env worker 0 was lost (deadline)" in text for text in notices)
        # A generator that is stopped cannot even show its stack.
        os.kill(pid_of(engine, "generator"), signal.SIGSTOP)
        engine.execute(publish(0))
        lost = hear(engine, e.GeneratorLost)
        assert lost.reason == "deadline"
        assert "generator 0 did not finish new weights in time" in lost.detail


def test_who_has_answered_is_not_late_however_long_nobody_listened(engine: LocalEngine) -> None:
    engine.execute(reset())
    process = engine.fleet.processes[ENV_0]
    until("the answer", lambda: select.select([process.sock], [], [], 0)[0])
    process.deadline = engine._look_at = 0.0  # as if this process had been suspended meanwhile
    hear(engine, e.ResetDone)


def test_a_deadline_begins_when_its_turn_comes(engine: LocalEngine) -> None:
    process = engine.fleet.processes[GENERATOR]
    os.kill(process.pid, signal.SIGSTOP)
    try:
        engine.execute(generate((0, 0, 0)))
        first = process.deadline
        engine.execute(publish(0))
        assert (process.waits_for, process.deadline) == ("action chunks", first)
    finally:
        os.kill(process.pid, signal.SIGCONT)
    hear(engine, e.ChunksReady)
    assert (process.waits_for, process.deadline > first) == ("new weights", True)
    hear(engine, e.WeightsLive)
    assert (process.waits_for, process.owes, process.deadline) == ("", False, float("inf"))


def test_who_waits_for_others_while_starting_loses_no_time_of_its_own(tmp_path: Path) -> None:
    """Learner and generators begin when the first env worker and the learner have said what they made."""

    def late(key: Key, process: WorkerProcess) -> None:
        process.deadline = 0.0  # as if it had waited since the machine was switched on

    fleet = Fleet(make_setup(tmp_path), late)
    try:
        fleet.start()
        assert {LEARNER, *fleet.generators} <= fleet.up
    finally:
        fleet.close()


def test_close_leaves_nothing_and_may_be_called_again(tmp_path: Path) -> None:
    before = num_descriptors()
    others = set(processes_of(os.getpid()))
    memory = len(shared_memory_of())
    with started(make_setup(tmp_path)) as engine:
        assert len(set(processes_of(os.getpid())) - others) == 4
        assert len(shared_memory_of()) > memory
        engine.close()
        engine.close()
    assert set(processes_of(os.getpid())) == others
    assert len(shared_memory_of()) == memory
    assert num_descriptors() == before


def test_an_engine_that_was_never_started_can_be_closed(tmp_path: Path) -> None:
    before = num_descriptors()
    LocalEngine(make_setup(tmp_path)).close()
    assert num_descriptors() == before


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"env": "toy/reech-v1"}, EnvFailure, "env worker 0 failed while starting .*did you mean 'toy/reach-v1'"),
        ({"policy_config": {"hiden": [3]}}, WorkerFailure, "learner failed while starting .*did you mean 'hidden'"),
        (
            {"num_slots": 10**9},
            ConfigError,
            r"training.batch_trajectories, .*: 1000000000 trajectories of 2 chunks .* GiB .*\(\d{12,} bytes\): want at",
        ),
        (
            {"num_slots": 10**8, "envs_per_shard": 2, "whole_episodes": True},
            ConfigError,
            r"slack, the environment's time limit: 200000000 trajectories of 13 chunks .* GiB",
        ),
        (
            {"env": "blocking_env:Never", "deadlines": Deadlines(start_s=0.5)},
            EnvFailure,
            "env worker 0 did not finish its start in time",
        ),
    ],
)
def test_a_failing_start_says_why_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], error: type[Exception], words: str
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)
    before, others = num_descriptors(), set(processes_of(os.getpid()))
    with pytest.raises(error, match=f"(?s){words}"), started(make_setup(tmp_path, **changes)):
        raise AssertionError("it started")
    assert set(processes_of(os.getpid())) == others
    assert num_descriptors() == before


def test_keys_have_the_names_that_messages_use() -> None:
    assert [key.label for key in (ENV_0, GENERATOR, LEARNER)] == ["env worker 0", "generator 0", "learner"]
