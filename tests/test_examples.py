"""The examples and the README: what a newcomer copies must work."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ebrl.config.load import load_config
from ebrl.runtime.plugins import check_plugins

ROOT = Path(__file__).parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*.toml"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_each_example_is_a_valid_run(path: Path) -> None:
    check_plugins(load_config(path))


def test_the_readme_shows_the_environment_that_is_tested() -> None:
    shown = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    code = (ROOT / "examples/own_env/parking.py").read_text()
    assert code in shown
    assert len(code.splitlines()) <= 50


def test_the_environment_in_the_readme_keeps_the_contract() -> None:
    command = [sys.executable, "-m", "ebrl", "check", "env", "parking:Parking"]
    done = subprocess.run(command, cwd=ROOT / "examples/own_env", capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("run", ["parking.toml", "parking_grpo.toml"])
def test_an_environment_outside_the_package_trains(run: str, tmp_path: Path) -> None:
    directory = ROOT / "examples/own_env"
    settings = ["training.max_env_steps=40000", "evaluation.episodes=64", f"run.directory={tmp_path}"]
    command = [sys.executable, "-m", "ebrl", "train", run, "--json"]
    for setting in settings:
        command += ["--set", setting]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert summary["success_after"] > summary["success_before"] + 0.2
    assert summary["ledger_balances"]
