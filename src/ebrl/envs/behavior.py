"""BEHAVIOR-1K: household activities in OmniGibson, as ``behavior/<activity_name>``.

**Not run against the real simulator**, which needs Isaac Sim, a GPU that traces rays, and a download of scenes.
Written from the interface of OmniGibson 1.1.1 and tested against a small stand-in for it; later versions give an
environment several scenes of its own, which is another interface.

* One process holds one Isaac Sim. Several environments of an env worker are therefore scenes of one simulation,
  stepped together by OmniGibson's ``VectorEnvironment``; a single one is a vector of one.
* BEHAVIOR has no seed: each episode begins with the instance of the activity that the config names, and repeats as
  far as PhysX does.
* Isaac Sim renders as part of its step. What ``need_obs`` saves is fetching pictures and state from it.
"""

from __future__ import annotations

import dataclasses
import importlib
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import numpy as np

from ebrl.data.spec import ArraySpec, EnvSpec
from ebrl.envs.base import Observation, OneWorld, VectorStep, encode_instruction
from ebrl.errors import UsageError

__all__ = ["Behavior", "BehaviorVector"]

ROBOT = "robot"
"""The name given to the robot."""

RENDERS_AFTER_RESET = 3
"""Isaac Sim shows a change of the scene only so many frames later."""

STEPS_PER_S = 30
PHYSICS_STEPS_PER_S = 120


@dataclasses.dataclass(frozen=True)
class BehaviorConfig:
    """Options of ``behavior/<activity_name>``."""

    scene: str = "Rs_int"
    """A scene that has a sampled instance of the activity."""
    definition: int = 0
    """Which of the activity's definitions."""
    instance: int = 0
    """Which of the sampled instances of it, so where everything is at the start of each episode."""
    robot: str = "R1"
    cameras: tuple[str, ...] = ("eyes",)
    """Links of the robot that carry a camera. One gives ``image``, several each an image of its own name."""
    image_size: int = 128
    """Height and width of the pictures, in pixels."""
    reward: Literal["sparse", "dense"] = "sparse"
    """``sparse``: 1 at the first success of an episode. ``dense``: BEHAVIOR's own, the share of the goal's
    conditions that a step has fulfilled."""
    terminate_on_success: bool = True
    max_episode_steps: int = 5000
    """At 30 Hz."""

    def __post_init__(self) -> None:
        if len(set(self.cameras)) < len(self.cameras):
            raise ValueError(f"cameras = {list(self.cameras)}: want each name once")
        if not 8 <= self.image_size <= 1024:
            raise ValueError(f"image_size = {self.image_size}: want 8 to 1024")
        if self.max_episode_steps < 1:
            raise ValueError(f"max_episode_steps = {self.max_episode_steps}: want at least 1")


class BehaviorVector:
    """Scenes of one activity in one simulation."""

    def __init__(self, activity: str, config: BehaviorConfig, num_worlds: int) -> None:
        self.config = config
        self._name = f"behavior/{activity}"
        self._og = _import_omnigibson()
        self._vector = self._og.VectorEnvironment(num_worlds, _omnigibson_config(activity, config))
        self._envs: list[Any] = list(self._vector.envs)
        self._tensor = importlib.import_module("torch").as_tensor  # what OmniGibson counts in
        self._instruction = encode_instruction(activity.replace("_", " "))
        self._won = np.zeros(num_worlds, bool)
        self._sensors: dict[str, str] = {}
        self.spec = self._make_spec()

    def _make_spec(self) -> EnvSpec:
        space = self._envs[0].robots[0].action_space
        if not (np.isfinite(space.low).all() and np.isfinite(space.high).all()):
            raise UsageError(f"{self._name}: robot {self.config.robot!r} has actions without limits; want another")
        seen, _ = self._envs[0].get_obs()
        self._sensors = self._find_sensors(seen[ROBOT])
        first = self._convert(seen)
        arrays = {name: ArraySpec(array.shape, str(array.dtype)) for name, array in first.items()}
        low, high = tuple(map(float, space.low)), tuple(map(float, space.high))
        return EnvSpec(arrays, low, high, self.config.max_episode_steps)

    def _find_sensors(self, seen: Mapping[str, Any]) -> dict[str, str]:
        """The sensor of each camera, by the name of its picture; sensors are called ``robot:link:Camera:0``."""
        links = {name.split(":")[1]: name for name in seen if ":Camera:" in name}
        for camera in self.config.cameras:
            if camera not in links:
                raise UsageError(f"{self._name}: no camera {camera!r}; known: {', '.join(sorted(links)) or 'none'}")
        cameras = self.config.cameras
        return {"image" if len(cameras) == 1 else camera: links[camera] for camera in cameras}

    def reset(self, worlds: Sequence[int], seeds: Sequence[int]) -> Observation:
        """Put ``worlds`` back to their start; no physics runs meanwhile, so the others stay where they are."""
        for world in worlds:
            self._envs[world].reset(get_obs=False)
            self._won[world] = False
        for _ in range(RENDERS_AFTER_RESET):
            self._og.sim.render()
        rows = [self._convert(self._envs[world].get_obs()[0]) for world in worlds]
        return {name: np.stack([row[name] for row in rows]) for name in self.spec.observation}

    def step(self, actions: np.ndarray, active: np.ndarray, *, need_obs: np.ndarray) -> VectorStep:
        """33 ms of all scenes; robots of those at rest are sent zeros."""
        num_worlds = len(self._envs)
        commands = self._tensor(np.where(active[:, None], actions, 0).astype(np.float32))
        unread = [env for env, needed in zip(self._envs, need_obs, strict=True) if not needed]
        for env in unread:
            env.get_obs = _observe_nothing
        try:
            seen, shaped, over, _, infos = self._vector.step([{ROBOT: command} for command in commands])
        finally:
            for env in unread:
                del env.get_obs
        success = np.array([bool(info["done"]["success"]) for info in infos])
        paid = success & ~self._won if self.config.reward == "sparse" else np.array([float(one) for one in shaped])
        self._won |= success
        terminated = np.array([bool(one) for one in over]) & (~success | self.config.terminate_on_success)
        observation = None
        if need_obs.any():
            shapes = self.spec.observation.items()
            observation = {name: np.zeros((num_worlds, *array.shape), array.dtype) for name, array in shapes}
            for world in map(int, np.flatnonzero(need_obs)):
                for name, array in self._convert(seen[world]).items():
                    observation[name][world] = array
        return VectorStep(observation, paid.astype(np.float32), terminated, success)

    def _convert(self, seen: Mapping[str, Any]) -> dict[str, np.ndarray]:
        robot = seen[ROBOT]
        out = {"state": _numpy(robot["proprio"]).astype(np.float32).ravel(), "instruction": self._instruction.copy()}
        for name, sensor in self._sensors.items():
            out[name] = np.ascontiguousarray(_numpy(robot[sensor]["rgb"])[..., :3]).astype(np.uint8)
        return out

    def close(self) -> None:
        """Nothing to give back before the process ends, since Isaac Sim ends with it."""


class Behavior(OneWorld):
    """One scene of an activity."""

    verified: ClassVar[bool] = False
    """Whether the adapter was run against the real simulator."""
    unverified_because: ClassVar[str] = "Isaac Sim, a GPU that traces rays and the scenes were out of reach"

    Config = BehaviorConfig

    @classmethod
    def make_vector(cls, activity: str, config: BehaviorConfig, num_worlds: int) -> BehaviorVector:
        """Many scenes, stepped together."""
        return BehaviorVector(activity, config, num_worlds)

    def __init__(self, activity: str, config: BehaviorConfig | None = None) -> None:
        self.config = config if config is not None else BehaviorConfig()
        super().__init__(BehaviorVector(activity, self.config, 1))


def _omnigibson_config(activity: str, config: BehaviorConfig) -> dict[str, Any]:
    """What OmniGibson wants to know; episodes are cut short and reset by the runtime, never by it."""
    picture = {"image_height": config.image_size, "image_width": config.image_size}
    return {
        "env": {
            "action_frequency": STEPS_PER_S,
            "rendering_frequency": STEPS_PER_S,
            "physics_frequency": PHYSICS_STEPS_PER_S,
            "automatic_reset": False,
            "flatten_action_space": False,
            "flatten_obs_space": False,
        },
        "scene": {"type": "InteractiveTraversableScene", "scene_model": config.scene},
        "robots": [
            {
                "type": config.robot,
                "name": ROBOT,
                "obs_modalities": ["proprio", "rgb"] if config.cameras else ["proprio"],
                "action_normalize": True,
                "sensor_config": {"VisionSensor": {"sensor_kwargs": picture}},
            }
        ],
        "task": {
            "type": "BehaviorTask",
            "activity_name": activity,
            "activity_definition_id": config.definition,
            "activity_instance_id": config.instance,
            "online_object_sampling": False,
            "termination_config": {"max_steps": sys.maxsize},
            "include_obs": False,
        },
    }


def _import_omnigibson() -> Any:
    os.environ.setdefault("OMNIGIBSON_HEADLESS", "1")
    try:
        return importlib.import_module("omnigibson")
    except ModuleNotFoundError as error:
        problem = f"behavior/* needs the module {error.name!r}, which {sys.executable} does not have"
        what = "BEHAVIOR cannot be installed by ebrl: follow its own guide, and name its interpreter as env.python"
        raise UsageError(f"{problem}; {what}") from error


def _observe_nothing() -> tuple[dict[str, Any], dict[str, Any]]:
    return {}, {}


def _numpy(value: Any) -> np.ndarray:
    return np.asarray(value.cpu() if hasattr(value, "cpu") else value)
