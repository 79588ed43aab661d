from __future__ import annotations

import ctypes
import sys
from typing import Any

import numpy as np
import pytest

from ebrl.data.spec import INSTRUCTION_BYTES
from ebrl.envs import metaworld, mujoco_camera
from ebrl.envs.metaworld import CAMERAS, INSTRUCTIONS, MetaWorld
from ebrl.errors import MissingExtra, UnknownPlugin, UsageError

ACTIONS = np.random.Generator(np.random.PCG64(0)).uniform(-1, 1, (60, 4)).astype(np.float32)


def has_egl() -> bool:
    try:
        ctypes.CDLL("libEGL.so.1")
    except OSError:
        return False
    return True


needs_egl = pytest.mark.skipif(not has_egl(), reason="libEGL.so.1 is missing: apt-get install libegl1 libgl1-mesa-dri")


def episode(env: MetaWorld, seed: int) -> list[bytes]:
    """Everything an episode shows, as bytes: half random, half expert actions."""
    observation, _ = env.reset(seed)
    out = [observation["state"].tobytes()]
    for t, action in enumerate(ACTIONS):
        chosen = action if t % 2 else env.expert_action()
        following, reward, terminated, truncated, info = env.step(chosen, need_obs=True)
        assert following is not None
        out += [following["state"].tobytes(), repr((reward, terminated, truncated, info["success"])).encode()]
    return out


def test_every_task_has_an_instruction_that_fits() -> None:
    from metaworld.env_dict import ALL_V3_ENVIRONMENTS

    assert set(INSTRUCTIONS) == set(ALL_V3_ENVIRONMENTS)
    assert len(set(INSTRUCTIONS.values())) == 50
    assert max(len(text.encode()) for text in INSTRUCTIONS.values()) <= INSTRUCTION_BYTES


@pytest.mark.parametrize("task", INSTRUCTIONS)
def test_an_episode_is_a_function_of_its_seed(task: str) -> None:
    env, other = MetaWorld(task), MetaWorld(task)
    first = episode(env, 12)
    episode(env, 7)
    env.reset(3)
    assert episode(env, 12) == first
    other.reset(99)
    assert episode(other, 12) == first
    assert episode(other, 14)[0] != first[0]


def test_steps_of_two_environments_may_be_done_part_by_part() -> None:
    def played(seeds: list[int], *, in_parts: bool) -> list[list[Any]]:
        envs = [MetaWorld("drawer-open-v3", MetaWorld.Config(reward="dense")) for _ in seeds]
        for env, seed in zip(envs, seeds, strict=True):
            env.reset(seed)
        seen: list[list[Any]] = [[] for _ in seeds]
        for t, action in enumerate(ACTIONS):
            actions = [action if t % 2 else env.expert_action() for env in envs]
            if not in_parts:
                results = [env.step(action, need_obs=True) for env, action in zip(envs, actions, strict=True)]
            else:
                for env, chosen in zip(envs, actions, strict=True):
                    env.begin_step(chosen)
                for env in envs:
                    env.advance()
                results = [env.end_step(need_obs=True) for env in envs]
            for one, (observation, *rest) in zip(seen, results, strict=True):
                assert observation is not None
                one.append((observation["state"].tobytes(), *rest))
        return seen

    assert played([3, 7], in_parts=True) == [*played([3], in_parts=False), *played([7], in_parts=False)]


@pytest.mark.parametrize("task", INSTRUCTIONS)
def test_a_step_is_the_packages_own_step(task: str) -> None:
    ours, theirs = MetaWorld(task, MetaWorld.Config(reward="dense")), MetaWorld(task)
    ours.reset(3)
    theirs.reset(3)
    package: Any = theirs._task
    replaced = {name for name, value in vars(package).items() if callable(value)} - {"_reset_hand"}
    assert replaced >= {"get_body_com", "touching_object", "compute_reward"}
    for name in replaced:
        delattr(package, name)
    package._prev_obs, package.curr_path_length = theirs._prev.copy(), 0
    for t in range(45):
        action = ours.expert_action() if t < 35 else ACTIONS[t]
        observation, reward, _, _, info = ours.step(action, need_obs=True)
        want, want_reward, _, _, want_info = package.step(action)
        assert observation is not None
        assert ours._obs.tobytes() == want.tobytes()
        assert np.array_equal(observation["state"], want.astype(np.float32))
        assert (reward, info["success"]) == (float(want_reward) / 10, bool(want_info["success"]))


@pytest.mark.parametrize(
    "task", ["drawer-open-v3", "reach-v3", "pick-place-v3", "button-press-v3", "peg-unplug-side-v3"]
)
def test_the_expert_solves_the_task_from_our_initial_states(task: str) -> None:
    env = MetaWorld(task)
    for seed in (0, 2):
        env.reset(seed)
        assert any(env.step(env.expert_action(), need_obs=False)[2] for _ in range(200))


def test_the_first_observation_shows_the_drawer_where_it_is() -> None:
    env = MetaWorld("drawer-open-v3")
    for seed in range(4):
        observation, _ = env.reset(seed)
        state = observation["state"]
        assert state[4:6] + np.array([0.0, -0.19]) == pytest.approx(state[36:38], abs=1e-3)
        assert np.array_equal(state[:18], state[18:36])


def test_success_is_paid_once_and_steps_may_go_on() -> None:
    env = MetaWorld("drawer-open-v3", MetaWorld.Config(terminate_on_success=False))
    env.reset(0)
    results = [env.step(env.expert_action(), need_obs=False) for _ in range(520)]
    assert sum(reward for _, reward, *_ in results) == 1.0
    assert not any(terminated or truncated for _, _, terminated, truncated, _ in results)
    assert results[-1][4]["success"]


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "metaworld.env_dict", None)
    with pytest.raises(
        MissingExtra,
        match=r"needs the module 'metaworld.*, which .*python.* does not have; run: ebrl install metaworld",
    ):
        MetaWorld("reach-v3")


def test_an_unknown_task_gets_the_nearest() -> None:
    with pytest.raises(UnknownPlugin, match=r"did you mean 'metaworld/drawer-open-v3'"):
        MetaWorld("drawer-opn-v3")


def test_a_camera_without_opengl_names_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUJOCO_GL", "egl")
    monkeypatch.setitem(mujoco_camera.GL_LIBRARIES, "egl", ("libNoSuchThing.so.1", "libegl1"))
    with pytest.raises(UsageError, match=r"libNoSuchThing.so.1 is not installed; run: apt-get install .*libegl1"):
        MetaWorld("reach-v3", MetaWorld.Config(camera="corner2"))


def test_an_unknown_camera_is_refused() -> None:
    with pytest.raises(ValueError, match="camera = 'corner9': want one of topview, corner"):
        MetaWorld.Config(camera="corner9")


@needs_egl
def test_a_picture_is_a_function_of_the_seed_and_only_made_when_needed() -> None:
    config = MetaWorld.Config(camera="corner2", image_size=64, state="proprio")
    env, other = MetaWorld("drawer-open-v3", config), MetaWorld("drawer-open-v3", config)
    image = env.reset(0)[0]["image"]
    moved, *_ = env.step(ACTIONS[0], need_obs=True)
    assert moved is not None
    assert (image.shape, str(image.dtype)) == ((64, 64, 3), "uint8")
    assert image.std() > 20
    assert not np.array_equal(moved["image"], image)
    assert np.array_equal(env.reset(0)[0]["image"], image)
    assert np.array_equal(other.reset(0)[0]["image"], image)
    assert moved["state"].shape == (4,)
    assert env.step(ACTIONS[1], need_obs=False)[0] is None
    env.close()
    other.close()


@needs_egl
@pytest.mark.parametrize("camera", [name for name in CAMERAS if name not in ("topview", "gripperPOV")])
def test_up_is_up_in_every_picture(camera: str) -> None:
    """Cameras that look along the table are turned exactly if their own up points down."""
    env = MetaWorld("drawer-open-v3")
    env.reset(0)
    up_z = env._task.data.camera(camera).xmat.reshape(3, 3)[2, 1]
    assert (camera in metaworld.UPSIDE_DOWN) == (up_z < 0)
