"""Env workers that reach a limit are replaced at a reset, and control does not hear of it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from asking import CPU, begin, generate, hear, kill, limit, pids_of_resets, reset, step

from drills import DIAL, is_alive, make_setup, started, until
from ebrl.engines.local.engine import LocalEngine
from ebrl.engines.local.fleet import Key
from ebrl.engines.local.recycling import Recycling
from ebrl.engines.local.setup import Limits
from ebrl.ids import Epoch, ShardId
from ebrl.scheduling import commands as c
from ebrl.scheduling import events as e

ENV_0 = Key("env", 0)


@pytest.fixture(scope="module")
def shared_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalEngine]:
    """One env worker whose episodes are one chunk, and which takes 40 MiB more for each of them."""
    config = {"leak_mib": 40.0, "min_episode_steps": 4, "max_episode_steps": 4}
    with started(make_setup(tmp_path_factory.mktemp("run"), num_shards=1, env=DIAL, env_config=config)) as engine:
        begin(engine)
        yield engine


@pytest.fixture
def engine(shared_engine: LocalEngine) -> LocalEngine:
    """The same with a new worker, and a new run that has not said anything since its beginning."""
    kill(shared_engine, "env")
    hear(shared_engine, e.EnvWorkerLost)
    begin(shared_engine)
    return shared_engine


def test_a_worker_that_has_grown_is_replaced_at_the_next_reset(engine: LocalEngine) -> None:
    notices = limit(engine, memory_mib=120)  # its own and twice 40 are less, three times 40 are more
    a, b, c, d, *rest = pids_of_resets(engine, 7)
    assert a == b == c != d
    assert rest[:2] == [d, d] != rest[2:]
    assert not is_alive(a)
    assert engine.recycling.counts == {"memory": 2, "resets": 0}
    (notice,) = notices
    assert notice.startswith("env worker 0 is replaced: it has 0.1")
    assert notice.endswith(
        " GiB of its own after 3 resets, failures.worker_memory_gib = 0.117; the next ones are only counted"
    )


def test_a_limit_below_what_a_worker_needs_is_said_to_be_one(engine: LocalEngine) -> None:
    notices = limit(engine, memory_mib=1)
    assert len(set(pids_of_resets(engine, 3))) == 3
    assert "is less than it needs, so that every episode will take a new process: raise it" in notices[0]


def test_a_worker_is_replaced_after_so_many_resets(engine: LocalEngine) -> None:
    notices = limit(engine, resets=2)
    a, b, c, d, last = pids_of_resets(engine, 5)
    assert a == b != c == d != last
    assert engine.recycling.counts == {"memory": 0, "resets": 2}
    assert notices == [
        "env worker 0 is replaced: it has served 2 resets, failures.worker_resets = 2; the next ones are only counted"
    ]


def test_without_limits_nobody_is_replaced(engine: LocalEngine) -> None:
    assert engine.setup.limits == Limits()
    engine.recycling = Recycling(engine.setup.limits, 1, pytest.fail)
    assert len(set(pids_of_resets(engine, 5))) == 1


def test_the_trajectory_in_progress_goes_on(engine: LocalEngine) -> None:
    limit(engine, resets=1)
    store = engine.fleet._memory["store"].arrays
    engine.execute(reset(episode=7))
    hear(engine, e.ResetDone)
    for chunk in range(2):
        engine.execute(generate((0, 0, chunk)))
        hear(engine, e.ChunksReady)
        engine.execute(step(chunk=chunk))
        assert len(hear(engine, e.StepsDone).episode_ends) == 1
        engine.execute(reset(episode=8 + chunk))
        hear(engine, e.ResetDone)
    assert engine.recycling.counts == {"memory": 0, "resets": 2}
    assert store["num_executed"][0].tolist() == [4, 4]
    assert store["episode"][0].tolist() == [7, 8]
    assert np.array_equal(store["obs/state"][0, :, 0], [0, 0])


def test_the_successor_starts_where_the_reset_was_granted(engine: LocalEngine) -> None:
    limit(engine, resets=1)
    pids_of_resets(engine, 1)
    engine.execute(reset())
    successor = engine.fleet.processes[ENV_0]
    assert (successor.waits_for, ENV_0 in engine.fleet.up) == ("its start", False)
    assert os.sched_getaffinity(successor.pid) == {CPU}
    hear(engine, e.ResetDone)
    assert engine.fleet.processes[ENV_0] is successor
    assert os.sched_getaffinity(successor.pid) == {CPU}


def test_a_worker_that_has_died_is_lost_and_not_recycled(engine: LocalEngine) -> None:
    limit(engine, resets=1)
    pids_of_resets(engine, 1)
    kill(engine, "env")
    engine.execute(reset())
    assert hear(engine, e.EnvWorkerLost).reason == "died"
    assert engine.recycling.counts == {"memory": 0, "resets": 0}
    engine.execute(c.StartEnvWorker(shard=ShardId(0), epoch=Epoch(0)))
    hear(engine, e.EnvWorkerReady)
    assert len(set(pids_of_resets(engine, 2))) == 2  # its own resets count, not those of the dead one


def test_a_new_run_does_not_wait_for_the_reset_of_an_older_one(engine: LocalEngine) -> None:
    limit(engine, resets=1)
    pids_of_resets(engine, 1)
    engine.execute(reset())
    events = begin(engine)
    assert e.EnvWorkerReady(shard=ShardId(0), epoch=Epoch(0)) in events
    assert not any(isinstance(event, e.ResetDone) for event in events)
    pids_of_resets(engine, 1)


def test_what_the_environment_started_goes_too_and_a_successor_that_cannot_start_is_a_lost_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1] / "workers"), prepend=os.pathsep)
    config = {"mark": str(tmp_path / "mark"), "child_pid_file": str(tmp_path / "pid")}
    setup = make_setup(tmp_path, num_shards=1, env="hostile_envs:Plain", env_config=config, limits=Limits(resets=1))
    with started(setup) as engine:
        begin(engine)
        pids_of_resets(engine, 1)
        child = int((tmp_path / "pid").read_text())
        assert is_alive(child)
        engine.execute(reset())
        until("the death of the grandchild", lambda: not is_alive(child), within_s=5)
        lost = hear(engine, e.EnvWorkerLost)
        assert (lost.shard, lost.epoch, lost.reason) == (0, 0, "raised")
        assert "OSError: no licence for a second one" in lost.detail
        engine.execute(c.StartEnvWorker(shard=ShardId(0), epoch=Epoch(1)))
        assert hear(engine, e.EnvWorkerReady).epoch == 1
        engine.execute(reset())
        assert hear(engine, e.ResetDone).epoch == 1
        assert engine.recycling.counts == {"memory": 0, "resets": 1}
