"""Signals to the process that owns a run: what it does, and what is left of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from drills import DIAL, MLP, PPO, REACH, is_alive, is_asleep, named_memory, processes_of, shared_memory_of, until
from ebrl.data.checkpoint import newest_checkpoint, read_state
from ebrl.records.writer import read_metrics

SCRIPT = Path(__file__).with_name("toy_run.py")
START_S = 120.0
"""For a run to come up on a machine that others use too."""


def document(directory: Path, **training: Any) -> dict[str, Any]:
    """A run without an end of its own."""
    return {
        "run": {"directory": str(directory)},
        "env": {"name": REACH},
        "policy": {"name": "mlp", "chunk_len": 4, "config": MLP},
        "algorithm": {"config": PPO},
        "simulation": {"num_envs": 2},
        "training": {
            "batch_trajectories": 2,
            "trajectory_chunks": 2,
            "max_env_steps": 10**9,
            **training,
        },
        "evaluation": {"episodes": 0},
        "checkpoint": {"every_updates": 50},
    }


class Owner:
    """The process that owns a run."""

    def __init__(self, popen: subprocess.Popen[str]) -> None:
        self.popen = popen
        self.pid = popen.pid

    def said(self, beginning: str) -> str:
        """Wait for a line that begins so."""
        assert self.popen.stdout is not None
        for line in self.popen.stdout:
            if line.startswith(beginning):
                return line.strip()
        raise AssertionError(f"it ended with {self.popen.wait()} before it said {beginning!r}")

    def trains(self) -> int:
        """Wait until it has taken an update; the version."""
        return int(self.said("version").split()[1])

    def signal(self, number: signal.Signals) -> float:
        """Send a signal; seconds until the process has ended."""
        start = time.monotonic()
        self.popen.send_signal(number)
        self.popen.wait(60)
        return time.monotonic() - start

    def leaves_nothing(self, within_s: float = 5.0) -> None:
        """No process of the run, and no memory, is left."""
        until("the end of all workers", lambda: processes_of(self.pid) == [], within_s=within_s)
        assert named_memory() == []


@contextmanager
def running(config: dict[str, Any], *arguments: str) -> Iterator[Owner]:
    command = [sys.executable, str(SCRIPT), json.dumps(config), *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as popen:
        try:
            yield Owner(popen)
        finally:
            if popen.poll() is None:
                popen.kill()


def run_dir_of(directory: Path) -> Path:
    return (directory / "latest").resolve()


def summary_of(directory: Path) -> dict[str, Any]:
    summary: dict[str, Any] = json.loads((run_dir_of(directory) / "summary.json").read_text())
    return summary


def versions(run_dir: Path) -> list[int]:
    return [int(row["policy_version"]) for row in read_metrics(run_dir)]


def test_nothing_outlives_a_parent_that_is_killed(tmp_path: Path) -> None:
    with running(document(tmp_path)) as owner:
        owner.trains()
        workers = processes_of(owner.pid)
        assert len(workers) == 4
        assert all(shared_memory_of(pid) for pid in workers)
        owner.signal(signal.SIGKILL)
        owner.leaves_nothing()
        until("the very end of all workers", lambda: not any(is_alive(pid) for pid in workers), within_s=5.0)


def test_nothing_outlives_a_parent_that_is_killed_while_a_worker_hangs(tmp_path: Path) -> None:
    config = document(tmp_path)
    config["env"] = {"name": DIAL, "config": {"fail_at_step": 6, "fail_kind": "hang"}}
    with running(config) as owner:
        owner.said("phase training")
        until("all workers", lambda: len(processes_of(owner.pid)) == 4)
        owner.signal(signal.SIGKILL)
        owner.leaves_nothing()


def test_nothing_outlives_a_parent_that_is_killed_while_a_demonstration_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1] / "envs"), prepend=os.pathsep)
    config = document(tmp_path) | {"env": {"name": "hanging_envs:HangsAtStep"}, "pretrain": {"enabled": True}}
    with running(config) as owner:
        owner.said("phase demonstrations")
        (pid,) = until("the demonstrator", lambda: processes_of(owner.pid))
        assert os.getsid(pid) == pid
        until("the hang", lambda: is_asleep(pid))
        owner.signal(signal.SIGKILL)
        owner.leaves_nothing()


@pytest.mark.slow
def test_an_interrupted_run_is_saved_and_goes_on_where_it_was(tmp_path: Path) -> None:
    with running(document(tmp_path)) as owner:
        owner.trains()
        assert owner.signal(signal.SIGINT) < 30
        assert owner.popen.returncode == 0
        owner.leaves_nothing()
    run_dir = run_dir_of(tmp_path)
    summary = summary_of(tmp_path)
    assert (summary["outcome"], summary["reason"]) == ("interrupted", "interrupted by SIGINT")
    assert summary["ledger_balances"]
    state = read_state(newest_checkpoint(run_dir / "checkpoints"))
    reached = state["policy_version"]
    assert reached == summary["policy_version"] > 0
    assert versions(run_dir) == list(range(1, reached + 1))
    # It goes on, is told to end by the other signal, and goes on again to its end.
    with running(document(tmp_path), str(run_dir)) as owner:
        assert "env steps" in owner.said("notice resuming from update-")
        owner.trains()
        assert owner.signal(signal.SIGTERM) < 30
        assert owner.popen.returncode == 0
    again = read_state(newest_checkpoint(run_dir / "checkpoints"))
    assert summary_of(tmp_path)["reason"] == "interrupted by SIGTERM"
    assert again["policy_version"] > reached
    assert again["env_steps"] > state["env_steps"]
    assert again["seconds"] > state["seconds"]
    assert versions(run_dir) == list(range(1, again["policy_version"] + 1))
    last = again["policy_version"] + 5
    with running(document(tmp_path, max_updates=last), str(run_dir)) as owner:
        assert owner.said("outcome") == "outcome finished"
    assert versions(run_dir) == list(range(1, last + 1))
    assert summary_of(tmp_path)["policy_version"] == last
    steps = [row["env_steps"] for row in read_metrics(run_dir)]
    assert steps == sorted(steps)
    owner.leaves_nothing()


def test_a_second_ctrl_c_exits_at_once(tmp_path: Path) -> None:
    config = document(tmp_path)
    config["env"] = {"name": DIAL, "config": {"reset_s": 50.0}}
    config["failures"] = {"drain_s": 60.0}
    with running(config) as owner:
        owner.said("phase training")
        owner.popen.send_signal(signal.SIGINT)
        assert owner.popen.poll() is None  # it waits for the resets

        def is_gone() -> bool:
            """Two signals that come at once count as one, so the second is sent until it is heard."""
            owner.popen.send_signal(signal.SIGINT)
            return owner.popen.poll() is not None

        until("the end", is_gone, within_s=5)
        assert owner.popen.returncode == 128 + signal.SIGINT
        owner.leaves_nothing()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_while_processes_start_ends_them(tmp_path: Path, number: signal.Signals) -> None:
    with running(document(tmp_path)) as owner:
        owner.said("phase starting")
        until("the first worker", lambda: processes_of(owner.pid))
        assert owner.signal(number) < 10
        assert owner.popen.returncode == 0
        owner.leaves_nothing()
    assert summary_of(tmp_path)["outcome"] == "interrupted before training"


def test_an_interrupt_during_the_first_evaluation_ends_the_run(tmp_path: Path) -> None:
    config = document(tmp_path)
    config["evaluation"] = {"episodes": 100_000}
    with running(config) as owner:
        owner.said("phase evaluation before training")
        assert owner.signal(signal.SIGINT) < 30
        assert owner.popen.returncode == 0
        owner.leaves_nothing()
    summary = summary_of(tmp_path)
    assert (summary["outcome"], summary["reason"]) == ("interrupted", "interrupted by SIGINT")
    assert summary["success_before"] is None
    assert os.listdir(run_dir_of(tmp_path) / "checkpoints")
