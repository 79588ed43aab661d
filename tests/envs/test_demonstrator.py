from __future__ import annotations

import io
import itertools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ebrl.workers.demonstrator import correlated_noise, run


def ask(path: Path, **fields: Any) -> tuple[int, list[dict[str, Any]]]:
    out = io.StringIO()
    document = {"env": "toy/reach-v1", "output": str(path), "num_demos": 3, "noise_std": 0.3, "chunk_len": 4}
    code = run(json.dumps({**document, **fields}), out)
    return code, [json.loads(line) for line in out.getvalue().splitlines()]


def read(path: Path) -> dict[str, np.ndarray]:
    with np.load(path, allow_pickle=False) as file:
        return dict(file)


def test_a_process_writes_windows_and_reports_each_demo(tmp_path: Path) -> None:
    path = tmp_path / "demos.npz"
    document = json.dumps({"env": "toy/reach-v1", "output": str(path), "num_demos": 2, "chunk_len": 4})
    command = [sys.executable, "-m", "ebrl.workers.demonstrator"]
    done = subprocess.run(command, input=document, capture_output=True, text=True, timeout=60, check=True)
    *progress, last = [json.loads(line) for line in done.stdout.splitlines()]
    windows = read(path)
    count = sum(line["steps"] - 4 + 1 for line in progress)
    assert [line["demo"] for line in progress] == [1, 2]
    assert last == {"done": True, "windows": count, "output": str(path)}
    assert {name: (array.shape, str(array.dtype)) for name, array in windows.items()} == {
        "obs_state": ((count, 4), "float32"),
        "obs_instruction": ((count, 64), "uint8"),
        "actions": ((count, 4, 2), "float32"),
    }
    assert list(tmp_path.iterdir()) == [path]


def test_windows_replay_the_dynamics_they_were_recorded_in(tmp_path: Path) -> None:
    ask(tmp_path / "a.npz", num_demos=1)
    windows = read(tmp_path / "a.npz")
    positions, first_actions = windows["obs_state"][:, 2:], windows["actions"][:, 0]
    moved = np.clip(positions + 0.1 * first_actions, -1, 1)
    assert np.allclose(moved[:-1], positions[1:], atol=1e-6)
    assert np.array_equal(windows["actions"][:-1, 1:], windows["actions"][1:, :-1])


def test_the_same_request_gives_the_same_windows_and_another_seed_others(tmp_path: Path) -> None:
    for name, seed in (("a", 5), ("b", 5), ("c", 6)):
        assert ask(tmp_path / f"{name}.npz", demo_seed=seed)[0] == 0
    a, b, c = (read(tmp_path / f"{name}.npz")["actions"] for name in "abc")
    assert np.array_equal(a, b)
    assert not np.array_equal(a[:5], c[:5])


def test_noise_keeps_its_deviation_and_its_correlation() -> None:
    noise = np.array(list(itertools.islice(correlated_noise(0, 0, 4, std=0.5, ar=0.8), 20000)))
    assert noise.std() == pytest.approx(0.5, rel=0.03)
    assert np.corrcoef(noise[:-1, 0], noise[1:, 0])[0, 1] == pytest.approx(0.8, abs=0.02)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"env": "toy/dial-v1"}, "env 'toy/dial-v1' has no scripted expert"),
        ({"env": "toy/reech-v1"}, "did you mean 'toy/reach-v1'"),
        ({"env_config": {"max_episode_steps": 1}}, "only 0 of 3 demonstrations succeeded in 100 tries"),
        ({"num_demo": 3}, "demonstrations.num_demo: unknown field; did you mean 'num_demos'?"),
        ({"noise_ar": 1.0}, "noise_ar = 1.0: want 0 to below 1"),
    ],
)
def test_a_failure_is_one_line_of_json_and_leaves_no_file(tmp_path: Path, fields: dict[str, Any], words: str) -> None:
    code, lines = ask(tmp_path / "demos.npz", **fields)
    assert code == 1
    assert words in lines[-1]["error"]
    assert "Traceback" in lines[-1]["traceback"]
    assert list(tmp_path.iterdir()) == []


def test_metaworld_demonstrations_are_recorded_past_success(tmp_path: Path) -> None:
    path = tmp_path / "drawer.npz"
    code, lines = ask(path, env="metaworld/drawer-open-v3", num_demos=1, noise_std=0.1, chunk_len=8)
    assert code == 0
    assert len(read(path)["actions"]) == lines[0]["steps"] - 7
