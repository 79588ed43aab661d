"""``behavior/*`` against a stand-in: what is shown here is that the adapter keeps to the published interface."""

from __future__ import annotations

import importlib.util
import sys
from typing import Any

import fake_omnigibson
import numpy as np
import pytest

from ebrl.envs.behavior import Behavior, BehaviorVector
from ebrl.errors import UsageError
from ebrl.testing.check_env import check_env

ACTIVITY = "turning_on_radio"
FORWARD = np.array([1, 0, 0, 0], np.float32)


@pytest.fixture(autouse=True)
def fake(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_omnigibson.install(monkeypatch)


def config(**fields: Any) -> Any:
    return Behavior.Config(**{"image_size": 16, **fields})


@pytest.mark.parametrize("cameras", [[], ["eyes"], ["eyes", "left_eef_link"]])
def test_keeps_the_contract(cameras: list[str]) -> None:
    """But for one thing, which is said: there is no seed, so all episodes begin alike."""
    results = check_env(f"ebrl.envs.behavior:Behavior/{ACTIVITY}", {"cameras": cameras, "image_size": 16})
    assert [one.name for one in results if not one.ok or one.severity == "warning"] == ["seeds differ"]


@pytest.mark.parametrize("cameras", [(), ("eyes",)])
def test_a_reset_does_not_move_the_other_scenes(cameras: tuple[str, ...]) -> None:
    """And its picture is current, though pictures lag."""
    vector = BehaviorVector(ACTIVITY, config(cameras=cameras), 3)
    worlds = fake_omnigibson.og.sim.environments
    everybody = np.ones(3, bool)
    vector.reset([0, 1, 2], [0, 1, 2])
    for _ in range(4):
        vector.step(np.tile(FORWARD, (3, 1)), everybody, need_obs=~everybody)
    places = [world.place.clone() for world in worlds]
    steps = fake_omnigibson.og.sim.num_steps
    first = vector.reset([1], [5])
    assert fake_omnigibson.og.sim.num_steps == steps
    assert (worlds[1].place == 0).all()
    assert all((worlds[i].place == places[i]).all() for i in (0, 2))
    assert (first["state"][0, :4] == 0).all()
    if "image" in first:
        assert (first["image"][0, 8:, :, 0] == 0).all()


def test_nothing_is_fetched_unless_it_is_read() -> None:
    vector = BehaviorVector(ACTIVITY, config(), 2)
    vector.reset([0, 1], [0, 0])
    before = [env.num_observed for env in fake_omnigibson.og.sim.environments]
    everybody = np.ones(2, bool)
    for t in range(8):
        result = vector.step(np.zeros((2, 4), np.float32), everybody, need_obs=np.array([t == 7, False]))
    after = [env.num_observed for env in fake_omnigibson.og.sim.environments]
    assert np.subtract(after, before).tolist() == [1, 0]
    assert result.observation is not None


def test_a_scene_at_rest_is_sent_zeros() -> None:
    vector = BehaviorVector(ACTIVITY, config(), 2)
    vector.reset([0, 1], [0, 0])
    actions = np.full((2, 4), np.nan, np.float32)
    actions[0] = FORWARD
    vector.step(actions, np.array([True, False]), need_obs=np.zeros(2, bool))
    first, second = fake_omnigibson.og.sim.environments
    assert float(first.place[0]) == pytest.approx(0.02)
    assert (second.place == 0).all()


@pytest.mark.parametrize("terminate", [True, False])
def test_success_is_paid_once(terminate: bool) -> None:
    env = Behavior(ACTIVITY, config(terminate_on_success=terminate))
    env.reset(0)
    steps = [env.step(FORWARD, need_obs=False) for _ in range(20)]
    wins = [info["success"] for *_, info in steps]
    assert wins.index(True) == 12
    assert [reward for _, reward, *_ in steps] == [float(t == 12) for t in range(20)]
    assert [terminated for _, _, terminated, _, _ in steps] == [win and terminate for win in wins]
    assert not any(truncated for *_, truncated, _ in steps)


def test_the_dense_reward_is_the_share_of_the_goal() -> None:
    env = Behavior(ACTIVITY, config(reward="dense"))
    env.reset(0)
    rewards = [env.step(FORWARD, need_obs=False)[1] for _ in range(14)]
    assert [(t, reward) for t, reward in enumerate(rewards) if reward] == [(6, 0.5), (12, 0.5)]


def test_cameras_are_found_by_their_link() -> None:
    env = Behavior(ACTIVITY, config(cameras=("eyes", "left_eef_link")))
    observation, _ = env.reset(0)
    assert observation["eyes"].shape == (16, 16, 3)
    assert (observation["left_eef_link"][8:, :, 1] == len("left_eef_link")).all()
    with pytest.raises(UsageError, match=r"no camera 'nose'; known: eyes, left_eef_link"):
        Behavior(ACTIVITY, config(cameras=("nose",)))


def test_the_instruction_is_the_activity_in_words() -> None:
    observation, _ = Behavior(ACTIVITY, config()).reset(0)
    assert observation["instruction"].tobytes().rstrip(b"\0") == b"turning on radio"


@pytest.mark.skipif(importlib.util.find_spec("omnigibson") is not None, reason="OmniGibson is in this interpreter")
def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "omnigibson")
    with pytest.raises(UsageError, match=r"behavior/\* needs the module 'omnigibson'.*its interpreter as env\.python"):
        Behavior(ACTIVITY)


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"cameras": ("a", "a")}, "want each name once"),
        ({"image_size": 4}, "image_size = 4: want 8 to 1024"),
        ({"max_episode_steps": 0}, "max_episode_steps = 0: want at least 1"),
    ],
)
def test_an_impossible_value_is_refused(fields: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        Behavior.Config(**fields)


def test_it_says_that_it_was_never_run() -> None:
    assert not Behavior.verified
    assert "Isaac Sim" in Behavior.unverified_because
