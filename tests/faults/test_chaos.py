"""Environments go wrong in every way they know, in one of a hundred env steps; the run ends well all the same."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from drills import DIAL, MLP, PPO, named_memory, processes_of, shared_memory_of
from ebrl.config.load import make_config
from ebrl.records.replay import replay
from ebrl.records.writer import read_metrics
from ebrl.runtime.display import Silent
from ebrl.runtime.session import train

ENV_STEPS = 10_000
CHUNK_LEN = 4
FAILURES = {
    "raise_probability": 0.0015,
    "nan_obs_probability": 0.001 * CHUNK_LEN,  # seen at the end of a chunk only
    "nan_reward_probability": 0.0025,
    "bad_shape_probability": 0.0005 * CHUNK_LEN,
    "hang_probability": 0.001,
    "crash_probability": 0.0005,
    "segfault_probability": 0.0015,
    "abort_probability": 0.0015,
}
"""Together 1 % of all env steps."""


@pytest.mark.slow
def test_ten_thousand_env_steps_of_which_one_percent_go_wrong(tmp_path: Path) -> None:
    others, memory = processes_of(os.getpid()), shared_memory_of()
    config = make_config(
        {
            "run": {"directory": str(tmp_path)},
            "env": {"name": DIAL, "config": {**FAILURES, "leak_mib": 6.0, "min_episode_steps": 5}},
            "policy": {"name": "mlp", "chunk_len": CHUNK_LEN, "config": MLP},
            "algorithm": {"config": PPO},
            "simulation": {"num_envs": 6},
            "training": {"batch_trajectories": 16, "trajectory_chunks": 4, "max_env_steps": ENV_STEPS, "window": 16},
            "evaluation": {"episodes": 0},
            "failures": {"step_s": 0.5, "max_env_failures": 50, "worker_memory_gib": 0.125},
        }
    )
    display = Silent()
    summary = train(config, display, validate=True)
    print({name: summary[name] for name in ("seconds", "env_steps", "env_failures", "restarts", "recycled", "ledger")})
    assert (summary["outcome"], summary["reason"]) == ("finished", f"{ENV_STEPS} env steps")
    assert summary["ledger_balances"]
    failures = summary["env_failures"]
    assert failures.keys() == summary["ledger"]["dropped"].keys() == {"raised", "died", "deadline", "invalid"}
    assert 0.005 < sum(failures.values()) / summary["env_steps"] < 0.02
    for ending in ("killed by SIGSEGV", "killed by SIGABRT", "killed by SIGKILL", "told to fail here", "want float32"):
        assert any(ending in notice for notice in display.notices), ending
    assert 1 <= sum("was not finite" in notice for notice in display.notices) <= 4  # once for each field
    kept = (Path(summary["run_dir"]) / "notices.log").read_text()
    assert all(notice in kept for notice in display.notices)
    lost = sum(number for reason, number in failures.items() if reason != "invalid")
    # A worker that was lost when the run was ending need not be replaced before its end.
    assert lost - config.simulation.num_envs <= summary["restarts"]["env_worker"] <= lost
    assert summary["restarts"].keys() == {"env_worker"}
    assert summary["recycled"]["memory"] > 0
    assert summary["recycled"]["resets"] == 0
    assert sum("worker_memory_gib" in notice for notice in display.notices) == 1
    run_dir = Path(summary["run_dir"])
    assert read_metrics(run_dir)[-1]["failures/recycled_workers"] > 0
    assert replay(run_dir).difference is None
    assert processes_of(os.getpid()) == others
    assert (shared_memory_of(), named_memory()) == (memory, [])
