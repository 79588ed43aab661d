from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest
from under_simulator import run_check
from vector_worlds import Drift, DriftVector, check_worlds

from ebrl.envs import sapien_setup
from ebrl.envs.maniskill import INSTRUCTIONS, ManiSkill, _instruction
from ebrl.errors import UsageError

NO_VULKAN = {"VK_ICD_FILENAMES": "/nowhere.json", "VK_DRIVER_FILES": "/nowhere.json"}


def test_worlds_stepped_at_once_are_single_worlds() -> None:
    check_worlds(DriftVector(5), Drift, 5, 200)


@pytest.mark.slow
def test_an_episode_is_a_function_of_its_seed_in_every_process(tmp_path: Path) -> None:
    """PlugCharger is the task that tells a used scene from a new one."""
    tasks = ("PickCube-v1", "PushCube-v1", "StackCube-v1", "LiftPegUpright-v1", "PlugCharger-v1", "PegInsertionSide-v1")
    one = run_check("maniskill", "an_episode_is_a_function_of_its_seed", *tasks, where=tmp_path)
    other = run_check("maniskill", "an_episode_is_a_function_of_its_seed", *reversed(tasks), where=tmp_path)
    assert sorted(one.splitlines()) == sorted(other.splitlines())
    assert len(one.splitlines()) == len(tasks)


@pytest.mark.slow
@pytest.mark.parametrize("task", ["PickCube-v1", "PegInsertionSide-v1"])
def test_an_episode_is_maniskills_own(task: str, tmp_path: Path) -> None:
    run_check("maniskill", "an_episode_is_maniskills_own", task, where=tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("task", ["PushCube-v1", "PlugCharger-v1"])
def test_worlds_of_maniskill_are_single_worlds(task: str, tmp_path: Path) -> None:
    run_check("maniskill", "worlds_in_lock_step_are_single_worlds", task, where=tmp_path)


def test_success_ends_the_episode_and_pays_once(tmp_path: Path) -> None:
    run_check("maniskill", "success_ends_the_episode_and_pays_once", where=tmp_path)


REFUSED: list[tuple[str, str, dict[str, str]]] = [
    ("needs files that are not here (ycb); nothing is downloaded behind your back; run: ", "PickSingleYCB-v1", {}),
    ("wants to download a robot's model; nothing is downloaded behind your back", "UnitreeH1Stand-v1", {}),
    ("did you mean 'maniskill/PickCube-v1'?", "PickCub-v1", {}),
    ("this task's own rewards: none, sparse", "PlugCharger-v1", {"reward": "dense"}),
    ("the task knows no success; want another reward", "MS-CartpoleSwingUp-v1", {}),
    ("pd_x not in supported modes", "PickCube-v1", {"control_mode": "pd_x"}),
    ("want one robot with a Box", "TwoRobotPickCube-v1", {}),
    ("its bodies differ from episode to episode; want device = 'cpu'", "PegInsertionSide-v1", {"device": "cuda"}),
    (
        "a reset of one world would move the targets of the others",
        "PickCube-v1",
        {"device": "cuda", "control_mode": "pd_ee_target_delta_pos"},
    ),
]


def test_what_cannot_be_done_is_said(tmp_path: Path) -> None:
    run_check("maniskill", "refuses", json.dumps(REFUSED), where=tmp_path)


def test_cameras_without_vulkan_are_refused(tmp_path: Path) -> None:
    text = "cameras need a Vulkan driver that can render"
    case = (text, "PickCube-v1", {"cameras": ["base_camera"]})
    run_check("maniskill", "refuses", json.dumps([case]), where=tmp_path, **NO_VULKAN)


@pytest.mark.slow
def test_pictures_are_functions_of_the_seed_and_upright(tmp_path: Path) -> None:
    problem = run_check("maniskill", "can_render", where=tmp_path)
    if problem:
        pytest.skip(problem)
    run_check("maniskill", "pictures_are_functions_of_the_seed_and_upright", where=tmp_path)


@pytest.mark.slow
def test_resets_do_not_leak(tmp_path: Path) -> None:
    run_check("maniskill", "resets_do_not_leak", where=tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("task", ["PickCube-v1", "PullCubeTool-v1"])
def test_keeps_the_contract(task: str, tmp_path: Path) -> None:
    run_check("maniskill", "keeps_the_contract", task, where=tmp_path)


@pytest.mark.skipif(importlib.util.find_spec("sapien") is not None, reason="SAPIEN is in this interpreter")
def test_a_missing_package_is_named() -> None:
    with pytest.raises(UsageError, match=r"maniskill/\* needs the module 'sapien'.*run: ebrl install maniskill"):
        ManiSkill("PickCube-v1")


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"image_size": 4}, "image_size = 4: want 8 to 1024"),
        ({"max_episode_steps": 0}, "max_episode_steps = 0: want at least 1"),
        ({"cameras": ("a", "a")}, "cameras = .*want each name once"),
    ],
)
def test_an_impossible_value_is_refused(fields: dict[str, object], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        ManiSkill.Config(**fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("program", "problem"),
    [
        ("import time; time.sleep(60)", "the driver did not answer within 1 s"),
        ("import os; os.abort()", r"no message \(exit status -6\)"),
    ],
)
def test_a_driver_that_hangs_or_aborts_does_so_elsewhere(
    program: str, problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sapien_setup, "PROBE", program)
    monkeypatch.setattr(sapien_setup, "PROBE_DEADLINE_S", 1.0)
    with pytest.raises(UsageError, match=rf"Vulkan driver that can render: {problem}; install"):
        sapien_setup._probe_vulkan()


def test_a_task_without_words_is_called_by_its_name() -> None:
    assert _instruction("PickCube-v1") == INSTRUCTIONS["PickCube-v1"]
    assert _instruction("PickCubeSO100-v1") == "pick cube so 100"
    assert _instruction("MS-HopperHop-v1") == "ms hopper hop"
