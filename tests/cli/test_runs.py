"""One tiny run, and everything that can be done with it afterwards."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from calling import TINY, Result, call
from PIL import Image

from ebrl.config.load import make_config
from ebrl.errors import UsageError
from ebrl.runtime.playback import check_pictures


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("place")
    (path / "run.toml").write_text(TINY)
    return path


@pytest.fixture(scope="module")
def trained(place: Path) -> Result:
    result = call("train", "run.toml", "--validate", "--json", cwd=place)
    assert result.code == 0, result.err
    return result


def test_train_answers_with_the_summary(trained: Result, place: Path) -> None:
    summary: dict[str, Any] = trained.document
    assert (summary["outcome"], summary["policy_version"], summary["ledger_balances"]) == ("finished", 3, True)
    assert summary["staleness_max"] <= summary["staleness_bound"]
    assert {"success_before", "success_after", "env_steps_per_s", "trajectories_per_s", "busy"} <= summary.keys()
    run_dir = place / summary["run_dir"]
    assert (run_dir / "learning_curve.png").exists()
    assert (place / "runs" / "latest").resolve() == run_dir.resolve()


def test_eval_measures_and_films_the_run(trained: Result, place: Path) -> None:
    result = call("eval", "runs/latest", "--episodes", "3", "--video", "--video-episodes", "2", "--json", cwd=place)
    assert result.code == 0, result.err
    document = result.document
    assert (document["episodes"], document["checkpoint"]) == (3, "update-000003")
    assert document["video"]["checkpoints"] == ["update-000000", "update-000003"]
    with Image.open(document["video"]["path"]) as gif:
        assert getattr(gif, "n_frames", 1) == document["video"]["frames"] > 1
        assert gif.width > 2 * 256
        first = gif.convert("RGB")
    left, right = first.crop((0, 60, 256, 300)), first.crop((first.width - 256, 60, first.width, 300))
    assert left.tobytes() == right.tobytes(), "both start from the same initial state"
    assert len(left.getcolors() or []) > 1


def test_eval_of_an_absent_checkpoint_names_the_nearest(trained: Result, place: Path) -> None:
    result = call("eval", "runs/latest", "--checkpoint", "update-3", cwd=place)
    assert result.code == 2
    assert "did you mean 'update-000003'?" in result.err


def test_a_finished_run_is_resumed_without_its_file_and_goes_on(trained: Result, place: Path) -> None:
    result = call("train", "--resume", "runs/latest", "--set", "training.max_updates=4", cwd=place)
    assert result.code == 0, result.err
    assert "finished: toy/reach-v1" in result.out
    assert "4 updates in" in result.out
    assert "ebrl eval runs/tiny-" in result.out
    assert "tensorboard --logdir runs/tiny-" in result.out


def test_another_configuration_is_not_resumed_and_every_difference_is_named(trained: Result, place: Path) -> None:
    (place / "other.toml").write_text(TINY.replace("num_envs = 2", "num_envs = 3"))
    result = call("train", "other.toml", "--resume", "runs/latest", "--set", "policy.config.hidden=[8]", cwd=place)
    assert result.code == 2
    assert "simulation.num_envs: 2 → 3" in result.err
    assert "policy.config.hidden: None → [8]" in result.err


def test_pretrain_makes_a_checkpoint_and_no_more(place: Path) -> None:
    result = call("pretrain", "run.toml", "--set", "run.name=clone", "--json", cwd=place)
    assert result.code == 0, result.err
    document = result.document
    assert (place / document["checkpoint"] / "policy.safetensors").exists()
    assert (document["demonstrations"], document["windows"] > 0) == (2, True)


def test_a_run_that_fails_exits_1(place: Path) -> None:
    result = call(
        "train", "run.toml", "--json", "--set", "env.name=toy/dial-v1", "--set", "env.config.fail_at_step=2",
        "--set", "evaluation.episodes=0", "--set", "run.name=bad", "--set", "failures.max_env_failures=0", cwd=place,
    )  # fmt: skip
    assert (result.code, result.document["error"]["type"]) == (1, "EnvFailure")
    assert "was told to fail here" in result.document["error"]["message"]


def test_an_environment_without_a_picture_cannot_be_filmed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "blind.py").write_text(
        "import dataclasses\nfrom ebrl.envs.toy import Reach\n"
        "class Blind(Reach):\n"
        "    @dataclasses.dataclass(frozen=True)\n    class Config:\n        pass\n"
        "    def __init__(self, task='', config=None):\n        super().__init__(task, Reach.Config())\n"
    )
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="blind:Blind offers no picture"):
        check_pictures(make_config({"env": {"name": "blind:Blind"}}))


def test_a_gymnasium_environment_is_drawn_or_says_what_it_lacks() -> None:
    config = make_config({"env": {"name": "gym/CartPole-v1"}})
    if importlib.util.find_spec("pygame"):
        check_pictures(config)
    else:
        with pytest.raises(UsageError, match=r"gym/CartPole-v1' cannot be drawn: .*pygame"):
            check_pictures(config)


@pytest.mark.parametrize("full", [False, True], ids=["reader gone", "disk full"])
def test_a_run_outlives_whoever_reads_its_progress(tmp_path: Path, full: bool) -> None:
    """As in ``ebrl train ... 2>&1 | tee log``, where Ctrl-C ends tee at once."""
    (tmp_path / "run.toml").write_text(TINY)
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "ebrl", "train", "run.toml", "--json"]
    with open("/dev/full", "w") as device:
        done = subprocess.run(
            command,
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=device if full else writer,
            timeout=120,
            check=False,
        )
    os.close(writer)
    assert done.returncode == 0
    assert json.loads(done.stdout)["outcome"] == "finished"
