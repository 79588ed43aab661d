"""Any Gymnasium environment, as ``gym/<id>``; those of gymnasium-robotics and gym-pusht need no more than the id.

Gymnasium's time limit is taken off and becomes the spec's, so that the runtime truncates; nothing
else is wrapped around the environment. Its rewards are its own: gymnasium-robotics' sparse one is -1 until the
goal is reached, and 0 there.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import os
import sys
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import numpy as np

from ebrl.data.spec import ArraySpec, EnvSpec
from ebrl.envs.base import Observation
from ebrl.envs.mujoco_camera import choose_gl
from ebrl.errors import MissingExtra, UnknownPlugin, UsageError

__all__ = ["GymEnv"]

DEFAULT_MAX_EPISODE_STEPS = 1000

SUITES = ("gymnasium_robotics", "gym_pusht")
"""Modules that are looked into for an id that Gymnasium does not know by itself."""

OBSERVERS = {"gym_pusht/": "get_obs"}
"""By start of the id: the method whose only use is to make what ``step`` returns, so that it need not always run."""


class GymEnv:
    """A Gymnasium environment with a Box or Discrete action space and Box (or Dict of Box) observations.

    Non-image boxes are flattened and joined, in order of their keys, to ``state``: of a goal task that is achieved
    goal, desired goal, observation. A ``[h, w, 3] uint8`` box is ``image`` (under its own key if there are several).
    A Discrete action is chosen by the largest of ``n`` action values.
    """

    @dataclasses.dataclass(frozen=True)
    class Config:
        """Options of ``gym/<id>``."""

        module: str | None = None
        """Imported first, to register the id; None finds Gymnasium's own and those of ``SUITES``."""
        options: Any = None
        """Arguments of the environment itself, e.g. ``{obs_type = "pixels_agent_pos"}`` for PushT; None means none."""
        render: bool = False
        """Add what the environment's own camera sees as ``image``; it is rendered only where it is read. Its size is
        one of ``options``: ``width`` and ``height`` in gymnasium-robotics."""
        render_quality: Literal["fast", "reference"] = "fast"
        """``fast`` leaves out MuJoCo's shadows, reflections and multisampling, which cost most of a frame on a CPU."""
        max_episode_steps: int | None = None
        """None means the limit the id is registered with, or 1000 if it has none."""
        terminate_on_success: bool = False
        """Goal tasks of gymnasium-robotics go on at the goal unless this is set."""

        def __post_init__(self) -> None:
            if self.options is not None and not isinstance(self.options, Mapping):
                raise ValueError(f"options = {self.options!r}: want a table of arguments")
            if self.max_episode_steps is not None and self.max_episode_steps < 1:
                raise ValueError(f"max_episode_steps = {self.max_episode_steps}: want at least 1")

    asks_simulator = True
    """What ``tasks`` finds depends on the interpreter."""

    @classmethod
    def tasks(cls) -> list[str]:
        """What may follow ``gym/``: every registered id, with its version."""
        gymnasium = _import_gymnasium("*")
        for suite in SUITES:
            _try_import(suite)
        return sorted(gymnasium.registry)

    def __init__(self, task: str, config: Config | None = None) -> None:
        self.config = config if config is not None else self.Config()
        self._name = f"gym/{task}"
        self._env, registered = self._make(task)
        self._observer = next((method for start, method in OBSERVERS.items() if task.startswith(start)), None)
        limit = self.config.max_episode_steps or registered or DEFAULT_MAX_EPISODE_STEPS
        self._first_action: int | None = None
        self._mujoco: Any = None
        low, high = self._action_limits()
        self._boxes = self._find_boxes(self._env.observation_space)
        self._images = self._image_names()
        observation = {name: ArraySpec(tuple(self._boxes[key].shape), "uint8") for key, name in self._images.items()}
        self._check_names()
        size = sum(int(np.prod(box.shape)) for key, box in self._boxes.items() if key not in self._images)
        if size:
            observation["state"] = ArraySpec((size,), "float32")
        if self.config.render:
            observation["image"] = self._first_picture()
        self._spec = EnvSpec(observation, low, high, limit, chooses=self._first_action is not None)

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

    def _find_boxes(self, space: Any, key: tuple[str, ...] = ()) -> dict[tuple[str, ...], Any]:
        """Observation boxes by the way to them through nested Dicts."""
        kind = type(space).__name__
        if kind == "Dict":
            parts = [self._find_boxes(part, (*key, name)) for name, part in sorted(space.items())]
            return {way: box for boxes in parts for way, box in boxes.items()}
        if kind != "Box":
            raise UsageError(f"env {self._name!r}: observation {'/'.join(key)!r} is {space}: want Box or a Dict of Box")
        return {key: space}

    def _image_names(self) -> dict[tuple[str, ...], str]:
        keys = [
            key
            for key, box in self._boxes.items()
            if box.dtype == np.uint8 and len(box.shape) == 3 and box.shape[-1] == 3
        ]
        return {key: "/".join(key) or "pixels" if len(keys) > 1 or self.config.render else "image" for key in keys}

    def _check_names(self) -> None:
        """What the environment calls its own images must not be what this class adds."""
        added = {"image"} if self.config.render else set()
        added |= {"state"} if len(self._images) < len(self._boxes) else set()
        if taken := sorted(added & set(self._images.values())):
            raise UsageError(
                f"env {self._name!r} has an image of its own under {taken[0]!r}, which is the name of what is added to "
                "it; rename it with a wrapper" + (", or leave out render" if taken == ["image"] else "")
            )

    def _first_picture(self) -> ArraySpec:
        """Prepare rendering and see what comes out."""
        base = self._env.unwrapped
        renderer: Any = getattr(base, "mujoco_renderer", None)
        fast = renderer is not None and self.config.render_quality == "fast"
        if renderer is not None:
            choose_gl()
            self._mujoco = importlib.import_module("mujoco")
            self._shown = self._mujoco.MjData(base.model)
        if fast:
            base.model.vis.quality.shadowsize = base.model.vis.quality.offsamples = 0
        try:
            self._env.reset(seed=0)
            picture = self._picture()
        except (_import_gymnasium(self._name).error.Error, ImportError) as error:
            raise UsageError(f"env {self._name!r} cannot be drawn: {error}") from error
        if fast:
            for flag in (self._mujoco.mjtRndFlag.mjRND_SHADOW, self._mujoco.mjtRndFlag.mjRND_REFLECTION):
                renderer._get_viewer("rgb_array").scn.flags[flag] = 0
        if not (isinstance(picture, np.ndarray) and picture.dtype == np.uint8 and picture.shape[2:] == (3,)):
            raise UsageError(f"env {self._name!r}: render gave {type(picture).__name__}: want an image [h, w, 3] uint8")
        return ArraySpec(picture.shape, "uint8")

    def _picture(self) -> Any:
        """What the environment's camera sees; the environment is left as it was.

        Tasks of gymnasium-robotics compute the physics anew for a picture, after which they would go on
        differently. So MuJoCo's are shown a copy.
        """
        if self._mujoco is None:
            return self._env.render()
        mujoco, base, everything = self._mujoco, self._env.unwrapped, self._mujoco.mjtState.mjSTATE_INTEGRATION
        state = np.zeros(mujoco.mj_stateSize(base.model, everything))
        mujoco.mj_getState(base.model, base.data, state, everything)
        mujoco.mj_setState(base.model, self._shown, state, everything)
        mujoco.mj_forward(base.model, self._shown)
        viewer, kept = base.mujoco_renderer._get_viewer("rgb_array"), base.data
        viewer.data = base.data = self._shown
        try:
            return self._env.render()
        finally:
            base.data = kept

    def reset(self, seed: int) -> tuple[Observation, dict[str, Any]]:
        """Gymnasium's own seeded reset."""
        if self._observer is not None:
            self._env.unwrapped._last_action = None  # PushT draws it, and does not forget it
        observation, info = self._env.reset(seed=seed)
        return self._convert(observation), dict(info)

    def step(
        self, action: np.ndarray, *, need_obs: bool
    ) -> tuple[Observation | None, float, bool, bool, dict[str, Any]]:
        """One Gymnasium step; unless nobody needs it and it can be left out, it makes the observation."""
        with self._blind() if self._observer is not None and not need_obs else contextlib.nullcontext():
            observation, reward, terminated, truncated, info = self._env.step(self._native(action))
        converted = self._convert(observation) if need_obs or truncated else None
        info = _with_success(info)
        terminated = bool(terminated) or (self.config.terminate_on_success and info.get("success", False))
        return converted, float(reward), terminated, bool(truncated), info

    @contextlib.contextmanager
    def _blind(self) -> Iterator[None]:
        base = self._env.unwrapped
        setattr(base, self._observer or "", lambda: None)
        try:
            yield
        finally:
            delattr(base, self._observer or "")

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
        out = {name: np.array(_part(observation, key), dtype=np.uint8) for key, name in self._images.items()}
        state = [np.ravel(_part(observation, key)) for key in self._boxes if key not in self._images]
        if state:
            out["state"] = np.concatenate(state).astype(np.float32)
        if self.config.render:
            out["image"] = self._picture()
        return out

    def _make(self, task: str) -> tuple[Any, int | None]:
        """The bare environment and the time limit its id is registered with."""
        config = self.config
        if config.render:
            os.environ.setdefault("MUJOCO_GL", "egl")  # before MuJoCo is imported, if it will be
        gymnasium = _import_gymnasium(task)
        for module in (config.module,) if config.module is not None else SUITES:
            if task in gymnasium.registry:
                break
            if not _try_import(module) and config.module is not None:
                raise UsageError(f"env 'gym/{task}': no module {module!r}; want the one that registers the id")
        try:
            registered = gymnasium.spec(task)
        except gymnasium.error.Error as error:
            known = [f"gym/{name}" for name in gymnasium.registry]
            raise UnknownPlugin("env", f"gym/{task}", known) from error
        options = dict(config.options or {}) | ({"render_mode": "rgb_array"} if config.render else {})
        try:
            env: Any = gymnasium.make(task, max_episode_steps=-1, disable_env_checker=True, **options)
        except (gymnasium.error.DependencyNotInstalled, ModuleNotFoundError) as error:
            raise UsageError(f"env 'gym/{task}' needs a library that is not installed: {error}") from error
        except TypeError as error:
            raise UsageError(f"env 'gym/{task}' does not take these options: {error}") from error
        return env, registered.max_episode_steps


def _part(observation: Any, key: tuple[str, ...]) -> Any:
    for name in key:
        observation = observation[name]
    return observation


def _import_gymnasium(task: str) -> Any:
    try:
        return importlib.import_module("gymnasium")
    except ModuleNotFoundError as error:
        name = error.name or "gymnasium"
        raise MissingExtra(f"gym/{task}", name, f"{sys.executable} -m pip install {name}") from error


def _try_import(module: str) -> bool:
    """Whether ``module`` is there; importing it registers its environments."""
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module:
            raise UsageError(f"module {module!r} needs the module {error.name!r}, which is not installed") from error
        return False
    return True


def _with_success(info: Mapping[str, Any]) -> dict[str, Any]:
    """``info`` with ``success`` as a bool, whichever of the two usual spellings it has."""
    out = dict(info)
    for key in ("success", "is_success"):
        if key in out:
            out["success"] = bool(out[key])
            break
    return out
