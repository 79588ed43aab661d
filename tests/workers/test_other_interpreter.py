"""Env workers under an interpreter that has numpy and nothing else of ours, as those of simulators do not."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from driven import ANSWER_S, Starter, env_workers

from bare_python import bare_python
from ebrl.data import messages as m
from ebrl.engines.local.process import WorkerProcess
from ebrl.errors import RunError, UsageError
from ebrl.registry import portable
from ebrl.testing import elsewhere
from ebrl.testing.check_env import check_env
from ebrl.testing.elsewhere import check_env_under


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Starter]:
    with env_workers(tmp_path / "logs") as starter:
        yield starter


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> str:
    return bare_python(tmp_path_factory.mktemp("bare") / "python")


def test_a_worker_elsewhere_steps_the_same_episode_as_one_here(start: Starter, bare: str) -> None:
    name = portable("env", "toy/dial-v1")
    stored = []
    for python in (sys.executable, bare):
        worker = start(name, python=python, min_episode_steps=12, max_episode_steps=12, image_size=8)
        executable = Path(f"/proc/{worker.process.pid}/cmdline").read_bytes().split(b"\0")[0].decode()
        assert executable == python
        worker.reset(seed=5)
        worker.actions(0.25)
        worker.step(0, 8)
        assert worker.step(1, 8).flags == m.CHUNK_OVER
        stored.append({key: array.copy() for key, array in worker.store.arrays.items()})
    for key, array in stored[0].items():
        np.testing.assert_array_equal(array, stored[1][key], err_msg=key)


def test_its_traceback_comes_back(start: Starter, bare: str) -> None:
    worker = start(portable("env", "toy/dial-v1"), python=bare, fail_at_step=1)
    worker.reset()
    worker.send(m.STEP, count=1)
    assert "Traceback" in worker.says(m.RAISED)


def test_demonstrations_are_recorded_there(tmp_path: Path, bare: str) -> None:
    output = tmp_path / "demonstrations.npz"
    process = WorkerProcess("ebrl.workers.demonstrator", "demonstrator", tmp_path / "log", python=bare)
    process.send_json(m.SETUP, {"env": portable("env", "toy/reach-v1"), "num_demos": 1, "output": str(output)})
    process.sock.settimeout(ANSWER_S)
    while "done" not in (told := json.loads(process.receive()[1][1:])):
        assert "error" not in told, told
    process.kill()
    with np.load(output, allow_pickle=False) as arrays:
        assert len(arrays["actions"]) == told["windows"] > 0


def test_an_environment_is_checked_there_as_it_is_here(bare: str) -> None:
    section = {"image_size": 16}
    here, there = check_env("toy/reach-v1", section), check_env_under(bare, "toy/reach-v1", section)
    assert [result.name for result in there] == [result.name for result in here]
    assert all(result.ok for result in there)


def test_a_wrong_config_is_told_as_it_is_here(bare: str) -> None:
    with pytest.raises(UsageError, match=r"env\.config\.image_sise: unknown field; did you mean 'image_size'"):
        check_env_under(bare, "toy/reach-v1", {"image_sise": 16})


@pytest.fixture(params=["bare", "own"])
def either(request: pytest.FixtureRequest, bare: str) -> str:
    return bare if request.param == "bare" else sys.executable


def test_a_crash_while_checking_names_the_interpreter(either: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parent)
    with pytest.raises(RunError) as caught:
        check_env_under(either, "crashing_env:Crashing")
    how = f"it ended with exit code -6 under {either}; the reason is above"
    assert str(caught.value) == f"env 'crashing_env:Crashing' could not be checked: {how}"


def test_a_hang_while_checking_shows_where(
    either: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(Path(__file__).parents[1] / "engines")
    monkeypatch.setattr(elsewhere, "WITHIN_S", 3.0)
    with pytest.raises(RunError, match="could not be checked: it hung for 3 s under"):
        check_env_under(either, "blocking_env:Never")
    assert re.search(r'blocking_env.py", line \d+ in __init__', capfd.readouterr().err)
