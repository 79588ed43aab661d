"""Checks of ``maniskill/*`` against the simulator; run under its interpreter: ``python maniskill_checks.py NAME``."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from typing import Any

import numpy as np
from vector_worlds import check_worlds

from ebrl.envs.maniskill import ManiSkill, ManiSkillVector
from ebrl.envs.sapien_setup import import_module, load_maniskill
from ebrl.errors import UsageError
from ebrl.registry import make_config
from ebrl.testing.check_env import check_env

Config = ManiSkill.Config
NUM_STEPS = 24
TOUCHING = "pd_ee_delta_pos"


def actions(env: Any) -> np.ndarray:
    """Down to the table first, then about on it: contacts are what makes histories matter."""
    rng = np.random.Generator(np.random.PCG64(0))
    out = rng.uniform(-1, 1, (NUM_STEPS, env.spec.action_dim)).astype(np.float32)
    out[:10, 2] = -1
    return out


def played(env: Any, seed: int, every: int = 1) -> list[bytes]:
    """What an episode shows at its start and after every so many of ``actions``, as bytes."""
    observation, _ = env.reset(seed)
    out = [b"".join(observation[name].tobytes() for name in sorted(observation))]
    for t, action in enumerate(actions(env), start=1):
        observation, reward, _, truncated, info = env.step(action, need_obs=t % every == 0)
        assert not truncated
        assert (observation is None) == bool(t % every)
        if observation is not None:
            seen = b"".join(observation[name].tobytes() for name in sorted(observation))
            out.append(seen + repr((reward, info["success"])).encode())
    return out


def an_episode_is_a_function_of_its_seed(*tasks: str) -> None:
    """Fresh, after other episodes, in a second instance, read or not; prints digests to compare between processes."""
    for task in tasks:
        config = Config(control_mode=TOUCHING)
        env, other = ManiSkill(task, config), ManiSkill(task, config)
        first = played(env, 12)
        for seed in (3, 5, 12, 7):
            played(env, seed)
        assert played(env, 12, every=4) == first[::4], task
        other.reset(99)
        assert played(other, 12) == first, task
        assert played(other, 14)[0] != first[0], task
        env.close()
        env.close()
        print(task, hashlib.sha256(b"".join(first)).hexdigest())


def an_episode_is_maniskills_own(task: str) -> None:
    """State, reward and success of the package's own environment, built anew for the episode."""
    env = ManiSkill(task, Config(control_mode=TOUCHING, reward="normalized_dense", terminate_on_success=False))
    played(env, 4)
    registry = import_module("mani_skill.utils.registration").REGISTERED_ENVS
    options = {"obs_mode": "state", "control_mode": TOUCHING, "reward_mode": "normalized_dense"}
    theirs = registry[task].cls(**options, num_envs=1, sim_backend="physx_cpu", render_backend="none")
    want, _ = theirs.reset(seed=12, options={"reconfigure": True})
    got, _ = env.reset(12)
    assert np.array_equal(got["state"], want[0].numpy())
    for t, action in enumerate(actions(env)):
        want, reward, _, _, details = theirs.step(action)
        seen, own_reward, _, _, info = env.step(action, need_obs=True)
        assert seen is not None
        assert np.array_equal(seen["state"], want[0].numpy()), t
        assert own_reward == float(reward)
        assert info["success"] == bool(details["success"])


def worlds_in_lock_step_are_single_worlds(task: str) -> None:
    config = Config(control_mode=TOUCHING)
    check_worlds(ManiSkillVector(task, config, 3), lambda: ManiSkill(task, config), 3, 40)


def success_ends_the_episode_and_pays_once() -> None:
    for terminate in (True, False):
        env = ManiSkill("PickCube-v1", Config(terminate_on_success=terminate))
        env.reset(3)
        task = env._worlds._banks[0].env
        rewards = []
        for _ in range(3):
            task.cube.set_pose(task.goal_site.pose)
            task.cube.set_linear_velocity(np.zeros((1, 3), np.float32))
            _, reward, terminated, truncated, info = env.step(np.zeros(8, np.float32), need_obs=False)
            assert (terminated, truncated, info) == (terminate, False, {"success": True})
            rewards.append(reward)
        assert rewards == [1, 0, 0]
        env.reset(3)
        assert env.step(np.zeros(8, np.float32), need_obs=False)[1] == 0


def refuses(cases: str) -> None:
    """Making a task under a config fails, and the error holds a text; ``cases`` are such triples in JSON."""
    for text, task, section in json.loads(cases):
        problem = "it was made"
        try:
            ManiSkill(task, make_config(ManiSkill, section, "config"))
        except UsageError as error:
            problem = str(error)
        assert text in problem, f"{task}, {section}: {problem}"


def can_render() -> None:
    """Whether there is a Vulkan driver here; prints the reason if there is none."""
    try:
        load_maniskill(cameras=True)
    except UsageError as error:
        print(error)


def pictures_are_functions_of_the_seed_and_upright() -> None:
    config = Config(cameras=("base_camera", "hand_camera"), image_size=64, state="proprio", control_mode=TOUCHING)
    env, other = ManiSkill("StackCube-v1", config), ManiSkill("StackCube-v1", config)
    first = played(env, 12, every=12)
    played(env, 4, every=12)
    assert played(env, 12, every=12) == first
    assert played(other, 12, every=12) == first
    observation, _ = env.reset(3)
    assert observation["state"].shape == (18,)
    red_minus_blue = observation["base_camera"].astype(int) @ [1, 0, -1]
    assert red_minus_blue[:8].mean() < 10  # grey hall above
    assert red_minus_blue[-8:].mean() > 40  # wooden table below
    assert observation["hand_camera"].shape == (64, 64, 3)


def resets_do_not_leak() -> None:
    env = ManiSkill("PickCube-v1")

    def megabytes() -> int:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE") >> 20

    for seed in range(600):
        env.reset(seed)
        env.step(np.zeros(8, np.float32), need_obs=False)
        if seed == 50:
            before = megabytes()
    assert megabytes() - before < 10


def keeps_the_contract(task: str) -> None:
    results = check_env(f"ebrl.envs.maniskill:ManiSkill/{task}", {"control_mode": TOUCHING})
    assert [one for one in results if not one.ok or one.severity == "warning"] == []
    assert len(results) == 13


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
