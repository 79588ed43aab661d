from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from test_metaworld import needs_egl
from under_simulator import run_check

from ebrl.envs import mujoco_camera
from ebrl.envs.robosuite_env import RobosuiteEnv
from ebrl.errors import UnknownPlugin, UsageError

Config = RobosuiteEnv.Config


@pytest.mark.slow
def test_an_episode_of_any_task_is_a_function_of_its_seed_in_every_process(tmp_path: Path) -> None:
    """Two salts: left to itself robosuite draws from sets of names, whose order the salt decides."""
    one = run_check("robosuite", "an_episode_is_a_function_of_its_seed", where=tmp_path, PYTHONHASHSEED="1")
    other = run_check("robosuite", "a_fresh_episode_of_each_task", where=tmp_path, PYTHONHASHSEED="2")
    assert one == other
    assert len(one.splitlines()) == 15


@needs_egl
def test_its_pictures_are_too(tmp_path: Path) -> None:
    run_check("robosuite", "pictures_are_functions_of_the_seed", where=tmp_path)


def test_steps_that_nobody_reads_change_nothing(tmp_path: Path) -> None:
    run_check("robosuite", "unread_steps_change_nothing", where=tmp_path)


@pytest.mark.slow
@needs_egl
@pytest.mark.parametrize("task", ["Lift", "PickPlaceCan"])
def test_a_step_is_the_packages_own(task: str, tmp_path: Path) -> None:
    run_check("robosuite", "a_step_is_the_packages_own", task, where=tmp_path)


@needs_egl
def test_pictures_are_upright(tmp_path: Path) -> None:
    run_check("robosuite", "pictures_are_upright", where=tmp_path)


@needs_egl
def test_nothing_is_rendered_unless_it_is_read(tmp_path: Path) -> None:
    run_check("robosuite", "nothing_is_rendered_unless_it_is_read", where=tmp_path)


@needs_egl
def test_leaving_out_what_is_out_of_sight_changes_no_picture(tmp_path: Path) -> None:
    run_check("robosuite", "culling_changes_no_picture", where=tmp_path)


def test_an_unstable_simulation_is_not_trained_on(tmp_path: Path) -> None:
    run_check("robosuite", "an_unstable_simulation_is_not_trained_on", where=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_success_ends_the_episode_and_pays_once(tmp_path: Path) -> None:
    run_check("robosuite", "success_ends_the_episode_and_pays_once", where=tmp_path)


def test_dense_reward_is_shaped(tmp_path: Path) -> None:
    run_check("robosuite", "dense_reward_is_shaped", where=tmp_path)


@pytest.mark.slow
@needs_egl
def test_resets_do_not_leak(tmp_path: Path) -> None:
    run_check("robosuite", "resets_do_not_leak", where=tmp_path)


def test_environment_variables_and_home_are_left_alone(tmp_path: Path) -> None:
    """Nor does it matter that a graphics device has another number than the GPU."""
    home = tmp_path / "home"
    home.mkdir()
    devices = {"CUDA_VISIBLE_DEVICES": "3", "MUJOCO_EGL_DEVICE_ID": "0"}
    run_check("robosuite", "environment_variables_and_home_are_left_alone", where=tmp_path, HOME=str(home), **devices)


@pytest.mark.slow
@needs_egl
@pytest.mark.parametrize("arguments", [("Lift", "agentview"), ("NutAssemblySingle",)])
def test_keeps_the_contract(arguments: tuple[str, ...], tmp_path: Path) -> None:
    run_check("robosuite", "keeps_the_contract", *arguments, where=tmp_path)


def test_an_unknown_task_gets_the_nearest() -> None:
    with pytest.raises(UnknownPlugin, match="did you mean 'robosuite/PickPlaceCan'"):
        RobosuiteEnv("PickPlaceCam")


@pytest.mark.skipif(importlib.util.find_spec("robosuite") is not None, reason="robosuite is in this interpreter")
def test_a_missing_package_is_named() -> None:
    with pytest.raises(UsageError, match=r"robosuite/\* needs the module 'robosuite'.*run: ebrl install robosuite"):
        RobosuiteEnv("Lift")


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"cameras": ("agent",)}, "cameras = .*want some of agentview"),
        ({"state": "none"}, "state = 'none': want a state or a camera"),
        ({"image_size": 4}, "image_size = 4: want 8 to 1024"),
        ({"max_episode_steps": 0}, "max_episode_steps = 0: want at least 1"),
    ],
)
def test_an_impossible_value_is_refused(fields: dict[str, object], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        Config(**fields)  # type: ignore[arg-type]


@pytest.fixture
def fresh_probe() -> None:
    mujoco_camera._probe.cache_clear()


@needs_egl
def test_a_graphics_device_that_is_not_there_is_named(fresh_probe: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUJOCO_GL", "egl")
    monkeypatch.setenv("MUJOCO_EGL_DEVICE_ID", "99")
    with pytest.raises(UsageError, match=r"MUJOCO_GL=egl: .*MUJOCO_EGL_DEVICE_ID.*got 99"):
        mujoco_camera.choose_gl()


@needs_egl
@pytest.mark.parametrize(
    ("program", "problem"),
    [
        ("import time; time.sleep(60)", "the driver did not answer within 1 s"),
        ("import os; os.abort()", r"no message \(exit status -6\)"),
    ],
)
def test_a_driver_that_hangs_or_aborts_does_so_elsewhere(
    program: str, problem: str, fresh_probe: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MUJOCO_GL", "egl")
    monkeypatch.setattr(mujoco_camera, "_PROBE", program)
    monkeypatch.setattr(mujoco_camera, "PROBE_DEADLINE_S", 1.0)
    with pytest.raises(UsageError, match=rf"{problem}; run: apt-get install .*libegl1"):
        mujoco_camera.choose_gl()
