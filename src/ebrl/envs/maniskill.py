"""ManiSkill: manipulation tasks of SAPIEN, as ``maniskill/<Task>-v1``.

Three things are done here that the package does not do:

* **State without a renderer.** Its tasks describe materials to a renderer even if nobody looks. Where no camera is
  asked for, empty stand-ins take these descriptions, so that no Vulkan driver is needed.
* **Reset.** PhysX orders contacts by what touched what before, so an episode played in a used scene may differ in the
  last bits from one played in a new scene. A reset on a CPU therefore moves the same bodies into a new physics scene,
  which costs a fraction of a millisecond. The episode is a function of the seed alone, bit for bit.
* **Observations** are made only when they are read.

PhysX steps one world at a time on a CPU and many together on a GPU. ``ManiSkillVector`` hides the difference: a
``_Bank`` is one world on a CPU and all worlds on a GPU, and all else is the same code. The GPU half has not been run.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import io
import re
import sys
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import numpy as np

from ebrl.data.spec import ArraySpec, EnvSpec
from ebrl.envs.base import Observation, OneWorld, VectorStep, encode_instruction
from ebrl.envs.sapien_setup import import_module, load_maniskill, move_to_new_scene, rendering_device
from ebrl.errors import UnknownPlugin, UsageError

__all__ = ["INSTRUCTIONS", "ManiSkill", "ManiSkillVector"]

INSTRUCTIONS = {
    "LiftPegUpright-v1": "stand the peg upright on the table",
    "PegInsertionSide-v1": "insert the peg into the hole in the side of the box",
    "PickCube-v1": "pick up the cube and hold it at the goal",
    "PlaceSphere-v1": "place the ball into the bin",
    "PlugCharger-v1": "plug the charger into the receptacle",
    "PokeCube-v1": "push the cube to the goal with the peg",
    "PullCube-v1": "pull the cube to the goal",
    "PullCubeTool-v1": "pull the cube within reach with the tool",
    "PushCube-v1": "push the cube to the goal",
    "RollBall-v1": "roll the ball into the goal",
    "StackCube-v1": "stack the red cube on the green cube",
    "StackPyramid-v1": "build a pyramid of three cubes",
}
"""Tasks whose assets are in the package, each run on a CPU, and what they ask for, in the words a person would use.

Any other task of the package may be named too; its instruction is its name in small letters.
"""


@dataclasses.dataclass(frozen=True)
class ManiSkillConfig:
    """Options of ``maniskill/<Task>-v1``."""

    control_mode: str | None = None
    """What an action means, e.g. ``pd_ee_delta_pose``; None is the robot's own first choice
    (``pd_joint_delta_pos`` for Panda)."""
    robot: str | None = None
    """ManiSkill's name of another robot; None is the task's own."""
    cameras: tuple[str, ...] = ()
    """Names of the task's or the robot's cameras, e.g. ``base_camera``, ``hand_camera``; none means state only and
    needs no Vulkan. One camera is observed as ``image``, several each under its own name."""
    image_size: int = 128
    """Height and width of the pictures, in pixels."""
    state: Literal["full", "proprio"] = "full"
    """``full``: what ManiSkill calls state, poses of objects included. ``proprio``: only joint positions and
    velocities, so the scene must be read from pictures."""
    reward: Literal["sparse", "dense", "normalized_dense"] = "sparse"
    """``sparse``: 1 at the first success of an episode. ``dense``: ManiSkill's own shaped reward.
    ``normalized_dense``: the same, scaled by the task to at most 1 per env step. Not every task has a shaped one."""
    max_episode_steps: int | None = None
    """None means the limit the task is registered with."""
    terminate_on_success: bool = True
    """Failure, where a task knows one, ends an episode in any case."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Where physics runs. On ``cuda`` the environments of one env worker are worlds of one simulation."""

    def __post_init__(self) -> None:
        if not 8 <= self.image_size <= 1024:
            raise ValueError(f"image_size = {self.image_size}: want 8 to 1024")
        if self.max_episode_steps is not None and self.max_episode_steps < 1:
            raise ValueError(f"max_episode_steps = {self.max_episode_steps}: want at least 1")
        if len(set(self.cameras)) < len(self.cameras):
            raise ValueError(f"cameras = {list(self.cameras)}: want each name once")


class ManiSkillVector:
    """Some worlds of one ManiSkill task, stepped in lock-step."""

    def __init__(self, task: str, config: ManiSkillConfig, num_worlds: int) -> None:
        self._torch = load_maniskill(cameras=bool(config.cameras))
        width = num_worlds if config.device == "cuda" else 1
        with self._torch.inference_mode():
            self._banks = [_Bank(task, config, width) for _ in range(num_worlds // width)]
        self._width = width
        self.spec: EnvSpec = self._banks[0].spec

    def reset(self, worlds: Sequence[int], seeds: Sequence[int]) -> Observation:
        """Start an episode in each of ``worlds``; the worlds of a bank that go on are left alone."""
        with self._torch.inference_mode():
            for world, seed in zip(worlds, seeds, strict=True):
                self._banks[world // self._width].reset(world % self._width, seed)
            seen = {bank: self._banks[bank].observe() for bank in {world // self._width for world in worlds}}
        rows = [(seen[world // self._width], world % self._width) for world in worlds]
        return {name: np.stack([arrays[name][row] for arrays, row in rows]) for name in self.spec.observation}

    def step(self, actions: np.ndarray, active: np.ndarray, *, need_obs: np.ndarray) -> VectorStep:
        """One control step, 50 ms unless the task says otherwise, of each bank that has an active world."""
        num_worlds = len(actions)
        reward = np.zeros(num_worlds, np.float32)
        terminated, success = np.zeros(num_worlds, bool), np.zeros(num_worlds, bool)
        observation: dict[str, np.ndarray] | None = None
        if need_obs.any():
            observation = {name: np.zeros((num_worlds, *a.shape), a.dtype) for name, a in self.spec.observation.items()}
        with self._torch.inference_mode():
            for index, bank in enumerate(self._banks):
                rows = slice(index * self._width, (index + 1) * self._width)
                if not active[rows].any():
                    continue
                reward[rows], terminated[rows], success[rows] = bank.step(actions[rows], active[rows])
                if observation is not None and need_obs[rows].any():
                    for name, array in bank.observe().items():
                        observation[name][rows] = array
        return VectorStep(observation, reward, terminated, success)

    def close(self) -> None:
        """Free the scenes; a second call does nothing."""
        for bank in self._banks:
            bank.env.close()
        self._banks = []


class ManiSkill(OneWorld):
    """One world of a ManiSkill task."""

    Config = ManiSkillConfig

    _worlds: ManiSkillVector

    lists_every_task = False

    @classmethod
    def tasks(cls) -> list[str]:
        """What may follow ``maniskill/``: the tasks that were run; the package registers more."""
        return sorted(INSTRUCTIONS)

    @classmethod
    def make_vector(cls, task: str, config: ManiSkillConfig, num_worlds: int) -> ManiSkillVector:
        """Many worlds stepped together; on a CPU they share a process, on a GPU a simulation."""
        return ManiSkillVector(task, config, num_worlds)

    def __init__(self, task: str, config: ManiSkillConfig | None = None) -> None:
        self.config = config if config is not None else ManiSkillConfig()
        super().__init__(ManiSkillVector(task, self.config, 1))


class _Bank:
    """One ManiSkill environment: a single world on a CPU, all worlds on a GPU. W is their number."""

    def __init__(self, task: str, config: ManiSkillConfig, width: int) -> None:
        self.config, self.width = config, width
        self._name = f"maniskill/{task}"
        registered = _registered(task, config)
        self.env = self._make(registered)
        self._modes = self.env._obs_mode, self.env.obs_mode_struct
        self._blind = "none", import_module("mani_skill.envs.utils.observations").parse_obs_mode_to_struct("none")
        self._blindfold()
        self._instruction = encode_instruction(_instruction(task))
        self._won = np.zeros(width, bool)
        self._info: dict[str, Any] = {}
        self._check_cameras()
        self.reset(0, 0)
        if config.reward == "sparse" and "success" not in self._info:
            raise UsageError(f"{self._name}: reward = 'sparse', but the task knows no success; want another reward")
        self.spec = self._make_spec(config.max_episode_steps or registered.max_episode_steps)

    def _make(self, registered: Any) -> Any:
        config = self.config
        options: dict[str, Any] = {
            **registered.default_kwargs,
            "num_envs": self.width,
            "obs_mode": "state_dict+rgb" if config.cameras else "state_dict",
            "reward_mode": "none" if config.reward == "sparse" else config.reward,
            "control_mode": config.control_mode,
            "sim_backend": f"physx_{config.device}",
            "render_backend": rendering_device() if config.cameras else "none",
            "sensor_configs": {"width": config.image_size, "height": config.image_size},
        }
        if config.robot is not None:
            options["robot_uids"] = config.robot
        if config.reward == "sparse" and "none" not in registered.cls.SUPPORTED_REWARD_MODES:
            options["reward_mode"] = "sparse"
        try:
            with _no_questions():
                return registered.cls(**options)
        except (EOFError, SystemExit) as error:
            raise UsageError(
                f"{self._name} wants to download a robot's model; {_how_to_download('<robot>')}"
            ) from error
        except NotImplementedError as error:
            known = ", ".join(registered.cls.SUPPORTED_REWARD_MODES)
            raise UsageError(f"{self._name}: {error}; this task's own rewards: {known}") from error
        except (KeyError, AttributeError, RuntimeError, FileNotFoundError, AssertionError) as error:
            raise UsageError(f"{self._name} cannot be made: {type(error).__name__}: {error}") from error

    def _check_cameras(self) -> None:
        known = set(self.env._sensors)
        missing = [name for name in self.config.cameras if name not in known]
        if missing:
            raise UsageError(f"{self._name}: no camera {missing[0]!r}; known: {', '.join(sorted(known)) or 'none'}")

    def _make_spec(self, limit: int) -> EnvSpec:
        arrays = {name: ArraySpec(array.shape[1:], str(array.dtype)) for name, array in self.observe().items()}
        space = self.env.single_action_space
        if type(space).__name__ != "Box":
            raise UsageError(f"{self._name}: action space {space}: want one robot with a Box")
        if not (np.isfinite(space.low).all() and np.isfinite(space.high).all()):
            raise UsageError(f"{self._name}: control mode {self.env.control_mode!r} has no limits; choose another")
        return EnvSpec(arrays, tuple(map(float, space.low)), tuple(map(float, space.high)), limit)

    def reset(self, world: int, seed: int) -> None:
        """Start an episode in one world.

        One at a time, since ManiSkill draws a whole reset from the first world's seed.
        """
        if self.config.device == "cpu" and self.env.reconfiguration_freq == 0:
            move_to_new_scene(self.env.scene)
        worlds = import_module("torch").tensor([world], device=self.env.device)
        _, self._info = self.env.reset(seed=[seed] * self.width, options={"env_idx": worlds})
        self._won[world] = False

    def step(self, actions: np.ndarray, active: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Reward, terminated and success of each world, ``[W]``; worlds at rest are given zero actions."""
        _, shaped, _, _, self._info = self.env.step(np.where(active[:, None], actions, 0).astype(np.float32))
        success, fail = self._flag("success"), self._flag("fail")
        reward = success & ~self._won if self.config.reward == "sparse" else shaped.cpu().numpy()
        self._won |= success
        return reward, (success & self.config.terminate_on_success) | fail, success

    def _flag(self, name: str) -> np.ndarray:
        value = self._info.get(name)
        return value.cpu().numpy().astype(bool).reshape(self.width) if value is not None else np.zeros(self.width, bool)

    def observe(self) -> dict[str, np.ndarray]:
        """What every world looks like now; each array ``[W, ...]``."""
        env, cameras = self.env, self.config.cameras
        for name in set(env._sensors) - set(cameras):
            del env._sensors[name]  # or it would be rendered as well
        env._obs_mode, env.obs_mode_struct = self._modes
        try:
            raw = env.get_obs(self._info, unflattened=True)
        finally:
            self._blindfold()
        parts = ("agent",) if self.config.state == "proprio" else ("agent", "extra")
        flat = import_module("mani_skill.utils.common").flatten_state_dict(
            {part: raw[part] for part in parts}, use_torch=True
        )
        out = {"state": flat.cpu().numpy().astype(np.float32).reshape(self.width, -1)}
        out["instruction"] = np.tile(self._instruction, (self.width, 1))
        for name in cameras:
            out["image" if len(cameras) == 1 else name] = raw["sensor_data"][name]["rgb"].cpu().numpy()
        return out

    def _blindfold(self) -> None:
        """Let ManiSkill's own reset and step observe nothing."""
        self.env._obs_mode, self.env.obs_mode_struct = self._blind


def _registered(task: str, config: ManiSkillConfig) -> Any:
    """ManiSkill's entry of a task, once all that it needs is there and it suits the device."""
    registry = import_module("mani_skill.utils.registration").REGISTERED_ENVS
    if task not in registry:
        raise UnknownPlugin("env", f"maniskill/{task}", [f"maniskill/{name}" for name in registry])
    registered = registry[task]
    missing = _missing_assets(registered.asset_download_ids or [])
    if missing:
        raise UsageError(f"maniskill/{task} needs files that are not here ({missing[0]}); {_how_to_download(task)}")
    if config.device == "cuda" and "reconfiguration_freq" in inspect.signature(registered.cls.__init__).parameters:
        raise UsageError(f"maniskill/{task}: its bodies differ from episode to episode; want device = 'cpu'")
    if config.device == "cuda" and "target" in (config.control_mode or ""):
        problem = "a reset of one world would move the targets of the others"
        raise UsageError(f"maniskill/{task}: control_mode = {config.control_mode!r}: {problem}; want device = 'cpu'")
    return registered


def _missing_assets(names: Sequence[str]) -> list[str]:
    assets = import_module("mani_skill.utils.assets")
    missing: list[str] = []
    for name in names:
        whole = assets.expand_data_group_into_individual_data_source_ids(name) if name in assets.DATA_GROUPS else [name]
        missing += [source for source in whole if not assets.is_data_source_downloaded(source)]
    return missing


def _how_to_download(what: str) -> str:
    return f"nothing is downloaded behind your back; run: {sys.executable} -m mani_skill.utils.download_asset {what}"


def _instruction(task: str) -> str:
    words = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", task.rpartition("-v")[0])
    return INSTRUCTIONS.get(task, " ".join(words).lower())


@contextlib.contextmanager
def _no_questions() -> Iterator[None]:
    """Let a question on the terminal raise EOFError instead of waiting for an answer."""
    kept, sys.stdin = sys.stdin, io.StringIO("")
    try:
        yield
    finally:
        sys.stdin = kept
