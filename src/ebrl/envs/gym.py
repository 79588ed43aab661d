"""Any Gymnasium environment, as ``gym/<id>``.

Gymnasium's time limit is taken off and becomes the spec's, so that the runtime truncates; nothing
else is wrapped around the environment.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from ebrl.data.spec import ArraySpec, EnvSpec
from ebrl.envs.base import Observation
from ebrl.errors import MissingExtra, UnknownPlugin, UsageError

__all__ = ["GymEnv"]

DEFAULT_MAX_EPISODE_STEPS = 1000


class GymEnv:
    """A Gymnasium environment with a Box or Discrete action space and Box (or Dict of Box) observations.

    Non-image boxes are flattened and joined, in order of their keys, to ``state``; a ``[h, w, 3]
    uint8`` box is ``image`` (under its own key if there are several). A Discrete action is chosen by
    the largest of ``n`` action values.
    """

    @dataclasses.dataclass(frozen=True)
    class Config:
        """Options of ``gym/<id>``."""

        max_episode_steps: int | None = None
        """None means the limit the id is registered with, or 1000 if it has none."""

        def __post_init__(self) -> None:
            if self.max_episode_steps is not None and self.max_episode_steps < 1:
                raise ValueError(f"max_episode_steps = {self.max_episode_steps}: want at least 1")

    @classmethod
    def tasks(cls) -> list[str]:
        """What may follow ``gym/``: every registered id, with its version."""
        try:
            import gymnasium
        except ModuleNotFoundError as error:
            raise MissingExtra("gym/*", error.name or "gymnasium", "gym") from error
        return sorted(gymnasium.registry)

    def __init__(self, task: str, config: Config | None = None) -> None:
        self.config = config if config is not None else self.Config()
        self._name = f"gym/{task}"
        self._env, registered = _make(task)
        limit = self.config.max_episode_steps or registered or DEFAULT_MAX_EPISODE_STEPS
        self._first_action: int | None = None
        low, high = self._action_limits()
        self._boxes = self._find_boxes()
        self._images = self._image_names()
        observation = {name: ArraySpec(tuple(self._boxes[key].shape), "uint8") for key, name in self._images.items()}
        size = sum(int(np.prod(box.shape)) for key, box in self._boxes.items() if key not in self._images)
        if size:
            observation["state"] = ArraySpec((size,), "float32")
        self._spec = EnvSpec(observation, low, high, limit)

    @property
    def spec(self) -> EnvSpec:
        """Shapes and limits, from the Gymnasium spaces."""
        return self._spec

    def _action_limits(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        space = self._env.action_space
        kind = type(space).__name__
        if kind == "Discrete":
            self._first_action = int(space.start)
            return (-1.0,) * int(space.n), (1.0,) * int(space.n)
        if kind != "Box":
            raise UsageError(f"env {self._name!r}: action space {space}: want Box or Discrete")
        low, high = space.low.ravel(), space.high.ravel()
        unbounded = np.flatnonzero(~(np.isfinite(low) & np.isfinite(high)))
        if len(unbounded):
            raise UsageError(
                f"env {self._name!r}: action {unbounded[0]} has limits {low[unbounded[0]]} to "
                f"{high[unbounded[0]]}: want finite ones; register a version with bounded actions"
            )
        return tuple(map(float, low)), tuple(map(float, high))

    def _find_boxes(self) -> dict[str, Any]:
        """Observation boxes by key; a lone box has the key ``""``."""
        space = self._env.observation_space
        boxes = dict(sorted(space.items())) if type(space).__name__ == "Dict" else {"": space}
        for key, box in boxes.items():
            if type(box).__name__ != "Box":
                raise UsageError(f"env {self._name!r}: observation {key!r} is {box}: want Box or a Dict of Box")
        return boxes

    def _image_names(self) -> dict[str, str]:
        keys = [
            key
            for key, box in self._boxes.items()
            if box.dtype == np.uint8 and len(box.shape) == 3 and box.shape[-1] == 3
        ]
        return {key: key if len(keys) > 1 else "image" for key in keys}

    def reset(self, seed: int) -> tuple[Observation, dict[str, Any]]:
        """Gymnasium's own seeded reset."""
        observation, info = self._env.reset(seed=seed)
        return self._convert(observation), dict(info)

    def step(
        self, action: np.ndarray, *, need_obs: bool
    ) -> tuple[Observation | None, float, bool, bool, dict[str, Any]]:
        """One Gymnasium step; it makes the observation whether or not anyone needs it."""
        observation, reward, terminated, truncated, info = self._env.step(self._native(action))
        converted = self._convert(observation) if need_obs or truncated else None
        return converted, float(reward), bool(terminated), bool(truncated), _with_success(info)

    def close(self) -> None:
        """Close the environment; a second call does nothing."""
        if self._env is not None:
            self._env.close()
            self._env = None

    def _native(self, action: np.ndarray) -> Any:
        if self._first_action is not None:
            return self._first_action + int(np.argmax(action))
        space = self._env.action_space
        return action.reshape(space.shape).astype(space.dtype)

    def _convert(self, observation: Any) -> Observation:
        parts: Mapping[str, Any] = {"": observation} if "" in self._boxes else observation
        out = {name: np.array(parts[key], dtype=np.uint8) for key, name in self._images.items()}
        state = [np.ravel(parts[key]) for key in self._boxes if key not in self._images]
        if state:
            out["state"] = np.concatenate(state).astype(np.float32)
        return out


def _make(task: str) -> tuple[Any, int | None]:
    """The bare environment and the time limit its id is registered with."""
    try:
        import gymnasium
    except ModuleNotFoundError as error:
        raise MissingExtra(f"gym/{task}", error.name or "gymnasium", "gym") from error
    try:
        registered = gymnasium.spec(task)
    except gymnasium.error.Error as error:
        known = [f"gym/{name}" for name in gymnasium.registry]
        raise UnknownPlugin("env", f"gym/{task}", known) from error
    try:
        env: Any = gymnasium.make(task, max_episode_steps=-1, disable_env_checker=True)
    except (gymnasium.error.DependencyNotInstalled, ModuleNotFoundError) as error:
        raise UsageError(f"env 'gym/{task}' needs a library that is not installed: {error}") from error
    return env, registered.max_episode_steps


def _with_success(info: Mapping[str, Any]) -> dict[str, Any]:
    """``info`` with ``success`` as a bool, whichever of the two usual spellings it has."""
    out = dict(info)
    for key in ("success", "is_success"):
        if key in out:
            out["success"] = bool(out[key])
            break
    return out
