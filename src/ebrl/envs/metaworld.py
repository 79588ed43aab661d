"""Meta-World: fifty tasks of one Sawyer arm on a table, as ``metaworld/<task>-v3``.

The task class of the package is used as it stands for layouts, rewards and success. Two things are
done here instead:

* **Reset.** The package drives the hand to its start for 250 physics steps, twice, and may first show
  objects where they no longer are. The drive is the same in every episode, so it runs once, at
  construction, from the untouched model; a reset restores everything it left behind, draws only the
  layout, and then observes. The initial state is a function of the seed alone, bit for bit.
* **Step.** The same physics with less Python around it.
"""

from __future__ import annotations

import copy
import dataclasses
import math
import warnings
from typing import Any, Literal

import numpy as np

from ebrl.data.spec import INSTRUCTION_BYTES, ArraySpec, EnvSpec
from ebrl.envs.base import Observation, encode_instruction
from ebrl.envs.metaworld_parts import BodyPositions, Touch, cheap_methods
from ebrl.envs.mujoco_camera import Camera, choose_gl
from ebrl.errors import MissingExtra, UnknownPlugin

__all__ = ["CAMERAS", "INSTRUCTIONS", "MetaWorld"]

INSTRUCTIONS = {
    "assembly-v3": "put the ring onto the peg",
    "basketball-v3": "throw the ball into the basket",
    "bin-picking-v3": "move the cube from one bin to the other",
    "box-close-v3": "put the lid on the box",
    "button-press-topdown-v3": "press the button from above",
    "button-press-topdown-wall-v3": "reach over the wall and press the button from above",
    "button-press-v3": "press the button",
    "button-press-wall-v3": "go around the wall and press the button",
    "coffee-button-v3": "press the button of the coffee machine",
    "coffee-pull-v3": "pull the mug away from the coffee machine",
    "coffee-push-v3": "push the mug under the coffee machine",
    "dial-turn-v3": "turn the dial",
    "disassemble-v3": "take the ring off the peg",
    "door-close-v3": "close the door",
    "door-lock-v3": "lock the door",
    "door-open-v3": "open the door",
    "door-unlock-v3": "unlock the door",
    "drawer-close-v3": "close the drawer",
    "drawer-open-v3": "open the drawer",
    "faucet-close-v3": "turn the faucet off",
    "faucet-open-v3": "turn the faucet on",
    "hammer-v3": "hammer the nail into the block",
    "hand-insert-v3": "put the hand into the hole",
    "handle-press-side-v3": "press the handle down from the side",
    "handle-press-v3": "press the handle down",
    "handle-pull-side-v3": "pull the handle up from the side",
    "handle-pull-v3": "pull the handle up",
    "lever-pull-v3": "pull the lever up",
    "peg-insert-side-v3": "insert the peg into the hole in the side",
    "peg-unplug-side-v3": "pull the peg out of the hole in the side",
    "pick-out-of-hole-v3": "take the puck out of the hole",
    "pick-place-v3": "pick up the puck and place it at the goal",
    "pick-place-wall-v3": "lift the puck over the wall to the goal",
    "plate-slide-back-side-v3": "slide the plate out of the cabinet sideways",
    "plate-slide-back-v3": "slide the plate out of the cabinet",
    "plate-slide-side-v3": "slide the plate into the cabinet sideways",
    "plate-slide-v3": "slide the plate into the cabinet",
    "push-back-v3": "pull the puck back to the goal",
    "push-v3": "push the puck to the goal",
    "push-wall-v3": "push the puck around the wall to the goal",
    "reach-v3": "reach the goal",
    "reach-wall-v3": "reach over the wall to the goal",
    "shelf-place-v3": "place the cube on the shelf",
    "soccer-v3": "push the ball into the soccer goal",
    "stick-pull-v3": "pull the box with the stick",
    "stick-push-v3": "push the box with the stick",
    "sweep-into-v3": "sweep the cube into the hole",
    "sweep-v3": "sweep the cube off the table",
    "window-close-v3": "close the window",
    "window-open-v3": "open the window",
}
"""What each task asks for, in the words a person would use."""

CAMERAS = ("topview", "corner", "corner2", "corner3", "corner4", "behindGripper", "gripperPOV")

UPSIDE_DOWN = ("corner", "corner2", "corner3", "corner4")
"""Cameras that the package mounts on their heads; a half turn puts their pictures right without mirroring them."""

NUM_STATE = 39
NUM_PROPRIO = 4
"""The leading entries of the state that the arm knows by itself: hand position and gripper opening."""

MODEL_FIELDS = ("body_pos", "body_quat", "site_pos", "site_quat", "geom_pos", "geom_quat", "eq_data")
"""What tasks move in the model itself when they lay out an episode."""


class MetaWorld:
    """One Meta-World task with the goal visible in the state."""

    @dataclasses.dataclass(frozen=True)
    class Config:
        """Options of ``metaworld/<task>-v3``."""

        camera: str | None = None
        """Name of a camera (``corner2`` is the usual one); none means state only and needs no OpenGL."""
        image_size: int = 84
        """Height and width of ``image``, in pixels."""
        render_quality: Literal["fast", "reference"] = "fast"
        """``fast`` leaves out shadows, reflections and multisampling, which cost most of a frame on a CPU;
        use ``reference`` to compare with published pictures."""
        state: Literal["full", "proprio"] = "full"
        """``proprio``: only hand position and gripper opening, so the scene must be read from the image."""
        max_episode_steps: int = 200
        terminate_on_success: bool = True
        reward: Literal["sparse", "dense"] = "sparse"
        """``sparse``: 1 at the first success of an episode. ``dense``: Meta-World's own reward over ten."""

        def __post_init__(self) -> None:
            if self.camera is not None and self.camera not in CAMERAS:
                raise ValueError(f"camera = {self.camera!r}: want one of {', '.join(CAMERAS)}")
            if not 8 <= self.image_size <= 1024:
                raise ValueError(f"image_size = {self.image_size}: want 8 to 1024")
            if self.max_episode_steps < 1:
                raise ValueError(f"max_episode_steps = {self.max_episode_steps}: want at least 1")

    @classmethod
    def tasks(cls) -> list[str]:
        """What may follow ``metaworld/``."""
        return sorted(INSTRUCTIONS)

    def __init__(self, task: str, config: Config | None = None) -> None:
        if task not in INSTRUCTIONS:
            raise UnknownPlugin("env", f"metaworld/{task}", [f"metaworld/{name}" for name in INSTRUCTIONS])
        self.config = config if config is not None else self.Config()
        self._task_name = task
        if self.config.camera is not None:
            choose_gl()
        self._mujoco, self._task = _make_task(task)
        self._instruction = encode_instruction(INSTRUCTIONS[task])
        self._expert: Any = None
        self._won = False
        self._prepare_reset()
        self._prepare_step()
        self._camera = self._make_camera()
        self._spec = self._make_spec()

    @property
    def spec(self) -> EnvSpec:
        """Shapes and limits of this task under this config."""
        return self._spec

    def _make_spec(self) -> EnvSpec:
        num_state = NUM_STATE if self.config.state == "full" else NUM_PROPRIO
        observation = {
            "state": ArraySpec((num_state,), "float32"),
            "instruction": ArraySpec((INSTRUCTION_BYTES,), "uint8"),
        }
        if self.config.camera is not None:
            observation["image"] = ArraySpec((self.config.image_size, self.config.image_size, 3), "uint8")
        return EnvSpec(observation, (-1.0,) * 4, (1.0,) * 4, self.config.max_episode_steps)

    def _make_camera(self) -> Camera | None:
        config = self.config
        if config.camera is None:
            return None
        return Camera(
            self._task.model,
            self._task.data,
            config.camera,
            size=config.image_size,
            tuned=config.render_quality == "fast",
            upside_down=config.camera in UPSIDE_DOWN,
        )

    def _prepare_reset(self) -> None:
        """Run the hand to its start once and keep everything that this leaves behind."""
        task, mujoco = self._task, self._mujoco
        mujoco.mj_resetData(task.model, task.data)
        task._reset_hand()
        mujoco.mj_forward(task.model, task.data)
        task._reset_hand = lambda steps=50: None
        size = mujoco.mj_stateSize(task.model, mujoco.mjtState.mjSTATE_INTEGRATION)
        self._start_physics = np.zeros(size)
        mujoco.mj_getState(task.model, task.data, self._start_physics, mujoco.mjtState.mjSTATE_INTEGRATION)
        self._start_model = {name: getattr(task.model, name).copy() for name in MODEL_FIELDS}
        self._start_fields = {name: value for name, value in vars(task).items() if _is_episode_field(value)}
        self._kept_fields = {name: value for name, value in vars(task).items() if name not in self._start_fields}

    def _prepare_step(self) -> None:
        """Look up once what the package looks up in every step."""
        task, data = self._task, self._task.data
        views = BodyPositions(data)
        cheap = {"get_body_com": views.__getitem__, "touching_object": Touch(data), **cheap_methods(task)}
        vars(task).update(cheap)
        self._kept_fields.update(cheap)
        self._hand, self._right_claw, self._left_claw = views["hand"], views["rightclaw"], views["leftclaw"]
        self._mocap_pos, self._ctrl = data.mocap_pos, data.ctrl
        self._mocap_low, self._mocap_high = task.mocap_low, task.mocap_high
        self._action_scale = task.action_scale
        space = task.sawyer_observation_space
        self._low, self._high = space.low.copy(), space.high.copy()
        self._low[36:], self._high[36:] = -np.inf, np.inf
        self._obs = np.zeros(NUM_STATE)
        self._prev = np.zeros(18)
        self._action = np.zeros(4, np.float32)

    def reset(self, seed: int) -> tuple[Observation, dict[str, Any]]:
        """Lay out the episode that ``seed`` stands for.

        The layout is applied twice, as the package does: some tasks read positions that only the
        first pass brings up to date.
        """
        task, mujoco = self._task, self._mujoco
        for name, value in self._start_model.items():
            getattr(task.model, name)[:] = value
        vars(task).clear()
        vars(task).update(self._kept_fields)
        vars(task).update(copy.deepcopy(self._start_fields))
        mujoco.mj_resetData(task.model, task.data)
        self._restore_physics()
        task.np_random = np.random.Generator(np.random.PCG64(seed))
        task._freeze_rand_vec = False
        task.reset_model()
        self._restore_physics()
        task._freeze_rand_vec = True
        task.reset_model()
        mujoco.mj_forward(task.model, task.data)
        self._won = False
        self._observe()
        self._obs[18:36] = self._obs[:18]
        return self._observation(), {"success": False}

    def _restore_physics(self) -> None:
        task, mujoco = self._task, self._mujoco
        mujoco.mj_setState(task.model, task.data, self._start_physics, mujoco.mjtState.mjSTATE_INTEGRATION)
        mujoco.mj_forward(task.model, task.data)

    def step(
        self, action: np.ndarray, *, need_obs: bool
    ) -> tuple[Observation | None, float, bool, bool, dict[str, Any]]:
        """Advance 12.5 ms; may go on after success, then ``success`` says whether it still holds."""
        self.begin_step(action)
        self.advance()
        return self.end_step(need_obs=need_obs)

    def begin_step(self, action: np.ndarray) -> None:
        """See ``InParts``."""
        self._action = action
        target = self._mocap_pos + action[:3] * self._action_scale
        np.minimum(np.maximum(target, self._mocap_low), self._mocap_high, out=self._mocap_pos)
        self._ctrl[0] = action[3]
        self._ctrl[1] = -action[3]

    def advance(self) -> None:
        """See ``InParts``."""
        task, mujoco = self._task, self._mujoco
        mujoco.mj_step(task.model, task.data, task.frame_skip)
        mujoco.mj_forward(task.model, task.data)

    def end_step(self, *, need_obs: bool) -> tuple[Observation | None, float, bool, bool, dict[str, Any]]:
        """See ``InParts``."""
        self._observe()
        dense, details = self._task.evaluate_state(self._obs, self._action)
        success = bool(details["success"])
        reward = float(dense) / 10 if self.config.reward == "dense" else float(success and not self._won)
        self._won = self._won or success
        terminated = success and self.config.terminate_on_success
        return self._observation() if need_obs else None, reward, terminated, False, {"success": success}

    def expert_action(self) -> np.ndarray:
        """What the scripted expert of this task does now, ``[4] float32`` in [-1, 1]."""
        if self._expert is None:
            from metaworld.policies import ENV_POLICY_MAP

            experts: dict[str, Any] = ENV_POLICY_MAP
            self._expert = experts[self._task_name]()
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Constant.s. may be too high")
            action = self._expert.get_action(self._obs)
        return np.asarray(np.clip(action, -1.0, 1.0), dtype=np.float32)

    def close(self) -> None:
        """Free the camera; a second call does nothing."""
        if self._camera is not None:
            self._camera.close()
            self._camera = None

    def _observe(self) -> None:
        """Refresh the 39 numbers: hand, gripper, objects, the same one step ago, goal."""
        task = self._task
        obs = np.zeros(NUM_STATE)
        obs[:3] = self._hand
        apart = self._right_claw - self._left_claw
        obs[3] = min(math.sqrt(apart.dot(apart)) / 0.1, 1.0)
        positions, quaternions = task._get_pos_objects(), task._get_quat_objects()
        for i in range(len(positions) // 3):
            obs[4 + 7 * i : 7 + 7 * i] = positions[3 * i : 3 * i + 3]
            obs[7 + 7 * i : 11 + 7 * i] = quaternions[4 * i : 4 * i + 4]
        obs[18:36] = self._prev
        obs[36:] = task._target_pos
        self._prev = obs[:18].copy()
        self._obs = np.minimum(np.maximum(obs, self._low, out=obs), self._high, out=obs)

    def _observation(self) -> Observation:
        state = self._obs if self.config.state == "full" else self._obs[:NUM_PROPRIO]
        out = {"state": state.astype(np.float32), "instruction": self._instruction.copy()}
        if self._camera is not None:
            out["image"] = self._camera.render()
        return out


def _make_task(name: str) -> tuple[Any, Any]:
    """The simulator's module and the task object, goal visible, layouts drawn from its own generator."""
    try:
        import mujoco
        from metaworld.env_dict import ALL_V3_ENVIRONMENTS
    except ModuleNotFoundError as error:
        raise MissingExtra(f"metaworld/{name}", error.name or "metaworld", "ebrl install metaworld") from error
    task: Any = ALL_V3_ENVIRONMENTS[name]()
    task._partially_observable = False
    del task.sawyer_observation_space
    task.seeded_rand_vec = True
    task._set_task_called = True
    return mujoco, task


def _is_episode_field(value: Any) -> bool:
    """Whether a task's attribute is a plain value that an episode may change.

    Arrays that do not own their memory are live views of the simulation and must stay so.
    """
    if isinstance(value, np.ndarray):
        return bool(value.flags.owndata)
    if isinstance(value, dict):
        return all(_is_episode_field(item) for item in value.values())
    return value is None or isinstance(value, bool | int | float | str | list | tuple | np.generic)
