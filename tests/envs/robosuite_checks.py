"""Checks of ``robosuite/*`` against the real simulator, run under its interpreter by test_robosuite.py."""

from __future__ import annotations

import hashlib
import os
import sys
from importlib import import_module
from typing import Any, Literal

import numpy as np

from ebrl.envs.robosuite_env import INSTRUCTIONS, RobosuiteEnv, importing
from ebrl.testing.check_env import check_env

NUM_STEPS = 24
CAMERAS = ("agentview", "robot0_eye_in_hand")
Config = RobosuiteEnv.Config
EVERY: list[tuple[str, Literal["soft", "hard"]]] = [*((task, "soft") for task in INSTRUCTIONS), ("Lift", "hard")]


def actions(env: Any) -> np.ndarray:
    rng = np.random.Generator(np.random.PCG64(0))
    return rng.uniform(-1, 1, (NUM_STEPS, env.spec.action_dim)).astype(np.float32)


def played(env: Any, seed: int, every: int = 1) -> list[bytes]:
    """What an episode of the same actions shows at its start and after every so many steps, as bytes."""
    observation, _ = env.reset(seed)
    out = [b"".join(observation[name].tobytes() for name in sorted(observation))]
    for t, action in enumerate(actions(env), start=1):
        observation, reward, terminated, truncated, info = env.step(action, need_obs=t % every == 0)
        assert not terminated
        assert not truncated
        if t % every:
            assert observation is None
        else:
            parts = [observation[name].tobytes() for name in sorted(observation)]
            out.append(b"".join([*parts, repr((reward, info["success"])).encode()]))
    return out


def an_episode_is_a_function_of_its_seed() -> None:
    """Fresh, after other episodes, in a second instance; prints digests for comparison between processes."""
    for task, reset in EVERY:
        env = RobosuiteEnv(task, Config(reset=reset))
        first = played(env, 12)
        for seed in (3, 5, 7):
            played(env, seed)
        np.random.random(5)
        assert played(env, 12) == first
        other = RobosuiteEnv(task, Config(reset=reset))
        other.reset(99)
        assert played(other, 12) == first
        assert played(other, 14)[0] != first[0]
        print(task, hashlib.sha256(b"".join(first)).hexdigest())


def a_fresh_episode_of_each_task() -> None:
    """Prints the same digests."""
    for task, reset in EVERY:
        first = played(RobosuiteEnv(task, Config(reset=reset)), 12)
        print(task, hashlib.sha256(b"".join(first)).hexdigest())


def unread_steps_change_nothing() -> None:
    for task in ("Lift", "NutAssemblySingle"):
        env = RobosuiteEnv(task)
        assert played(env, 2, every=8) == played(env, 2)[::8]


def pictures_are_functions_of_the_seed() -> None:
    config = Config(cameras=CAMERAS, image_size=64, state="proprio")
    env, other = RobosuiteEnv("PickPlaceSingle", config), RobosuiteEnv("PickPlaceSingle", config)
    first = played(env, 12, every=8)
    played(env, 4, every=8)
    assert played(env, 12, every=8) == first
    played(other, 6, every=8)
    assert played(other, 12, every=8) == first
    env.close()
    assert played(other, 12, every=8) == first
    other.close()
    print(hashlib.sha256(b"".join(first)).hexdigest())


def a_step_is_the_packages_own(*tasks: str) -> None:
    """Same physics, same state, same pictures as robosuite's own loop around the same episode."""
    for task in tasks:
        state: Literal["full", "proprio"] = "full" if task == "Lift" else "proprio"
        config = Config(cameras=CAMERAS, image_size=84, render_quality="reference", state=state)
        theirs = package_env(task)
        theirs.rng.bit_generator.state = np.random.PCG64(5).state
        theirs.reset()
        ours = RobosuiteEnv(task, config)
        ours.reset(5)
        for t, action in enumerate(actions(ours), start=1):
            theirs.sim._render_context_offscreen.gl_ctx.make_current()  # it relies on being the only one
            want, _, _, _ = theirs.step(action)
            got, _, _, _, info = ours.step(action, need_obs=True)
            assert got is not None
            own = ours._env
            assert np.array_equal(own.sim.data.qpos, theirs.sim.data.qpos), (task, t)
            assert np.array_equal(own.sim.data.qvel, theirs.sim.data.qvel), (task, t)
            assert info["success"] == theirs._check_success()
            names = ["eef_pos", "eef_quat", "gripper_qpos", "joint_pos", "joint_vel"]
            parts = [want[f"robot0_{name}"] for name in names] + [want["object-state"]] * (state == "full")
            assert np.array_equal(got["state"], np.concatenate(parts).astype(np.float32)), (task, t)
            for camera in CAMERAS:
                assert np.array_equal(got[camera], want[f"{camera}_image"][::-1]), (task, t, camera)
        ours.close()


def package_env(task: str) -> Any:
    """robosuite with its own renderer and observables, its model built as ours is."""
    with importing():
        robosuite = import_module("robosuite")
    binding: Any = import_module("robosuite.utils.binding_utils")
    binding._MUJOCO_GL = "egl"
    return robosuite.make(
        task,
        robots="Panda",
        has_renderer=False,
        has_offscreen_renderer=True,
        use_camera_obs=True,
        camera_names=list(CAMERAS),
        camera_heights=84,
        camera_widths=84,
        renderer="mujoco",
        hard_reset=False,
        ignore_done=True,
        seed=0,
    )


def nothing_is_rendered_unless_it_is_read() -> None:
    env = RobosuiteEnv("Lift", Config(cameras=CAMERAS, image_size=32))
    env.reset(0)
    rendered: list[str] = []
    renderer: Any = env._world._renderer  # type: ignore[union-attr]
    render = renderer.render

    def counted(camera: str) -> np.ndarray:
        rendered.append(camera)
        return np.asarray(render(camera))

    renderer.render = counted
    for t, action in enumerate(actions(env)[:16], start=1):
        env.step(action, need_obs=t % 8 == 0)
    assert rendered == list(CAMERAS) * 2


def culling_changes_no_picture() -> None:
    env = RobosuiteEnv("PickPlace", Config(cameras=("agentview", "robot0_eye_in_hand", "robot0_robotview")))
    env.reset(0)
    renderer: Any = env._world._renderer  # type: ignore[union-attr]
    culled = 0
    for t, action in enumerate(actions(env)[:12], start=1):
        observation, *_ = env.step(action, need_obs=t % 4 == 0)
        if observation is None:
            continue
        out_of_sight = renderer._out_of_sight
        for camera in env.config.cameras:
            culled += int(out_of_sight(renderer._model.camera(camera).id).sum())
            renderer._out_of_sight = lambda _: np.zeros(renderer._model.ngeom, bool)
            assert np.array_equal(renderer.render(camera), observation[camera])
            renderer._out_of_sight = out_of_sight
    assert culled > 100


def an_unstable_simulation_is_not_trained_on() -> None:
    env = RobosuiteEnv("Lift")
    env.reset(0)
    action = np.zeros(7, np.float32)
    assert np.isfinite(env.step(action, need_obs=False)[1])
    env._env.sim.data.qvel[:] = 1e9
    assert np.isnan(env.step(action, need_obs=False)[1])
    env.reset(0)
    assert np.isfinite(env.step(action, need_obs=True)[1])


def success_ends_the_episode_and_pays_once() -> None:
    env = RobosuiteEnv("Lift")
    env.reset(0)
    body = env._env
    body.sim.data.set_joint_qpos(body.cube.joints[0], np.array([0.2, 0.2, 0.95, 1, 0, 0, 0]))
    _, reward, terminated, truncated, info = env.step(np.zeros(7, np.float32), need_obs=False)
    assert (reward, terminated, truncated, info) == (1.0, True, False, {"success": True})


def dense_reward_is_shaped() -> None:
    env = RobosuiteEnv("Lift", Config(reward="dense"))
    env.reset(0)
    rewards = [env.step(action, need_obs=False)[1] for action in actions(env)]
    assert all(0 < reward < 1 for reward in rewards)


def environment_variables_and_home_are_left_alone() -> None:
    before, home = dict(os.environ), os.environ["HOME"]
    RobosuiteEnv("Lift").close()
    after = dict(os.environ)
    for name in ("CUDA_VISIBLE_DEVICES", "MUJOCO_EGL_DEVICE_ID", "MUJOCO_GL"):
        assert after.get(name) == before.get(name), name
    left = [os.path.join(where, name) for where, folders, files in os.walk(home) for name in folders + files]
    assert left == [], left


def resets_do_not_leak() -> None:
    """Memory after many resets, soft ones and ones that build anew."""
    kinds: list[tuple[Literal["soft", "hard"], int]] = [("soft", 60), ("hard", 12)]
    for reset, more in kinds:
        env = RobosuiteEnv("PickPlace", Config(cameras=CAMERAS, image_size=32, reset=reset))
        for seed in range(3):
            env.reset(seed)
        before = resident_mb()
        for seed in range(more):
            env.reset(seed)
        print(reset, before, resident_mb())
        assert resident_mb() < before + 40
        env.close()


def resident_mb() -> float:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def keeps_the_contract(task: str, *cameras: str) -> None:
    section = {"cameras": list(cameras), "image_size": 32}
    results = check_env(f"ebrl.envs.robosuite_env:RobosuiteEnv/{task}", section)
    for result in results:
        print(result)
    assert all(result.ok and result.severity != "warning" for result in results)


def pictures_are_upright() -> None:
    """A cube that is lifted moves up in the picture from the side, and its colour is not blue."""
    env = RobosuiteEnv("Lift", Config(cameras=("frontview",), image_size=128, terminate_on_success=False))
    env.reset(0)
    rows = []
    for height in (0.9, 1.2):
        sim = env._env.sim
        sim.data.set_joint_qpos(env._env.cube.joints[0], np.array([0.0, 0.3, height, 1, 0, 0, 0]))
        sim.data.qvel[:] = 0
        observation, *_ = env.step(np.zeros(7, np.float32), need_obs=True)
        assert observation is not None
        picture = observation["image"].astype(int)
        assert (picture.shape, str(observation["image"].dtype)) == ((128, 128, 3), "uint8")
        red = np.argwhere(picture[:, :, 0] > picture[:, :, 1:].max(axis=2) + 60)
        assert len(red) > 5
        rows.append(red[:, 0].mean())
    assert rows[1] < rows[0] - 5


def saves_pictures() -> None:
    """Write one picture per camera to the directory named in the environment, for a person to look at."""
    image = import_module("PIL.Image")
    for task in ("Lift", "PickPlace"):
        config = Config(cameras=("agentview", "frontview", "robot0_eye_in_hand"), image_size=256)
        env = RobosuiteEnv(task, config)
        observation, _ = env.reset(2)
        for camera in config.cameras:
            image.fromarray(observation[camera]).save(f"{os.environ['PICTURES']}/robosuite_{task}_{camera}.png")


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
    sys.stdout.flush()
    os._exit(0)  # the packages' own renderers fail as they are finalized
