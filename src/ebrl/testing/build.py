"""Plans, events and schedulers for tests: say what matters, the rest is filled in.

A test is a situation, one event, and the complete answer::

    scheduler = scheduler_with(all_ready(plan), resets(plan), plan=plan)
    assert scheduler.handle(chunks_ready([0, 1]), 1.0) == [...]

The plan of ``make_plan`` has two shards with a CPU each, served together; chunks of four env
steps, trajectories of two chunks, training batches of one trajectory, and slack 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from ebrl.ids import CpuId, Epoch, GeneratorId, PolicyVersion, ShardId
from ebrl.scheduling import events as e
from ebrl.scheduling import invariants
from ebrl.scheduling.plan import SchedulerPlan
from ebrl.scheduling.scheduler import Scheduler

__all__ = [
    "all_ready",
    "checkpoint_saved",
    "chunks_ready",
    "env_worker_lost",
    "env_worker_ready",
    "episode_end",
    "episode_invalid",
    "generator_lost",
    "generator_ready",
    "learner_lost",
    "learner_ready",
    "make_plan",
    "played_trajectories",
    "reset_done",
    "resets",
    "scheduler_with",
    "steps_done",
    "update_done",
    "weights_live",
]

_PLAN = SchedulerPlan(
    num_shards=2,
    nodes=((CpuId(0), CpuId(1)),),
    chunk_len=4,
    trajectory_chunks=2,
    min_generation_batch=2,
    batch=1,
    slack=1,
    window=1,
    drain_s=10.0,
)


def make_plan(**changes: object) -> SchedulerPlan:
    """The small plan of the module's docstring with these fields changed; ``num_cpus`` is one node with so many."""
    if "num_cpus" in changes:
        changes["nodes"] = (tuple(CpuId(cpu) for cpu in range(int(str(changes.pop("num_cpus"))))),)
    return replace(_PLAN, **changes)  # type: ignore[arg-type]  # a wrong name is a TypeError


# Events.


def env_worker_ready(shard: int = 0, *, epoch: int = 0) -> e.EnvWorkerReady:
    """An env worker has started."""
    return e.EnvWorkerReady(shard=ShardId(shard), epoch=Epoch(epoch))


def reset_done(shard: int = 0, *, epoch: int = 0, reset_s: float = 1.0) -> e.ResetDone:
    """An episode has begun."""
    return e.ResetDone(shard=ShardId(shard), epoch=Epoch(epoch), reset_s=reset_s)


def episode_end(env: int = 0, *, success: bool = True, num_steps: int = 4) -> e.EpisodeEnd:
    """An episode that its task ended."""
    return e.EpisodeEnd(env=env, terminated=True, success=success, episode_return=float(success), num_steps=num_steps)


def steps_done(
    shard: int = 0,
    *,
    epoch: int = 0,
    num_steps: int = 4,
    env_steps: int | None = None,
    step_s: float = 1.0,
    chunk_over: bool = True,
    end: e.EpisodeEnd | None = None,
    ends: tuple[e.EpisodeEnd, ...] = (),
) -> e.StepsDone:
    """A grant was carried out; by default a whole chunk, by one environment, in the middle of an episode."""
    return e.StepsDone(
        shard=ShardId(shard),
        epoch=Epoch(epoch),
        num_steps=num_steps,
        env_steps=num_steps if env_steps is None else env_steps,
        step_s=step_s,
        chunk_over=chunk_over,
        episode_ends=(end,) if end is not None else ends,
    )


def episode_invalid(shard: int = 0, *, epoch: int = 0, field: str = "reward") -> e.EpisodeInvalid:
    """A number was not finite."""
    return e.EpisodeInvalid(shard=ShardId(shard), epoch=Epoch(epoch), field=field)


def env_worker_lost(
    shard: int = 0, *, epoch: int = 0, reason: str = "died", detail: str = "killed by SIGKILL"
) -> e.EnvWorkerLost:
    """An env worker is dead."""
    return e.EnvWorkerLost(shard=ShardId(shard), epoch=Epoch(epoch), reason=reason, detail=detail)


def chunks_ready(shards: Iterable[int], *, generator: int = 0, epoch: int = 0, version: int = 0) -> e.ChunksReady:
    """A generation batch for these shards is done."""
    return e.ChunksReady(
        generator=GeneratorId(generator),
        epoch=Epoch(epoch),
        shards=tuple(ShardId(shard) for shard in shards),
        policy_version=PolicyVersion(version),
        generation_s=0.1,
    )


def generator_ready(generator: int = 0, *, epoch: int = 0, version: int = 0) -> e.GeneratorReady:
    """A generator has started with these weights."""
    return e.GeneratorReady(generator=GeneratorId(generator), epoch=Epoch(epoch), policy_version=PolicyVersion(version))


def generator_lost(generator: int = 0, *, epoch: int = 0, reason: str = "died") -> e.GeneratorLost:
    """A generator is dead."""
    return e.GeneratorLost(generator=GeneratorId(generator), epoch=Epoch(epoch), reason=reason, detail="why")


def learner_ready(*, epoch: int = 0, version: int = 0) -> e.LearnerReady:
    """The learner has started with these weights."""
    return e.LearnerReady(epoch=Epoch(epoch), policy_version=PolicyVersion(version))


def learner_lost(*, epoch: int = 0, reason: str = "died") -> e.LearnerLost:
    """The learner is dead."""
    return e.LearnerLost(epoch=Epoch(epoch), reason=reason, detail="why")


def update_done(version: int = 1, *, epoch: int = 0, skipped: bool = False) -> e.UpdateDone:
    """An update is over; ``version`` is that of the weights after it."""
    return e.UpdateDone(epoch=Epoch(epoch), policy_version=PolicyVersion(version), train_s=1.0, skipped=skipped)


def weights_live(version: int = 1, *, generator: int = 0, epoch: int = 0) -> e.WeightsLive:
    """A generator adopted these weights."""
    return e.WeightsLive(generator=GeneratorId(generator), epoch=Epoch(epoch), policy_version=PolicyVersion(version))


def checkpoint_saved(version: int = 0, *, epoch: int = 0) -> e.CheckpointSaved:
    """A checkpoint of these weights is on disk."""
    return e.CheckpointSaved(epoch=Epoch(epoch), policy_version=PolicyVersion(version))


# Stretches of a run, for ``scheduler_with``.


def all_ready(plan: SchedulerPlan) -> list[e.Event]:
    """Every process has started; each shard with a CPU begins its reset."""
    return [
        e.RunStarted(),
        learner_ready(version=plan.first_version),
        *(generator_ready(index, version=plan.first_version) for index in range(plan.num_generators)),
        *(env_worker_ready(shard) for shard in range(plan.num_shards)),
    ]


def resets(plan: SchedulerPlan) -> list[e.Event]:
    """Every shard has an observation; wants a CPU for each shard."""
    return [reset_done(shard) for shard in range(plan.num_shards)]


def played_trajectories(plan: SchedulerPlan, shards: Sequence[int], *, version: int = 0) -> list[e.Event]:
    """These shards, the only ones that get chunks, play a trajectory each in lock-step."""
    one_chunk: list[e.Event] = [
        chunks_ready(shards, version=version),
        *(steps_done(s, num_steps=plan.chunk_len) for s in shards),
    ]
    return one_chunk * plan.trajectory_chunks


def scheduler_with(*stretches: Iterable[e.Event], plan: SchedulerPlan = _PLAN, now: float = 0.0) -> Scheduler:
    """A scheduler to which all this has happened, its invariants checked after each event."""
    scheduler = Scheduler(plan)
    for stretch in stretches:
        for event in stretch:
            scheduler.handle(event, now)
            invariants.check(scheduler)
    return scheduler
