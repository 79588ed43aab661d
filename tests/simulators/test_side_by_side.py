"""Two simulators whose packages exclude each other, in two runs at the same time, from one installation."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from ebrl.errors import UsageError
from ebrl.host.simulators import python_for

RUN = """
[env]
name = "{env}"
config = {{ cameras = [], max_episode_steps = 40 }}
[policy]
name = "mlp"
chunk_len = 8
[simulation]
num_envs = 2
[training]
batch_trajectories = 2
trajectory_chunks = 2
max_updates = 2
[evaluation]
episodes = 0
"""


@pytest.fixture(params=[["libero/libero_spatial/0", "robosuite/Lift"]], ids=["libero and robosuite"])
def envs(request: pytest.FixtureRequest) -> list[str]:
    names: list[str] = request.param
    for name in names:
        try:
            python_for(name)
        except UsageError as error:
            pytest.skip(str(error))
    return names


def test_two_simulators_that_cannot_share_an_interpreter_train_side_by_side(envs: list[str], tmp_path: Path) -> None:
    assert len({python_for(name) for name in envs}) == 2
    runs = []
    for name in envs:
        file = tmp_path / f"{name.partition('/')[0]}.toml"
        file.write_text(RUN.format(env=name))
        command = [sys.executable, "-m", "ebrl", "train", str(file), "--json", "--set", f"run.directory={tmp_path}"]
        runs.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
    try:
        answers = [run.communicate(timeout=300) for run in runs]
    finally:
        for run in runs:
            run.kill()
    for run, (out, err) in zip(runs, answers, strict=True):
        assert run.returncode == 0, err
        summary = json.loads(out)
        assert (summary["policy_version"], summary["ledger_balances"]) == (2, True)
        assert summary["env_failures"] == {}
        assert summary["env_steps"] >= 64
