from __future__ import annotations

import fcntl
import json
import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from drills import DIAL, MLP, PPO, REACH, processes_of
from ebrl.config.load import make_config
from ebrl.config.schema import RunConfig
from ebrl.data.checkpoint import newest_checkpoint
from ebrl.engines.local.engine import LocalEngine
from ebrl.errors import CheckpointError, ConfigError, EnvFailure, RunError, UsageError
from ebrl.host.probe import usable_cpus
from ebrl.records.eventlog import event_file, parts, read_events
from ebrl.records.replay import replay
from ebrl.records.writer import MetricsWriter, read_metrics
from ebrl.runtime.display import Silent
from ebrl.runtime.recording import Recording
from ebrl.runtime.rundir import check_resumable, held, make_run_dir, open_run_dir, with_whole_paths
from ebrl.runtime.session import train


def config_of(directory: Path, **sections: Any) -> RunConfig:
    document: dict[str, Any] = {
        "run": {"directory": str(directory)},
        "env": {"name": DIAL},
        "policy": {"name": "mlp", "chunk_len": 4, "config": MLP},
        "algorithm": {"config": PPO},
        "simulation": {"num_envs": 2},
        "training": {"batch_trajectories": 2, "trajectory_chunks": 2, "max_updates": 3},
        "evaluation": {"episodes": 0},
    }
    for name, section in sections.items():
        document[name] = document.get(name, {}) | section
    return make_config(document)


def test_the_time_limit_asks_once_and_a_late_ctrl_c_cuts_nothing_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second request would be left over for the evaluation afterwards and end it at once."""
    asked: list[str] = []
    request_stop, close = LocalEngine.request_stop, LocalEngine.close

    def count(engine: LocalEngine, reason: str, *, patient: bool = False) -> None:
        asked.append(reason)
        request_stop(engine, reason, patient=patient)

    def close_late(engine: LocalEngine) -> None:
        signal.raise_signal(signal.SIGINT)
        close(engine)

    monkeypatch.setattr(LocalEngine, "request_stop", count)
    monkeypatch.setattr(LocalEngine, "close", close_late)
    config = config_of(
        tmp_path,
        env={"config": {"step_s": 0.2, "max_episode_steps": 4, "min_episode_steps": 4, "success_probability": 1.0}},
        # On one CPU the second environment still steps when the first one's end brings the limit.
        simulation={"cpus": [usable_cpus()[0]]},
        training={"max_updates": 1000, "max_minutes": 0.001},
        evaluation={"episodes": 2},
    )
    summary = train(config, Silent())
    assert asked == ["0.001 minutes"]
    assert (summary["outcome"], summary["reason"]) == ("finished", "0.001 minutes")
    assert summary["success_before"] == summary["success_after"] == 1.0
    assert json.loads((Path(summary["run_dir"]) / "summary.json").read_text()) == summary


def test_a_failing_environment_fails_the_run_and_the_summary_says_why(tmp_path: Path) -> None:
    others = set(processes_of(os.getpid()))
    config = config_of(tmp_path, env={"config": {"fail_at_step": 1}}, failures={"max_env_failures": 0})
    with pytest.raises(EnvFailure, match=r"(?s)environment \d failed 1 times in a row \(raised\).*told to fail here"):
        train(config, Silent())
    summary = json.loads((tmp_path / "latest" / "summary.json").read_text())
    assert summary["outcome"] == "failed"
    assert "RuntimeError: toy/dial-v1 was told to fail here" in summary["error"]
    assert summary["env_failures"] == {"raised": 1}
    assert set(processes_of(os.getpid())) == others


def test_run_directories_never_collide_and_latest_is_the_newest(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    paths = [make_run_dir(config) for _ in range(3)]
    assert len(set(paths)) == 3
    assert (tmp_path / "latest").resolve() == paths[-1].resolve()
    assert open_run_dir(paths[0]) == config


def test_runs_that_begin_at_the_same_moment_get_a_directory_each(tmp_path: Path) -> None:
    config, together = config_of(tmp_path), threading.Barrier(8)

    def begin(_: int) -> Path:
        together.wait(timeout=60)
        return make_run_dir(config)

    with ThreadPoolExecutor(8) as pool:
        paths = [path for _ in range(5) for path in pool.map(begin, range(8))]
    assert len(set(paths)) == 40
    assert all(open_run_dir(path) == config for path in paths)
    assert (tmp_path / "latest").resolve() in {path.resolve() for path in paths}
    assert {path.name for path in tmp_path.iterdir()} == {path.name for path in paths} | {"latest"}


def test_a_place_that_cannot_be_written_to_is_named_before_anything_starts(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"run\.directory: = '.*file/runs': cannot write there: Not a directory"):
        train(config_of(tmp_path / "file" / "runs"), Silent())


def test_a_run_goes_on_only_as_itself(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    path = make_run_dir(config)
    with pytest.raises(CheckpointError, match="cannot be resumed: it has no checkpoint"):
        check_resumable(path, config, config)
    (path / "checkpoints" / "update-000001").mkdir(parents=True)
    check_resumable(path, config, config_of(tmp_path, training={"max_updates": 99}, evaluation={"episodes": 7}))
    with pytest.raises(UsageError, match=r"training\.slack: 1 → 2"):
        check_resumable(path, config, config_of(tmp_path, training={"slack": 2}))
    with pytest.raises(UsageError, match="not a run directory"):
        open_run_dir(tmp_path)


def test_rows_of_updates_that_are_taken_again_are_forgotten(tmp_path: Path) -> None:
    writer = MetricsWriter(tmp_path)
    for version in range(1, 6):
        writer.write({"policy_version": version, "env_steps": 10 * version})
    writer.close()
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"policy_version": 6, "env_st')  # cut off by a crash
    assert len(read_metrics(tmp_path)) == 5
    writer = MetricsWriter(tmp_path, keep_up_to_version=3)
    writer.write({"policy_version": 4, "env_steps": 41})
    writer.close()
    assert [row["env_steps"] for row in read_metrics(tmp_path)] == [10, 20, 30, 41]


def test_an_environment_that_always_fails_fails_the_evaluation_too(tmp_path: Path) -> None:
    config = config_of(
        tmp_path,
        env={"config": {"fail_at_step": 1}},
        failures={"max_env_failures": 1},
        evaluation={"episodes": 100},
    )
    with pytest.raises(EnvFailure, match=r"(?s)environment \d failed 2 times in a row \(raised\).*told to fail here"):
        train(config, Silent())
    assert json.loads((tmp_path / "latest" / "summary.json").read_text())["outcome"] == "failed"


def test_a_failure_late_in_every_episode_stops_the_run(tmp_path: Path) -> None:
    """Chunks that end well do not count as recovery if no trajectory and no episode ever ends."""
    config = config_of(
        tmp_path,
        env={"config": {"fail_at_step": 10, "min_episode_steps": 50, "max_episode_steps": 50}},
        policy={"chunk_len": 2},
        training={"trajectory_chunks": 20, "max_updates": 5},
        failures={"max_env_failures": 1},
        evaluation={"episodes": 0},
    )
    with pytest.raises(EnvFailure, match=r"environment \d failed 2 times in a row"):
        train(config, Silent())


def test_a_resumed_run_keeps_what_was_said_and_stores_what_changed(tmp_path: Path) -> None:
    config = config_of(tmp_path, training={"max_updates": 1}, evaluation={"episodes": 4})
    first = train(config, Silent())
    run_dir = Path(first["run_dir"])
    longer = config_of(tmp_path, training={"max_updates": 2}, evaluation={"episodes": 0})
    second = train(longer, Silent(), resume=run_dir)
    assert second["policy_version"] == 2
    assert second["success_before"] == first["success_before"]
    assert open_run_dir(run_dir) == longer
    third = train(
        config_of(tmp_path, training={"max_updates": 3}, evaluation={"episodes": 0}), Silent(), resume=run_dir
    )
    assert third["policy_version"] == 3
    assert parts(run_dir) == ["", "-002", "-003"]
    assert replay(run_dir).difference is None


def test_a_directory_in_which_somebody_trains_is_left_alone(tmp_path: Path) -> None:
    config = config_of(tmp_path, training={"max_updates": 1}, evaluation={"episodes": 0})
    run_dir = Path(train(config, Silent())["run_dir"])
    before = {path: path.read_bytes() for path in run_dir.rglob("*") if path.is_file() and path.name != ".lock"}
    longer = config_of(tmp_path, training={"max_updates": 2}, evaluation={"episodes": 0})
    with held(run_dir), pytest.raises(UsageError, match=f"process {os.getpid()} trains there"):
        train(longer, Silent(), resume=run_dir)
    assert {path: path.read_bytes() for path in before} == before
    assert train(longer, Silent(), resume=run_dir)["policy_version"] == 2


def test_a_file_system_without_locks_is_said_and_trained_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(file: Any, kind: int) -> None:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    with pytest.warns(UserWarning, match="cannot be locked"), held(tmp_path):
        assert (tmp_path / ".lock").read_text() == str(os.getpid())


def test_a_resumed_run_that_is_interrupted_before_it_trains_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_of(tmp_path, training={"max_updates": 1}, evaluation={"episodes": 0})
    first = train(config, Silent())

    def interrupted(engine: LocalEngine) -> None:
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(LocalEngine, "start", interrupted)
    train(config, Silent(), resume=Path(first["run_dir"]))
    kept = json.loads((Path(first["run_dir"]) / "summary.json").read_text())
    assert {name: kept[name] for name in ("outcome", "env_steps", "policy_version")} == {
        name: first[name] for name in ("outcome", "env_steps", "policy_version")
    }


@pytest.mark.parametrize("crashed", [True, False])
def test_what_is_said_of_a_resumed_run_that_is_interrupted_is_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, crashed: bool
) -> None:
    config = config_of(tmp_path, training={"max_updates": 1}, evaluation={"episodes": 2})
    first = train(config, Silent())
    run_dir = Path(first["run_dir"])
    if crashed:
        (run_dir / "summary.json").unlink()

    rows: list[dict[str, float]] = []

    def interrupted(recording: Recording, row: dict[str, float]) -> None:
        if not rows:
            signal.raise_signal(signal.SIGINT)
        rows.append(row)

    monkeypatch.setattr(Recording, "row", interrupted)
    longer = config_of(tmp_path, training={"max_updates": 1000}, evaluation={"episodes": 2})
    second = train(longer, Silent(), resume=run_dir)
    assert (second["outcome"], second["reason"]) == ("interrupted", "interrupted by SIGINT")
    assert (second["success_before"], second["evaluation_episodes"]) == (first["success_before"], 2)
    assert "success_after" not in second
    assert (run_dir / "learning_curve.png").is_file()


def test_a_disk_that_is_full_ends_the_run_with_a_checkpoint(tmp_path: Path) -> None:
    run_dir = Path(train(config_of(tmp_path, training={"max_updates": 1}), Silent())["run_dir"])
    (run_dir / event_file("-002")).symlink_to("/dev/full")
    longer = config_of(tmp_path, training={"max_updates": 100_000}, checkpoint={"every_updates": 0})
    with pytest.raises(RunError, match=r"the event log in .* cannot be written: No space left on device; the run has"):
        train(longer, Silent(), resume=run_dir)
    summary = json.loads((run_dir / "summary.json").read_text())
    assert summary["outcome"] == "failed"
    assert 1 < summary["policy_version"] < 100_000
    assert newest_checkpoint(run_dir / "checkpoints").name == f"update-{summary['policy_version']:06d}"
    assert "No space left on device" in (run_dir / "notices.log").read_text()


def test_a_picture_that_cannot_be_drawn_is_said_and_fails_nothing(tmp_path: Path) -> None:
    run_dir = Path(train(config_of(tmp_path, training={"max_updates": 1}), Silent())["run_dir"])
    (run_dir / "learning_curve.png").unlink()
    (run_dir / "learning_curve.png").symlink_to("/dev/full")
    summary = train(config_of(tmp_path, training={"max_updates": 2}), Silent(), resume=run_dir)
    assert summary["outcome"] == "finished"
    assert "learning_curve.png" in (run_dir / "notices.log").read_text()


def test_the_files_of_a_run_are_found_from_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.json").write_text("{}")
    config = config_of(
        tmp_path,
        resources={"allocation": "planned", "profile": "profile.json"},
        emulation={"workload": "mine.json", "machine": "4xa100"},
    )
    whole = with_whole_paths(config)
    assert whole.resources.profile == str(tmp_path / "profile.json")
    assert (whole.emulation.workload, whole.emulation.machine) == (str(tmp_path / "mine.json"), "4xa100")
    assert with_whole_paths(whole) == whole


DIALLED = {"min_episode_steps": 3, "max_episode_steps": 10}
SHAPES: dict[str, dict[str, Any]] = {
    "four environments in each worker": {
        "simulation": {"num_envs": 8, "envs_per_worker": 4},
        "training": {"batch_trajectories": 8},
    },
    "two generators": {"simulation": {"num_envs": 4}, "generation": {"num_generators": 2, "max_batch": 2}},
    "siblings play whole episodes": {
        "algorithm": {"name": "ebrl.algorithms.grpo:Grpo", "config": {"epochs": 1}},
        "simulation": {"num_envs": 3},
        "training": {"trajectory": "episode", "batch_trajectories": 4, "siblings": 2},
    },
}


@pytest.mark.parametrize("shape", SHAPES)
def test_runs_of_every_shape_are_evaluated_replayed_and_resumed(shape: str, tmp_path: Path) -> None:
    config = config_of(tmp_path, env={"config": DIALLED}, evaluation={"episodes": 5}, **SHAPES[shape])
    longer = config.model_copy(update={"training": config.training.model_copy(update={"max_updates": 6})})
    first = train(config, Silent(), validate=True)
    run_dir = Path(first["run_dir"])
    second = train(longer, Silent(), resume=run_dir, validate=True)
    for summary, updates in ((first, 3), (second, 6)):
        assert (summary["outcome"], summary["policy_version"]) == ("finished", updates)
        assert summary["ledger_balances"]
    assert replay(run_dir).difference is None
    begun = [_episodes_begun(run_dir / event_file(part)) for part in parts(run_dir)]
    assert all(begun)
    assert not begun[0] & begun[1], "a resumed run starts from new initial states"


def _episodes_begun(path: Path) -> set[int]:
    resets = [c for _, _, commands in read_events(path) for c in commands if c["is"] == "ResetEnv"]
    return {start["episode"] for reset in resets for start in reset["starts"]}


def test_how_the_work_is_spread_over_processes_changes_no_bit(tmp_path: Path) -> None:
    """What environments start from, and the random numbers of their policy, are theirs and not their worker's."""
    weights = set()
    for width, num_generators in ((1, 1), (2, 2), (4, 1)):
        config = config_of(
            tmp_path,
            run={"deterministic": True},
            env={"name": REACH, "config": {"max_episode_steps": 14, "radius": 0.4, "speed": 0.3, "reward": "dense"}},
            simulation={"num_envs": 4, "envs_per_worker": width},
            generation={"num_generators": num_generators, "min_batch": 4},
            training={"batch_trajectories": 4, "trajectory_chunks": 4, "slack": 0},
        )
        checkpoints = Path(train(config, Silent(), validate=True)["run_dir"]) / "checkpoints"
        weights.add((checkpoints / "update-000003" / "policy.safetensors").read_bytes())
        assert (checkpoints / "update-000000" / "policy.safetensors").read_bytes() not in weights
    assert len(weights) == 1
