"""Everything that can happen. Ids, counts and seconds only, never arrays.

``epoch`` counts how often a process was replaced; an answer of an older epoch is ignored.
"""

from __future__ import annotations

from dataclasses import dataclass

from ebrl.ids import CpuSet, Epoch, GeneratorId, PolicyVersion, ShardId
from ebrl.scheduling.quotas import Split, Stage

__all__ = [
    "CheckpointSaved",
    "ChunksReady",
    "CpusChanged",
    "EnvWorkerLost",
    "EnvWorkerReady",
    "EpisodeEnd",
    "EpisodeInvalid",
    "Event",
    "GeneratorLost",
    "GeneratorReady",
    "LearnerLost",
    "LearnerReady",
    "QuotaApplied",
    "ResetDone",
    "RunStarted",
    "SplitRequested",
    "StepsDone",
    "StopRequested",
    "TimerFired",
    "UpdateDone",
    "WeightsLive",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStarted:
    """The engine has started its processes; the first event of every run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvWorkerReady:
    """An env worker has made its environments and can reset them."""

    shard: ShardId
    epoch: Epoch


@dataclass(frozen=True, slots=True, kw_only=True)
class ResetDone:
    """The environments that were to be reset stand at the start of an episode."""

    shard: ShardId
    epoch: Epoch
    reset_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeEnd:
    """How an episode ended; for metrics, never for decisions, ``env`` excepted."""

    env: int = 0
    """Which environment of its shard, from 0."""
    terminated: bool
    """By the task's own rules; otherwise it was truncated."""
    success: bool
    episode_return: float
    num_steps: int
    constant_frames: int = 0
    """Images of one colour all over, of those that the policy saw and the last one."""
    repeated_frames: int = 0
    """Images that were the same, byte for byte, as the one before from the same camera."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepsDone:
    """A grant of env steps was carried out, to its end or to the end of the episode."""

    shard: ShardId
    epoch: Epoch
    num_steps: int
    """The most that any environment executed in this grant; below it only if every episode of the shard ended."""
    env_steps: int
    """Those of all environments of the shard together; an environment whose episode is over takes none."""
    step_s: float
    """Seconds all of them took together, as the env worker measured."""
    chunk_over: bool
    """No action of the chunk is left, or every episode of the shard ended."""
    episode_ends: tuple[EpisodeEnd, ...] = ()
    """Of the episodes that ended in this grant."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeInvalid:
    """An observation, action or reward was not finite; the env worker lives."""

    shard: ShardId
    epoch: Epoch
    field: str
    """What was not finite, e.g. ``observation 'state'``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvWorkerLost:
    """An env worker died, hung past its deadline, or raised; it is certainly dead by now."""

    shard: ShardId
    epoch: Epoch
    reason: str
    """``died``, ``deadline`` or ``raised``."""
    detail: str
    """The child's traceback, exit code or the name of the deadline."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunksReady:
    """A generator wrote the chunks of one batch, all made by one policy version."""

    generator: GeneratorId
    epoch: Epoch
    shards: tuple[ShardId, ...]
    policy_version: PolicyVersion
    generation_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratorReady:
    """A generator holds weights of ``policy_version`` and waits for work."""

    generator: GeneratorId
    epoch: Epoch
    policy_version: PolicyVersion


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratorLost:
    """A generator died or hung; it is certainly dead by now."""

    generator: GeneratorId
    epoch: Epoch
    reason: str
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerReady:
    """The learner holds weights of ``policy_version`` and waits for work."""

    epoch: Epoch
    policy_version: PolicyVersion


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateDone:
    """An update is over and its weights can be published."""

    epoch: Epoch
    policy_version: PolicyVersion
    """Of the new weights; after a skipped update the version from before."""
    train_s: float
    skipped: bool
    """A loss or gradient was not finite; weights and version are those from before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerLost:
    """The learner died or hung; it is certainly dead by now."""

    epoch: Epoch
    reason: str
    detail: str
    fatal: bool = False
    """Another learner would find the same: what it read is wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsLive:
    """A generator answers with these weights from now on."""

    generator: GeneratorId
    epoch: Epoch
    policy_version: PolicyVersion


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSaved:
    """A checkpoint is complete on disk."""

    epoch: Epoch
    policy_version: PolicyVersion


@dataclass(frozen=True, slots=True, kw_only=True)
class TimerFired:
    """A timer that control asked for has run out."""

    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRequested:
    """Somebody wants the run to end well: Ctrl-C, or a time limit."""

    reason: str
    patient: bool = False
    """An update in flight may take its full time to end; nobody sits and waits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaApplied:
    """A process works under its new quota."""

    stage: Stage
    index: int
    """Which generator; 0 of the learner."""
    epoch: Epoch
    cpus: CpuSet
    """That its threads may run on, as the kernel says."""
    threads: int
    """Of torch, as torch says; 0 where nobody asked."""
    units: int
    """SMs, or percent of the time, as its device says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitRequested:
    """Somebody wants CPUs, SMs and batches to be shared out otherwise: a user, or a test."""

    split: Split


@dataclass(frozen=True, slots=True, kw_only=True)
class CpusChanged:
    """The CPUs that this run may use are others now."""

    cpus: CpuSet


Event = (
    RunStarted
    | EnvWorkerReady
    | ResetDone
    | StepsDone
    | EpisodeInvalid
    | EnvWorkerLost
    | ChunksReady
    | GeneratorReady
    | GeneratorLost
    | LearnerReady
    | UpdateDone
    | LearnerLost
    | WeightsLive
    | CheckpointSaved
    | TimerFired
    | StopRequested
    | QuotaApplied
    | SplitRequested
    | CpusChanged
)
