"""RoboCasa: everyday tasks of a mobile arm in a kitchen, as ``robocasa/<Task>``.

**Not run against the real simulator.** Its kitchens and objects come from a download of their own, which the
machines it was written on do not reach. Written from the interface of RoboCasa 1.0.1 (365 tasks on robosuite
1.5.2 or newer) and tested against a small stand-in for it.

RoboCasa is made of robosuite. A reset builds kitchen, objects and robot anew, from the generator that its own
Gymnasium wrapper seeds. Observations are read after the env step, so they are of its end, and only where needed.
"""

from __future__ import annotations

import dataclasses
import importlib
import sys
from typing import Any, ClassVar, Literal

import numpy as np

from ebrl.data.spec import ArraySpec, EnvSpec
from ebrl.envs.base import Observation, encode_instruction
from ebrl.envs.mujoco_camera import choose_gl
from ebrl.envs.robosuite_env import seeded
from ebrl.errors import UnknownPlugin, UsageError

__all__ = ["RoboCasa"]

PROPRIO = ("base_pos", "base_quat", "base_to_eef_pos", "base_to_eef_quat", "gripper_qpos")
"""What ``state`` is made of, in RoboCasa's own order: 3, 4, 3, 4 and 2 numbers; metres and quaternions (x y z w)."""

TEXT_BYTES = 512
"""Of an instruction; it names objects and places, another one in every episode."""

DOWNLOAD = "-m robocasa.scripts.download_kitchen_assets"


class RoboCasa:
    """One RoboCasa task, seen through the robot's cameras.

    An action moves the hand (3 + 3), the gripper (1), the base (3) and the torso (1), and chooses whether arm or
    base obeys (1); all within -1 and 1.
    """

    verified: ClassVar[bool] = False
    """Whether the adapter was run against the real simulator."""
    unverified_because: ClassVar[str] = "its kitchens come from a download that was out of reach"

    @dataclasses.dataclass(frozen=True)
    class Config:
        """Options of ``robocasa/<Task>``."""

        cameras: tuple[str, ...] = ("robot0_agentview_left", "robot0_agentview_right", "robot0_eye_in_hand")
        """One gives ``image``, several each an image of its own name."""
        image_size: int = 128
        """Height and width of the pictures, in pixels."""
        split: Literal["pretrain", "target", "all"] = "pretrain"
        """Kitchens and objects that episodes are drawn from; ``target`` is held out for evaluation."""
        robot: str = "PandaOmron"
        terminate_on_success: bool = True
        max_episode_steps: int | None = None
        """At 20 Hz; None is RoboCasa's own horizon of the task."""

        def __post_init__(self) -> None:
            if not self.cameras or len(set(self.cameras)) < len(self.cameras):
                raise ValueError(f"cameras = {list(self.cameras)}: want at least one, and each name once")
            if not 8 <= self.image_size <= 1024:
                raise ValueError(f"image_size = {self.image_size}: want 8 to 1024")
            if self.max_episode_steps is not None and self.max_episode_steps < 1:
                raise ValueError(f"max_episode_steps = {self.max_episode_steps}: want at least 1")

    asks_simulator = True
    """What ``tasks`` finds depends on the interpreter."""

    @classmethod
    def tasks(cls) -> list[str]:
        """What may follow ``robocasa/``: every task that the installed package registers."""
        return sorted(_registered())

    def __init__(self, task: str, config: Config | None = None) -> None:
        self.config = config if config is not None else self.Config()
        choose_gl()
        known = _registered()
        if task not in known:
            raise UnknownPlugin("env", f"robocasa/{task}", [f"robocasa/{name}" for name in known])
        self._name = f"robocasa/{task}"
        self._env = self._make(task)
        self._images = [f"{camera}_image" for camera in self.config.cameras]
        self._won = False
        first, _ = self.reset(0)
        low, high = self._env.action_spec
        self._spec = EnvSpec(
            {name: ArraySpec(array.shape, str(array.dtype)) for name, array in first.items()},
            tuple(map(float, low)),
            tuple(map(float, high)),
            self.config.max_episode_steps or self._horizon(task),
        )

    @property
    def spec(self) -> EnvSpec:
        """Shapes and limits of this task under this config."""
        return self._spec

    def _make(self, task: str) -> Any:
        config = self.config
        try:
            return importlib.import_module("robocasa.utils.env_utils").create_env(
                env_name=task,
                robots=config.robot,
                camera_names=list(config.cameras),
                camera_widths=config.image_size,
                camera_heights=config.image_size,
                split=config.split,
            )
        except FileNotFoundError as error:
            problem = f"a file of its kitchens or objects is not here ({error.filename})"
            raise UsageError(f"env {self._name!r}: {problem}; run: {sys.executable} {DOWNLOAD}") from error

    def _horizon(self, task: str) -> int:
        try:
            return int(importlib.import_module("robocasa.utils.dataset_registry_utils").get_task_horizon(task))
        except ValueError as error:
            raise UsageError(f"env {self._name!r} has no horizon of its own; set max_episode_steps") from error

    def reset(self, seed: int) -> tuple[Observation, dict[str, Any]]:
        """Build the kitchen and the task that ``seed`` stands for."""
        self._env.rng = np.random.default_rng(seed)
        with seeded(seed):
            self._env.reset()
        self._instruction = encode_instruction(self._env.get_ep_meta().get("lang", ""), TEXT_BYTES)
        self._see(False)
        self._won = False
        return self._observe(), {"success": False}

    def step(
        self, action: np.ndarray, *, need_obs: bool
    ) -> tuple[Observation | None, float, bool, bool, dict[str, Any]]:
        """Advance 50 ms. The reward is 1 at the first success of an episode."""
        self._env.step(action)
        success = bool(self._env._check_success())
        reward = float(success and not self._won)
        self._won = self._won or success
        observation = self._observe() if need_obs else None
        return observation, reward, success and self.config.terminate_on_success, False, {"success": success}

    def _observe(self) -> Observation:
        """What is seen at this moment.

        Updated twice, the second time with pictures: relative poses are computed from the poses of the update before.
        """
        self._env._update_observables(force=True)
        self._see(True)
        values = self._env._get_observations(force_update=True)
        self._see(False)
        state = np.concatenate([np.ravel(values[f"robot0_{name}"]) for name in PROPRIO])
        out = {"state": state.astype(np.float32), "instruction": self._instruction.copy()}
        for image in self._images:
            name = "image" if len(self._images) == 1 else image.removesuffix("_image")
            out[name] = np.ascontiguousarray(values[image][::-1])  # OpenGL's rows run upwards
        return out

    def _see(self, enabled: bool) -> None:
        for image in self._images:
            self._env.modify_observable(observable_name=image, attribute="enabled", modifier=enabled)

    def close(self) -> None:
        """Free the kitchen; a second call does nothing."""
        if self._env is not None:
            self._env.close()
            self._env = None


def _registered() -> list[str]:
    try:
        return [name for name in importlib.import_module("robocasa").ALL_KITCHEN_ENVIRONMENTS if name != "Kitchen"]
    except ModuleNotFoundError as error:
        problem = f"robocasa/* needs the module {error.name!r}, which {sys.executable} does not have"
        what = "RoboCasa cannot be installed by ebrl: follow its own guide, and name its interpreter as env.python"
        raise UsageError(f"{problem}; {what}") from error
