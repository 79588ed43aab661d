from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from test_metaworld import needs_egl
from under_simulator import run_check

from ebrl.config.load import make_config
from ebrl.envs.gym import GymEnv
from ebrl.envs.maniskill import ManiSkill
from ebrl.errors import EbrlError, UnknownPlugin, UsageError
from ebrl.host.simulators import python_for
from ebrl.runtime.plugins import check_plugins, check_task

PIXELS = {"options": {"obs_type": "pixels_agent_pos"}}
PICTURE = {"render": True, "options": {"width": 48, "height": 48}}


def use(env_name: str, suite: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let ``run_check`` find the interpreter of a suite; skips the test if there is none."""
    variable = f"EBRL_TEST_PYTHON_{suite}"
    try:
        python = os.environ.get(variable) or python_for(env_name)
    except EbrlError as error:
        pytest.skip(f"{error}, or set {variable} to its interpreter")
    monkeypatch.setenv("EBRL_TEST_PYTHON_GYM", python)


@pytest.fixture
def robotics(monkeypatch: pytest.MonkeyPatch) -> None:
    use("gym/FetchReach-v4", "GYMNASIUM_ROBOTICS", monkeypatch)


@pytest.fixture
def pusht(monkeypatch: pytest.MonkeyPatch) -> None:
    use("gym/gym_pusht/PushT-v0", "GYM_PUSHT", monkeypatch)


def twice_the_same(cases: list[tuple[str, dict[str, Any]]], where: Path) -> None:
    texts = [
        run_check("gym", "an_episode_is_a_function_of_its_seed", json.dumps(order), where=where)
        for order in (cases, cases[::-1])
    ]
    assert sorted(texts[0].splitlines()) == sorted(texts[1].splitlines())
    assert len(texts[0].splitlines()) == len(cases)


@pytest.mark.usefixtures("robotics")
def test_an_episode_of_gymnasium_robotics_is_a_function_of_its_seed(tmp_path: Path) -> None:
    names = ("FetchReach-v4", "FetchPickAndPlace-v4", "HandReach-v3", "HandManipulateBlock-v1", "AdroitHandDoor-v1")
    twice_the_same([(name, {}) for name in (*names, "FrankaKitchen-v1")], tmp_path)


@needs_egl
@pytest.mark.usefixtures("robotics")
def test_so_are_its_pictures(tmp_path: Path) -> None:
    twice_the_same([("FetchPickAndPlace-v4", PICTURE)], tmp_path)


@pytest.mark.usefixtures("pusht")
def test_an_episode_of_pusht_is_a_function_of_its_seed(tmp_path: Path) -> None:
    name = "gym_pusht/PushT-v0"
    twice_the_same([(name, {}), (name, PIXELS)], tmp_path)


@pytest.mark.usefixtures("robotics")
def test_goals_come_before_the_rest_of_the_state(tmp_path: Path) -> None:
    run_check("gym", "goals_come_before_the_rest_of_the_state", where=tmp_path)


@pytest.mark.usefixtures("robotics")
def test_reaching_the_goal_is_success(tmp_path: Path) -> None:
    run_check("gym", "reaching_the_goal_is_success", where=tmp_path)


@needs_egl
@pytest.mark.usefixtures("robotics")
def test_a_picture_changes_nothing(tmp_path: Path) -> None:
    run_check("gym", "a_picture_changes_nothing", where=tmp_path)


@pytest.mark.usefixtures("pusht")
def test_pixels_are_drawn_only_where_they_are_read(tmp_path: Path) -> None:
    run_check("gym", "pixels_are_drawn_only_where_they_are_read", where=tmp_path)


@pytest.mark.usefixtures("robotics")
@pytest.mark.parametrize("task", ["FetchPush-v4", "AdroitHandRelocate-v1"])
def test_gymnasium_robotics_keeps_the_contract(task: str, tmp_path: Path) -> None:
    run_check("gym", "keeps_the_contract", task, where=tmp_path)


@pytest.mark.usefixtures("pusht")
@pytest.mark.parametrize("section", [{}, PIXELS, {"render": True}])
def test_pusht_keeps_the_contract(section: dict[str, Any], tmp_path: Path) -> None:
    run_check("gym", "keeps_the_contract", "gym_pusht/PushT-v0", json.dumps(section), where=tmp_path)


def test_a_module_that_is_not_there_is_named() -> None:
    with pytest.raises(UsageError, match=r"gym/Nothing-v0.*no module 'nowhere'; want the one that registers the id"):
        GymEnv("Nothing-v0", GymEnv.Config(module="nowhere"))


def test_a_module_that_is_named_registers_its_own() -> None:
    env = GymEnv("EbrlRegistersItself-v0", GymEnv.Config(module="self_registering"))
    assert env.spec.max_episode_steps == 5


def test_so_it_does_for_a_run(tmp_path: Path) -> None:
    section = {"module": "self_registering"}
    check_plugins(make_config({"env": {"name": "gym/EbrlRegistersItself-v0", "config": section}}))
    with pytest.raises(UnknownPlugin):
        check_plugins(make_config({"env": {"name": "gym/EbrlRegistersNothing-v0"}}))


def test_tasks_that_maniskill_does_not_list_are_left_to_it() -> None:
    check_task(ManiSkill, "maniskill/PushT-v1", "PushT-v1", {})


@pytest.mark.parametrize(("key", "render"), [("image", True), ("state", False)])
def test_an_image_that_has_the_name_of_what_is_added_is_refused(key: str, render: bool) -> None:
    class Looks(gymnasium.Env[Any, Any]):
        action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)
        picture = gymnasium.spaces.Box(0, 255, (8, 8, 3), np.uint8)
        observation_space = gymnasium.spaces.Dict(
            {key: picture, "other": picture, "position": gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)}
        )

        metadata: dict[str, Any] = {"render_modes": ["rgb_array"]}  # noqa: RUF012 (as the base class has it)

        def __init__(self, **options: Any) -> None:
            self.render_mode = options.get("render_mode")

    gymnasium.register(f"EbrlLooks{key}-v0", entry_point=Looks, max_episode_steps=5)
    with pytest.raises(UsageError, match=f"has an image of its own under '{key}'"):
        GymEnv(f"EbrlLooks{key}-v0", GymEnv.Config(render=render))


def test_options_that_do_not_exist_are_refused() -> None:
    with pytest.raises(UsageError, match=r"gym/Pendulum-v1' does not take these options: .*'colour'"):
        GymEnv("Pendulum-v1", GymEnv.Config(options={"colour": 1}))
    with pytest.raises(ValueError, match="options = 3: want a table of arguments"):
        GymEnv.Config(options=3)


def test_options_reach_the_environment() -> None:
    env = GymEnv("Pendulum-v1", GymEnv.Config(options={"g": 0.0}))
    assert env._env.unwrapped.g == 0
