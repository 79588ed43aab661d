"""Real processes of a small run, measured for a moment."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from statistics import fmean, median

import pytest

from ebrl.config.load import make_config, to_toml
from ebrl.errors import UsageError
from ebrl.host.meters import usage, watch_others
from ebrl.profiling.measure import take_profile, threads_to_try
from ebrl.profiling.workload import workload_of
from ebrl.resources.allocation import Allocation, Shape, predict
from ebrl.resources.profile import Profile, generation_cost
from ebrl.resources.workload import Workload
from ebrl.runtime.forecast import forecast

CONFIG = make_config(
    {
        "run": {"name": "small"},
        "env": {
            "name": "toy/dial-v1",
            "config": {"step_s": 0.002, "busy": False, "min_episode_steps": 6, "max_episode_steps": 10},
        },
        "policy": {"name": "mlp", "chunk_len": 4},
        "algorithm": {"config": {"epochs": 1}},
        "simulation": {"num_envs": 2},
        "training": {"batch_trajectories": 4, "trajectory_chunks": 4},
    }
)


def test_a_run_is_profiled_and_forecast_from_the_command_line(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(to_toml(CONFIG))
    command = [sys.executable, "-m", "ebrl", "forecast", "run.toml", "--seconds", "2", "--updates", "5", "--json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["updates"] == 5
    profile = Profile.from_json(json.loads(Path(tmp_path / document["profile"]).read_text()))
    assert profile.simulation.env_step_s.mean == pytest.approx(0.002, rel=0.7)
    grants = [grant for tape in profile.simulation.tapes for grant in tape]
    asleep = median(grant.other_s / grant.num_steps for grant in grants)
    assert asleep == pytest.approx(0.002, rel=0.5)  # the dial sleeps
    assert all(6 <= episode.num_steps <= 10 for episode in profile.simulation.episodes if episode.finished)
    assert generation_cost(profile.generation, 2).cpu_s > 0
    assert len(profile.training.updates) >= 2
    assert {row.num_chunks for row in profile.training.by_threads} == {4, 16}  # the minibatch, and a quarter of it
    threads = set(threads_to_try(1, "cpu"))
    assert {1} <= {row.threads for row in profile.training.by_threads} <= threads
    assert {row.num_chunks for row in profile.generation.by_threads if row.threads == 1} == {1, 2}
    assert all(row.seconds > 0 for row in (*profile.training.by_threads, *profile.generation.by_threads))
    assert profile.simulation.own_bytes > 2**20
    assert min(profile.generation.memory.fixed_bytes, profile.training.memory.fixed_bytes) > 2**24
    assert (profile.training.epochs, profile.training.micro_batch) == (1, 16)
    costs = dict(profile.cost_s)
    assert next(iter(costs)) == "starting processes"
    assert sum(costs.values()) == pytest.approx(profile.taken_s, rel=0.2)
    assert set(profile.stopped_early) <= set(costs)
    _check_workload(profile)
    assert 0.001 < profile.tick_s < 0.02
    assert {"StepsDone", "ChunksReady"} <= {kind for kind, _ in profile.control.event_s}
    again = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert json.loads(again.stdout)["trajectories_per_s"] == document["trajectories_per_s"]  # the profile was kept


def _check_workload(profile: Profile) -> None:
    """An update of the run's own kind is predicted as it was measured."""
    workload = workload_of(profile, CONFIG)
    measured_s = fmean(work.cpu_s + work.other_s for work in profile.training.updates)
    allocation = Allocation(
        cpu_sharing="none",
        gpu_sharing="none",
        simulation_cpus=1,
        generation_cpus=1,
        training_cpus=1,
        num_generators=1,
        num_learners=1,
        generation_units=0,
        training_units=0,
        min_batch=1,
        max_batch=2,
        micro_batch=16,
    )
    predicted = predict(workload, Shape(num_nodes=1, num_cpus=3, memory_bytes=2**34), allocation)
    assert predicted.update_s == pytest.approx(measured_s + sum(profile.generation.adopt), rel=0.15)
    assert workload.simulation.chunk_s == pytest.approx(4 * 0.002, rel=0.7)
    assert Workload.from_json(json.loads(json.dumps(workload.to_json()))) == workload


LATE_RISER = """
import time
from ebrl.envs.toy import Dial

class LateRiser(Dial):
    awake = False

    def reset(self, seed):
        end = time.thread_time() + (0.0 if self.awake else 0.2)
        while time.thread_time() < end:
            pass
        self.awake = True
        return super().reset(seed)
"""


def test_the_first_reset_of_an_environment_belongs_to_its_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Renderers and compiled scenes are made there; LIBERO's first takes 1.5 s and each later one 0.11 s."""
    (tmp_path / "riser.py").write_text(LATE_RISER)
    monkeypatch.chdir(tmp_path)
    profile = take_profile(make_config(CONFIG.model_dump() | {"env": {"name": "riser:LateRiser"}}), seconds=1.0)
    assert len(profile.simulation.resets) >= 2
    assert max(work.cpu_s for work in profile.simulation.resets) < 0.1
    assert dict(profile.cost_s)["starting processes"] > 0.4


def test_a_profile_of_wide_env_workers_and_two_generators_is_of_single_environments() -> None:
    document = CONFIG.model_dump()
    document["env"]["config"] |= {"reset_s": 0.006}
    document["simulation"] |= {"num_envs": 6, "envs_per_worker": 3}
    document["training"] |= {"batch_trajectories": 6}
    document["generation"] |= {"num_generators": 2}
    config = make_config(document)
    shown: list[tuple[float, float]] = []
    profile = take_profile(config, seconds=2.0, progress=lambda done, total, facts: shown.append((done, total)))
    assert all(0 <= done <= total for done, total in shown)
    simulation = profile.simulation
    assert simulation.env_step_s.mean == pytest.approx(0.002, rel=0.7)
    asleep = median(grant.other_s / grant.num_steps for tape in simulation.tapes for grant in tape)
    assert asleep == pytest.approx(0.002, rel=0.5)
    assert median(work.other_s for work in simulation.resets) == pytest.approx(0.006, rel=0.5)
    assert all(6 <= episode.num_steps <= 10 for episode in simulation.episodes if episode.finished)
    assert [row.num_chunks for row in profile.generation.table] == [3, 6]
    foretold = forecast(config, profile, updates=5)
    assert foretold["trajectories_per_s"] > 0
    narrow = make_config(document | {"simulation": {"num_envs": 6}})
    with pytest.raises(UsageError, match=r"profile was taken with simulation = {'envs_per_worker': 3.*profile again"):
        forecast(narrow, profile, updates=5)


def test_the_kernel_counts_what_a_process_uses() -> None:
    before = usage(os.getpid())
    end = time.thread_time() + 0.05
    while time.thread_time() < end:
        pass
    time.sleep(0.02)
    assert usage(os.getpid()).since(before).run_s == pytest.approx(0.05, abs=0.03)


def test_other_programs_are_seen() -> None:
    hog = subprocess.Popen([sys.executable, "-c", "while True: pass"], start_new_session=True)
    try:
        with watch_others(os.getpid(), every_s=0.02) as family:
            time.sleep(0.5)
        with watch_others(1, every_s=0.02) as others:
            time.sleep(0.5)
    finally:
        hog.kill()
        hog.wait()
    assert others.tasks >= 0.5
    assert len(family.looks) >= 5
