"""Learning curves of modes: arithmetic by hand, and one real run, small. No verdict on speed."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drills import MLP, PPO
from ebrl.bench import convergence, convergence_settings
from ebrl.bench.convergence_figures import band, crossing, difference_interval, interpolated, sooner, spaced
from ebrl.bench.convergence_runs import Evaluator, Learned, Reached, Stretch, Watch, learn
from ebrl.bench.convergence_settings import Settings, Variant
from ebrl.cli.bench_convergence import convergence as command
from ebrl.cli.bench_convergence import convergence_text
from ebrl.config.modes import Mode
from ebrl.config.schema import RunConfig
from ebrl.engines.local.setup import EmulatedTimes
from ebrl.errors import RunError, UsageError
from ebrl.ids import Epoch, GeneratorId, PolicyVersion, ShardId
from ebrl.registry import load, make_config
from ebrl.runtime.display import Silent
from ebrl.runtime.management import run_plan
from ebrl.runtime.pretrain import pretrain
from ebrl.scheduling import events as e
from ebrl.scheduling.scheduler import Scheduler

SUCCESS = st.floats(0.0, 1.0)
CURVES = st.lists(st.tuples(st.floats(0.1, 50.0), SUCCESS), min_size=1, max_size=8).map(
    lambda pairs: (list(itertools.accumulate(step for step, _ in pairs)), [value for _, value in pairs])
)
TIMES = st.lists(st.floats(1.0, 100.0), min_size=1, max_size=6)

SMALL = Settings(
    name="small",
    document={
        "env": {"name": "toy/reach-v1", "config": {"max_episode_steps": 24}},
        "policy": {"name": "mlp", "chunk_len": 4, "config": MLP},
        "algorithm": {"config": PPO},
        "simulation": {"num_envs": 4},
        "generation": {"device": "emulated"},
        "training": {"device": "emulated", "batch_trajectories": 4, "trajectory_chunks": 4},
        "emulation": {"workload": "openpi-libero", "machine": "4xa100", "gpus": 2, "speed": 400.0},
    },
    pretrain={"num_demos": 1, "updates": 2, "seed": 1},
    horizon_chunks=6,
    num_cpus=2,
    max_env_steps=300,
    every_env_steps=60,
    checkpoint_every_updates=1,
    episodes=4,
    final_episodes=8,
)


def run_of(directory: Path, one: Variant, own: Settings = SMALL) -> RunConfig:
    """The configuration of one run, with a workload file as the bench writes it."""
    path = directory / "openpi-libero.json"
    path.write_text(json.dumps(convergence_settings.emulated_workload(own).to_json()))
    return convergence_settings.config_of(own, one, 3, workload=path)


def row(name: str, seed: int, *, at_s: list[float], success: list[float], **changes: Any) -> dict[str, Any]:
    """A finished run that simulated ten env steps a second."""
    mode, _, slack = name.partition(", slack ")
    at_env_steps = [10 * round(at) for at in at_s]
    values: dict[str, Any] = {
        "name": name,
        "mode": mode,
        "slack": int(slack) if slack else convergence_settings.own_slack(mode),  # type: ignore[arg-type]
        "seed": seed,
        "seconds_to_90": crossing(at_s, success, 0.9),
        "env_steps_to_90": crossing(at_env_steps, success, 0.9),
        "final_success": success[-1],
        "success": success,
        "at_s": at_s,
        "at_env_steps": at_env_steps,
        "updates": 5,
        "seconds": at_s[-1],
        "env_steps": at_env_steps[-1],
        "staleness_mean": 0.5,
        "staleness_max": 1,
        "ess_mean": 0.9,
        "training_overruns": 1,
        "generation_stretch_fraction": 0.01,
        "others_cpus": 0.25,
    }
    return values | changes


# When a level is reached.


@pytest.mark.parametrize(
    ("success", "expected"),
    [
        ([0.5, 0.8, 1.0], 15.0),  # half of the way from 0.8 to 1.0
        ([0.5, 0.9, 0.2], 10.0),
        ([0.95, 0.1, 1.0], 0.0),
        ([0.5, 0.8, 0.89], None),
    ],
)
def test_a_level_is_reached_between_two_checkpoints(success: list[float], expected: float | None) -> None:
    found = crossing([0.0, 10.0, 20.0], success, 0.9)
    assert found == (None if expected is None else pytest.approx(expected))


@given(CURVES, SUCCESS)
def test_a_level_is_reached_where_the_curve_first_has_it(curve: tuple[list[float], list[float]], level: float) -> None:
    at, success = curve
    found = crossing(at, success, level)
    if found is None:
        assert max(success) < level
        return
    assert at[0] <= found <= at[-1] + 1e-9
    assert interpolated(at, success, found) == pytest.approx(level, abs=1e-6) or success[0] >= level
    assert all(value < level for where, value in zip(at, success, strict=True) if where < found - 1e-6)


@given(CURVES, st.floats(-10.0, 500.0))
def test_between_its_points_a_curve_stays_between_their_values(
    curve: tuple[list[float], list[float]], where: float
) -> None:
    at, success = curve
    assert min(success) - 1e-9 <= interpolated(at, success, where) <= max(success) + 1e-9
    assert [interpolated(at, success, knot) for knot in at] == pytest.approx(success)


# Which checkpoints are looked at.


def test_the_first_checkpoint_after_each_step_is_looked_at_and_the_last() -> None:
    assert spaced([3, 6, 9, 12, 15, 18], 5) == [1, 3, 4, 5]
    assert spaced([3, 30], 5) == [1]
    assert spaced([3], 5) == [0]
    assert spaced([], 5) == []


@given(st.lists(st.integers(1, 40), min_size=1, max_size=30).map(lambda x: list(itertools.accumulate(x))))
def test_more_checkpoints_are_no_more_chances(at: list[int]) -> None:
    chosen = spaced(at, 25)
    assert chosen == sorted(set(chosen))
    assert chosen[-1] == len(at) - 1
    assert len(chosen) <= at[-1] // 25 + 1
    assert len({at[index] // 25 for index in chosen[:-1]}) == len(chosen[:-1])


# Bands and ratios.


def test_a_band_rests_on_every_seed() -> None:
    found = band([([0.0, 10.0], [0.0, 1.0]), ([0.0, 5.0, 20.0], [0.5, 0.5, 0.8]), ([0.0, 20.0], [0.2, 0.2])], points=3)
    assert found["at"] == [0.0, 5.0, 10.0]
    assert found["median"] == pytest.approx([0.2, 0.5, 0.6])
    assert found["low"] == pytest.approx([0.0, 0.2, 0.2])
    assert found["high"] == pytest.approx([0.5, 0.5, 1.0])


def test_sooner_is_a_ratio_of_medians() -> None:
    ratio, (low, high) = sooner([10.0, 20.0, 30.0], [40.0, 50.0, 90.0], [99.0] * 3)
    assert ratio == pytest.approx(2.5)
    assert 40 / 30 <= low <= 2.5 <= high <= 9.0


def test_a_run_that_never_got_there_flatters_nobody_but_the_others() -> None:
    assert sooner([10.0], [None], [60.0])[0] == pytest.approx(6.0)
    ratio, (low, high) = sooner([None, 10.0, None], [40.0, 40.0, 40.0], [60.0] * 3)
    assert (ratio, low) == (0.0, 0.0)
    assert high == pytest.approx(4.0)


@settings(max_examples=20)
@given(TIMES, TIMES)
def test_what_is_censored_never_raises_the_ratio(ours: list[float], others: list[float]) -> None:
    ends = [time + 1.0 for time in others]
    whole, _ = sooner(ours, others, ends)
    assert whole == pytest.approx(median(others) / median(ours))
    assert sooner([None, *ours[1:]], others, ends)[0] <= whole
    assert sooner(ours, [None] * len(others), ends)[0] <= median(ends) / median(ours) + 1e-9


def test_the_difference_of_single_runs_has_no_spread() -> None:
    assert difference_interval([0.9], [0.8]) == pytest.approx((0.1, 0.1))
    low, high = difference_interval([0.9, 1.0], [0.8, 0.9])
    assert low <= 0.1 <= high


# What a run is watched for.


def times(*, fixed_s: float, item_s: float) -> EmulatedTimes:
    return EmulatedTimes(table=((1, 9.0, 9.0), (2, fixed_s, item_s)), units=2)


def test_stretch_is_what_was_taken_over_what_the_device_takes() -> None:
    stretch = Stretch()
    assert stretch.fraction == 0.0
    stretch.add(0.44, 0.4)
    assert stretch.fraction == pytest.approx(0.1)


def test_a_watch_keeps_when_each_update_ended(tmp_path: Path) -> None:
    scheduler = Scheduler(dataclasses.replace(run_plan(run_of(tmp_path, Variant("ebrl", 1))), lend=True))
    watch = Watch(scheduler, times(fixed_s=0.5, item_s=0.25))
    watch.hear({"emulation_device_s": 2.0})
    watch.record(100.0, e.RunStarted(), [])
    scheduler.counters.env_steps = 64
    done = e.UpdateDone(epoch=Epoch(0), policy_version=PolicyVersion(1), train_s=2.2, skipped=False)
    chunks = e.ChunksReady(
        generator=GeneratorId(0),
        epoch=Epoch(0),
        shards=(ShardId(0), ShardId(2)),
        policy_version=PolicyVersion(0),
        generation_s=1.0,
    )
    for now, event in ((101.0, chunks), (103.0, done), (104.0, dataclasses.replace(done, skipped=True))):
        watch.record(now, event, [])
    assert scheduler.manager is not None
    scheduler.manager.quotas.lend()
    watch.record(105.0, dataclasses.replace(chunks, generation_s=0.1), [])  # with SMs that are not generation's own
    watch.hear({"ess": 0.75, "emulation_overruns": 2.0})
    watch.hear({"ess": 0.25, "emulation_overruns": 3.0})
    assert watch.updates == {1: (3.0, 64)}
    assert (watch.ess, watch.learned["emulation_overruns"]) == ([0.75, 0.25], 3.0)
    assert watch.generation.fraction == pytest.approx(0.0)
    assert watch.training.fraction == pytest.approx(0.1)


# What is run.


def test_slacks_are_modes_of_their_own_and_none_is_run_twice() -> None:
    chosen = convergence_settings.variants(("colocated", "ebrl"), (1, 2))
    assert [(one.name, one.mode, one.slack) for one in chosen] == [
        ("colocated", "colocated", 0),
        ("ebrl", "ebrl", 1),
        ("ebrl, slack 2", "ebrl", 2),
    ]


@pytest.mark.parametrize("task", convergence_settings.TASKS)
def test_modes_differ_in_nothing_but_their_switches_and_what_suits_them(tmp_path: Path, task: str) -> None:
    chosen = convergence_settings.settings_of(f"metaworld/{task}")
    runs = {
        one: run_of(tmp_path, one, chosen)
        for one in convergence_settings.variants(convergence_settings.MODES, convergence_settings.SLACKS)
    }
    first, *others = runs.values()
    for config in others:
        assert (config.env, config.policy, config.algorithm) == (first.env, first.policy, first.algorithm)
        assert (config.emulation, config.run) == (first.emulation, first.run)
        own = {"slack": 0, "trajectory_chunks": first.training.trajectory_chunks}
        assert config.training.model_copy(update=own) == first.training.model_copy(update=own)
    assert all(config.training.slack == one.slack for one, config in runs.items())
    assert run_plan(first).checkpoint_every == chosen.checkpoint_every_updates
    judge = convergence_settings.evaluation_config(chosen)
    assert (judge.env, judge.policy) == (first.env, first.policy)
    assert judge.generation.device == "cpu"


@pytest.mark.parametrize(
    ("mode", "num_cpus", "envs_per_worker", "trajectory_chunks"),
    [
        ("colocated", 2, 8, 25),
        ("colocated", 3, 4, 25),  # 5 would not divide 16
        ("colocated", 64, 1, 25),
        ("colocated", 1, 8, 25),  # two GPUs, each with an env worker
        ("hybrid", 2, 4, 25),  # two env groups
        ("async", 2, 4, 25),
        ("paper", 2, 1, 25),
        ("ebrl", 2, 1, 16),
    ],
)
def test_every_mode_has_the_sizes_that_suit_it(
    tmp_path: Path, mode: Mode, num_cpus: int, envs_per_worker: int, trajectory_chunks: int
) -> None:
    chosen = dataclasses.replace(convergence_settings.settings_of("reach-v3"), num_cpus=num_cpus)
    config = run_of(tmp_path, Variant(mode, convergence_settings.own_slack(mode)), chosen)
    assert config.simulation.envs_per_worker == envs_per_worker
    assert config.training.trajectory_chunks == trajectory_chunks
    run_plan(config)


@pytest.mark.parametrize("task", convergence_settings.TASKS)
def test_a_horizon_has_so_many_chunks(task: str) -> None:
    chosen = convergence_settings.settings_of(task)
    config = convergence_settings.evaluation_config(chosen)
    cls, task_name = load("env", config.env.name)
    env = cls(task_name, make_config(cls, config.env.config, "env.config"))
    assert chosen.horizon_chunks * config.policy.chunk_len == env.spec.max_episode_steps
    env.close()


def test_the_clone_is_that_of_the_example() -> None:
    from ebrl.config.load import load_config

    for task, example in (("reach-v3", "reach"), ("drawer-open-v3", "drawer-open")):
        wanted = load_config(Path(__file__).parents[2] / "examples" / f"{example}.toml")
        config = convergence_settings.pretrain_config(convergence_settings.settings_of(task))
        assert config.pretrain == wanted.pretrain
        assert (config.env, config.policy, config.algorithm) == (wanted.env, wanted.policy, wanted.algorithm)
        assert config.training.batch_trajectories == wanted.training.batch_trajectories
        assert config.training.trajectory_chunks == wanted.training.trajectory_chunks


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [({"task": "reech-v3"}, "did you mean 'reach-v3'"), ({"mode": ["asynk"]}, "did you mean 'async'")],
)
def test_a_wrong_request_is_answered_with_the_nearest(wrong: dict[str, Any], complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        command(**wrong)


# Rows and the answer.


def learned(*at: tuple[float, int]) -> Learned:
    reached = tuple(Reached(checkpoint=Path(f"update-{n}"), at_s=s, env_steps=steps) for n, (s, steps) in enumerate(at))
    return Learned(reached=reached, facts={"updates": len(at)})


def test_a_row_begins_with_the_clone_and_ends_with_a_long_look() -> None:
    asked: list[tuple[str, int]] = []

    def play(checkpoint: Path, num_episodes: int) -> float:
        asked.append((checkpoint.name, num_episodes))
        return 0.8 + 0.05 * len(asked)

    run = learned((1.0, 30), (2.0, 70), (3.0, 100), (4.0, 130), (5.0, 140))
    found = convergence.row_of(SMALL, Variant("ebrl", 1), 7, run, clone_success=0.6, play=play)
    assert asked == [("update-1", 4), ("update-3", 4), ("update-4", 8)]
    assert found["success"] == pytest.approx([0.6, 0.85, 0.9, 0.95])
    assert found["at_s"] == [0.0, 2.0, 4.0, 5.0]
    assert found["at_env_steps"] == [0, 70, 130, 140]
    assert found["seconds_to_90"] == pytest.approx(4.0)
    assert found["final_success"] == pytest.approx(0.95)
    assert (found["seed"], found["updates"]) == (7, 5)


def test_a_run_without_a_checkpoint_is_no_row() -> None:
    with pytest.raises(RunError, match="no checkpoint"):
        convergence.row_of(SMALL, Variant("ebrl", 1), 0, learned(), clone_success=0.5, play=lambda path, n: 0.0)


def test_a_clone_that_succeeds_leaves_nothing_to_learn() -> None:
    convergence.check_clone(SMALL, 0.89)
    with pytest.raises(RunError, match=r"90\.0 % already, so there is nothing to learn up to 90 %"):
        convergence.check_clone(SMALL, 0.9)


def answer() -> dict[str, Any]:
    rows = [
        row("colocated", 0, at_s=[0.0, 100.0], success=[0.6, 1.0]),
        row("colocated", 1, at_s=[0.0, 100.0, 120.0], success=[0.6, 0.7, 0.8]),
        row("ebrl", 0, at_s=[0.0, 40.0], success=[0.6, 1.0]),
        row("ebrl", 1, at_s=[0.0, 40.0], success=[0.6, 0.9]),
        row("ebrl, slack 4", 0, at_s=[0.0, 40.0], success=[0.6, 0.7]),
        row("ebrl, slack 4", 1, at_s=[0.0, 40.0], success=[0.6, 0.7]),
    ]
    return convergence.document_of(SMALL, rows, 2)


def test_the_answer_counts_who_never_got_there() -> None:
    document = answer()
    json.dumps(document, allow_nan=False)
    summary = document["summary"]
    assert [summary[name]["censored"] for name in ("colocated", "ebrl", "ebrl, slack 4")] == [1, 0, 2]
    assert summary["ebrl"]["seconds_to_90"] == pytest.approx(35.0)
    assert summary["ebrl, slack 4"]["seconds_to_90"] is None
    ratio = document["ratios"]["colocated"]
    assert ratio["ebrl_sooner"] == pytest.approx((75.0 + 120.0) / 2 / 35.0)
    assert ratio["at_least"]
    assert ratio["final_success_difference"] == pytest.approx(0.05)
    assert document["met"] == {"sooner_than_synchronous": True, "final_success_points": True}
    assert document["curves"]["ebrl"]["seconds"]["at"][-1] == 40.0
    assert document["curves"]["colocated"]["env_steps"]["at"][-1] == 1000
    assert document["repeats"] == 2


def test_without_both_modes_there_is_no_verdict() -> None:
    document = convergence.document_of(SMALL, [row("async", 0, at_s=[0.0, 1.0], success=[0.5, 0.6])], 1)
    assert (document["ratios"], document["met"]) == ({}, {})
    assert "async" in "\n".join(convergence_text(document))


def test_the_table_says_what_was_emulated_and_how_true_it_was() -> None:
    text = "\n".join(convergence_text(answer()))
    for part in (
        "emulated: small, seeds: 2",
        "openpi-libero",
        "1 of 2",
        "≥ ",
        "6 of 30 updates",
        "0.25 CPUs busy",
        "target 2.5: met",
    ):
        assert part in text, text


def test_what_is_kept_is_not_run_again(tmp_path: Path) -> None:
    kept = tmp_path / "rows.jsonl"
    rows = [row("ebrl", seed, at_s=[0.0, 9.0], success=[0.5, 0.6 + seed / 10]) for seed in (0, 1)]
    own = convergence_settings.in_full(SMALL)
    kept.write_text("".join(json.dumps({"settings": own, "row": one}) + "\n" for one in rows))
    document = convergence.measure(SMALL, [Variant("ebrl", 1)], num_seeds=2, kept=kept)
    assert document["rows"] == rows
    other = dataclasses.replace(SMALL, episodes=5)
    with pytest.raises(UsageError, match="runs of other settings"):
        convergence.measure(other, [Variant("ebrl", 1)], num_seeds=2, kept=kept)
    kept.write_text("nonsense\n")
    with pytest.raises(UsageError, match="cannot be read"):
        convergence.measure(SMALL, [Variant("ebrl", 1)], num_seeds=2, kept=kept)


# Real processes.


@pytest.mark.slow
def test_a_small_bench_from_clone_to_answer(tmp_path: Path) -> None:
    kept = tmp_path / "rows.jsonl"
    said: list[str] = []
    chosen = [Variant("ebrl", 2)]
    document = convergence.measure(SMALL, chosen, num_seeds=1, kept=kept, say=said.append)
    json.dumps(document, allow_nan=False)
    [one] = document["rows"]
    assert (one["name"], one["updates"] >= 2) == ("ebrl, slack 2", True)
    assert one["env_steps"] >= SMALL.max_env_steps / 2
    assert 0 == one["at_s"][0] < one["at_s"][1] <= one["at_s"][-1] == one["seconds"]
    assert len(one["success"]) == len(one["at_s"]) == len(one["at_env_steps"])
    assert all(0.0 <= value <= 1.0 for value in one["success"])
    assert one["staleness_max"] <= 2
    assert 0.0 < one["ess_mean"] <= 1.0001
    assert one["trajectories_dropped"] == one["env_failures"] == one["restarts"] == 0
    assert [line.partition(":")[0] for line in said] == ["small", "ebrl, slack 2, seed 0"]
    assert convergence.measure(SMALL, chosen, num_seeds=1, kept=kept)["rows"] == document["rows"]


def test_an_evaluator_plays_the_weights_it_is_given(tmp_path: Path) -> None:
    clones = []
    for updates in (1, 400):
        own = dataclasses.replace(SMALL, pretrain={"num_demos": 20, "updates": updates, "seed": 1})
        directory = tmp_path / str(updates)
        directory.mkdir()
        clones.append(pretrain(convergence_settings.pretrain_config(own), directory, Silent())[0])
    worse, better = clones
    config = convergence_settings.evaluation_config(SMALL)
    with Evaluator(config, tmp_path / "evaluation", clone=worse) as evaluator:
        found = [evaluator.success(clone, 40) for clone in (better, worse, better, worse)]
    assert found[0] == found[2] > found[1] == found[3]
    assert all(math.isclose(40 * value, round(40 * value)) for value in found)


def test_a_run_without_an_update_is_a_failure(tmp_path: Path) -> None:
    clone = pretrain(convergence_settings.pretrain_config(SMALL), tmp_path, Silent())[0]
    short = dataclasses.replace(SMALL, max_env_steps=1)
    with pytest.raises(RunError, match="1 env steps"):
        learn(run_of(tmp_path, Variant("ebrl", 1), short), tmp_path / "run", clone=clone)
