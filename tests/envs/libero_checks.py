"""Checks of ``libero/*`` against the real benchmark, run under its interpreter by test_libero.py."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import sys
from importlib import import_module
from typing import Any

import numpy as np

from ebrl.envs.libero import SUITES, Libero, _import
from ebrl.envs.robosuite_env import importing
from ebrl.testing.check_env import check_env

NUM_STEPS = 24
CAMERAS = ("agentview", "robot0_eye_in_hand")
ACTIONS = np.random.Generator(np.random.PCG64(0)).uniform(-1, 1, (NUM_STEPS, 7)).astype(np.float32)
Config = Libero.Config
STATE_ONLY = Config(cameras=())


def packed(observation: Any, *rest: Any) -> bytes:
    return b"".join([*(observation[name].tobytes() for name in sorted(observation)), repr(rest).encode()])


def played(env: Any, seed: int, every: int = 1) -> list[bytes]:
    """What an episode of the same actions shows at its start and after every so many steps, as bytes."""
    observation, _ = env.reset(seed)
    out = [packed(observation)]
    for t, action in enumerate(ACTIONS, start=1):
        observation, reward, terminated, truncated, info = env.step(action, need_obs=t % every == 0)
        assert not terminated
        assert not truncated
        if t % every:
            assert observation is None
        else:
            out.append(packed(observation, reward, info["success"]))
    return out


def an_episode_is_a_function_of_its_seed(task: str, every: str = "1", cameras: str = "") -> None:
    """Fresh, after other episodes, in a second instance; prints a digest for comparison between processes."""
    config = Config(cameras=tuple(cameras.split()), image_size=64)
    env = Libero(task, config)
    first = played(env, 12, int(every))
    for seed in (3, 5, 6):
        played(env, seed, int(every))
    np.random.random(5)
    assert played(env, 12, int(every)) == first
    other = Libero(task, config)
    other.reset(99)
    assert played(other, 12, int(every)) == first
    assert played(other, 14, int(every))[0] != first[0]
    env.close()
    assert played(other, 12, int(every)) == first
    print(hashlib.sha256(b"".join(first)).hexdigest())


def a_suite_draws_its_task_from_the_seed() -> None:
    env = Libero("libero_spatial", Config(cameras=("agentview",), image_size=32))
    drawn = {seed: env.reset(seed)[1]["task"] for seed in (0, 2, 4)}
    assert len(set(drawn.values())) > 1
    first = played(env, 0, 8)
    played(env, 2, 8)
    assert played(env, 0, 8) == first
    fresh = Libero("libero_spatial", Config(cameras=("agentview",), image_size=32, models_kept=2))
    assert played(fresh, 0, 8) == first
    assert len(env._built) == 1
    assert len(fresh._built) == 2


def unread_steps_change_nothing(task: str) -> None:
    env = Libero(task, STATE_ONLY)
    assert played(env, 2, every=8) == played(env, 2)[::8]


def a_soft_reset_is_a_hard_one(task: str) -> None:
    """Also after a reset or two: building anew does not draw differently each time."""
    config = Config(image_size=32)
    soft, hard = Libero(task, config), Libero(task, dataclasses.replace(config, reset="hard"))
    soft.reset(7)
    for seed in (7, 12, 12):
        assert played(hard, seed, 8) == played(soft, seed, 8)


def a_step_is_the_benchmarks_own(task: str) -> None:
    """Same physics, same numbers, same pictures as the benchmark's loop around the same episode."""
    suite, number = task.split("/")
    theirs = package_env(suite, int(number))
    np.random.seed(4)
    theirs.reset()
    ours = Libero(task, Config(image_size=96, render_quality="reference", settle_steps=0))
    _, info = ours.reset(4)
    states = import_module("libero.libero.benchmark").get_benchmark(suite)().get_task_init_states(int(number))
    want = theirs.set_init_state(states[info["init_state"]])
    transform = import_module("robosuite.utils.transform_utils")
    for t, action in enumerate(ACTIONS, start=1):
        theirs.sim._render_context_offscreen.gl_ctx.make_current()  # it relies on being the only one
        want, _, done, _ = theirs.step(action)
        got, reward, _, _, info = ours.step(action, need_obs=True)
        assert got is not None
        assert (reward, info["success"]) == (float(done), done)
        for name in ("qpos", "qvel"):
            assert np.array_equal(getattr(ours._now._env.sim.data, name), getattr(theirs.sim.data, name)), (t, name)
        rotation = transform.quat2axisangle(want["robot0_eef_quat"])
        state = np.concatenate((want["robot0_eef_pos"], rotation, want["robot0_gripper_qpos"])).astype(np.float32)
        assert np.allclose(got["state"], state, rtol=0, atol=1e-6), (t, got["state"], state)
        for camera in CAMERAS:
            assert np.array_equal(got[camera], want[f"{camera}_image"][::-1]), (t, camera)


def package_env(suite: str, number: int) -> Any:
    """The benchmark with its own renderer and observables."""
    benchmark, envs = _import()
    binding: Any = import_module("robosuite.utils.binding_utils")
    binding.GLContext = import_module("robosuite.renderers.context.egl_context").EGLGLContext
    with importing():
        return envs.OffScreenRenderEnv(
            bddl_file_name=benchmark.get_benchmark(suite)().get_task_bddl_file_path(number),
            camera_heights=96,
            camera_widths=96,
            ignore_done=True,
        )


def training_and_evaluation_start_apart() -> None:
    env = Libero("libero_object/0", Config(cameras=(), settle_steps=0))
    starts = {seed: env.reset(seed)[1]["init_state"] for seed in range(120)}
    train = {index for seed, index in starts.items() if seed % 2 == 0}
    held_out = {index for seed, index in starts.items() if seed % 2}
    assert train <= set(range(40))
    assert held_out == set(range(40, 50))
    everything = Libero("libero_object/0", Config(cameras=(), settle_steps=0, held_out_states=0))
    assert {everything.reset(seed)[1]["init_state"] for seed in range(0, 600, 2)} == set(range(50))


def pictures_are_upright_and_as_named() -> None:
    """The hand is above the table in front of it, and the hand's own camera moves with it."""
    env = Libero("libero_object/0", Config(cameras=CAMERAS, image_size=64, settle_steps=2))
    observation, _ = env.reset(0)
    data = env._now._env.sim.data._data
    for camera in CAMERAS:
        picture = observation[camera]
        assert (picture.shape, str(picture.dtype), picture.flags.c_contiguous) == ((64, 64, 3), "uint8", True)
        assert picture.std() > 20
    assert data.camera("agentview").xmat.reshape(3, 3)[2, 1] > 0
    before = data.camera("robot0_eye_in_hand").xpos.copy()
    for _ in range(8):
        after, *_ = env.step(np.array([0, 0, 1, 0, 0, 0, -1], np.float32), need_obs=True)
    assert data.camera("robot0_eye_in_hand").xpos[2] > before[2] + 0.02
    assert after is not None
    change = {camera: np.abs(after[camera].astype(int) - observation[camera]).mean() for camera in CAMERAS}
    assert change["robot0_eye_in_hand"] > 4 * change["agentview"] > 0
    mirrored = Libero("libero_object/0", Config(image_size=64, settle_steps=2, mirrored=True)).reset(0)[0]
    assert np.array_equal(mirrored["agentview"], observation["agentview"][:, ::-1])


def nothing_is_rendered_unless_it_is_read() -> None:
    env = Libero("libero_object/0", Config(image_size=32))
    env.reset(0)
    rendered: list[str] = []
    renderer: Any = env._now._world._renderer  # type: ignore[union-attr]
    render = renderer.render

    def counted(camera: str) -> np.ndarray:
        rendered.append(camera)
        return np.asarray(render(camera))

    renderer.render = counted
    env.reset(2)
    assert rendered == list(CAMERAS)
    for t, action in enumerate(ACTIONS[:16], start=1):
        env.step(action, need_obs=t % 8 == 0)
    assert rendered == list(CAMERAS) * 3


def an_unstable_simulation_is_not_trained_on() -> None:
    env = Libero("libero_object/0", STATE_ONLY)
    env.reset(0)
    assert env.step(ACTIONS[0], need_obs=False)[1] == 0.0
    env._now._env.sim.data.qvel[:] = 1e9
    assert np.isnan(env.step(ACTIONS[0], need_obs=False)[1])
    assert not os.path.exists("MUJOCO_LOG.TXT")
    env.reset(0)
    assert env.step(ACTIONS[0], need_obs=True)[1] == 0.0


def success_is_the_tasks_own_and_ends_the_episode() -> None:
    """``libero_goal/7`` is to turn on the stove: turn its knob by hand."""
    for terminate in (True, False):
        env = Libero("libero_goal/7", Config(cameras=(), terminate_on_success=terminate))
        observation, _ = env.reset(0)
        assert observation["instruction"].tobytes().rstrip(b"\0") == b"turn on the stove"
        assert env.step(ACTIONS[0], need_obs=False)[1:3] == (0.0, False)
        sim = env._now._env.sim
        (knob,) = [name for name in sim.model.joint_names if name.startswith("flat_stove")]
        sim.data.set_joint_qpos(knob, 1.0)
        _, reward, terminated, truncated, info = env.step(ACTIONS[1], need_obs=False)
        assert (reward, terminated, truncated, info) == (1.0, terminate, False, {"success": True})
        assert env.step(ACTIONS[1], need_obs=False)[1] == 0.0


def suites_are_the_benchmarks() -> None:
    for name, suite in SUITES.items():
        with importing():
            tasks = _import()[0].get_benchmark(name)()
        assert tasks.get_num_tasks() == suite.num_tasks
        assert all(len(tasks.get_task_init_states(number)) == 50 for number in range(suite.num_tasks))


def home_is_left_alone_and_nothing_is_asked() -> None:
    before, home = dict(os.environ), os.environ["HOME"]
    assert sys.stdin.read() == ""
    env = Libero("libero_object/0", STATE_ONLY)
    played(env, 0)
    env.close()
    env.close()
    left = [os.path.join(where, name) for where, folders, files in os.walk(home) for name in folders + files]
    assert left == [], left
    for name in ("CUDA_VISIBLE_DEVICES", "MUJOCO_EGL_DEVICE_ID", "MUJOCO_GL"):
        assert os.environ.get(name) == before.get(name), name


def resets_do_not_leak() -> None:
    """Memory after many resets, soft ones and ones that build anew."""
    for task, config, warm, more in (
        ("libero_object/0", Config(image_size=32), 3, 20),
        ("libero_object/0", Config(image_size=32, reset="hard"), 3, 6),
    ):
        env = Libero(task, config)
        for seed in range(warm):
            env.reset(seed)
        before = resident_mb()
        for seed in range(more):
            env.reset(seed)
        print(config.reset, before, resident_mb())
        assert resident_mb() < before + 60
        env.close()


def keeps_the_contract(task: str) -> None:
    results = check_env(f"ebrl.envs.libero:Libero/{task}", {"cameras": ["robot0_eye_in_hand"], "image_size": 32})
    for result in results:
        print(result)
    assert all(result.ok for result in results)


def resident_mb() -> float:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def saves_pictures() -> None:
    """Write one picture per camera to the directory named in the environment, for a person to look at."""
    image = import_module("PIL.Image")
    for task in ("libero_spatial/0", "libero_object/0", "libero_10/0"):
        config = Config(cameras=("agentview", "robot0_eye_in_hand"), image_size=256)
        env = Libero(task, config)
        observation, _ = env.reset(0)
        for camera in config.cameras:
            path = f"{os.environ['PICTURES']}/libero_{task.replace('/', '_')}_{camera}.png"
            image.fromarray(observation[camera]).save(path)
        env.close()


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
    sys.stdout.flush()
    os._exit(0)  # the packages' own renderers fail as they are finalized
