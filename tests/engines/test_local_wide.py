"""The local engine with several environments in a worker, several generators, several CPUs, whole episodes."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from asking import CPU, begin, generate, hear, kill, limit, pids_of_resets, publish, reset, step, train, trajectory

from drills import DIAL, Drill, make_plan, make_setup, pid_of, started
from ebrl.engines.local.engine import LocalEngine
from ebrl.engines.local.fleet import Key
from ebrl.engines.local.setup import LocalSetup
from ebrl.envs.base import episode_seed
from ebrl.envs.toy import Reach
from ebrl.host.probe import usable_cpus
from ebrl.ids import CpuId, EpisodeId, Epoch, GeneratorId, PolicyVersion, ShardId
from ebrl.scheduling import commands as c
from ebrl.scheduling import events as e
from ebrl.scheduling.scheduler import Scheduler
from ebrl.workers.building import use_fast_products

WIDTH = 4


def memory(engine: LocalEngine, name: str) -> dict[str, np.ndarray]:
    """Arrays that the processes share."""
    return engine.fleet._memory[name].arrays


def first_state(setup: LocalSetup, episode: int) -> np.ndarray:
    """What an environment of the run sees at the start of an episode."""
    obs, _ = Reach("", Reach.Config(**setup.env_config)).reset(episode_seed(setup.seed, episode, evaluation=False))
    return np.asarray(obs["state"])


@pytest.fixture(scope="module")
def shared_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalEngine]:
    setup = make_setup(tmp_path_factory.mktemp("run"), envs_per_shard=WIDTH, num_generators=2)
    with started(setup) as engine:
        yield engine


@pytest.fixture
def engine(shared_engine: LocalEngine) -> LocalEngine:
    """Two env workers of four environments, two generators; its next event is its first."""
    begin(shared_engine)
    return shared_engine


# Several environments in an env worker.


def test_each_environment_starts_the_episode_that_is_named_and_the_others_stay(engine: LocalEngine) -> None:
    starts = tuple(c.EpisodeStart(env, EpisodeId(10 + env)) for env in range(WIDTH))
    engine.execute(c.ResetEnv(shard=ShardId(1), starts=starts, cpus=(CpuId(usable_cpus()[0]),)))
    assert hear(engine, e.ResetDone).shard == 1
    engine.execute(reset(1, envs=(2,), episode=99))
    hear(engine, e.ResetDone)
    here = memory(engine, "slabs")["obs/state"][WIDTH:]
    for env, episode in enumerate((10, 11, 99, 13)):
        assert np.array_equal(here[env], first_state(engine.setup, episode)), env


def test_a_chunk_is_made_and_executed_for_every_environment_of_a_shard(engine: LocalEngine) -> None:
    engine.execute(reset(1, envs=tuple(range(WIDTH))))
    hear(engine, e.ResetDone)
    trajectory(engine, 2, shard=1)
    store = memory(engine, "store")
    rows = slice(2 * WIDTH, 3 * WIDTH)
    assert store["num_executed"][rows].tolist() == [[4, 4]] * WIDTH
    log_prob = store["log_prob"][rows]
    assert len(np.unique(log_prob[:, 0].reshape(WIDTH, -1), axis=0)) == WIDTH  # each has random numbers of its own
    version = engine._version
    engine.execute(train(version, 2))
    assert hear(engine, e.UpdateDone).policy_version == version + 1


def test_while_some_of_its_environments_play_on_a_worker_is_not_recycled(engine: LocalEngine) -> None:
    everyone = tuple(range(WIDTH))
    limit(engine, resets=WIDTH)
    (first,) = pids_of_resets(engine, 1, envs=everyone)
    assert pids_of_resets(engine, 3, envs=everyone[1:]) == [first] * 3
    assert len({first, *pids_of_resets(engine, 2, envs=everyone)}) == 3
    assert engine.recycling.counts == {"memory": 0, "resets": 2}


def test_steps_are_counted_in_lock_step_and_one_by_one_and_ends_name_their_environment(tmp_path: Path) -> None:
    config = {"min_episode_steps": 1, "max_episode_steps": 40}
    setup = make_setup(tmp_path, num_shards=1, num_slots=2, envs_per_shard=3, env=DIAL, env_config=config)
    with started(setup) as engine:
        begin(engine)
        lengths: dict[int, int] = {}
        for attempt in range(50):  # episodes whose lengths fall into different chunks
            starts = tuple(c.EpisodeStart(env, EpisodeId(3 * attempt + env)) for env in range(3))
            engine.execute(c.ResetEnv(shard=ShardId(0), starts=starts, cpus=(CpuId(usable_cpus()[0]),)))
            hear(engine, e.ResetDone)
            ended: dict[int, int] = {}
            lock_steps = env_steps = 0
            while len(ended) < 3:
                engine.execute(step())
                done = hear(engine, e.StepsDone)
                lock_steps, env_steps = lock_steps + done.num_steps, env_steps + done.env_steps
                ended |= {end.env: end.num_steps for end in done.episode_ends}
                assert done.chunk_over
            assert (lock_steps, env_steps) == (max(ended.values()), sum(ended.values()))
            lengths |= ended
            if len({length // 4 for length in ended.values()}) == 3:
                break
        else:
            raise AssertionError(f"no episodes of different lengths: {lengths}")


# Several generators.


def test_every_generator_announces_itself(shared_engine: LocalEngine) -> None:
    events = begin(shared_engine)
    ready = [event for event in events if isinstance(event, e.GeneratorReady)]
    held = PolicyVersion(shared_engine._version)
    assert ready[0].policy_version <= held
    assert [event.generator for event in ready] == [0, 1]


def test_who_generates_makes_no_difference_to_what_is_generated(engine: LocalEngine) -> None:
    for generator in (0, 1):
        engine.execute(publish(engine._version, generator=generator))
        hear(engine, e.WeightsLive)
    engine.execute(reset(0, envs=tuple(range(WIDTH))))
    hear(engine, e.ResetDone)
    actions = []
    for generator in (0, 1):
        engine.execute(generate((0, generator, 1), generator=generator))
        assert hear(engine, e.ChunksReady).generator == generator
        actions.append(memory(engine, "slabs")["actions"][:WIDTH].copy())
    assert np.array_equal(actions[0], actions[1])
    store = memory(engine, "store")
    generated = [name for name in store if name.startswith("record/") or name in ("log_prob", "mean", "value")]
    for name in generated:
        assert np.array_equal(store[name][:WIDTH, 1], store[name][WIDTH : 2 * WIDTH, 1]), name


def test_generators_work_at_the_same_time_and_each_answers_for_its_own_shards(engine: LocalEngine) -> None:
    os.kill(pid_of(engine, "generator", 0), signal.SIGSTOP)
    try:
        engine.execute(generate((0, 0, 0), generator=0))
        engine.execute(generate((1, 1, 0), generator=1))
        done = hear(engine, e.ChunksReady)
        assert (done.generator, done.shards) == (1, (1,))
    finally:
        os.kill(pid_of(engine, "generator", 0), signal.SIGCONT)
    done = hear(engine, e.ChunksReady)
    assert (done.generator, done.shards) == (0, (0,))


def test_weights_go_to_the_generator_that_is_named(engine: LocalEngine) -> None:
    engine.execute(reset(0, envs=tuple(range(WIDTH))))
    hear(engine, e.ResetDone)
    for generator in (0, 1):
        engine.execute(publish(engine._version, generator=generator))
        hear(engine, e.WeightsLive)
    trajectory(engine, 0)
    before = engine._version
    engine.execute(train(before, 0))
    hear(engine, e.UpdateDone)
    engine.execute(publish(before + 1, generator=1))
    live = hear(engine, e.WeightsLive)
    assert (live.generator, live.policy_version) == (1, before + 1)
    versions = []
    for generator in (0, 1):
        engine.execute(generate((0, 0, 0), generator=generator))
        versions.append(hear(engine, e.ChunksReady).policy_version)
    assert versions == [before, before + 1]
    ready = [event.policy_version for event in begin(engine) if isinstance(event, e.GeneratorReady)]
    assert ready == versions


def test_a_killed_generator_is_named_and_the_other_goes_on(engine: LocalEngine) -> None:
    engine.execute(reset(0, envs=tuple(range(WIDTH))))
    hear(engine, e.ResetDone)
    kill(engine, "generator", 1)
    lost = hear(engine, e.GeneratorLost)
    assert (lost.generator, lost.epoch, lost.reason) == (1, 0, "died")
    assert "generator 1 ended: killed by SIGKILL" in lost.detail
    engine.execute(generate((0, 0, 0), generator=0))
    assert hear(engine, e.ChunksReady).generator == 0
    engine.execute(c.StartGenerator(generator=GeneratorId(1), epoch=Epoch(1)))
    ready = hear(engine, e.GeneratorReady)
    assert (ready.generator, ready.epoch) == (1, 1)
    engine.execute(generate((0, 0, 0), generator=1))
    assert hear(engine, e.ChunksReady).epoch == 1
    logs = {path.name for path in (engine.setup.run_dir / "logs").iterdir()}
    assert {"generator-0.log", "generator-1.log", "env-worker-0.log", "learner.log"} <= logs


# Several CPUs.


def variables_of(pid: int) -> set[bytes]:
    return set(Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"))


@pytest.mark.skipif(len(usable_cpus()) < 2, reason="wants two CPUs")
def test_an_env_worker_has_all_cpus_that_it_is_granted_and_threads_for_them(tmp_path: Path) -> None:
    both = usable_cpus()[:2]
    with started(make_setup(tmp_path, num_shards=1, cpus_per_shard=2)) as engine:
        begin(engine)
        engine.execute(c.ResetEnv(shard=ShardId(0), starts=(c.EpisodeStart(0, EpisodeId(0)),), cpus=both))
        hear(engine, e.ResetDone)
        pid = pid_of(engine, "env")
        threads = [int(name) for name in os.listdir(f"/proc/{pid}/task")]
        assert [os.sched_getaffinity(thread) for thread in threads] == [set(both)] * len(threads)
        assert {b"OMP_NUM_THREADS=2", b"LP_NUM_THREADS=2"} <= variables_of(pid)
        engine.execute(step())  # these go to one of them
        hear(engine, e.StepsDone)
        assert os.sched_getaffinity(pid) == {both[0]}


def test_an_env_worker_that_nobody_listened_to_is_not_late(tmp_path: Path) -> None:
    """It has said that it is built while learner and generators started, which may take longer than its own start."""
    with started(make_setup(tmp_path, num_shards=2)) as engine:
        engine.fleet.processes[Key("env", 1)].deadline = 0.0
        heard = begin(engine)
        assert not [event for event in heard if isinstance(event, e.EnvWorkerLost)]


def test_an_env_worker_of_one_cpu_has_no_thread_beside_its_own_not_even_to_draw(tmp_path: Path) -> None:
    """A thread that draws while the other waits is a second process to the kernel: not bound, it wakes up beside
    another worker's while a CPU is idle."""
    with started(make_setup(tmp_path, num_shards=1)) as engine:
        begin(engine)
        assert {b"OMP_NUM_THREADS=1", b"LP_NUM_THREADS=0"} <= variables_of(pid_of(engine, "env"))


def test_an_env_worker_is_bound_before_it_wakes_up(tmp_path: Path) -> None:
    """Else it would first wait for the CPU that it had last, whoever has that one by now."""
    with started(make_setup(tmp_path)) as engine:
        begin(engine)
        pid = pid_of(engine, "env")
        os.kill(pid, signal.SIGSTOP)
        try:
            engine.execute(reset())
            assert os.sched_getaffinity(pid) == {CPU}
        finally:
            os.kill(pid, signal.SIGCONT)
        hear(engine, e.ResetDone)


def test_without_binding_an_env_worker_runs_anywhere(tmp_path: Path) -> None:
    with started(make_setup(tmp_path, bind_cpus=False)) as engine:
        begin(engine)
        pid = pid_of(engine, "env")
        before = os.sched_getaffinity(pid)
        engine.execute(reset())
        hear(engine, e.ResetDone)
        assert os.sched_getaffinity(pid) == before == os.sched_getaffinity(0)


# Whole runs.


def run_of(setup: LocalSetup, hook: Any = lambda drill, event, commands: None, **plan: Any) -> Drill:
    """A run to its end."""
    with started(setup) as engine:
        drill = Drill(Scheduler(make_plan(setup, **plan)), engine, hook)
        stop = drill.run()
        assert not stop.failed, stop
        drill.assert_balanced()
    return drill


def test_a_run_with_four_environments_in_each_worker(tmp_path: Path) -> None:
    drill = run_of(make_setup(tmp_path, envs_per_shard=WIDTH), max_updates=5)
    assert drill.versions == [1, 2, 3, 4, 5]
    steps = drill.all(e.StepsDone)
    assert drill.scheduler.counters.env_steps == sum(event.env_steps for event in steps)
    assert {end.env for event in steps for end in event.episode_ends} <= set(range(WIDTH))
    assert drill.scheduler.gate.ledger.trained == 5 * 2 * WIDTH
    started_ids = [s.episode for x in drill.commands if isinstance(x, c.ResetEnv) for s in x.starts]
    assert len(started_ids) == len(set(started_ids)) >= 2 * WIDTH


def test_a_run_goes_on_without_one_of_its_generators_and_then_with_it_again(tmp_path: Path) -> None:
    killed: list[bool] = []

    def hook(drill: Drill, event: e.Event, commands: list[c.Command]) -> None:
        if isinstance(event, e.UpdateDone) and event.policy_version == 2 and not killed:
            os.kill(pid_of(drill.engine, "generator", 1), signal.SIGKILL)
            killed.append(True)
        if isinstance(event, e.ChunksReady) and event.generator == 1 and event.epoch == 1:
            drill.engine.request_stop("it is back")

    setup = make_setup(tmp_path, num_shards=4, num_slots=8, num_generators=2)
    drill = run_of(setup, hook, max_generation_batch=1)
    lost, back = (
        next(n for n, (_, event) in enumerate(drill.events) if isinstance(event, kind) and event.epoch == epoch)
        for kind, epoch in ((e.GeneratorLost, 0), (e.GeneratorReady, 1))
    )
    alone = [event.generator for _, event in drill.events[lost:back] if isinstance(event, e.ChunksReady)]
    assert set(alone) == {0}
    assert drill.scheduler.counters.restarts == {"generator": 1}
    assert {event.generator for event in drill.all(e.ChunksReady)} == {0, 1}


def test_the_learner_alone_may_multiply_faster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A generator's batches are small, and its first one of each size would wait."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)
    monkeypatch.setenv("EBRL_TEST_PRECISION", str(tmp_path))
    usual = torch.get_float32_matmul_precision()
    try:
        may = use_fast_products()
    finally:
        torch.set_float32_matmul_precision(usual)
    plugins = {"policy": "telling_plugins:Policy", "algorithm": "telling_plugins:Algorithm", "algorithm_config": {}}
    run_of(make_setup(tmp_path, **plugins), max_updates=1)
    told = {who: (tmp_path / who).read_text() for who in ("generator", "learner")}
    assert told == {"generator": "highest", "learner": "medium" if may else "highest"}


def test_siblings_start_from_the_same_state_and_train_whole_episodes_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)
    (tmp_path / "batches").mkdir()
    setup = make_setup(
        tmp_path,
        num_shards=3,
        num_slots=16,
        whole_episodes=True,
        env_config={"max_episode_steps": 14, "radius": 0.4, "speed": 0.3},
        algorithm="recording_algorithm:Records",
        algorithm_config={"directory": str(tmp_path / "batches")},
    )
    drill = run_of(setup, siblings=4, max_updates=3)
    groups: list[int] = []
    for version in range(3):
        with np.load(tmp_path / "batches" / f"{version}.npz") as file:
            batch = dict(file)
        executed = batch["num_executed"]
        assert executed.shape == (8, 4)  # room for 14 env steps
        num_chunks = (executed > 0).sum(axis=1)
        for row in range(8):
            ends = (batch["terminated"] | batch["truncated"])[row]
            assert ends.tolist() == [chunk == num_chunks[row] - 1 for chunk in range(4)], "one episode, to its end"
            assert (executed[row, : num_chunks[row]] > 0).all()
            assert len(set(batch["episode"][row, : num_chunks[row]])) == 1
        members = batch["episode"][:, 0]
        assert sorted(np.unique(members, return_counts=True)[1]) == [4, 4]
        for episode in np.unique(members):
            start = first_state(setup, int(episode))
            assert all(np.array_equal(state, start) for state in batch["state"][members == episode, 0])
            groups.append(int(episode))
    assert len(groups) == len(set(groups)) == 6
    assert drill.scheduler.episodes_begun >= 6


@pytest.mark.parametrize(
    ("width", "quantum", "image_size", "changes"),
    [
        (1, 0, 0, {}),
        (3, 1, 0, {}),
        (3, 0, 0, {"run_to_horizon": True}),
        (1, 3, 0, {"whole_episodes": True}),
        (2, 0, 8, {}),
    ],
    ids=["one", "steps", "horizon", "episodes", "images"],
)
def test_where_an_episode_goes_on_a_chunk_begins_as_the_one_before_it_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, width: int, quantum: int, image_size: int, changes: dict[str, Any]
) -> None:
    """So PPO may take the value of the one for that of the other."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)
    (tmp_path / "batches").mkdir()
    options = {"max_episode_steps": 14, "radius": 0.4, "speed": 0.3, "image_size": image_size}
    setup = make_setup(
        tmp_path,
        num_shards=3,
        num_slots=8,
        trajectory_chunks=5,
        envs_per_shard=width,
        env_config=options,
        algorithm="recording_algorithm:Records",
        algorithm_config={"directory": str(tmp_path / "batches")},
        **changes,
    )
    run_of(setup, max_updates=4, quantum=quantum)
    went_on = ended = 0
    for version in range(4):
        with np.load(tmp_path / "batches" / f"{version}.npz") as file:
            batch = dict(file)
        executed, over = batch["num_executed"] > 0, batch["terminated"] | batch["truncated"]
        goes_on = executed[:, :-1] & ~over[:, :-1] & executed[:, 1:]
        went_on, ended = went_on + int(goes_on.sum()), ended + int((executed & over).sum())
        names = [name for name in batch if name.startswith("final_")]
        assert len(names) >= 2
        for name in names:
            assert np.array_equal(batch[name][:, :-1][goes_on], batch[name.removeprefix("final_")][:, 1:][goes_on])
    assert went_on
    assert ended


def test_a_sibling_whose_env_worker_dies_is_played_again(tmp_path: Path) -> None:
    killed: list[bool] = []

    def hook(drill: Drill, event: e.Event, commands: list[c.Command]) -> None:
        if not killed and any(isinstance(x, c.StepEnv) and x.shard == 1 and x.chunk == 1 for x in commands):
            os.kill(pid_of(drill.engine, "env", 1), signal.SIGKILL)
            killed.append(True)

    config = {"max_episode_steps": 12, "terminate_on_success": False}
    setup = make_setup(tmp_path, num_shards=3, num_slots=8, whole_episodes=True, env_config=config)
    drill = run_of(setup, hook, siblings=4, max_updates=3)
    assert drill.versions == [1, 2, 3]
    assert drill.scheduler.counters.siblings_replaced == 1
    assert drill.scheduler.gate.ledger.dropped == {"died": 1}


@pytest.mark.skipif(len(usable_cpus()) < 2, reason="wants two CPUs")
def test_a_run_whose_env_workers_have_two_cpus_each(tmp_path: Path) -> None:
    both = usable_cpus()[:2]
    drill = run_of(make_setup(tmp_path, cpus_per_shard=2), nodes=(both,), max_updates=2)
    granted = {x.cpus for x in drill.commands if isinstance(x, c.StepEnv | c.ResetEnv)}
    assert granted == {both}
    assert drill.scheduler.plan.num_cpu_sets == 1
