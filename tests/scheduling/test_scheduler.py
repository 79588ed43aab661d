"""A run in which nothing goes wrong, one event at a time."""

from __future__ import annotations

import pytest

from ebrl.ids import CpuId, EpisodeId, GeneratorId, PolicyVersion, ShardId, SlotId, TrajectoryId
from ebrl.scheduling import events as e
from ebrl.scheduling import invariants
from ebrl.scheduling.commands import (
    ChunkRequest,
    Command,
    EpisodeStart,
    GenerateChunks,
    PublishWeights,
    ResetEnv,
    SaveCheckpoint,
    StepEnv,
    Train,
)
from ebrl.scheduling.scheduler import Scheduler
from ebrl.testing.build import (
    all_ready,
    chunks_ready,
    env_worker_ready,
    episode_end,
    generator_ready,
    learner_ready,
    make_plan,
    played_trajectories,
    reset_done,
    resets,
    scheduler_with,
    steps_done,
    update_done,
    weights_live,
)

PLAN = make_plan()


def answer(scheduler: Scheduler, event: e.Event, now: float = 1.0) -> list[Command]:
    commands = scheduler.handle(event, now)
    invariants.check(scheduler)
    return commands


def reset(shard: int, episode: int, cpu: int) -> ResetEnv:
    return ResetEnv(shard=ShardId(shard), starts=(EpisodeStart(0, EpisodeId(episode)),), cpus=(CpuId(cpu),))


def step(shard: int, *, slot: int, chunk: int, cpu: int, first_step: int = 0, num_steps: int = 4) -> StepEnv:
    return StepEnv(
        shard=ShardId(shard),
        slot=SlotId(slot),
        chunk=chunk,
        first_step=first_step,
        num_steps=num_steps,
        cpus=(CpuId(cpu),),
    )


def generate(*rows: tuple[int, int, int, int], generator: int = 0) -> GenerateChunks:
    """Rows of shard, slot, chunk, serial."""
    requests = tuple(
        ChunkRequest(shard=ShardId(shard), slot=SlotId(slot), chunk=chunk, serial=serial)
        for shard, slot, chunk, serial in rows
    )
    return GenerateChunks(generator=GeneratorId(generator), requests=requests)


def train(*members: tuple[int, int], version: int = 0) -> Train:
    """Members of trajectory and slot."""
    return Train(
        trajectories=tuple(TrajectoryId(trajectory) for trajectory, _ in members),
        slots=tuple(SlotId(slot) for _, slot in members),
        learner_version=PolicyVersion(version),
    )


def publish(version: int, *, generator: int = 0) -> PublishWeights:
    return PublishWeights(generator=GeneratorId(generator), policy_version=PolicyVersion(version))


def test_the_start_of_the_run_asks_for_nothing() -> None:
    assert answer(scheduler_with(), e.RunStarted()) == []


def test_an_env_worker_that_is_ready_resets() -> None:
    assert answer(scheduler_with(), env_worker_ready(1)) == [reset(1, episode=1, cpu=0)]


def test_generators_and_learner_that_are_ready_wait_for_work() -> None:
    assert answer(scheduler_with(), generator_ready()) == []
    assert answer(scheduler_with(), learner_ready()) == []


def test_observations_are_served_together() -> None:
    scheduler = scheduler_with(all_ready(PLAN))
    assert answer(scheduler, reset_done(0)) == []
    assert answer(scheduler, reset_done(1)) == [generate((0, 0, 0, 0), (1, 1, 0, 0))]


def test_without_others_one_is_served_alone() -> None:
    plan = make_plan(num_shards=1)
    scheduler = scheduler_with(all_ready(plan), plan=plan)
    assert answer(scheduler, reset_done(0)) == [generate((0, 0, 0, 0))]


def test_observations_wait_for_the_generator() -> None:
    scheduler = scheduler_with([env_worker_ready(0), env_worker_ready(1), reset_done(0), reset_done(1)])
    assert answer(scheduler, generator_ready()) == [generate((0, 0, 0, 0), (1, 1, 0, 0))]


def test_two_generators_share_the_work() -> None:
    plan = make_plan(num_generators=2, min_generation_batch=1, max_generation_batch=1)
    scheduler = scheduler_with(all_ready(plan), [reset_done(0)], plan=plan)
    assert answer(scheduler, reset_done(1)) == [generate((1, 1, 0, 0), generator=1)]


def test_chunks_are_executed_at_once() -> None:
    scheduler = scheduler_with(all_ready(PLAN), resets(PLAN))
    assert answer(scheduler, chunks_ready([0, 1])) == [step(0, slot=0, chunk=0, cpu=0), step(1, slot=1, chunk=0, cpu=1)]
    assert scheduler.counters.generation_batches == 1


def test_chunks_wait_for_a_cpu() -> None:
    plan = make_plan(num_cpus=1)
    scheduler = scheduler_with(all_ready(plan), resets(plan), [chunks_ready([0, 1])], plan=plan)
    assert answer(scheduler, steps_done(0)) == [step(1, slot=1, chunk=0, cpu=0)]


def test_a_cut_grant_is_continued() -> None:
    plan = make_plan(quantum=3)
    scheduler = scheduler_with(all_ready(plan), resets(plan), [chunks_ready([0, 1])], plan=plan)
    assert answer(scheduler, steps_done(0, num_steps=3, chunk_over=False)) == [
        step(0, slot=0, chunk=0, cpu=0, first_step=3, num_steps=1)
    ]
    assert (scheduler.counters.env_steps, scheduler.counters.chunks) == (3, 0)


def test_the_next_chunk_follows_with_the_next_random_numbers() -> None:
    scheduler = scheduler_with(all_ready(PLAN), resets(PLAN), [chunks_ready([0, 1]), steps_done(0)])
    assert answer(scheduler, steps_done(1)) == [generate((0, 0, 1, 1), (1, 1, 1, 1))]


def test_an_episode_that_ends_is_replaced_at_once_within_its_trajectory() -> None:
    scheduler = scheduler_with(all_ready(PLAN), resets(PLAN), [chunks_ready([0, 1])])
    assert answer(scheduler, steps_done(0, num_steps=2, end=episode_end())) == [reset(0, episode=2, cpu=0)]
    assert scheduler.counters.episodes == 1
    assert answer(scheduler, steps_done(1)) == []
    assert answer(scheduler, reset_done(0)) == [generate((0, 0, 1, 1), (1, 1, 1, 1))]


def test_a_full_batch_trains() -> None:
    *before, last = played_trajectories(PLAN, [0])
    scheduler = scheduler_with(
        [generator_ready(), learner_ready(), env_worker_ready(0), reset_done(0)],
        before,
        plan=make_plan(num_shards=1),
    )
    assert answer(scheduler, last) == [generate((0, 1, 0, 2)), train((0, 0))]


def test_a_batch_waits_for_the_learner() -> None:
    plan = make_plan(slack=0)
    ready = [event for event in all_ready(plan) if event != learner_ready()]
    scheduler = scheduler_with(ready, [reset_done(0), reset_done(1)], played_trajectories(plan, [0]), plan=plan)
    assert answer(scheduler, learner_ready()) == [train((0, 0))]


def trained(plan_changes: dict[str, object] | None = None) -> Scheduler:
    """All shards have played one trajectory; the first of them trains, the others wait."""
    plan = make_plan(**(plan_changes or {}))
    return scheduler_with(all_ready(plan), resets(plan), played_trajectories(plan, range(plan.num_shards)), plan=plan)


def test_while_one_batch_trains_the_next_one_waits() -> None:
    scheduler = trained()
    assert answer(scheduler, update_done(1)) == [publish(1), train((1, 1), version=1)]


def test_new_weights_free_the_slot_when_they_are_live() -> None:
    scheduler = trained()
    answer(scheduler, update_done(1))
    assert answer(scheduler, weights_live(1)) == [generate((0, 0, 0, 2))]
    assert scheduler.gate.live_version == 1


def test_weights_are_live_when_every_generator_has_them() -> None:
    scheduler = trained({"num_generators": 2})
    assert answer(scheduler, update_done(1)) == [publish(1), publish(1, generator=1), train((1, 1), version=1)]
    assert answer(scheduler, weights_live(1, generator=0)) == []
    assert answer(scheduler, weights_live(1, generator=1)) == [generate((0, 0, 0, 2))]


def test_weights_that_control_has_not_heard_of_are_not_live_yet() -> None:
    scheduler = trained()
    assert answer(scheduler, weights_live(1)) == []
    assert scheduler.gate.live_version == 0
    assert answer(scheduler, update_done(1)) == [publish(1), train((1, 1), version=1)]


def test_staleness_is_counted_when_it_trains() -> None:
    scheduler = trained()
    answer(scheduler, update_done(1))
    answer(scheduler, update_done(2))
    assert scheduler.learner.staleness_counts == {0: 1, 1: 1}


def test_the_oldest_chunk_of_a_trajectory_makes_its_staleness() -> None:
    scheduler = trained({"num_shards": 1, "slack": 3})
    one_old_one_new: list[e.Event] = [
        chunks_ready([0]),
        update_done(1),
        steps_done(0),
        chunks_ready([0], version=1),
        steps_done(0),
    ]
    for event in one_old_one_new:
        answer(scheduler, event)
    answer(scheduler, update_done(2))
    assert scheduler.learner.staleness_counts == {0: 1, 1: 1}


def test_a_checkpoint_is_written_every_so_many_updates() -> None:
    scheduler = trained({"checkpoint_every": 2})
    assert answer(scheduler, update_done(1)) == [publish(1), train((1, 1), version=1)]
    assert answer(scheduler, update_done(2)) == [publish(2), SaveCheckpoint(policy_version=PolicyVersion(2))]


def test_a_resumed_run_goes_on_where_the_first_one_ended() -> None:
    plan = make_plan(first_version=PolicyVersion(7), first_episode=3, first_serial=5, first_env_step=100)
    scheduler = scheduler_with(plan=plan)
    assert answer(scheduler, env_worker_ready(0)) == [reset(0, episode=6, cpu=0)]
    answer(scheduler, generator_ready(version=7))
    answer(scheduler, env_worker_ready(1))
    answer(scheduler, reset_done(0))
    assert answer(scheduler, reset_done(1)) == [generate((0, 0, 0, 5), (1, 1, 0, 5))]
    assert (scheduler.counters.env_steps, scheduler.gate.live_version) == (100, 7)


@pytest.mark.parametrize(
    ("event", "complaint"),
    [
        (steps_done(0), "shard 0 answered steps in Down"),
        (reset_done(0), "shard 0 answered a reset in Down"),
        (update_done(1), "an update to version 1 that nobody asked for"),
        (learner_ready(version=2), "the learner starts at version 2, control expects 0"),
    ],
)
def test_an_answer_without_a_question_is_an_error_of_ours(event: e.Event, complaint: str) -> None:
    with pytest.raises(AssertionError, match=complaint):
        scheduler_with().handle(event, 0.0)
