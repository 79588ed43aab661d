"""Cheaper parts of a Meta-World step give the bits of what they stand in for."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ebrl.envs.metaworld import MetaWorld
from ebrl.envs.metaworld_parts import norm, tolerance

DENSE = MetaWorld.Config(reward="dense", terminate_on_success=False)

finite = st.floats(-10, 10) | st.sampled_from([0.0, 0.01, 0.02, 0.05, 1e-300, 1e300, math.inf, -math.inf, math.nan])
kinds = st.sampled_from([float, np.float64, np.float32])
bounds = st.tuples(
    st.floats(-1, 1) | st.sampled_from([0, -math.inf]), st.floats(-1, 1) | st.sampled_from([0, math.inf])
)
margins = st.floats(0, 2) | st.sampled_from([0, 0.2, 1e-310, -0.1, math.inf, math.nan])


def outcome(function: Any, *args: Any, **kwargs: Any) -> tuple[str, str]:
    """Type and exact value of a result, or the error."""
    with np.errstate(all="ignore"):
        try:
            result = function(*args, **kwargs)
        except Exception as error:
            return type(error).__name__, str(error)
    return type(result).__name__, np.asarray(result, np.float64).tobytes().hex()


@given(
    x=st.tuples(kinds, finite),
    bounds=bounds,
    margin=st.tuples(kinds, margins),
    sigmoid=st.sampled_from(["long_tail"] * 4 + ["gaussian", "linear", "unknown"]),
    at_margin=st.sampled_from([0.1] * 4 + [0.3, 1.0]),
)
@example(x=(float, 0.3), bounds=(0, 0.02), margin=(np.float64, 0.2), sigmoid="long_tail", at_margin=0.1)
def test_tolerance_is_the_packages_own(
    x: tuple[Any, float], bounds: tuple[float, float], margin: tuple[Any, float], sigmoid: str, at_margin: float
) -> None:
    from metaworld.utils import reward_utils

    with np.errstate(all="ignore"):
        args = x[0](x[1]), bounds, margin[0](margin[1]), sigmoid, at_margin
    assert outcome(tolerance, *args) == outcome(reward_utils.tolerance, *args)


def test_so_it_is_over_what_rewards_ask() -> None:
    from metaworld.utils import reward_utils

    rng = np.random.default_rng(0)
    for x, margin in rng.uniform(0, 0.6, (5000, 2)):
        args: dict[str, Any] = {"bounds": (0, 0.02), "margin": margin, "sigmoid": "long_tail"}
        want = outcome(reward_utils.tolerance, float(x), **args)
        assert outcome(tolerance, float(x), **args) == want
        assert outcome(tolerance, x, **args) == want


VECTOR = np.random.default_rng(1).normal(size=(40, 3))


@pytest.mark.parametrize(
    "x",
    [
        *VECTOR,
        VECTOR.astype(np.float32)[0],
        VECTOR[0, ::2],
        VECTOR[:3, 0],
        VECTOR[0, ::-1],
        VECTOR,
        VECTOR[0, 0],
        VECTOR[0].tolist(),
        np.arange(3),
        np.array([1 + 2j, 3]),
        np.zeros(0),
        np.array([np.nan, 1.0]),
        np.array([np.inf, 1.0]),
        VECTOR[0].astype(">f8"),
    ],
)
def test_norm_is_numpys_own(x: Any) -> None:
    assert outcome(norm, x) == outcome(np.linalg.norm, x)
    if np.ndim(x) == 1:
        assert outcome(norm, x, ord=2) == outcome(np.linalg.norm, x, ord=2)
        assert outcome(norm, x, np.inf) == outcome(np.linalg.norm, x, np.inf)
        assert outcome(norm, x, axis=0) == outcome(np.linalg.norm, x, axis=0)


def unchanged(task: Any) -> None:
    """Give a task object back every method that was replaced, but for the reset's."""
    for name in [name for name, value in vars(task).items() if callable(value) and name != "_reset_hand"]:
        delattr(task, name)


def followed(task: str, *, seed: int, expert: float, num_steps: int, rng: np.random.Generator) -> int:
    """Step ours and the package's own side by side; how many env steps were successful."""
    ours, theirs = MetaWorld(task, DENSE), MetaWorld(task)
    ours.reset(seed)
    theirs.reset(seed)
    package, num_won = theirs._task, 0
    unchanged(package)
    package._prev_obs, package.curr_path_length = theirs._prev.copy(), 0
    for t in range(num_steps):
        action = rng.uniform(-1, 1, 4).astype(np.float32)
        if rng.random() < expert:
            action = ours.expert_action()
        observation, reward, _, _, info = ours.step(action, need_obs=True)
        want, want_reward, _, _, want_info = package.step(action)
        assert ours._obs.tobytes() == want.tobytes(), t
        assert observation is not None
        assert observation["state"].tobytes() == want.astype(np.float32).tobytes(), t
        assert repr((reward, info["success"])) == repr((float(want_reward) / 10, bool(want_info["success"]))), t
        assert ours._task.data.qpos.tobytes() == package.data.qpos.tobytes(), t
        num_won += info["success"]
    return num_won


@pytest.mark.parametrize("task", ["drawer-open-v3", "pick-place-v3", "hammer-v3", "stick-pull-v3", "door-lock-v3"])
def test_an_episode_of_the_expert_is_the_packages_own(task: str) -> None:
    assert followed(task, seed=4, expert=1.0, num_steps=160, rng=np.random.default_rng(0)) > 0


@pytest.mark.parametrize("task", ["drawer-open-v3", "pick-place-v3", "coffee-pull-v3", "sweep-v3", "shelf-place-v3"])
@pytest.mark.parametrize("expert", [0.0, 0.6])
def test_so_is_one_that_wanders(task: str, expert: float) -> None:
    followed(task, seed=11, expert=expert, num_steps=120, rng=np.random.default_rng(1))
