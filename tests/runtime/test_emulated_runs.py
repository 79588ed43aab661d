"""Runs on GPUs that are not there."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from drills import MLP, PPO
from ebrl.config.load import make_config
from ebrl.config.modes import NAMES, in_mode
from ebrl.config.schema import RunConfig
from ebrl.errors import ConfigError, UsageError
from ebrl.plan.workloads import load_workload
from ebrl.runtime.display import Silent
from ebrl.runtime.emulation import emulation_of
from ebrl.runtime.management import run_plan
from ebrl.runtime.session import train


def document(directory: Path, **sections: Any) -> dict[str, Any]:
    found: dict[str, Any] = {
        "run": {"directory": str(directory)},
        "env": {"name": "toy/dial-v1", "config": {"min_episode_steps": 8, "max_episode_steps": 12}},
        "policy": {"name": "mlp", "chunk_len": 4, "config": MLP},
        "algorithm": {"config": PPO},
        "simulation": {"num_envs": 6},
        "generation": {"device": "emulated"},
        "training": {
            "device": "emulated",
            "batch_trajectories": 6,
            "trajectory": "episode",
            "max_updates": 3,
        },
        "evaluation": {"episodes": 0},
        "emulation": {"workload": "openpi-libero", "machine": "4xa100", "gpus": 2, "cpus": 5, "speed": 400.0},
    }
    for name, section in sections.items():
        found[name] = found.get(name, {}) | section
    return found


def config_of(directory: Path, **sections: Any) -> RunConfig:
    return make_config(document(directory, **sections))


def test_real_devices_emulate_nothing(tmp_path: Path) -> None:
    config = config_of(tmp_path, generation={"device": "cpu"}, training={"device": "cpu"})
    assert emulation_of(config, 2) is None


@pytest.mark.parametrize(
    ("sections", "complaint"),
    [
        ({"generation": {"device": "cpu"}}, 'want "emulated" for both, or none'),
        ({"emulation": {"gpus": 9}}, "emulation.gpus: = 9: a node of 4xa100 has 4"),
        ({"emulation": {"machine": "2-cpu-laptop", "gpus": 0}}, "has no GPU"),
        (
            {"emulation": {"machine": "4xrtx4090", "gpus": 1}, "simulation": {"num_envs": 96}},
            "device memory of each GPU",
        ),
        ({"resources": {"gpu_use": "hand_over"}}, "= 'hand_over', 1: want slack 0, since stages take turns"),
        ({"emulation": {"workload": "apart.json"}}, 'not known apart, so training.trajectory must be "segment"'),
    ],
)
def test_what_cannot_be_emulated_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sections: dict[str, Any], complaint: str
) -> None:
    monkeypatch.chdir(tmp_path)
    shipped = load_workload("openpi-libero")
    together = replace(shipped, simulation=replace(shipped.simulation, env_step_s=0.0))
    Path("apart.json").write_text(json.dumps(together.to_json()))
    with pytest.raises(ConfigError) as caught:
        emulation_of(config_of(tmp_path, **sections), 2)
    assert complaint in str(caught.value)


def test_segments_need_no_parts_and_cost_what_the_habits_make_of_them(tmp_path: Path) -> None:
    shipped = load_workload("openpi-libero")
    together = replace(shipped, simulation=replace(shipped.simulation, env_step_s=0.0))
    path = tmp_path / "apart.json"
    path.write_text(json.dumps(together.to_json()))
    segments = {"trajectory": "segment", "trajectory_chunks": 10}
    plain = emulation_of(config_of(tmp_path, emulation={"workload": str(path), "speed": 1.0}, training=segments), 2)
    assert plain is not None
    assert plain.workload.trajectory_chunks == plain.workload.training_chunks == 10
    assert plain.workload.simulation.chunk_s == shipped.simulation.chunk_s
    to_horizon = {"observe": "every_step", "finished_episodes": "run_to_horizon"}
    known = emulation_of(config_of(tmp_path, emulation={"speed": 1.0}, training=segments, simulation=to_horizon), 2)
    assert known is not None
    assert known.workload.trajectory_chunks == pytest.approx(10)
    assert known.workload.training_chunks < 9.5  # of 320 env steps 267 are executed, and padding is left out
    frames_s = 3 * shipped.simulation.observe_s  # chunks of four, one frame more for each further env step
    assert known.workload.simulation.chunk_s > 4 * shipped.simulation.env_step_s + frames_s


@pytest.mark.parametrize(
    ("sections", "complaint"),
    [
        ({"generation": {"num_generators": 2}}, "generation.num_generators: = more than 1: an emulated device wants 1"),
        ({"training": {"cpus": [0]}}, 'training.cpus: = [0]: an emulated device wants "all"'),
        (
            {"resources": {"allocation": "planned"}},
            'resources.allocation: = "planned": an emulated device wants "by_hand"',
        ),
        (
            {"simulation": {"cpus_per_worker": 2}, "emulation": {"cpus": 1}},
            "emulation.cpus: = 1: want at least the 2 of one env worker",
        ),
    ],
)
def test_what_emulation_chooses_must_not_be_chosen_too(
    tmp_path: Path, sections: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        run_plan(config_of(tmp_path, **sections))
    assert complaint in str(caught.value)


def test_an_unknown_workload_is_answered_with_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="did you mean 'openpi-libero'"):
        emulation_of(config_of(tmp_path, emulation={"workload": "openpi-liberal"}), 2)


def test_times_may_come_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(load_workload("openpi-libero").to_json()))
    mine, shipped = (
        emulation_of(config_of(tmp_path, emulation={"workload": name}), 2) for name in (str(path), "openpi-libero")
    )
    assert mine is not None
    assert shipped is not None
    assert mine.generation == shipped.generation


def test_a_faster_device_takes_less_time_in_proportion(tmp_path: Path) -> None:
    slow, fast = (emulation_of(config_of(tmp_path, emulation={"speed": speed}), 2) for speed in (1.0, 10.0))
    assert slow is not None
    assert fast is not None
    assert slow.chosen.allocation == fast.chosen.allocation
    [first, *_], [second, *_] = slow.generation.table, fast.generation.table
    assert first[1:] == pytest.approx([10 * second[1], 10 * second[2]])


@pytest.mark.parametrize("mode", NAMES)
def test_every_mode_trains_on_emulated_gpus(tmp_path: Path, mode: Any) -> None:
    config = make_config(in_mode(mode, document(tmp_path)))
    summary = train(config, Silent(), validate=True)
    assert (summary["outcome"], summary["policy_version"]) == ("finished", 3)
    assert summary["emulated"] == "GPUs are emulated: openpi-libero on 4xa100, 400 times as fast"
    assert summary["ledger_balances"]
    assert summary["staleness_max"] <= (0 if config.training.slack == 0 else 1)


def test_emulated_cpus_are_as_many_as_asked_for(tmp_path: Path) -> None:
    plan = run_plan(config_of(tmp_path))
    assert plan.split is not None
    assert 1 <= len(plan.nodes[0]) <= 5
    assert plan.split.simulation == plan.nodes[0]


def test_what_a_cpu_cannot_do_in_a_devices_time_is_counted(tmp_path: Path) -> None:
    summary = train(config_of(tmp_path, emulation={"speed": 1e6}), Silent())
    rows = (Path(summary["run_dir"]) / "metrics.jsonl").read_text().splitlines()
    assert json.loads(rows[-1])["training/emulation_overruns"] == 3


@pytest.mark.parametrize("padding", ["left_out", "masked"])
def test_an_update_takes_time_for_what_was_executed_unless_padding_is_masked(tmp_path: Path, padding: str) -> None:
    lengths = {"min_episode_steps": 4, "max_episode_steps": 32}
    habits = {"finished_episodes": "run_to_horizon"}
    config = config_of(tmp_path, env={"config": lengths}, simulation=habits, emulation={"padding": padding})
    emulation = emulation_of(config, 2)
    assert emulation is not None
    fixed_s, item_s = emulation.training.at_first
    summary = train(config, Silent())
    rows = [json.loads(line) for line in (Path(summary["run_dir"]) / "metrics.jsonl").read_text().splitlines()]
    chunks = [(row["training/emulation_device_s"] - fixed_s) / item_s for row in rows]
    assert chunks == pytest.approx([round(number) for number in chunks])
    assert all(number == pytest.approx(6 * 8) if padding == "masked" else 6 <= number < 6 * 8 for number in chunks)


def test_episodes_that_are_replaced_have_no_padding(tmp_path: Path) -> None:
    emulation = emulation_of(config_of(tmp_path, emulation={"padding": "masked"}), 2)
    assert emulation is not None
    assert not emulation.training.padding


@pytest.mark.parametrize("lend", [False, True])
def test_a_split_gpu_is_lent_while_the_learner_waits(tmp_path: Path, lend: bool) -> None:
    config = config_of(tmp_path, resources={"gpu_use": "split", "lend": lend})
    emulation = emulation_of(config, 2)
    assert emulation is not None
    whole, own = (
        next(row for row in emulation.generation.table if row[0] == units)
        for units in (108, emulation.chosen.allocation.generation_units)
    )
    assert whole[1] < own[1]
    summary = train(config, Silent(), validate=True)
    rows = (Path(summary["run_dir"]) / "metrics.jsonl").read_text().splitlines()
    loans = json.loads(rows[-1])["resources/loans"]
    assert loans == summary["resources"]["switches"]["loans"]
    assert loans >= 1 if lend else loans == 0
