"""Films: played under the environment's own interpreter, and ended with a reason where the environment fails."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from bare_python import bare_python
from ebrl.config.load import make_config
from ebrl.config.schema import RunConfig
from ebrl.data.checkpoint import save_checkpoint
from ebrl.envs.toy import Reach
from ebrl.errors import EnvFailure
from ebrl.runtime.display import Silent
from ebrl.runtime.playback import record_before_after
from ebrl.workers.building import build_policy
from ebrl.workers.camera import _with_pictures

FAILING = """
import signal
from ebrl.envs.toy import Reach

class Hanging(Reach):
    def step(self, action, *, need_obs):
        signal.pause()

class Raising(Reach):
    def step(self, action, *, need_obs):
        raise ValueError("the arm fell off")
"""


@dataclasses.dataclass(frozen=True)
class OneCamera:
    camera: str | None = None
    image_size: int = 64


@dataclasses.dataclass(frozen=True)
class SomeCameras:
    cameras: tuple[str, ...] = ()
    image_size: int = 64


@pytest.mark.parametrize(
    ("config", "filmed"),
    [
        (OneCamera(), OneCamera("corner2", 256)),
        (OneCamera("gripperPOV"), OneCamera("gripperPOV", 256)),
        (SomeCameras(), SomeCameras(("agentview",), 256)),
        (SomeCameras(("frontview", "agentview")), SomeCameras(("frontview",), 256)),
    ],
)
def test_one_large_picture_is_taken_with_the_first_camera_or_the_usual_one(config: Any, filmed: Any) -> None:
    assert _with_pictures(config) == filmed


def config_of(env: str, **changes: Any) -> RunConfig:
    document = {"policy": {"name": "mlp", "chunk_len": 4, "config": {"hidden": [8], "critic_hidden": [8]}}}
    return make_config(document | {"env": {"name": env, "config": {"max_episode_steps": 10}}} | changes)


def run_dir_of(directory: Path, config: RunConfig) -> Path:
    """With checkpoints of two policies."""
    spec = Reach("", Reach.Config(max_episode_steps=10)).spec
    for seed in (0, 1):
        setup = {
            "env_spec": spec.to_json(),
            "policy": config.policy.name,
            "policy_config": config.policy.config,
            "chunk_len": config.policy.chunk_len,
            "seed": seed,
            "device": "cpu",
        }
        state = {"policy_version": seed, "env_steps": 100 * seed}
        save_checkpoint(directory / "checkpoints", build_policy(setup), None, state, keep=2)
    return directory


def test_an_environment_is_filmed_under_its_own_interpreter_as_it_is_here(tmp_path: Path) -> None:
    films = []
    for name, python in (("here", sys.executable), ("there", bare_python(tmp_path / "bare"))):
        config = config_of("toy/reach-v1")
        config = config.model_copy(update={"env": config.env.model_copy(update={"python": python})})
        run_dir = run_dir_of(tmp_path / name, config)
        told = record_before_after(run_dir, config, Silent(), episodes=2)
        assert told["checkpoints"] == ["update-000000", "update-000001"]
        assert told["frames"] >= 2 * 11  # the first picture of an episode, and one after each env step
        films.append(Path(told["path"]).read_bytes())
    assert films[0] == films[1]
    with Image.open(tmp_path / "here" / "before_after.gif") as gif:
        left, right = gif.width // 4, 3 * gif.width // 4
        first = gif.convert("RGB")
        gif.seek(getattr(gif, "n_frames", 1) - 1)
        last = gif.convert("RGB")
    box = 60, 300
    halves = [
        image.crop((x - 120, box[0], x + 120, box[1])).tobytes() for image in (first, last) for x in (left, right)
    ]
    assert halves[2] != halves[3], "two policies do not end alike"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("Hanging", r"did not finish the env steps of a chunk within 1 s, filmed(.|\n)*failing.py.*in step"),
        ("Raising", r"failed while it was filmed: .*(.|\n)*the arm fell off"),
    ],
)
def test_an_environment_that_fails_while_it_is_filmed_says_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, said: str
) -> None:
    (tmp_path / "failing.py").write_text(FAILING)
    monkeypatch.chdir(tmp_path)
    config = config_of(f"failing:{name}", failures={"step_s": 0.5})
    with pytest.raises(EnvFailure, match=said):
        record_before_after(run_dir_of(tmp_path, config), config, Silent(), episodes=1)
