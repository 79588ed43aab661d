"""What the control plane is told before a run, and what it has counted by its end."""

from __future__ import annotations

from dataclasses import dataclass, field

from ebrl.ids import CpuId, PolicyVersion


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerPlan:
    """What the control plane must know of a run; nothing here changes while it lasts."""

    num_shards: int
    cpus: tuple[CpuId, ...]
    """CPUs of the simulation stage."""
    num_generators: int = 1
    chunk_len: int = 8
    """Env steps executed of each chunk."""
    trajectory_chunks: int = 16
    """Chunks of a trajectory."""
    quantum: int = 0
    """Env steps per grant of a CPU; 0 is the rest of the chunk."""
    step_barrier: bool = False
    """Shards of an env group take each env step together; wants ``env_groups``."""
    env_groups: int = 0
    """Groups that are generated for when all of their shards wait; 0 is greedy."""
    round_robin: bool = False
    """Serve env groups in a fixed order instead of first come, first served."""
    min_generation_batch: int = 1
    """Shards that must wait before a greedy batch is made, unless no other can join."""
    max_generation_batch: int = 1_000_000
    generation_buckets: tuple[int, ...] = ()
    """Batch sizes that generators are fast at, ascending; none means any size."""
    batch: int = 32
    """Trajectories of an update."""
    slack: int = 1
    window: int = 1
    max_updates: int = 1_000_000_000
    """Policy version at which the run ends."""
    max_env_steps: int = 1_000_000_000_000
    """Env steps of this run, earlier runs that it resumes included."""
    checkpoint_every: int = 0
    """Updates between checkpoints; 0 saves only at the end."""
    max_env_failures: int = 5
    """Failures of one environment, without an episode or trajectory finished in between, that the run tolerates."""
    drain_s: float = 20.0
    """How long a run that is interrupted waits for work in flight, and again for its checkpoint."""
    finish_s: float = 600.0
    """The same for a run that has reached its goal."""
    watchdog_s: float = 0.0
    """After so long without any progress it is reported who waits for whom; 0 never reports."""
    first_version: PolicyVersion = PolicyVersion(0)
    first_env_step: int = 0
    first_episode: int = 0
    """Episodes that each shard has behind it, and with them states it must not start from again."""
    first_serial: int = 0
    """Chunks that each shard has behind it, and with them random numbers not to be drawn again."""

    def __post_init__(self) -> None:
        if self.step_barrier and not self.env_groups:
            raise ValueError("step_barrier wants env_groups of at least 1")
        if self.env_groups > self.num_shards:
            raise ValueError(f"env_groups = {self.env_groups}: want at most num_shards ({self.num_shards})")

    def group_of(self) -> tuple[int, ...]:
        """Env group of each shard: runs of neighbours, as even as can be; one group if greedy."""
        groups = max(1, self.env_groups)
        return tuple(shard * groups // self.num_shards for shard in range(self.num_shards))


@dataclass(slots=True)
class Counters:
    """What a run has done so far."""

    env_steps: int = 0
    chunks: int = 0
    generation_batches: int = 0
    resets: int = 0
    episodes: int = 0
    updates_skipped: int = 0
    env_failures: dict[str, int] = field(default_factory=dict)
    """By reason."""
    ignored_answers: int = 0
    """Answers of processes that had been replaced."""
    restarts: dict[str, int] = field(default_factory=dict)
    """By kind of process."""
