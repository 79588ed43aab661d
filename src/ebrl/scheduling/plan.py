"""What the control plane is told before a run, and what it has counted by its end."""

from __future__ import annotations

from dataclasses import dataclass, field

from ebrl.ids import CpuId, CpuSet, PolicyVersion
from ebrl.resources.allocation import Allocation, Shape
from ebrl.resources.hardware import Cpu
from ebrl.resources.workload import Workload
from ebrl.scheduling.quotas import Split


@dataclass(frozen=True, slots=True, kw_only=True)
class Management:
    """What rebalancing must know: what the allocation was made from."""

    workload: Workload
    shape: Shape
    allocation: Allocation
    cpus: tuple[Cpu, ...]
    """All that the run may use."""
    sample_s: float = 1.0
    """Seconds between two samples."""
    switch_s: float = 0.0
    """Seconds of throughput that a move costs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerPlan:
    """What the control plane must know of a run; nothing here changes while it lasts."""

    num_shards: int
    """Env workers; shards are dealt out to nodes in runs of neighbours, in proportion to CPUs."""
    nodes: tuple[tuple[CpuId, ...], ...]
    """CPUs of the simulation stage on each node."""
    envs_per_shard: int = 1
    """Environments of one env worker, which take up every chunk together."""
    cpus_per_shard: int = 1
    """CPUs that a grant or reset occupies; divides the CPUs of every node."""
    num_generators: int = 1
    chunk_len: int = 8
    """Env steps executed of each chunk."""
    trajectory_chunks: int = 16
    """Chunks of a trajectory; not used where trajectories are whole episodes."""
    whole_episodes: bool = False
    """A trajectory is an episode from its first to its last step; wants ``envs_per_shard = 1``."""
    siblings: int = 1
    """Trajectories that start from the same initial state and train together; more than 1 wants ``whole_episodes``."""
    group_deadline_s: float = 0.0
    """A sibling group that is not complete so long after it was begun is dropped; 0 waits for ever."""
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
    """Trajectories of an update; a multiple of ``unit``."""
    slack: int = 1
    window: int = 1
    """W of the staleness gate, in units."""
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
    split: Split | None = None
    """Which CPUs and how much of a GPU each process has, on each node alike; None binds nobody but env workers, to
    ``nodes``."""
    lend: bool = False
    """Generators have the learner's SMs too while it has nothing to train; wants a ``split`` of SMs."""
    management: Management | None = None
    """Lets the split follow measured rates; None leaves it as it is. Wants ``split``."""
    first_version: PolicyVersion = PolicyVersion(0)
    first_env_step: int = 0
    first_episode: int = 0
    """Episodes that each environment has behind it, and with them states it must not start from again. Where
    trajectories are whole episodes: sibling groups that the run has behind it."""
    first_serial: int = 0
    """Chunks that each shard has behind it, and with them random numbers not to be drawn again."""

    def __post_init__(self) -> None:
        if self.step_barrier and not self.env_groups:
            raise ValueError("step_barrier wants env_groups of at least 1")
        if self.env_groups > self.num_shards:
            raise ValueError(f"env_groups = {self.env_groups}: want at most num_shards ({self.num_shards})")
        if any(not cpus or len(cpus) % self.cpus_per_shard for cpus in self.nodes):
            raise ValueError(f"cpus_per_shard = {self.cpus_per_shard}: want a divisor of each node's CPUs {self.nodes}")
        if self.siblings > 1 and not self.whole_episodes:
            raise ValueError(f"siblings = {self.siblings}: want whole_episodes")
        if self.whole_episodes and self.envs_per_shard > 1:
            raise ValueError(f"whole_episodes with envs_per_shard = {self.envs_per_shard}: want 1")
        if self.split is not None and set(self.nodes) != {self.split.simulation}:
            raise ValueError(f"nodes = {self.nodes} with {self.split}: want the CPUs of simulation on each node")
        if self.management is not None and self.split is None:
            raise ValueError("management wants a split")
        if self.lend and (self.split is None or not self.split.generation_units or not self.split.training_units):
            raise ValueError("lend wants a split of SMs between generation and training")
        if self.batch % self.unit:
            raise ValueError(f"batch = {self.batch}: want a multiple of {self.unit}, which train together")

    @property
    def unit(self) -> int:
        """Trajectories that are admitted and trained together: sibling groups, or all environments of a shard."""
        return self.siblings * self.envs_per_shard

    @property
    def cpu_sets(self) -> tuple[tuple[CpuSet, ...], ...]:
        """What can be granted, by node: each node's CPUs, cut into sets of neighbours."""
        size = self.cpus_per_shard
        return tuple(tuple(cpus[i : i + size] for i in range(0, len(cpus), size)) for cpus in self.nodes)

    @property
    def num_cpu_sets(self) -> int:
        """Shards that can run at once."""
        return sum(map(len, self.cpu_sets))

    def node_of(self) -> tuple[int, ...]:
        """Node of each shard."""
        owners = [node for node, sets in enumerate(self.cpu_sets) for _ in sets]
        return tuple(owners[shard * len(owners) // self.num_shards] for shard in range(self.num_shards))

    def group_of(self) -> tuple[int, ...]:
        """Env group of each shard: runs of neighbours, as even as can be; one group if greedy."""
        groups = max(1, self.env_groups)
        return tuple(shard * groups // self.num_shards for shard in range(self.num_shards))


@dataclass(slots=True)
class Counters:
    """What a run has done so far."""

    env_steps: int = 0
    chunks: int = 0
    """Of shards; each has one for every environment of its shard."""
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
    siblings_replaced: int = 0
    """Trajectories that were lost and are played again, so that their sibling group becomes complete."""
