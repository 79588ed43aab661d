"""``robocasa/*`` against a stand-in: what is shown here is that the adapter keeps to the published interface."""

from __future__ import annotations

import importlib.util
from typing import Any

import fake_robocasa
import numpy as np
import pytest

from ebrl.envs import robocasa
from ebrl.envs.robocasa import RoboCasa
from ebrl.errors import UnknownPlugin, UsageError
from ebrl.testing.check_env import check_env

TASK = "OpenDrawer"
CAMERAS = ("robot0_agentview_left", "robot0_eye_in_hand")
PULL = np.array([-1, *[0] * 10, -1], np.float32)
DRIVE = np.array([*[0] * 7, 1, 0, 0, 0, 1], np.float32)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_robocasa.install(monkeypatch)
    monkeypatch.setattr(robocasa, "choose_gl", lambda: "egl")


def made(**fields: Any) -> RoboCasa:
    return RoboCasa(TASK, RoboCasa.Config(**{"image_size": 16, "cameras": CAMERAS, **fields}))


@pytest.mark.usefixtures("fake")
@pytest.mark.parametrize("cameras", [["robot0_eye_in_hand"], list(CAMERAS)])
def test_keeps_the_contract(cameras: list[str]) -> None:
    results = check_env(f"ebrl.envs.robocasa:RoboCasa/{TASK}", {"cameras": cameras, "image_size": 16})
    assert [one for one in results if not one.ok or one.severity == "warning"] == []


@pytest.mark.usefixtures("fake")
def test_an_episode_is_a_function_of_its_seed() -> None:
    """Whatever happened before, and though part of it is drawn from numpy's own generator."""
    env, other = made(), made()
    starts = []
    for one in (env, env, other):
        np.random.random(3)
        first, _ = one.reset(6)
        for t in range(20):
            seen, *_ = one.step(PULL if t % 3 else DRIVE, need_obs=t % 4 == 3)
        assert seen is not None
        starts.append(b"".join(shown[name].tobytes() for shown in (first, seen) for name in sorted(shown)))
        one.reset(8)
    assert len(set(starts)) == 1


@pytest.mark.usefixtures("fake")
def test_seeding_leaves_numpys_generator_as_it_was() -> None:
    env = made()
    np.random.seed(1)
    want = np.random.random()
    np.random.seed(1)
    env.reset(5)
    assert np.random.random() == want


@pytest.mark.usefixtures("fake")
def test_nothing_is_rendered_unless_it_is_read() -> None:
    env = made()
    env.reset(0)
    env._env.rendered.clear()
    for t in range(1, 17):
        env.step(PULL, need_obs=t % 8 == 0)
    assert env._env.rendered == list(CAMERAS) * 2


@pytest.mark.usefixtures("fake")
def test_an_observation_is_of_the_end_of_its_step_and_upright() -> None:
    env = made()
    env.reset(3)
    seen, *_ = env.step(DRIVE, need_obs=True)
    assert seen is not None
    kitchen = env._env
    assert seen["state"].shape == (16,)
    assert np.allclose(seen["state"][:3], kitchen.base)
    assert np.allclose(seen["state"][7:10], kitchen.hand - kitchen.base)
    for camera in CAMERAS:
        assert (seen[camera][:8] == 220).all()
        assert (seen[camera][8:, :, 2] == len(camera)).all()


@pytest.mark.usefixtures("fake")
def test_the_instruction_is_that_of_the_episode() -> None:
    env = made()
    texts = {env.reset(seed)[0]["instruction"].tobytes().rstrip(b"\0").decode() for seed in range(6)}
    assert len(texts) > 1
    assert all(text.startswith("open the drawer of kitchen ") for text in texts)


@pytest.mark.usefixtures("fake")
@pytest.mark.parametrize("terminate", [True, False])
def test_success_is_paid_once(terminate: bool) -> None:
    env = made(terminate_on_success=terminate)
    env.reset(0)
    steps = [env.step(PULL, need_obs=False) for _ in range(20)]
    wins = [i for i, (_, _, _, _, info) in enumerate(steps) if info["success"]]
    assert sum(reward for _, reward, *_ in steps) == 1
    assert [terminated for _, _, terminated, _, _ in steps] == [i in wins and terminate for i in range(20)]


@pytest.mark.usefixtures("fake")
def test_the_horizon_is_robocasas_unless_set() -> None:
    assert made().spec.max_episode_steps == 60
    assert made(max_episode_steps=7).spec.max_episode_steps == 7


@pytest.mark.usefixtures("fake")
def test_missing_files_and_unknown_tasks_are_named() -> None:
    with pytest.raises(UsageError, match=r"not here \(/assets/.*apple.*run: .*download_kitchen_assets"):
        RoboCasa("PickPlaceCounterToSink")
    with pytest.raises(UnknownPlugin, match="did you mean 'robocasa/OpenDrawer'"):
        RoboCasa("OpenDrawr")
    assert RoboCasa.tasks() == ["OpenDrawer", "PickPlaceCounterToSink"]


@pytest.mark.usefixtures("fake")
def test_closing_twice_closes_once() -> None:
    env = made()
    kitchen = env._env
    env.close()
    env.close()
    assert kitchen.closed == 1


@pytest.mark.skipif(importlib.util.find_spec("robocasa") is not None, reason="RoboCasa is in this interpreter")
def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(robocasa, "choose_gl", lambda: "egl")
    with pytest.raises(UsageError, match=r"robocasa/\* needs the module 'robocasa'.*its interpreter as env\.python"):
        RoboCasa(TASK)


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"cameras": ()}, "want at least one, and each name once"),
        ({"image_size": 4}, "image_size = 4: want 8 to 1024"),
        ({"max_episode_steps": 0}, "max_episode_steps = 0: want at least 1"),
    ],
)
def test_an_impossible_value_is_refused(fields: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        RoboCasa.Config(**fields)


def test_it_says_that_it_was_never_run() -> None:
    assert not RoboCasa.verified
    assert "download" in RoboCasa.unverified_because
