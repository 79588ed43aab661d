"""What the local engine must know before it starts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ebrl.data.spec import EnvSpec


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
class LocalSetup:
    """Everything the engine and its processes must know of a run."""

    run_dir: Path
    seed: int
    num_shards: int
    num_slots: int
    """Trajectories that can be held at once."""
    chunk_len: int
    trajectory_chunks: int
    env: str
    env_config: dict[str, Any]
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
    checkpoint: Path | None = None
    """Where the first weights come from; None starts from the policy's own."""
    restore_algorithm: bool = False
    """Take the optimizer state from the checkpoint too."""
    first_version: int = 0
    keep_checkpoints: int = 3
    deadlines: Deadlines = Deadlines()

    @property
    def checkpoint_dir(self) -> Path:
        """Where checkpoints of this run are written."""
        return self.run_dir / "checkpoints"

    def policy_setup(self, env_spec: EnvSpec, *, device: str, threads: int) -> dict[str, Any]:
        """What generator and learner need to build the same policy."""
        return {
            "env_spec": env_spec.to_json(),
            "policy": self.policy,
            "policy_config": self.policy_config,
            "chunk_len": self.chunk_len,
            "seed": self.seed,
            "deterministic": self.deterministic,
            "device": device,
            "threads": threads,
        }
