"""What the local engine must know before it starts."""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ebrl.data.spec import EnvSpec
from ebrl.scheduling.plan import SchedulerPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadlines:
    """Seconds that each kind of answer may take."""

    start_s: float = 180.0
    reset_s: float = 60.0
    step_s: float = 30.0
    """For one grant of env steps."""
    generation_s: float = 60.0
    training_s: float = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What an env worker may reach before it is replaced; 0 sets no limit."""

    memory_bytes: int = 0
    """Of its own, without what it shares."""
    resets: int = 0
    """Of single environments."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EmulatedTimes:
    """How long a device that is not there takes for the work of one process."""

    table: tuple[tuple[int, float, float], ...]
    """Units of the device, seconds of a batch whatever its size, seconds for each item."""
    units: int
    """Those that the process has at first."""
    padding: bool = False
    """Whether chunks that were never executed are items of an update, too."""

    @property
    def at_first(self) -> tuple[float, float]:
        """Seconds of a batch whatever its size, and for each item, with the units that the process has at first."""
        return next((fixed_s, item_s) for units, fixed_s, item_s in self.table if units == self.units)


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalSetup:
    """Everything the engine and its processes must know of a run."""

    run_dir: Path
    seed: int
    num_shards: int
    """Env workers."""
    envs_per_shard: int = 1
    """Environments of each of them, which take up every chunk together."""
    cpus_per_shard: int = 1
    """CPUs that each of them has at a time."""
    bind_cpus: bool = True
    """Bind each of them to the CPUs of its grant."""
    observe_every_step: bool = False
    """Ask for the observation after every env step, not only at the end of a chunk."""
    run_to_horizon: bool = False
    """Step episodes that their task has ended on to their time limit."""
    num_generators: int = 1
    num_slots: int
    """Trajectories that can be held at once; each is one of every environment of a shard."""
    chunk_len: int
    trajectory_chunks: int
    """Chunks of a trajectory, unless it is a whole episode."""
    whole_episodes: bool = False
    env: str
    env_config: dict[str, Any]
    env_python: str = sys.executable
    """Absolute path of the interpreter that env workers run under."""
    render_devices: tuple[int, ...] = ()
    """EGL's numbers of the devices that env workers render on, in turn; none leaves it to the simulator."""
    policy: str
    policy_config: dict[str, Any]
    algorithm: str = "ppo"
    algorithm_config: dict[str, Any]
    deterministic: bool = False
    generator_device: str = "cpu"
    generator_threads: int = 1
    learner_device: str = "cpu"
    learner_threads: int = 1
    learner_nice: int = 0
    emulated_generator: EmulatedTimes | None = None
    """Items are chunks."""
    emulated_learner: EmulatedTimes | None = None
    """Of updates; items are chunks that are trained on."""
    checkpoint: Path | None = None
    """Where the first weights come from; None starts from the policy's own."""
    restore_algorithm: bool = False
    """Take the optimizer state from the checkpoint too."""
    first_version: int = 0
    keep_checkpoints: int = 3
    deadlines: Deadlines = Deadlines()
    limits: Limits = Limits()

    @property
    def checkpoint_dir(self) -> Path:
        """Where checkpoints of this run are written."""
        return self.run_dir / "checkpoints"

    def env_variables(self, shard: int) -> dict[str, str]:
        """Variables of one env worker's environment."""
        devices = self.render_devices
        return {"MUJOCO_EGL_DEVICE_ID": str(devices[shard % len(devices)])} if devices else {}

    def policy_setup(
        self, env_spec: EnvSpec, *, device: str, threads: int, emulated: EmulatedTimes | None
    ) -> dict[str, Any]:
        """What generator and learner need to build the same policy."""
        return {
            "env_spec": env_spec.to_json(),
            "policy": self.policy,
            "policy_config": self.policy_config,
            "envs_per_worker": self.envs_per_shard,
            "chunk_len": self.chunk_len,
            "seed": self.seed,
            "deterministic": self.deterministic,
            "device": device,
            "threads": threads,
            "emulated": asdict(emulated) if emulated else None,
        }


def fields_of(plan: SchedulerPlan) -> dict[str, Any]:
    """The fields of ``LocalSetup`` that control's plan decides."""
    return {
        "num_shards": plan.num_shards,
        "envs_per_shard": plan.envs_per_shard,
        "cpus_per_shard": plan.cpus_per_shard,
        "num_generators": plan.num_generators,
        "num_slots": (plan.slack + 1) * plan.batch // plan.envs_per_shard,
        "chunk_len": plan.chunk_len,
        "trajectory_chunks": plan.trajectory_chunks,
        "whole_episodes": plan.whole_episodes,
        "first_version": plan.first_version,
    }
