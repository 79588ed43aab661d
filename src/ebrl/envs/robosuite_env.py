"""robosuite: one arm at a table, as ``robosuite/<Task>``; also what LIBERO, made of robosuite, shares with it.

The package's tasks, controllers and success tests are used as they stand. Done here instead:

* **Reset.** The generator that the task draws from is seeded anew, in place, so the initial state is a
  function of the seed. A soft reset keeps the compiled model, and so the size of the cube of ``Lift``.
  Restoring a simulator state alone would not repeat an episode: each reset's controller draws the arm
  towards the joint angles of that reset.
* **Step.** The same physics and controllers with less around them. Observations are of the same moment
  as the package's and equal to them (relative poses of objects excepted: some of the package's are those
  of the observation before), but made only when they are read; pictures are turned right way up.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sys
import types
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any, Literal

import numpy as np

from ebrl.data.spec import ArraySpec, EnvSpec
from ebrl.envs.base import Observation, encode_instruction
from ebrl.envs.mujoco_camera import Renderer, choose_gl
from ebrl.errors import RunError, UnknownPlugin, UsageError

__all__ = ["INSTRUCTIONS", "RobosuiteEnv"]

INSTRUCTIONS = {
    "Door": "open the door",
    "Lift": "lift the cube",
    "NutAssembly": "put both nuts onto their pegs",
    "NutAssemblyRound": "put the round nut onto the round peg",
    "NutAssemblySingle": "put the nut onto its peg",
    "NutAssemblySquare": "put the square nut onto the square peg",
    "PickPlace": "put each object into its bin",
    "PickPlaceBread": "put the bread into its bin",
    "PickPlaceCan": "put the can into its bin",
    "PickPlaceCereal": "put the cereal box into its bin",
    "PickPlaceMilk": "put the milk carton into its bin",
    "PickPlaceSingle": "put the object into its bin",
    "Stack": "stack the red cube on the green cube",
    "ToolHang": "put the frame into its stand and hang the tool on it",
}
"""What each task asks for, in the words a person would use."""

CAMERAS = ("agentview", "frontview", "birdview", "sideview", "robot0_robotview", "robot0_eye_in_hand")

PROPRIO = ("robot0_eef_pos", "robot0_eef_quat", "robot0_gripper_qpos", "robot0_joint_pos", "robot0_joint_vel")

BUILD_SEED = 0
"""Of what a task draws while its model is built, if a reset keeps the model."""

COLLISION_GEOMS = 0
"""The group of geoms that robosuite keeps for contacts and does not show."""

OBSERVE_AFTER = 25
"""The package observes after the last of an env step's 25 physics steps."""

PLACEMENT_TRIES = 20


class RobosuiteEnv:
    """One robosuite task of a single arm."""

    @dataclasses.dataclass(frozen=True)
    class Config:
        """Options of ``robosuite/<Task>``."""

        cameras: tuple[str, ...] = ()
        """Names of cameras, ``agentview`` and ``robot0_eye_in_hand`` being the usual ones; none means state only
        and needs no OpenGL. One camera is observed as ``image``, several each under its own name."""
        image_size: int = 84
        """Height and width of an image, in pixels."""
        render_quality: Literal["fast", "reference"] = "fast"
        """``fast`` leaves out shadows, reflections and multisampling, which cost most of a frame on a CPU;
        use ``reference`` to compare with published pictures."""
        state: Literal["full", "proprio", "none"] = "full"
        """``proprio``: position (m) and quaternion (x y z w) of the hand, joints of the gripper (m),
        angles (rad) and velocities (rad/s) of the arm's joints. ``full``: then also the package's own
        description of the task's objects."""
        reset: Literal["soft", "hard"] = "soft"
        """``hard`` builds the model anew for each episode, some 50 times dearer; objects whose size the task
        draws (the cube of ``Lift``) then vary."""
        reward: Literal["sparse", "dense"] = "sparse"
        """``sparse``: 1 at the first success of an episode. ``dense``: robosuite's shaped reward, 0 to 1."""
        terminate_on_success: bool = True
        robot: Literal["IIWA", "Jaco", "Kinova3", "Panda", "Sawyer", "UR5e"] = "Panda"
        """Moved by changes of the hand's pose and of its gripper."""
        max_episode_steps: int = 500
        """At 20 Hz; robosuite's own benchmark plays 500."""

        def __post_init__(self) -> None:
            check_fields(self.cameras, CAMERAS, self.image_size, self.max_episode_steps)
            if self.state == "none" and not self.cameras:
                raise ValueError("state = 'none': want a state or a camera")

    @classmethod
    def tasks(cls) -> list[str]:
        """What may follow ``robosuite/``."""
        return sorted(INSTRUCTIONS)

    def __init__(self, task: str, config: Config | None = None) -> None:
        if task not in INSTRUCTIONS:
            raise UnknownPlugin("env", f"robosuite/{task}", [f"robosuite/{name}" for name in INSTRUCTIONS])
        self.config = config if config is not None else self.Config()
        self._instruction = encode_instruction(INSTRUCTIONS[task])
        if self.config.cameras:
            choose_gl()
        self._env = _make(task, self.config)
        self._world: World | None = None
        self._spec = self._make_spec()

    @property
    def spec(self) -> EnvSpec:
        """Shapes and limits of this task under this config."""
        return self._spec

    def _make_spec(self) -> EnvSpec:
        first, _ = self.reset(BUILD_SEED)
        observation = {name: ArraySpec(array.shape, str(array.dtype)) for name, array in first.items()}
        low, high = self._env.action_spec
        return EnvSpec(observation, tuple(map(float, low)), tuple(map(float, high)), self.config.max_episode_steps)

    def reset(self, seed: int) -> tuple[Observation, dict[str, Any]]:
        """Lay out the episode that ``seed`` stands for."""
        self._env.rng.bit_generator.state = np.random.PCG64(seed).state
        if self.config.reset == "hard":
            self._free_world()
        place(self._env, seed)
        if self._world is None:
            config = self.config
            self._world = World(
                self._env,
                config.cameras,
                image_size=config.image_size,
                tuned=config.render_quality == "fast",
                observe_after=OBSERVE_AFTER,
                read_state=None if config.state == "none" else self._read_state,
            )
        self._won = False
        return self._observation(self._world.look()), {"success": False}

    def step(
        self, action: np.ndarray, *, need_obs: bool
    ) -> tuple[Observation | None, float, bool, bool, dict[str, Any]]:
        """Advance 50 ms. The reward is NaN if the physics has become unstable: the episode is worthless."""
        assert self._world is not None, "step before reset"
        stable, seen = self._world.advance(action, need_obs=need_obs)
        success = bool(self._env._check_success())
        dense = self.config.reward == "dense"
        reward = float(self._env.reward(action)) if dense else float(success and not self._won)
        self._won = self._won or success
        observation = self._observation(seen) if seen is not None else None
        terminated = success and self.config.terminate_on_success
        return observation, reward if stable else np.nan, terminated, False, {"success": success}

    def _observation(self, seen: dict[str, np.ndarray]) -> Observation:
        return {**seen, "instruction": self._instruction.copy()}

    def _read_state(self) -> np.ndarray:
        # Relative poses are computed from the poses of the update before.
        self._env._update_observables(force=True)
        values = self._env._get_observations(force_update=True)
        parts = [values[name] for name in PROPRIO]
        if self.config.state == "full":
            parts.append(values["object-state"])
        return np.concatenate(parts).astype(np.float32)

    def _free_world(self) -> None:
        if self._world is not None:
            self._world.close()
            self._world = None

    def close(self) -> None:
        """Free cameras and model; a second call does nothing."""
        self._free_world()
        if self._env is not None:
            self._env.close()
            self._env = None


class World:
    """The physics, controllers and cameras of a robosuite environment, without its own loop around them."""

    def __init__(
        self,
        env: Any,
        cameras: tuple[str, ...],
        *,
        image_size: int,
        tuned: bool,
        observe_after: int,
        read_state: Callable[[], np.ndarray] | None,
    ) -> None:
        """For ``env``, once it is reset, and for as long as it keeps its model.

        Args:
            env: of the package.
            cameras: names; one gives ``image``, several each an image of its name.
            image_size: height and width of images, pixels.
            tuned: leave out what costs most of a frame.
            observe_after: how many of an env step's physics steps to do before observing.
            read_state: gives the observation's ``state``; None if it has none.

        Raises:
            UsageError: no OpenGL context can be made.
        """
        self._mujoco: Any = import_module("mujoco")
        self._mujoco.set_mju_user_warning(_warn)
        # MuJoCo keeps the description of the model it compiled last, with all meshes and textures.
        self._mujoco.MjModel.from_xml_string("<mujoco/>")
        self._env, self._read_state = env, read_state
        self._images = {camera if len(cameras) > 1 else "image": camera for camera in cameras}
        self._model, self._data = env.sim.model._model, env.sim.data._data
        self._num_physics_steps = int(env.control_timestep / env.model_timestep)
        self._observe_after = observe_after
        self._renderer: Renderer | None = None
        if cameras:
            hidden = (COLLISION_GEOMS,)
            self._renderer = Renderer(self._model, self._data, size=image_size, tuned=tuned, hidden_groups=hidden)

    def advance(self, action: np.ndarray, *, need_obs: bool) -> tuple[bool, dict[str, np.ndarray] | None]:
        """One env step: whether the physics is still stable, and what was seen if anybody needs it.

        The package lets MuJoCo compute everything two or three times per physics step; splitting the
        physics step around the controllers gives the same numbers. MuJoCo answers instability by
        starting anew from its default state, which sets back its clock.
        """
        mujoco, model, data, env = self._mujoco, self._model, self._data, self._env
        due_s = data.time + self._num_physics_steps * model.opt.timestep
        seen = None
        for i in range(self._num_physics_steps):
            mujoco.mj_step1(model, data)
            env._pre_action(action, i == 0)
            mujoco.mj_step2(model, data)
            if need_obs and i + 1 == self._observe_after:
                seen = self.look()
        return bool(abs(data.time - due_s) < model.opt.timestep / 2), seen

    def look(self) -> dict[str, np.ndarray]:
        """``state`` and images of this moment."""
        seen = {} if self._renderer is None else {n: self._renderer.render(c) for n, c in self._images.items()}
        if self._read_state is not None:
            seen["state"] = self._read_state()
        return seen

    def close(self) -> None:
        """Free the cameras; call once."""
        if self._renderer is not None:
            self._renderer.close()


def place(env: Any, seed: int) -> None:
    """Reset a robosuite environment, drawing from ``seed`` whatever it draws from numpy's own generator.

    Raises:
        RunError: no layout without overlaps was found.
    """
    overlap = import_module("robosuite.utils.errors").RandomizationError
    with seeded(seed):
        for _ in range(PLACEMENT_TRIES):
            try:
                env.reset()
            except overlap:
                continue
            return
    raise RunError(
        f"{type(env).__name__}: no layout without overlapping objects in {PLACEMENT_TRIES} tries from "
        f"seed {seed}; the task's regions are too small for its objects"
    )


def _warn(text: str) -> None:
    """For MuJoCo's warnings, which it would also append to a file in the current directory."""
    print(f"MuJoCo: {text}", file=sys.stderr)


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed numpy's own generator for a while; afterwards it goes on as if nothing had been drawn."""
    before = np.random.get_state()
    np.random.seed(seed)
    try:
        yield
    finally:
        np.random.set_state(before)


@contextlib.contextmanager
def importing() -> Iterator[None]:
    """Import robosuite, or make one of its environments, without side effects.

    Left to itself robosuite loads OpenGL even where no picture is made, refuses graphics devices whose
    number is not the CUDA one, appends to a log file that another user may own, and prints.
    """
    macros: Any = types.ModuleType("robosuite.macros_private")
    macros.MUJOCO_GPU_RENDERING, macros.FILE_LOGGING_LEVEL, macros.CONSOLE_LOGGING_LEVEL = False, None, "ERROR"
    sys.modules.setdefault(macros.__name__, macros)
    with variables(MUJOCO_GL="disabled", CUDA_VISIBLE_DEVICES=None), contextlib.redirect_stdout(sys.stderr):
        yield


@contextlib.contextmanager
def variables(**values: str | None) -> Iterator[None]:
    """Set environment variables for a while, or take them away."""
    before = {name: os.environ.pop(name, None) for name in values}
    os.environ.update({name: value for name, value in values.items() if value is not None})
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def check_fields(cameras: tuple[str, ...], known: tuple[str, ...], image_size: int, max_steps: int | None) -> None:
    """Refuse impossible values of the fields that both adapters have.

    Raises:
        ValueError: a value is impossible.
    """
    for camera in cameras:
        if camera not in known:
            raise ValueError(f"cameras = {cameras!r}: want some of {', '.join(known)}")
    if len(set(cameras)) < len(cameras):
        raise ValueError(f"cameras = {cameras!r}: want each name once")
    if not 8 <= image_size <= 1024:
        raise ValueError(f"image_size = {image_size}: want 8 to 1024")
    if max_steps is not None and max_steps < 1:
        raise ValueError(f"max_episode_steps = {max_steps}: want at least 1")


def not_installed(family: str, error: ModuleNotFoundError) -> UsageError:
    """What to tell a user whose interpreter lacks a module of a simulator."""
    where = f"which {sys.executable} does not have"
    return UsageError(f"{family}/* needs the module {error.name!r}, {where}; run: ebrl install {family}")


def _make(task: str, config: RobosuiteEnv.Config) -> Any:
    """The package's environment, with every draw from generators that can be seeded anew."""
    try:
        with importing(), seeded(BUILD_SEED):
            env = import_module("robosuite").make(
                task,
                robots=config.robot,
                has_renderer=False,
                has_offscreen_renderer=False,
                use_camera_obs=False,
                renderer="mujoco",
                hard_reset=config.reset == "hard",
                reward_shaping=config.reward == "dense",
                ignore_done=True,
                seed=BUILD_SEED,
            )
    except ModuleNotFoundError as error:
        raise not_installed("robosuite", error) from error
    env.rng = _OrderedChoice(env.rng.bit_generator)
    return env


class _OrderedChoice(np.random.Generator):
    """Draws from sorted choices: robosuite draws from sets of names, whose order varies between processes."""

    def choice(self, a: Any, *args: Any, **kwargs: Any) -> Any:
        return super().choice(sorted(a), *args, **kwargs)
