"""Everything an engine can be asked to do. Ids, counts and seconds only, never arrays."""

from __future__ import annotations

from dataclasses import dataclass

from ebrl.ids import CpuId, CpuSet, EpisodeId, Epoch, GeneratorId, PolicyVersion, ShardId, SlotId, TrajectoryId
from ebrl.scheduling.quotas import Stage

__all__ = [
    "ChunkRequest",
    "Command",
    "DropTrajectory",
    "EpisodeStart",
    "GenerateChunks",
    "PublishWeights",
    "ReportWaits",
    "ResetEnv",
    "SaveCheckpoint",
    "SetQuota",
    "SetTimer",
    "StartEnvWorker",
    "StartGenerator",
    "StartLearner",
    "StepEnv",
    "Stop",
    "Train",
]


@dataclass(frozen=True, slots=True)
class EpisodeStart:
    """An environment that begins an episode."""

    env: int
    """Which environment of the shard, from 0."""
    episode: EpisodeId
    """Says, with the run's seed, which initial state it starts from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResetEnv:
    """Start episodes in some of the shard's environments on these CPUs; answered by ``ResetDone``."""

    shard: ShardId
    starts: tuple[EpisodeStart, ...]
    cpus: tuple[CpuId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepEnv:
    """Execute actions of the shard's chunk on these CPUs; answered by ``StepsDone``."""

    shard: ShardId
    slot: SlotId
    """Where the trajectory is stored."""
    chunk: int
    """Number of the chunk in its trajectory."""
    first_step: int
    """Actions of the chunk executed by earlier grants."""
    num_steps: int
    """How many to execute now; the observation is wanted after the chunk's last only."""
    cpus: tuple[CpuId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkRequest:
    """What one shard wants of a generation batch: a chunk for each of its environments."""

    shard: ShardId
    slot: SlotId
    chunk: int
    serial: int
    """How many chunks this shard was given before: keys the random numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateChunks:
    """Make one chunk for each request, in this order; answered by ``ChunksReady``."""

    generator: GeneratorId
    requests: tuple[ChunkRequest, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Train:
    """Take one update on these trajectories; answered by ``UpdateDone``."""

    trajectories: tuple[TrajectoryId, ...]
    slots: tuple[SlotId, ...]
    learner_version: PolicyVersion
    """Of the weights to be updated; the result is one more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishWeights:
    """Let a generator adopt these weights between two batches; answered by ``WeightsLive``."""

    generator: GeneratorId
    policy_version: PolicyVersion


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveCheckpoint:
    """Write the learner's whole state to disk; answered by ``CheckpointSaved``."""

    policy_version: PolicyVersion


@dataclass(frozen=True, slots=True, kw_only=True)
class DropTrajectory:
    """This trajectory will not be trained; its slot is free once nobody writes to it. Not answered."""

    trajectory: TrajectoryId
    slot: SlotId
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StartEnvWorker:
    """Replace the shard's dead env worker; answered by ``EnvWorkerReady`` of this epoch."""

    shard: ShardId
    epoch: Epoch


@dataclass(frozen=True, slots=True, kw_only=True)
class StartGenerator:
    """Replace a dead generator; answered by ``GeneratorReady`` of this epoch."""

    generator: GeneratorId
    epoch: Epoch


@dataclass(frozen=True, slots=True, kw_only=True)
class StartLearner:
    """Replace the dead learner, from the weights published last; answered by ``LearnerReady``."""

    epoch: Epoch


@dataclass(frozen=True, slots=True, kw_only=True)
class SetQuota:
    """Let a process work on these CPUs, and on so much of its GPU, from its next piece of work on; answered by
    ``QuotaApplied``."""

    stage: Stage
    index: int
    """Which generator; 0 of the learner."""
    cpus: CpuSet
    threads: int
    """Of torch; 0 leaves them as they are."""
    units: int
    """SMs, or percent of the time; 0 without a GPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SetTimer:
    """Answer with ``TimerFired`` of this name after so many seconds."""

    name: str
    after_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportWaits:
    """Tell the user who waits for whom: nothing has moved for a while. Not answered."""

    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """The run is over; the last command of every run."""

    reason: str
    failed: bool
    detail: str = ""


Command = (
    ResetEnv
    | StepEnv
    | GenerateChunks
    | Train
    | PublishWeights
    | SaveCheckpoint
    | DropTrajectory
    | StartEnvWorker
    | StartGenerator
    | StartLearner
    | SetQuota
    | SetTimer
    | ReportWaits
    | Stop
)
