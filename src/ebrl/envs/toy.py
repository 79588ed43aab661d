"""Environments without a simulator, for tests, benchmarks and a first run in seconds.

``toy/reach-v1`` is a real, easy task. ``toy/dial-v1`` is no task at all: its step time, episode
length and failures are dialled in. Neither says anything about robots.
"""

from __future__ import annotations

import ctypes
import dataclasses
import math
import os
import signal
import time
from typing import Any, Literal, get_args

import numpy as np

from ebrl.data.spec import INSTRUCTION_BYTES, ArraySpec, EnvSpec
from ebrl.envs.base import Observation, encode_instruction

__all__ = ["FAIL_KINDS", "Dial", "Reach"]

FailKind = Literal["raise", "nan_obs", "nan_reward", "bad_shape", "hang", "crash", "segfault", "abort"]
FAIL_KINDS: tuple[FailKind, ...] = get_args(FailKind)

Step = tuple[Observation | None, float, bool, bool, dict[str, Any]]


def _require(config: object, wants: dict[str, tuple[bool, str]]) -> None:
    for name, (right, want) in wants.items():
        if not right:
            raise ValueError(f"{name} = {getattr(config, name)!r}: want {want}")


def _rng(seed: int) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(seed))


class Reach:
    """A point on a square table that must come near a goal."""

    @dataclasses.dataclass(frozen=True)
    class Config:
        """Options of ``toy/reach-v1``."""

        max_episode_steps: int = 50
        radius: float = 0.15
        """How near is near enough; the table is two units wide, and goals are two radii away at first."""
        speed: float = 0.1
        """Largest way along one axis in one env step."""
        reward: Literal["sparse", "dense"] = "sparse"
        """``sparse``: 1 at the first success. ``dense``: also the distance gained in each env step."""
        terminate_on_success: bool = True
        image_size: int = 0
        """Side of a square ``image`` of the table (red: the point, green: the goal); 0 for none."""

        def __post_init__(self) -> None:
            _require(
                self,
                {
                    "max_episode_steps": (self.max_episode_steps >= 1, "at least 1"),
                    "radius": (0 < self.radius < 0.7, "above 0 and below 0.7"),
                    "speed": (0 < self.speed <= 1, "above 0, at most 1"),
                    "image_size": (0 <= self.image_size <= 1024, "0 to 1024"),
                },
            )

    def __init__(self, task: str = "", config: Config | None = None) -> None:
        self.config = config if config is not None else self.Config()
        self._instruction = encode_instruction("reach the goal")
        self._position, self._goal = np.zeros(2), np.zeros(2)
        self._won = False

    @property
    def spec(self) -> EnvSpec:
        """``state`` is goal minus position, then position."""
        size = self.config.image_size
        observation = {
            "state": ArraySpec((4,), "float32"),
            "instruction": ArraySpec((INSTRUCTION_BYTES,), "uint8"),
        }
        if size:
            observation["image"] = ArraySpec((size, size, 3), "uint8")
        return EnvSpec(observation, (-1.0, -1.0), (1.0, 1.0), self.config.max_episode_steps)

    def reset(self, seed: int) -> tuple[Observation, dict[str, Any]]:
        """Draw position and goal, at least two radii apart."""
        rng = _rng(seed)
        self._position, self._goal = rng.uniform(-1, 1, 2), rng.uniform(-1, 1, 2)
        while self._distance() < 2 * self.config.radius:
            self._goal = rng.uniform(-1, 1, 2)
        self._won = False
        return self._observation(), {"success": False}

    def step(self, action: np.ndarray, *, need_obs: bool) -> Step:
        """Move by ``action`` times the speed, within the table."""
        before = self._distance()
        self._position = np.clip(self._position + self.config.speed * action.astype(np.float64), -1, 1)
        after = self._distance()
        success = after <= self.config.radius
        reward = float(success and not self._won)
        if self.config.reward == "dense":
            reward += before - after
        self._won = self._won or success
        terminated = success and self.config.terminate_on_success
        return self._observation() if need_obs else None, reward, terminated, False, {"success": success}

    def expert_action(self) -> np.ndarray:
        """Straight to the goal, ``[2] float32``."""
        return np.clip((self._goal - self._position) / self.config.speed, -1, 1).astype(np.float32)

    def close(self) -> None:
        """Nothing to release."""

    def _distance(self) -> float:
        return math.dist(self._position, self._goal)

    def _observation(self) -> Observation:
        state = np.concatenate((self._goal - self._position, self._position)).astype(np.float32)
        out = {"state": state, "instruction": self._instruction.copy()}
        if self.config.image_size:
            out["image"] = self._image(self.config.image_size)
        return out

    def _image(self, size: int) -> np.ndarray:
        centres = (np.arange(size) + 0.5) / size * 2 - 1
        image = np.zeros((size, size, 3), np.uint8)
        for channel, (x, y) in enumerate((self._position, self._goal)):
            disc = (centres - x) ** 2 + (centres[::-1, None] - y) ** 2 <= self.config.radius**2
            image[disc, channel] = 255
        return image


class Dial:
    """A load to test the system with: chosen times, lengths and failures, no meaning."""

    @dataclasses.dataclass(frozen=True)
    class Config:
        """Options of ``toy/dial-v1``; all draws are functions of the episode's seed."""

        step_s: float = 0.0
        """Mean duration of an env step."""
        tail_sigma: float = 0.0
        """Spread of that duration: standard deviation of its logarithm (log-normal, same mean)."""
        observe_s: float = 0.0
        """Duration of an observation, those of resets not included."""
        reset_s: float = 0.0
        busy: bool = False
        """Spend the time computing instead of sleeping."""
        min_episode_steps: int = 20
        max_episode_steps: int = 20
        """Episodes end by themselves after a number of env steps drawn from this range."""
        success_probability: float = 0.5
        state_size: int = 8
        action_size: int = 4
        image_size: int = 0
        """Side of a square ``image``; 0 for none."""
        renderer: Literal["works", "black", "frozen"] = "works"
        """``black``: images are of one colour. ``frozen``: they are all the same."""
        leak_mib: float = 0.0
        """Memory that every reset takes and nobody gives back."""
        raise_probability: float = 0.0
        """Probability in each env step, like the next seven."""
        nan_obs_probability: float = 0.0
        nan_reward_probability: float = 0.0
        bad_shape_probability: float = 0.0
        hang_probability: float = 0.0
        crash_probability: float = 0.0
        """Be killed, as the kernel does when memory is short."""
        segfault_probability: float = 0.0
        """Die in native code, as after a wrong address."""
        abort_probability: float = 0.0
        """Die in native code that has found something wrong."""
        fail_at_step: int = 0
        """Fail in this env step of every episode, counted from 1; 0 for never."""
        fail_kind: FailKind = "raise"

        def __post_init__(self) -> None:
            wants = {
                name: (0 <= getattr(self, name) < math.inf, "a finite number, at least 0")
                for name in ("step_s", "tail_sigma", "observe_s", "reset_s", "leak_mib", "fail_at_step")
            }
            wants["min_episode_steps"] = (self.min_episode_steps >= 1, "at least 1")
            wants["max_episode_steps"] = (
                self.max_episode_steps >= self.min_episode_steps,
                f"at least min_episode_steps ({self.min_episode_steps})",
            )
            wants["success_probability"] = (0 <= self.success_probability <= 1, "0 to 1")
            wants["state_size"] = (self.state_size >= 2, "at least 2")
            wants["action_size"] = (self.action_size >= 1, "at least 1")
            wants["image_size"] = (0 <= self.image_size <= 1024, "0 to 1024")
            for kind in FAIL_KINDS:
                name = f"{kind}_probability"
                wants[name] = (0 <= getattr(self, name) <= 1, "0 to 1")
            _require(self, wants)

    def __init__(self, task: str = "", config: Config | None = None) -> None:
        self.config = config if config is not None else self.Config()
        self._instruction = encode_instruction("do nothing in particular")
        self._fail_thresholds = np.cumsum([getattr(self.config, f"{kind}_probability") for kind in FAIL_KINDS])
        self._rng = _rng(0)
        self._steps = self._length = 0
        self._lucky = False
        self._state = np.zeros(self.config.state_size, np.float32)
        size = self.config.image_size
        self._image = np.arange(3 * size * size).astype(np.uint8).reshape(size, size, 3)
        self._leaked: list[np.ndarray] = []

    @property
    def spec(self) -> EnvSpec:
        """``state`` is the share of the episode done, then a running mean of the actions, then noise."""
        config = self.config
        observation = {
            "state": ArraySpec((config.state_size,), "float32"),
            "instruction": ArraySpec((INSTRUCTION_BYTES,), "uint8"),
        }
        if config.image_size:
            observation["image"] = ArraySpec((config.image_size, config.image_size, 3), "uint8")
        limits = (1.0,) * config.action_size
        return EnvSpec(observation, tuple(-x for x in limits), limits, config.max_episode_steps)

    def reset(self, seed: int) -> tuple[Observation, dict[str, Any]]:
        """Draw the length and the outcome of the episode."""
        self._rng = _rng(seed)
        self._steps = 0
        self._length = int(self._rng.integers(self.config.min_episode_steps, self.config.max_episode_steps + 1))
        self._lucky = bool(self._rng.random() < self.config.success_probability)
        self._state = self._rng.standard_normal(self.config.state_size).astype(np.float32)
        self._state[:2] = 0.0
        if self.config.leak_mib:
            self._leaked.append(np.ones(int(self.config.leak_mib * 2**20), np.uint8))
        self._spend(self.config.reset_s)
        return self._observation(), {"success": False}

    def step(self, action: np.ndarray, *, need_obs: bool) -> Step:
        """Spend the time, fail if so drawn; success comes, if at all, with the end."""
        self._steps += 1
        stretch, draw = self._rng.standard_normal(), self._rng.random()
        sigma = self.config.tail_sigma
        self._spend(self.config.step_s * math.exp(sigma * stretch - sigma * sigma / 2))
        failure = self._failure(draw)
        _fail_hard(failure)
        self._state[0] = self._steps / self.config.max_episode_steps
        self._state[1] = 0.5 * self._state[1] + 0.5 * np.float32(action.mean())
        over = self._steps >= self._length
        success = over and self._lucky
        reward = math.nan if failure == "nan_reward" else float(success and self._steps == self._length)
        if need_obs:
            self._spend(self.config.observe_s)
        observation = dict(self._observation()) if need_obs else None
        if observation is not None and failure == "nan_obs":
            observation["state"][:] = np.nan
        if observation is not None and failure == "bad_shape":
            observation["state"] = observation["state"][:-1]
        return observation, reward, over, False, {"success": success}

    def close(self) -> None:
        """Nothing to release."""

    def _failure(self, draw: float) -> FailKind | None:
        if self._steps == self.config.fail_at_step:
            return self.config.fail_kind
        index = int(np.searchsorted(self._fail_thresholds, draw, side="right"))
        return FAIL_KINDS[index] if index < len(FAIL_KINDS) else None

    def _spend(self, duration_s: float) -> None:
        if duration_s <= 0:
            return
        if not self.config.busy:
            time.sleep(duration_s)
            return
        end = time.perf_counter() + duration_s
        while time.perf_counter() < end:
            pass

    def _observation(self) -> Observation:
        out = {"state": self._state.copy(), "instruction": self._instruction.copy()}
        if self.config.image_size:
            shift = self._steps if self.config.renderer == "works" else 0
            out["image"] = self._image * (self.config.renderer != "black") + np.uint8(shift % 256)
        return out


def _fail_hard(failure: FailKind | None) -> None:
    """Failures that leave no result."""
    if failure == "raise":
        raise RuntimeError("toy/dial-v1 was told to fail here")
    if failure == "hang":
        while True:
            time.sleep(3600)
    if failure == "crash":
        os.kill(os.getpid(), signal.SIGKILL)
    if failure == "segfault":
        ctypes.string_at(0)
    if failure == "abort":
        os.abort()
