from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from ebrl.envs.gym import GymEnv
from ebrl.envs.toy import Dial, Reach
from ebrl.errors import UnknownPlugin, UsageError

STILL = np.zeros(4, np.float32)


def test_the_reach_expert_succeeds_once_and_is_paid_once() -> None:
    env = Reach(config=Reach.Config(terminate_on_success=False))
    env.reset(4)
    rewards = [env.step(env.expert_action(), need_obs=False)[1] for _ in range(50)]
    assert sum(rewards) == 1.0


def test_dense_reward_adds_up_to_the_distance_gained() -> None:
    env = Reach(config=Reach.Config(reward="dense"))
    observation, _ = env.reset(4)
    total, over = 0.0, False
    while not over:
        last, reward, over, _, _ = env.step(env.expert_action(), need_obs=True)
        total += reward
    assert last is not None
    gained = np.linalg.norm(observation["state"][:2]) - np.linalg.norm(last["state"][:2])
    assert total == pytest.approx(1.0 + gained, abs=1e-6)


def test_the_picture_shows_point_and_goal_where_the_state_says() -> None:
    env = Reach(config=Reach.Config(image_size=100))
    observation, _ = env.reset(7)
    position = observation["state"][2:]
    goal = position + observation["state"][:2]
    for channel, (x, y) in enumerate((position, goal)):
        row, column = int((1 - y) * 50), int((1 + x) * 50)
        assert observation["image"][min(row, 99), min(column, 99), channel] == 255


def test_dialled_lengths_stay_in_range_and_follow_the_seed() -> None:
    env = Dial(config=Dial.Config(min_episode_steps=3, max_episode_steps=9))
    lengths = []
    for seed in range(40):
        env.reset(seed)
        lengths.append(next(t for t in range(1, 10) if env.step(STILL, need_obs=False)[2]))
    assert (min(lengths), max(lengths)) == (3, 9)


@pytest.mark.parametrize("kind", ["raise", "nan_obs", "nan_reward", "bad_shape"])
def test_a_dialled_failure_comes_at_its_step(kind: Any) -> None:
    env = Dial(config=Dial.Config(fail_at_step=2, fail_kind=kind))
    env.reset(0)
    env.step(STILL, need_obs=True)
    if kind == "raise":
        with pytest.raises(RuntimeError, match="was told to fail"):
            env.step(STILL, need_obs=True)
        return
    observation, reward, *_ = env.step(STILL, need_obs=True)
    assert observation is not None
    failed = {
        "nan_obs": bool(np.isnan(observation["state"]).all()),
        "nan_reward": math.isnan(reward),
        "bad_shape": observation["state"].shape == (7,),
    }
    assert failed == {name: name == kind for name in failed}


def test_a_dialled_leak_grows_with_every_reset() -> None:
    env = Dial(config=Dial.Config(leak_mib=0.5))
    for seed in range(3):
        env.reset(seed)
    assert [array.nbytes for array in env._leaked] == [2**19] * 3


@pytest.mark.parametrize(("renderer", "colours", "changes"), [("works", 192, 1), ("frozen", 192, 0), ("black", 1, 0)])
def test_a_dialled_renderer_shows_what_it_should_not(renderer: Any, colours: int, changes: bool) -> None:
    env = Dial(config=Dial.Config(image_size=8, renderer=renderer))
    first, _ = env.reset(0)
    second, *_ = env.step(STILL, need_obs=True)
    assert second is not None
    assert len(np.unique(first["image"])) == colours
    assert np.any(first["image"] != second["image"]) == changes


def test_failure_probabilities_are_rates() -> None:
    env = Dial(config=Dial.Config(nan_reward_probability=0.25, max_episode_steps=2000, min_episode_steps=2000))
    env.reset(1)
    failed = sum(math.isnan(env.step(STILL, need_obs=False)[1]) for _ in range(2000))
    assert 0.2 < failed / 2000 < 0.3


def test_gym_takes_the_registered_limit_off_and_tells_it() -> None:
    env = GymEnv("Pendulum-v1")
    env.reset(0)
    assert env.spec.max_episode_steps == 200
    assert not any(env.step(np.zeros(1, np.float32), need_obs=False)[3] for _ in range(250))
    env.close()
    assert GymEnv("CartPole-v1", GymEnv.Config(max_episode_steps=7)).spec.max_episode_steps == 7


def test_a_discrete_action_is_the_largest_value() -> None:
    left, right = GymEnv("CartPole-v1"), GymEnv("CartPole-v1")
    left.reset(0)
    right.reset(0)
    a, *_ = left.step(np.array([0.3, 0.2], np.float32), need_obs=True)
    b, *_ = right.step(np.array([-0.9, 0.2], np.float32), need_obs=True)
    assert a is not None
    assert b is not None
    assert a["state"][1] < 0 < b["state"][1]
    assert left.spec.chooses
    assert left.spec.clip_limits == ((-math.inf, -math.inf), (math.inf, math.inf))
    assert not GymEnv("Pendulum-v1").spec.chooses


def test_gym_says_what_it_cannot_do() -> None:
    with pytest.raises(UnknownPlugin, match=r"no env named 'gym/Pendulm-v1'; did you mean 'gym/Pendulum-v1'"):
        GymEnv("Pendulm-v1")
    with pytest.raises(UsageError, match=r"gym/Blackjack-v1.*want Box or a Dict of Box"):
        GymEnv("Blackjack-v1")
