from __future__ import annotations

import pytest

from ebrl.envs.metaworld import MetaWorld
from ebrl.envs.toy import Dial, Reach
from ebrl.errors import ConfigError, UnknownPlugin, UsageError
from ebrl.registry import load, make_config, names, portable


def test_built_in_environments_are_installed() -> None:
    assert {"gym/*", "metaworld/*", "toy/dial-v1", "toy/reach-v1"} <= set(names("env"))


def test_an_exact_name_has_no_task_and_a_family_passes_it_on() -> None:
    assert load("env", "toy/reach-v1") == (Reach, "")
    assert load("env", "metaworld/drawer-open-v3") == (MetaWorld, "drawer-open-v3")
    assert load("env", "ebrl.envs.toy:Dial") == (Dial, "")
    assert load("env", "ebrl.envs.metaworld:MetaWorld/drawer-open-v3") == (MetaWorld, "drawer-open-v3")


@pytest.mark.parametrize(
    ("name", "elsewhere"),
    [
        ("toy/dial-v1", "ebrl.envs.toy:Dial"),
        ("metaworld/drawer-open-v3", "ebrl.envs.metaworld:MetaWorld/drawer-open-v3"),
        ("gym/gym_pusht/PushT-v0", "ebrl.envs.gym:GymEnv/gym_pusht/PushT-v0"),
        ("mine:Env", "mine:Env"),
        ("mine:Env/task", "mine:Env/task"),
    ],
)
def test_a_portable_name_needs_no_entry_points(name: str, elsewhere: str) -> None:
    assert portable("env", name) == elsewhere


def test_an_unknown_name_has_no_portable_form() -> None:
    with pytest.raises(UnknownPlugin, match="no env named 'toy/reach-v2'"):
        portable("env", "toy/reach-v2")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("toy/reach-v2", "no env named 'toy/reach-v2'; did you mean 'toy/reach-v1'"),
        ("zzz", "no env named 'zzz'; known: behavior/"),
    ],
)
def test_an_unknown_name_gets_the_nearest(name: str, words: str) -> None:
    with pytest.raises(UnknownPlugin) as caught:
        load("env", name)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("ebrl.envs.toi:Reach", "cannot import module 'ebrl.envs.toi'"),
        ("ebrl.envs.toy:Reech", "has no 'Reech'; did you mean 'Reach'"),
    ],
)
def test_a_class_that_cannot_be_imported_is_named(name: str, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        load("env", name)
    assert words in str(caught.value)


def test_a_config_keeps_what_was_chosen_and_defaults_the_rest() -> None:
    config = make_config(Reach, {"speed": 1, "reward": "dense"}, "env.config")
    assert config == Reach.Config(speed=1.0, reward="dense")
    assert isinstance(config.speed, float)


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"raduis": 0.2}, "env.config.raduis: unknown field; did you mean 'radius'?"),
        ({"radius": "big"}, "env.config.radius: = 'big': want float, got str"),
        ({"max_episode_steps": True}, "env.config.max_episode_steps: = True: want int, got bool"),
        ({"reward": "some"}, "env.config.reward: = 'some': want one of 'sparse', 'dense'"),
        ({"radius": 2.0}, "env.config.radius: = 2.0: want above 0 and below 0.7"),
    ],
)
def test_a_wrong_field_is_named_with_what_was_wanted(section: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make_config(Reach, section, "env.config")
    assert str(caught.value) == message


@pytest.mark.parametrize("value", [None, "corner2"])
def test_an_optional_field_takes_none(value: str | None) -> None:
    assert make_config(MetaWorld, {"camera": value}, "env.config").camera == value
