"""Forecasts of emulated cells, against numbers that can be worked out by hand."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drills import MLP, PPO
from ebrl.bench import modes_costs
from ebrl.bench.modes_costs import (
    EnvCosts,
    HostCosts,
    InCompany,
    Parts,
    kind_of,
    kinds_of,
    measure_costs,
    parts_of,
    sleeps_of,
)
from ebrl.bench.modes_forecast import CellCosts, device_of, forecast, forecast_of_emulation
from ebrl.bench.modes_local import Foretold, rate, summary
from ebrl.bench.modes_settings import (
    LocalConfiguration,
    chosen,
    config_of,
    configurations,
    episodes_of,
    playable,
    shortened,
)
from ebrl.config.load import make_config
from ebrl.config.modes import BASELINES, NAMES, laid_over
from ebrl.errors import UsageError
from ebrl.ids import ShardId
from ebrl.plan.workloads import load_workload, read_document, read_workload
from ebrl.resources.profile import ControlProfile, Work
from ebrl.resources.uses import Habits, with_habits
from ebrl.resources.workload import Workload
from ebrl.runtime.management import run_plan

NOTHING = ControlProfile(event_s=(), command_s=0.0, latency_s=0.0)
HOST = HostCosts(
    env=EnvCosts(
        grant_cpu_s=0.001,
        step_cpu_s=0.0001,
        frame_cpu_s=0.0005,
        step_late_s=0.0002,
        frame_late_s=0.0004,
        resets=(0.003,),
        lengths=(8,),
        max_episode_steps=8,
    ),
    batch_cpu_s=0.002,
    chunk_cpu_s=0.0001,
    adopt_cpu_s=0.004,
    update_cpu_s=0.01,
    greedy=InCompany(simulation=2.0, control=NOTHING),
    lock_step=InCompany(control=NOTHING),
    tick_s=0.004,
)
DIAL = {
    "step_s": 0.01,
    "observe_s": 0.02,
    "reset_s": 0.03,
    "min_episode_steps": 8,
    "max_episode_steps": 8,
}
SECONDS = st.floats(0.0, 0.1)


def tiny(*, num_envs: int, speed: float = 1.0, **dial: Any) -> LocalConfiguration:
    """Chunks of four env steps."""
    document: dict[str, Any] = {
        "env": {"name": "toy/dial-v1", "config": DIAL | dial},
        "policy": {"name": "mlp", "chunk_len": 4, "config": MLP},
        "algorithm": {"config": PPO},
        "simulation": {"num_envs": num_envs},
        "generation": {"device": "emulated"},
        "training": {"device": "emulated", "batch_trajectories": num_envs, "trajectory": "episode"},
        "emulation": {"workload": "openpi-libero", "machine": "4xa100", "gpus": 2, "cpus": 6, "speed": speed},
        "checkpoint": {"every_updates": 0},
    }
    return LocalConfiguration(name="tiny", about="for tests", document=document)


def test_a_lone_environment_takes_the_sum_of_everything() -> None:
    """Whole GPUs, slack 0, a barrier, every frame: nothing overlaps, so a round is a sum."""
    config = config_of(tiny(num_envs=1), "disaggregated")
    plan, device = run_plan(config), device_of(config)
    steps_s = 8 * (0.01 + 0.02)
    device_s = 2 * (device.batch_s + device.chunk_s) + device.update_s
    ideal_s = 0.03 + steps_s + device_s
    assert forecast_of_emulation(config, plan, HOST, warm_up=1, seeds=2) == pytest.approx(1 / ideal_s)
    # A grant for each env step; the work of generator and learner hides in the device's time.
    late_s = 8 * (0.001 + 0.0001 + 0.0005 + 0.0002 + 0.0004)
    round_s = ideal_s + late_s + 0.003 + 0.004
    assert forecast(config, plan, HOST, warm_up=1, seeds=2) == pytest.approx(1 / round_s)


def test_without_a_barrier_a_chunk_is_one_grant_with_one_frame() -> None:
    config = config_of(tiny(num_envs=1), "ebrl")
    config = make_config(laid_over(config.model_dump(), {"training": {"slack": 0}}))
    plan, device = run_plan(config), device_of(config)
    chunk_s = 4 * 0.01 + 0.02 + 2.0 * (0.001 + 4 * 0.0001 + 0.0005) + 4 * 0.0002 + 0.0004
    rest_s = 0.03 + 2.0 * 0.003 + 0.004 + device.update_s
    round_s = 2 * (chunk_s + device.batch_s + device.chunk_s) + rest_s
    assert forecast(config, plan, HOST, warm_up=1, seeds=1) == pytest.approx(1 / round_s)


def test_work_that_is_slower_than_the_device_is_what_counts() -> None:
    config = config_of(tiny(num_envs=1), "disaggregated")
    device = device_of(config)
    slow = replace(HOST, batch_cpu_s=device.batch_s + device.chunk_s + 1.0, update_cpu_s=device.update_s + 1.0)
    plan = run_plan(config)
    rates = [forecast(config, plan, host, warm_up=1, seeds=1) for host in (HOST, slow)]
    assert 1 / rates[1] - 1 / rates[0] == pytest.approx(2 * (1.0 + HOST.chunk_cpu_s) + 1.0)


@pytest.mark.parametrize("mode", NAMES)
def test_every_mode_of_an_emulated_configuration_has_a_forecast(tmp_path: Path, mode: Any) -> None:
    first = configurations()[0].with_file(tmp_path)
    short = {"env": {"config": {"min_episode_steps": 20, "max_episode_steps": 30}}, "training": {"max_updates": 3}}
    one = replace(first, document=laid_over(first.document, short))
    config = config_of(one, mode)
    plan = run_plan(config)
    host = replace(HOST, env=replace(HOST.env, max_episode_steps=30))
    ideal = forecast_of_emulation(config, plan, host, warm_up=1, seeds=1)
    real = forecast(config, plan, host, warm_up=1, seeds=1)
    assert 0 < real <= 1.05 * ideal  # work costs time; only draws differ otherwise


def test_a_simulator_that_works_is_played_from_its_tapes() -> None:
    working = make_config(tiny(num_envs=2).document | {"env": {"name": "toy/reach-v1"}})
    assert sleeps_of(working) is None
    env = replace(HOST.env, factors=((0.5, 1.5),), step_late_s=0.0, frame_late_s=0.0)
    costs = CellCosts(working, device_of(working), replace(HOST, env=env), step_barrier=True)
    rng = random.Random(0)
    [first, second] = (costs.steps(ShardId(0), 0, 1, rng) for _ in range(2))
    assert first.other_s == second.other_s == 0.0
    assert sorted(one.cpu_s - 0.001 for one in (first, second)) == pytest.approx([0.00005, 0.00015])
    assert costs.steps(ShardId(0), 0, 4, rng) == pytest.approx(Work(0.001 + 0.0004 + 0.0005, 0.0))
    assert costs.episode(rng, 0)[0] == 8


@given(SECONDS, SECONDS, SECONDS, st.integers(2, 16))
def test_grants_are_taken_apart(grant_s: float, step_s: float, frame_s: float, chunk_len: int) -> None:
    single = grant_s + step_s
    found = parts_of(single, single + frame_s, grant_s + chunk_len * step_s + frame_s, chunk_len)
    assert found.grant_s == pytest.approx(grant_s, abs=1e-12)
    assert found.step_s == pytest.approx(step_s, abs=1e-12)
    assert found.frame_s == pytest.approx(frame_s, abs=1e-12)


def test_parts_of_a_grant_are_never_below_nothing() -> None:
    assert parts_of(0.002, 0.001, 0.0005, 4) == Parts(0.002, 0.0, 0.0)


def test_a_document_says_what_was_foretold_and_what_was_measured() -> None:
    one = tiny(num_envs=2)
    cells = [(one.name, mode) for mode in NAMES]
    rates = {cell: [1.0, 1.1, 0.9] for cell in cells}
    rates["tiny", "ebrl"], rates["tiny", "async"] = [3.0, 3.3, 2.7], []
    told = {cell: 1.05 for cell in cells if cell[1] != "async"}
    told["tiny", "ebrl"] = 2.4
    foretold = Foretold(
        rates=told,
        emulated=dict(told),
        impossible={("tiny", "async"): "too few GPUs"},
        costs={"tiny": {"ebrl": HOST}},
        took_s=9.0,
    )
    document = summary([one], rates, foretold)
    json.dumps(document)
    rows = {row["mode"]: row for row in document["rows"]}
    assert set(rows) == set(NAMES)
    assert rows["async"]["impossible"] == "too few GPUs"
    assert "forecast" not in rows["async"]
    for mode in set(NAMES) - {"async"}:
        row = rows[mode]
        assert row["forecast_error"] == pytest.approx(row["forecast"] / median(row["trajectories_per_s"]) - 1)
    assert document["max_abs_forecast_error"] == pytest.approx(0.2)
    [ratio] = document["ratios"]
    assert ratio["best"] in BASELINES
    assert ratio["ebrl_over_best"] == pytest.approx(3.0)
    assert ratio["ebrl_over_best_forecast"] == pytest.approx(2.4 / 1.05)
    assert document["met"] == {"geomean_over_best": True, "geomean_over_best_low": True, "forecast": False}
    assert set(document["met"]) == set(document["targets"])
    assert document["forecast_took_s"] == 9.0
    assert document["forecast_costs"]["tiny"]["ebrl"]["env"]["lengths"] == 8


def test_shorter_episodes_keep_every_proportion_but_their_last_chunk(tmp_path: Path) -> None:
    whole = load_workload("openpi-robocasa")
    short = shortened(whole, 5)
    unexecuted = (1 - 1 / whole.chunk_len) / 2  # of an episode's last chunk, however long the episode
    for habits in (Habits(), Habits(observe_every_step=True, run_to_horizon=True)):
        long, brief = with_habits(whole, habits), with_habits(short, habits)
        cut = 0.0 if habits.run_to_horizon else unexecuted
        assert brief.trajectory_chunks - cut == pytest.approx((long.trajectory_chunks - cut) / 5)
        assert brief.trained_chunks - unexecuted == pytest.approx((long.trained_chunks - unexecuted) / 5)
        per_episode = [one.simulation.chunk_s * one.trajectory_chunks for one in (long, brief)]
        assert per_episode[1] == pytest.approx(per_episode[0] / 5)
    assert short.hand_over_s == pytest.approx(whole.hand_over_s / 5)
    assert short.generation == whole.generation
    one = configurations()[0]
    assert one.emulated["workload"] == "openpi-robocasa with episodes 5 times shorter"
    path = one.with_file(tmp_path).document["emulation"]["workload"]
    assert read_workload(read_document(Path(path)), Path(path)) == one.workload


@pytest.mark.parametrize("one", configurations(), ids=lambda one: one.name)
def test_segments_are_as_long_as_an_episode_of_their_mode(one: LocalConfiguration, tmp_path: Path) -> None:
    given_one = one.with_file(tmp_path)
    simulation = workload_of(given_one).simulation
    horizon = -(-simulation.horizon_steps // given_one.document["policy"]["chunk_len"])
    for mode in NAMES:
        config = config_of(given_one, mode)
        assert config.training.trajectory == "segment"
        chunks, episodes = config.training.trajectory_chunks, episodes_of(given_one, mode)
        if mode != "ebrl" or simulation.episode_steps == simulation.horizon_steps:
            assert (chunks, episodes) == (horizon, 1.0)
        else:
            mean = chunks / episodes
            assert mean < horizon
            assert chunks == round(mean)
    assert episodes_of(tiny(num_envs=1), "ebrl") == 1.0  # whose trajectories are episodes


def workload_of(one: LocalConfiguration) -> Workload:
    """What its runs read."""
    path = Path(one.document["emulation"]["workload"])
    return read_workload(read_document(path), path)


def test_baselines_are_like_async_where_frames_are_real() -> None:
    sleeping, real = (kinds_of(make_config(configurations()[index].document)) for index in (0, 2))
    assert {kind_of(mode, sleeping) for mode in NAMES} == {"ebrl"}
    assert {mode: kind_of(mode, real) for mode in ("ebrl", "paper", "hybrid")} == {
        "ebrl": "ebrl",
        "paper": "paper",
        "hybrid": "async",
    }


def test_configurations_are_asked_for_by_name() -> None:
    assert [one.name for one in chosen(quick=False, names=["metaworld-state"])] == ["metaworld-state"]
    with pytest.raises(UsageError, match="did you mean 'metaworld-state'"):
        chosen(quick=False, names=["metaworld-stat"])


def test_a_quick_look_is_at_a_small_machine_that_can_run_every_mode(tmp_path: Path) -> None:
    [small] = chosen(quick=True)
    one = small.with_file(tmp_path)
    plans = [run_plan(config_of(one, mode)) for mode in NAMES]
    assert {plan.num_shards * plan.envs_per_shard for plan in plans} == {10}
    assert "a quarter of it" in one.about


def test_a_simulator_that_is_not_installed_is_left_out_unless_it_was_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "nothing is installed here"))
    libero = next(one for one in configurations() if one.name == "libero-camera").with_file(tmp_path)
    here = tiny(num_envs=2)
    said: list[str] = []
    found, left_out = playable([here, libero], named=False, say=said.append)
    assert found == (here,)
    assert list(left_out) == ["libero-camera"]
    assert "ebrl install libero" in left_out["libero-camera"]
    assert said == [f"libero-camera is left out: {left_out['libero-camera']}"]
    with pytest.raises(UsageError, match="ebrl install libero"):
        playable([here, libero], named=True)


def test_a_real_cell_is_foretold_and_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(modes_costs, "ALONE_S", 0.2)
    monkeypatch.setattr(modes_costs, "TOGETHER_S", 0.3)
    one = tiny(num_envs=2, speed=50.0, step_s=0.001, observe_s=0.001, reset_s=0.001, min_episode_steps=6)
    costs = measure_costs(one.document)
    assert costs.env.step_cpu_s >= 0
    assert costs.env.grant_cpu_s > 0
    assert costs.update_cpu_s > 0
    assert 6 <= min(costs.env.lengths) <= max(costs.env.lengths) <= 8
    kinds = {kind for kind, _ in costs.greedy.control.event_s}
    assert {"StepsDone", "ChunksReady", "ResetDone"} <= kinds
    config = config_of(one, "ebrl")
    assert forecast(config, run_plan(config), costs, warm_up=2, seeds=1) > 0
    assert rate(config) > 0
    assert config.training.max_updates == 2 + 4 * one.updates
