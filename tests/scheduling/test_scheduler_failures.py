"""What may break does break, in every phase."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from test_scheduler import answer, generate, publish, reset, step, train, trained

from ebrl.ids import Epoch, GeneratorId, PolicyVersion, ShardId, SlotId, TrajectoryId
from ebrl.scheduling import events as e
from ebrl.scheduling.commands import (
    Command,
    DropTrajectory,
    GenerateChunks,
    SaveCheckpoint,
    StartEnvWorker,
    StartGenerator,
    StartLearner,
    Stop,
)
from ebrl.scheduling.scheduler import MAX_RESTARTS, MAX_SKIPPED_UPDATES, Scheduler
from ebrl.scheduling.transitions import Down, Generating, Idle, NeedsReset, Ready, Resetting, Running, Waiting
from ebrl.testing.build import (
    all_ready,
    checkpoint_saved,
    chunks_ready,
    env_worker_lost,
    env_worker_ready,
    episode_end,
    episode_invalid,
    generator_lost,
    generator_ready,
    learner_lost,
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
ONE_CPU = make_plan(num_cpus=1, trajectory_chunks=3, batch=2)


def drop(trajectory: int, slot: int, reason: str = "died") -> DropTrajectory:
    return DropTrajectory(trajectory=TrajectoryId(trajectory), slot=SlotId(slot), reason=reason)


def start(shard: int, epoch: int = 1) -> StartEnvWorker:
    return StartEnvWorker(shard=ShardId(shard), epoch=Epoch(epoch))


def start_generator(epoch: int = 1, generator: int = 0) -> StartGenerator:
    return StartGenerator(generator=GeneratorId(generator), epoch=Epoch(epoch))


PLAYED: list[e.Event] = [*all_ready(PLAN), *resets(PLAN), chunks_ready([0, 1])]
QUEUED: list[e.Event] = [
    *all_ready(ONE_CPU),
    reset_done(0, reset_s=0.1),
    reset_done(1, reset_s=0.1),
    chunks_ready([0, 1]),
]
BETWEEN_EPISODES: list[e.Event] = [
    *QUEUED,
    steps_done(0),
    steps_done(1),
    chunks_ready([0, 1]),
    steps_done(0, end=episode_end()),
]


@pytest.mark.parametrize(
    ("phase", "shard", "before", "after"),
    [
        (Down, 0, [e.RunStarted()], [start(0)]),
        (NeedsReset, 1, [env_worker_ready(0), env_worker_ready(1)], [start(1)]),
        (Resetting, 0, [env_worker_ready(0)], [start(0)]),
        (Waiting, 0, [env_worker_ready(0), reset_done(0)], [drop(0, 0), start(0)]),
        (Generating, 0, PLAYED[:-1], [drop(0, 0), start(0)]),
        (Ready, 1, QUEUED, [drop(1, 1), start(1)]),
        (Running, 0, PLAYED, [drop(0, 0), start(0)]),
        (Resetting, 0, [*PLAYED, steps_done(0, end=episode_end())], [drop(0, 0), start(0)]),
        (NeedsReset, 0, BETWEEN_EPISODES, [drop(0, 0), start(0)]),
    ],
)
def test_an_env_worker_may_be_lost_in_any_phase(
    phase: type, shard: int, before: Sequence[e.Event], after: list[Command]
) -> None:
    scheduler = scheduler_with(before, plan=ONE_CPU if phase in (NeedsReset, Ready) else PLAN)
    assert isinstance(scheduler.step_level.phases[shard], phase)
    assert answer(scheduler, env_worker_lost(shard)) == after
    assert scheduler.step_level.phases[shard] == Down()
    assert scheduler.counters.env_failures == {"died": 1}
    assert scheduler.counters.restarts == {"env_worker": 1}


def test_an_idle_env_worker_may_be_lost() -> None:
    scheduler = trained()
    assert scheduler.step_level.phases == [Idle(), Idle()]
    assert answer(scheduler, env_worker_lost(0)) == [start(0)]
    assert answer(scheduler, env_worker_ready(0, epoch=1)) == [reset(0, episode=2, cpu=0)]


def test_the_cpu_of_a_lost_shard_goes_to_the_next() -> None:
    scheduler = scheduler_with(QUEUED, plan=ONE_CPU)
    assert answer(scheduler, env_worker_lost(0)) == [drop(0, 0), start(0), step(1, slot=1, chunk=0, cpu=0)]


def test_the_slot_of_a_lost_shard_goes_to_the_next() -> None:
    plan = make_plan(slack=0)
    scheduler = scheduler_with(all_ready(plan), resets(plan), plan=plan)
    assert scheduler.step_level.phases[1] == Idle()
    assert answer(scheduler, env_worker_lost(0)) == [drop(0, 0), start(0)]
    assert answer(scheduler, chunks_ready([0])) == [generate((1, 0, 0, 0))]


def test_answers_of_a_lost_env_worker_are_ignored() -> None:
    scheduler = scheduler_with(PLAYED, [env_worker_lost(0)])
    late: list[e.Event] = [steps_done(0), reset_done(0), episode_invalid(0), env_worker_lost(0), env_worker_ready(0)]
    assert [answer(scheduler, event) for event in late] == [[]] * len(late)
    assert scheduler.counters.ignored_answers == len(late)


def test_chunks_for_a_lost_shard_are_ignored() -> None:
    scheduler = scheduler_with(PLAYED[:-1], [env_worker_lost(0)])
    assert answer(scheduler, chunks_ready([0, 1])) == [step(1, slot=1, chunk=0, cpu=1)]


LOST_WHILE_SERVED: list[e.Event] = [
    reset_done(0),
    env_worker_lost(0),
    env_worker_ready(0, epoch=1),
    reset_done(0, epoch=1),
]


def test_a_shard_that_came_back_waits_until_its_old_chunk_is_written() -> None:
    plan = make_plan(num_generators=2, min_generation_batch=1, slack=3)
    scheduler = scheduler_with(all_ready(plan), LOST_WHILE_SERVED, plan=plan)
    assert scheduler.chunk_level.waiting() == [0]
    [again] = answer(scheduler, chunks_ready([0], generator=0))
    assert isinstance(again, GenerateChunks)
    assert [(request.shard, request.slot, request.serial) for request in again.requests] == [(0, 1, 0)]


@pytest.mark.parametrize("end", [chunks_ready([0]), generator_lost()], ids=["written", "generator lost"])
def test_a_slot_is_not_used_again_while_a_generator_writes_to_it(end: e.Event) -> None:
    plan = make_plan(num_shards=1, num_generators=1, min_generation_batch=1, batch=1, slack=0)
    scheduler = scheduler_with(all_ready(plan), LOST_WHILE_SERVED, plan=plan)
    assert not scheduler.gate.may_admit
    assert isinstance(scheduler.step_level.phases[0], Idle)
    answer(scheduler, end)
    assert isinstance(scheduler.step_level.phases[0], Waiting | Generating)


def test_an_invalid_number_ends_episode_and_trajectory() -> None:
    scheduler = scheduler_with(PLAYED)
    assert answer(scheduler, episode_invalid(0)) == [drop(0, 0, "invalid"), reset(0, episode=2, cpu=0)]
    assert scheduler.counters.env_failures == {"invalid": 1}
    assert scheduler.gate.ledger.dropped == {"invalid": 1}


def test_an_invalid_first_observation_is_tried_again() -> None:
    scheduler = scheduler_with([env_worker_ready(0)])
    assert answer(scheduler, episode_invalid(0)) == [reset(0, episode=2, cpu=0)]


def test_an_environment_that_always_fails_ends_the_run() -> None:
    plan = make_plan(max_env_failures=2)
    scheduler = scheduler_with([env_worker_lost(0, epoch=0), env_worker_lost(0, epoch=1)], plan=plan)
    reason = "environment 0 failed 3 times in a row (raised)"
    assert answer(scheduler, env_worker_lost(0, epoch=2, reason="raised", detail="traceback")) == [
        Stop(reason=reason, failed=True, detail="traceback")
    ]
    assert answer(scheduler, env_worker_ready(1)) == []


def test_an_environment_that_is_always_invalid_ends_the_run() -> None:
    scheduler = scheduler_with(PLAYED, plan=make_plan(max_env_failures=0))
    reason = "environment 0 failed 1 times in a row (invalid)"
    assert answer(scheduler, episode_invalid(0)) == [
        drop(0, 0, "invalid"),
        Stop(reason=reason, failed=True, detail="reward was not finite"),
    ]


ONCE_MORE: list[e.Event] = [env_worker_ready(0, epoch=1), reset_done(0, epoch=1), chunks_ready([0])]


def test_a_finished_chunk_forgives_nothing() -> None:
    """An environment that always fails late in its episode would otherwise train nothing for ever."""
    plan = make_plan(num_shards=1, max_env_failures=1, trajectory_chunks=2)
    played = [*ONCE_MORE, steps_done(0, epoch=1)]
    scheduler = scheduler_with(all_ready(plan), [env_worker_lost(0)], played, plan=plan)
    assert answer(scheduler, env_worker_lost(0, epoch=1))[1:] == [
        Stop(reason="environment 0 failed 2 times in a row (died)", failed=True, detail="killed by SIGKILL")
    ]


@pytest.mark.parametrize(("trajectory_chunks", "end"), [(1, None), (2, episode_end())], ids=["trajectory", "episode"])
def test_a_finished_trajectory_or_episode_forgives(trajectory_chunks: int, end: e.EpisodeEnd | None) -> None:
    plan = make_plan(num_shards=1, max_env_failures=1, trajectory_chunks=trajectory_chunks)
    played = [*ONCE_MORE, steps_done(0, epoch=1, end=end)]
    scheduler = scheduler_with(all_ready(plan), [env_worker_lost(0)], played, plan=plan)
    assert answer(scheduler, env_worker_lost(0, epoch=1))[-1] == start(0, 2)


def test_a_learner_that_refuses_the_data_ends_the_run() -> None:
    lost = e.LearnerLost(epoch=Epoch(0), reason="raised", detail="RatioMismatch", fatal=True)
    assert answer(scheduler_with([learner_ready()]), lost) == [
        Stop(reason="the learner refused the data", failed=True, detail="RatioMismatch")
    ]


def test_shards_of_a_lost_generator_wait_again() -> None:
    scheduler = scheduler_with(PLAYED[:-1])
    assert answer(scheduler, generator_lost()) == [start_generator()]
    assert scheduler.counters.restarts == {"generator": 1}
    assert answer(scheduler, generator_ready(epoch=1)) == [generate((0, 0, 0, 0), (1, 1, 0, 0))]


def test_another_generator_takes_over() -> None:
    plan = make_plan(num_generators=2)
    scheduler = scheduler_with(all_ready(plan), resets(plan), plan=plan)
    assert answer(scheduler, generator_lost(0)) == [
        start_generator(),
        generate((0, 0, 0, 0), (1, 1, 0, 0), generator=1),
    ]


def test_a_generator_is_lost_together_with_its_shard() -> None:
    scheduler = scheduler_with(PLAYED[:-1], [env_worker_lost(0)])
    assert answer(scheduler, generator_lost()) == [start_generator()]
    assert answer(scheduler, generator_ready(epoch=1)) == []  # shard 0 may still join
    answer(scheduler, env_worker_ready(0, epoch=1))
    assert answer(scheduler, reset_done(0, epoch=1)) == [generate((0, 0, 0, 0), (1, 1, 0, 0))]


def test_answers_of_a_lost_generator_are_ignored() -> None:
    scheduler = scheduler_with(PLAYED[:-1], [generator_lost()])
    late: list[e.Event] = [chunks_ready([0, 1]), weights_live(1), generator_ready(), generator_lost()]
    assert [answer(scheduler, event) for event in late] == [[]] * len(late)
    assert scheduler.counters.ignored_answers == len(late)


def test_a_generator_that_is_always_lost_ends_the_run() -> None:
    scheduler = scheduler_with([generator_lost(epoch=epoch) for epoch in range(MAX_RESTARTS)])
    assert answer(scheduler, generator_lost(epoch=MAX_RESTARTS)) == [
        Stop(reason="generator 0 was lost 4 times in a row", failed=True, detail="why")
    ]


def test_a_generation_batch_forgives_lost_generators() -> None:
    scheduler = scheduler_with(PLAYED[:-1])
    for epoch in range(MAX_RESTARTS):
        answer(scheduler, generator_lost(epoch=epoch))
        answer(scheduler, generator_ready(epoch=epoch + 1))
    answer(scheduler, chunks_ready([0, 1], epoch=MAX_RESTARTS))
    assert answer(scheduler, generator_lost(epoch=MAX_RESTARTS)) == [start_generator(MAX_RESTARTS + 1)]


def test_a_generator_that_comes_back_with_the_newest_weights_makes_them_live() -> None:
    scheduler = trained()
    answer(scheduler, generator_lost())
    assert answer(scheduler, update_done(1)) == [train((1, 1), version=1)]
    assert answer(scheduler, generator_ready(epoch=1, version=1)) == [generate((0, 0, 0, 2))]
    assert scheduler.gate.live_version == 1


def test_a_generator_that_comes_back_with_older_weights_is_given_the_newest() -> None:
    scheduler = trained()
    answer(scheduler, generator_lost())
    answer(scheduler, update_done(1))
    assert answer(scheduler, generator_ready(epoch=1, version=0)) == [publish(1)]
    assert answer(scheduler, weights_live(1, epoch=1)) == [generate((0, 0, 0, 2))]


def test_a_generator_that_comes_back_with_older_weights_takes_no_live_ones_back() -> None:
    scheduler = trained({"num_generators": 2})
    for event in (generator_lost(1), update_done(1), weights_live(1, generator=0)):
        answer(scheduler, event)
    assert answer(scheduler, generator_ready(1, epoch=1, version=0)) == [publish(1, generator=1)]
    assert scheduler.gate.live_version == 1


def test_without_a_slow_generator_the_weights_of_the_others_are_live() -> None:
    scheduler = trained({"num_generators": 2})
    answer(scheduler, update_done(1))
    answer(scheduler, weights_live(1, generator=0))
    assert answer(scheduler, generator_lost(1)) == [start_generator(generator=1), generate((0, 0, 0, 2))]


def test_the_learner_trains_again_what_it_was_lost_with() -> None:
    scheduler = trained()
    assert answer(scheduler, learner_lost()) == [StartLearner(epoch=Epoch(1))]
    assert answer(scheduler, learner_ready(epoch=1)) == [train((0, 0))]
    assert scheduler.counters.restarts == {"learner": 1}


def test_answers_of_a_lost_learner_are_ignored() -> None:
    scheduler = trained()
    answer(scheduler, learner_lost())
    late: list[e.Event] = [update_done(1), learner_ready(), learner_lost()]
    assert [answer(scheduler, event) for event in late] == [[]] * len(late)
    assert scheduler.counters.ignored_answers == len(late)


def test_an_idle_learner_may_be_lost() -> None:
    scheduler = scheduler_with(all_ready(PLAN))
    assert answer(scheduler, learner_lost()) == [StartLearner(epoch=Epoch(1))]
    assert answer(scheduler, learner_ready(epoch=1)) == []


def test_a_learner_that_is_always_lost_ends_the_run() -> None:
    scheduler = scheduler_with([learner_lost(epoch=epoch) for epoch in range(MAX_RESTARTS)])
    assert answer(scheduler, learner_lost(epoch=MAX_RESTARTS)) == [
        Stop(reason="the learner was lost 4 times in a row", failed=True, detail="why")
    ]


def test_an_update_forgives_lost_learners() -> None:
    scheduler = trained()
    for epoch in range(MAX_RESTARTS):
        answer(scheduler, learner_lost(epoch=epoch))
        answer(scheduler, learner_ready(epoch=epoch + 1))
    answer(scheduler, update_done(1, epoch=MAX_RESTARTS))
    assert answer(scheduler, learner_lost(epoch=MAX_RESTARTS)) == [StartLearner(epoch=Epoch(MAX_RESTARTS + 1))]


@pytest.mark.parametrize("one_is_written", [False, True])
def test_a_learner_that_is_always_lost_while_it_writes_a_checkpoint_ends_the_run(one_is_written: bool) -> None:
    """As on a disk that is full: updates in between forgive nothing, only a checkpoint does."""
    scheduler = Scheduler(make_plan(num_shards=1, trajectory_chunks=1, batch=1, checkpoint_every=1))
    for event in (learner_ready(), generator_ready(), env_worker_ready(0), reset_done(0)):
        scheduler.handle(event, 0.0)
    for epoch in range(MAX_RESTARTS + 1):
        version = epoch + 1
        scheduler.handle(chunks_ready([0], version=epoch), 0.0)
        scheduler.handle(steps_done(0), 0.0)
        assert SaveCheckpoint(policy_version=PolicyVersion(version)) in scheduler.handle(
            update_done(version, epoch=epoch), 0.0
        )
        scheduler.handle(weights_live(version), 0.0)
        if one_is_written and epoch == 1:
            scheduler.handle(checkpoint_saved(version, epoch=epoch), 0.0)
        last = scheduler.handle(learner_lost(epoch=epoch), 0.0)
        scheduler.handle(learner_ready(epoch=epoch + 1, version=version), 0.0)
    reason = "the learner was lost 4 times in a row while it wrote a checkpoint"
    assert (last == [Stop(reason=reason, failed=True, detail="why")]) is not one_is_written


def test_a_skipped_update_drops_its_batch() -> None:
    scheduler = trained()
    assert answer(scheduler, update_done(0, skipped=True)) == [
        drop(0, 0, "update_skipped"),
        generate((0, 0, 0, 2)),
        train((1, 1)),
    ]
    assert scheduler.counters.updates_skipped == 1


def test_updates_that_are_always_skipped_end_the_run() -> None:
    plan = make_plan(slack=3)
    scheduler = scheduler_with(
        all_ready(plan),
        resets(plan),
        played_trajectories(plan, [0, 1]),
        played_trajectories(plan, [0, 1]),
        [update_done(0, skipped=True)] * (MAX_SKIPPED_UPDATES - 1),
        plan=plan,
    )
    assert answer(scheduler, update_done(0, skipped=True)) == [
        drop(2, 2, "update_skipped"),
        Stop(reason="loss or gradient not finite in 3 updates in a row", failed=True),
    ]
    assert scheduler.learner.policy_version == PolicyVersion(0)


def test_an_update_that_is_not_skipped_forgives() -> None:
    plan = make_plan(num_shards=1, max_updates=100)
    scheduler = scheduler_with(all_ready(plan), resets(plan), plan=plan)
    version = 0
    for skipped in (True, True, False, True):
        for event in played_trajectories(plan, [0], version=version):
            answer(scheduler, event)
        version += not skipped
        last = answer(scheduler, update_done(version, skipped=skipped))
        if not skipped:
            answer(scheduler, weights_live(version))
    assert not any(isinstance(command, Stop) for command in last)
    assert scheduler.counters.updates_skipped == MAX_SKIPPED_UPDATES
