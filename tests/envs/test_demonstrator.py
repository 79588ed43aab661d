from __future__ import annotations

import itertools
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from drills import processes_of
from ebrl.config.load import make_config
from ebrl.config.schema import RunConfig
from ebrl.data.spec import EnvSpec
from ebrl.envs.toy import Reach
from ebrl.errors import RunError
from ebrl.runtime.display import Silent
from ebrl.runtime.pretrain import record_demonstrations
from ebrl.workers.demonstrator import correlated_noise, run


def ask(path: Path, **fields: Any) -> list[dict[str, Any]]:
    """Everything that is said of a request."""
    said: list[dict[str, Any]] = []
    request = {"env": "toy/reach-v1", "output": str(path), "num_demos": 3, "noise_std": 0.3, "chunk_len": 4}
    run(request | fields, said.append)
    return json.loads(json.dumps(said))  # type: ignore[no-any-return]


def config_of(env: str, *, start_s: float = 60.0, num_demos: int = 2) -> RunConfig:
    return make_config(
        {
            "env": {"name": env},
            "policy": {"name": "mlp", "chunk_len": 4},
            "pretrain": {"num_demos": num_demos, "noise_std": 0.3},
            "failures": {"start_s": start_s},
        }
    )


def read(path: Path) -> dict[str, np.ndarray]:
    with np.load(path, allow_pickle=False) as file:
        return dict(file)


class Seen(Silent):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.progressed: list[tuple[float, float, dict[str, float]]] = []

    def progress(self, done: float, total: float, facts: Mapping[str, float]) -> None:
        self.progressed.append((done, total, dict(facts)))


def test_a_process_writes_windows_and_reports_each_demo(tmp_path: Path) -> None:
    path, display = tmp_path / "demos.npz", Seen()
    facts = record_demonstrations(config_of("toy/reach-v1"), path, display)
    windows = read(path)
    kept = [told for before, told in itertools.pairwise(display.progressed) if told[0] > before[0]]
    count = sum(int(told[2]["env steps"]) - 4 + 1 for told in kept)
    assert [told[:2] for told in kept] == [(1, 2), (2, 2)]
    assert (facts["windows"], facts["output"]) == (count, str(path))
    assert EnvSpec.from_json(facts["spec"]) == Reach().spec
    assert {name: (array.shape, str(array.dtype)) for name, array in windows.items()} == {
        "obs_state": ((count, 4), "float32"),
        "obs_instruction": ((count, 64), "uint8"),
        "actions": ((count, 4, 2), "float32"),
    }
    assert sorted(tmp_path.iterdir()) == [path, tmp_path / "logs"]
    assert processes_of(os.getpid()) == []


@pytest.mark.parametrize(
    ("env", "start_s", "silent_about"),
    [
        ("HangsWhenBuilt", 2.0, "its start"),
        ("HangsInItsThirdReset", 10.0, "try 3"),  # a process needs a few seconds to start on a busy machine
        ("HangsAtStep", 10.0, "try 1"),
    ],
)
def test_what_hangs_is_named_shown_and_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, env: str, start_s: float, silent_about: str
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)
    config = config_of(f"hanging_envs:{env}", start_s=start_s)
    with pytest.raises(RunError) as caught:
        record_demonstrations(config, tmp_path / "demos.npz", Silent())
    text = str(caught.value)
    assert text.startswith(f"demonstrator: nothing was heard of {silent_about} for {start_s:g} s (failures.start_s)\n")
    assert re.search(r'hanging_envs\.py", line \d+ in _hang', text), text
    assert processes_of(os.getpid()) == []


def test_a_try_may_take_longer_than_the_deadline_for_a_sign_of_life(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)
    display = Seen()
    record_demonstrations(config_of("hanging_envs:Slow", start_s=5.0, num_demos=1), tmp_path / "a.npz", display)
    assert any(told[2]["tries"] == 0 and told[2]["env steps"] > 0 for told in display.progressed)


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ("Dies", r"demonstrations failed: exit code 3"),
        ("Raises", r"(?s)demonstrations failed: RuntimeError: no table\nTraceback.*hanging_envs\.py"),
        ("NotThere", r"demonstrations failed: UsageError: env 'hanging_envs:NotThere': module"),
    ],
)
def test_the_end_of_the_process_is_a_run_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, env: str, words: str
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)
    with pytest.raises(RunError, match=words):
        record_demonstrations(config_of(f"hanging_envs:{env}"), tmp_path / "demos.npz", Silent())


def test_failed_tries_are_signs_of_life_too(tmp_path: Path) -> None:
    said = ask(tmp_path / "a.npz", env_config={"max_episode_steps": 1}, max_tries=4)
    assert [line["tries"] for line in said[:-1]] == [0, 1, 2, 3, 4]
    assert {line["demos"] for line in said[:-1]} == {0}


def test_windows_replay_the_dynamics_they_were_recorded_in(tmp_path: Path) -> None:
    ask(tmp_path / "a.npz", num_demos=1)
    windows = read(tmp_path / "a.npz")
    positions, first_actions = windows["obs_state"][:, 2:], windows["actions"][:, 0]
    moved = np.clip(positions + 0.1 * first_actions, -1, 1)
    assert np.allclose(moved[:-1], positions[1:], atol=1e-6)
    assert np.array_equal(windows["actions"][:-1, 1:], windows["actions"][1:, :-1])


def test_the_same_request_gives_the_same_windows_and_another_seed_others(tmp_path: Path) -> None:
    for name, seed in (("a", 5), ("b", 5), ("c", 6)):
        assert ask(tmp_path / f"{name}.npz", demo_seed=seed)[-1]["done"]
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
        ({"env_config": {"max_episode_steps": 1}}, "lower pretrain.noise_std (0.3) or pretrain.num_demos (3)"),
        ({"env_config": {"max_episode_steps": 1}}, "only 0 of 3 demonstrations succeeded in 100 tries"),
        ({"num_demo": 3}, "demonstrations.num_demo: unknown field; did you mean 'num_demos'?"),
        ({"noise_ar": 1.0}, "demonstrations.noise_ar: = 1.0: want 0 to below 1"),
    ],
)
def test_a_failure_is_the_last_word_and_leaves_no_file(tmp_path: Path, fields: dict[str, Any], words: str) -> None:
    last = ask(tmp_path / "demos.npz", **fields)[-1]
    assert words in last["error"]
    assert "Traceback" in last["traceback"]
    assert list(tmp_path.iterdir()) == []


def test_metaworld_demonstrations_are_recorded_past_success(tmp_path: Path) -> None:
    path = tmp_path / "drawer.npz"
    *lines, last = ask(path, env="metaworld/drawer-open-v3", num_demos=1, noise_std=0.1, chunk_len=8)
    assert last["done"]
    assert len(read(path)["actions"]) == lines[-1]["steps"] - 7
