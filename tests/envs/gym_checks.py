"""Checks of ``gym/*`` against suites of robot tasks; run under their interpreter: ``python gym_checks.py NAME``."""

from __future__ import annotations

import hashlib
import json
import sys
from typing import Any

import numpy as np

from ebrl.envs.gym import GymEnv
from ebrl.registry import make_config
from ebrl.testing.check_env import check_env

NUM_STEPS = 24


def made(task: str, section: str = "{}") -> Any:
    return GymEnv(task, make_config(GymEnv, json.loads(section), "config"))


def actions(env: Any) -> np.ndarray:
    rng = np.random.Generator(np.random.PCG64(0))
    return rng.uniform(env.spec.action_low, env.spec.action_high, (NUM_STEPS, env.spec.action_dim)).astype(np.float32)


def played(env: Any, seed: int, every: int = 1) -> list[bytes]:
    """What an episode shows at its start and after every so many of ``actions``, as bytes."""
    observation, _ = env.reset(seed)
    out = [b"".join(observation[name].tobytes() for name in sorted(observation))]
    for t, action in enumerate(actions(env), start=1):
        observation, reward, _, _, info = env.step(action, need_obs=t % every == 0)
        assert (observation is None) == bool(t % every)
        if observation is not None:
            seen = b"".join(observation[name].tobytes() for name in sorted(observation))
            out.append(seen + repr((reward, info.get("success"))).encode())
    return out


def an_episode_is_a_function_of_its_seed(cases: str) -> None:
    """Fresh, after other episodes, in a second instance, read or not; prints digests to compare between processes."""
    for task, section in json.loads(cases):
        env, other = made(task, json.dumps(section)), made(task, json.dumps(section))
        first = played(env, 12)
        for seed in (3, 5, 12, 7):
            played(env, seed)
        assert played(env, 12, every=4) == first[::4], task
        other.reset(99)
        assert played(other, 12) == first, task
        assert played(other, 14)[0] != first[0], task
        env.close()
        other.close()
        print(task, hashlib.sha256(b"".join(first)).hexdigest())


def goals_come_before_the_rest_of_the_state() -> None:
    import gymnasium

    env, theirs = made("FetchPush-v4"), gymnasium.make("FetchPush-v4")
    got, (want, _) = env.reset(4)[0], theirs.reset(seed=4)
    for action in actions(env):
        parts = [want[name] for name in ("achieved_goal", "desired_goal", "observation")]
        assert np.array_equal(got["state"], np.concatenate(parts).astype(np.float32))
        got, want = env.step(action, need_obs=True)[0], theirs.step(action)[0]


def reaching_the_goal_is_success() -> None:
    for terminate in (True, False):
        env = made("FetchReach-v4", json.dumps({"terminate_on_success": terminate}))
        observation, _ = env.reset(4)
        for _ in range(env.spec.max_episode_steps):
            way = observation["state"][3:6] - observation["state"][:3]
            action = np.clip(np.append(way * 10, 0), -1, 1).astype(np.float32)
            observation, reward, terminated, truncated, info = env.step(action, need_obs=True)
            assert reward == (0.0 if info["success"] else -1.0)
            assert (terminated, truncated) == (terminate and info["success"], False)
            if info["success"]:
                break
        assert info["success"]


def a_picture_changes_nothing() -> None:
    """Left to itself gymnasium-robotics goes on differently after it has been looked at."""
    picture = {"render": True, "options": {"width": 48, "height": 48}}
    shown, hidden = made("FetchPickAndPlace-v4", json.dumps(picture)), made("FetchPickAndPlace-v4")
    pictures = [shown.reset(4)[0]["image"]]
    hidden.reset(4)
    for action in actions(shown):
        seen, unseen = (env.step(action, need_obs=True)[0] for env in (shown, hidden))
        assert np.array_equal(seen["state"], unseen["state"])
        pictures.append(seen["image"])
    assert len({picture.tobytes() for picture in pictures}) == len(pictures)
    shown.close()


def pixels_are_drawn_only_where_they_are_read() -> None:
    env = made("gym_pusht/PushT-v0", json.dumps({"options": {"obs_type": "pixels_agent_pos"}}))
    env.reset(0)
    body, drawn = env._env.unwrapped, 0
    draw = body._draw

    def counted() -> Any:
        nonlocal drawn
        drawn += 1
        return draw()

    body._draw = counted
    for t, action in enumerate(actions(env)[:16], start=1):
        env.step(action, need_obs=t % 8 == 0)
    assert drawn == 2


def keeps_the_contract(task: str, section: str = "{}") -> None:
    results = check_env(f"ebrl.envs.gym:GymEnv/{task}", json.loads(section))
    assert [one for one in results if not one.ok or one.severity == "warning"] == []


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
