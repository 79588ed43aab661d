from __future__ import annotations

import pytest
from test_scheduler import generate, reset, step

from ebrl.ids import EpisodeId, Epoch, GeneratorId, ShardId
from ebrl.scheduling import events as e
from ebrl.scheduling.commands import (
    Command,
    EpisodeStart,
    GenerateChunks,
    ResetEnv,
    StartEnvWorker,
    StartGenerator,
    Stop,
)
from ebrl.scheduling.evaluation import MAX_RESTARTS, MAX_TRIES, EvaluationScheduler, Result
from ebrl.scheduling.transitions import Down, Idle
from ebrl.testing.build import (
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
    reset_done,
    steps_done,
    update_done,
)

READY: list[e.Event] = [e.RunStarted(), learner_ready(), generator_ready(), env_worker_ready(0), env_worker_ready(1)]


def evaluation(*events: e.Event, num_shards: int = 2, num_episodes: int = 3) -> EvaluationScheduler:
    scheduler = EvaluationScheduler(make_plan(num_shards=num_shards), num_episodes=num_episodes)
    for event in events:
        scheduler.handle(event, 0.0)
    return scheduler


def start(shard: int, epoch: int = 1) -> StartEnvWorker:
    return StartEnvWorker(shard=ShardId(shard), epoch=Epoch(epoch))


def test_each_shard_begins_with_its_own_episode() -> None:
    scheduler = evaluation(*READY[:3])
    assert scheduler.handle(env_worker_ready(1), 0.0) == [reset(1, episode=1, cpu=0)]
    assert scheduler.handle(env_worker_ready(0), 0.0) == [reset(0, episode=0, cpu=1)]


def test_chunks_go_to_the_shards_own_slot() -> None:
    scheduler = evaluation(*READY)
    assert scheduler.handle(reset_done(0), 0.0) == [generate((0, 0, 0, 0))]
    assert scheduler.handle(reset_done(1), 0.0) == []
    assert scheduler.handle(chunks_ready([0]), 0.0) == [step(0, slot=0, chunk=0, cpu=0), generate((1, 1, 0, 0))]
    assert scheduler.handle(chunks_ready([1]), 0.0) == [step(1, slot=1, chunk=0, cpu=1)]
    assert scheduler.handle(steps_done(0), 0.0) == [generate((0, 0, 0, 1))]


def test_the_next_episode_of_a_shard_follows_its_last() -> None:
    scheduler = evaluation(*READY, reset_done(0), chunks_ready([0]))
    assert scheduler.handle(steps_done(0, end=episode_end()), 0.0) == [reset(0, episode=2, cpu=0)]
    assert scheduler.result.ends == [episode_end()]


def test_a_shard_without_a_further_episode_rests() -> None:
    scheduler = evaluation(*READY, reset_done(1), chunks_ready([1]))
    assert scheduler.handle(steps_done(1, end=episode_end(success=False)), 0.0) == []
    assert scheduler.step_level.phases[1] == Idle()


def test_a_shard_without_any_episode_rests() -> None:
    scheduler = evaluation(*READY[:3], num_episodes=1)
    assert scheduler.handle(env_worker_ready(1), 0.0) == []


def test_the_end_of_a_training_episode_counts_for_nothing() -> None:
    """An environment that is given no episode goes on with the one that it was in."""
    scheduler = EvaluationScheduler(make_plan(num_shards=1, envs_per_shard=4, batch=4), num_episodes=2)
    for event in (generator_ready(), env_worker_ready(0), reset_done(0), chunks_ready([0])):
        scheduler.handle(event, 0.0)
    leftover = tuple(episode_end(env=env, success=True) for env in (2, 3))
    assert scheduler.handle(steps_done(0, ends=leftover), 0.0) == [generate((0, 0, 0, 1))]
    scheduler.handle(chunks_ready([0]), 0.0)
    own = tuple(episode_end(env=env, success=False) for env in (0, 1))
    assert scheduler.handle(steps_done(0, ends=own), 0.0) == [Stop(reason="2 episodes", failed=False)]
    assert scheduler.result.ends == list(own)
    assert scheduler.result.success_rate == 0.0


def test_the_last_episode_ends_the_evaluation() -> None:
    scheduler = evaluation(*READY, reset_done(0), chunks_ready([0]), num_shards=2, num_episodes=1)
    assert scheduler.handle(steps_done(0, end=episode_end()), 0.0) == [Stop(reason="1 episodes", failed=False)]
    assert scheduler.handle(env_worker_ready(1), 0.0) == []
    assert scheduler.stopped


@pytest.mark.parametrize("before", [[], [reset_done(0)], [reset_done(0), chunks_ready([0])]])
def test_a_lost_env_worker_plays_its_episode_again(before: list[e.Event]) -> None:
    scheduler = evaluation(*READY, *before)
    assert scheduler.handle(env_worker_lost(0), 0.0) == [start(0)]
    again = scheduler.handle(env_worker_ready(0, epoch=1), 0.0)
    assert [command.starts for command in again if isinstance(command, ResetEnv)] == [(EpisodeStart(0, EpisodeId(0)),)]


def test_a_lost_env_worker_that_waits_leaves_the_queue() -> None:
    scheduler = evaluation(*READY, reset_done(0), reset_done(1))
    assert scheduler.handle(env_worker_lost(1), 0.0) == [start(1)]
    assert scheduler.chunk_level.num_waiting == 0


def test_chunks_for_a_lost_shard_are_ignored() -> None:
    scheduler = evaluation(*READY, reset_done(0), env_worker_lost(0))
    assert scheduler.handle(chunks_ready([0]), 0.0) == []
    assert scheduler.step_level.phases[0] == Down()


def test_a_lost_env_worker_without_an_episode_is_replaced_all_the_same() -> None:
    scheduler = evaluation(*READY, num_episodes=1)
    assert scheduler.handle(env_worker_lost(1), 0.0) == [start(1)]
    assert scheduler.handle(env_worker_lost(1, epoch=1), 0.0) == [start(1, 2)]
    assert scheduler.handle(env_worker_ready(1, epoch=2), 0.0) == []
    assert scheduler.result.failed == 0


def test_an_invalid_episode_is_played_again() -> None:
    scheduler = evaluation(*READY)
    assert scheduler.handle(episode_invalid(0), 0.0) == [reset(0, episode=0, cpu=0)]
    assert scheduler.result == Result(retries=1)


def test_an_episode_that_always_fails_counts_as_failed() -> None:
    scheduler = evaluation(*READY, *[episode_invalid(0)] * (MAX_TRIES - 1))
    assert scheduler.handle(episode_invalid(0), 0.0) == [reset(0, episode=2, cpu=0)]
    assert scheduler.result == Result(ends=[], failed=1, retries=MAX_TRIES - 1)


def test_an_evaluation_of_failures_ends_too() -> None:
    scheduler = evaluation(*READY, *[episode_invalid(0)] * (MAX_TRIES - 1), num_episodes=1)
    assert scheduler.handle(episode_invalid(0), 0.0) == [Stop(reason="1 episodes", failed=False)]


LATE: list[e.Event] = [env_worker_ready(0), reset_done(0), steps_done(0), episode_invalid(0), env_worker_lost(0)]


@pytest.mark.parametrize("late", LATE)
def test_answers_of_a_lost_env_worker_are_ignored(late: e.Event) -> None:
    scheduler = evaluation(*READY, env_worker_lost(0))
    assert scheduler.handle(late, 0.0) == []
    assert scheduler.step_level.phases[0] == Down()


def test_a_lost_generator_is_replaced_and_draws_the_same_chunks_again() -> None:
    scheduler = evaluation(*READY, reset_done(0), reset_done(1))
    served = scheduler.chunk_level.generators[0].busy_with
    assert served
    assert scheduler.handle(generator_lost(), 0.0) == [StartGenerator(generator=GeneratorId(0), epoch=Epoch(1))]
    assert scheduler.chunk_level.waiting()[-len(served) :] == list(served)
    [again] = scheduler.handle(generator_ready(epoch=1), 0.0)
    assert isinstance(again, GenerateChunks)
    assert [request.serial for request in again.requests] == [0] * len(again.requests)


def test_a_shard_that_was_lost_with_its_generator_does_not_wait_for_it() -> None:
    scheduler = evaluation(*READY, reset_done(0), env_worker_lost(0))
    scheduler.handle(generator_lost(), 0.0)
    assert scheduler.chunk_level.waiting() == []


def test_a_generator_that_is_always_lost_ends_the_evaluation() -> None:
    scheduler = evaluation(*READY)
    for epoch in range(MAX_RESTARTS):
        assert scheduler.handle(generator_lost(epoch=epoch), 0.0) == [
            StartGenerator(generator=GeneratorId(0), epoch=Epoch(epoch + 1))
        ]
    assert scheduler.handle(generator_lost(epoch=MAX_RESTARTS), 0.0) == [
        Stop(reason="generator 0 was lost 4 times in a row", failed=True, detail="why")
    ]


def test_an_evaluation_does_not_need_the_learner() -> None:
    assert evaluation(*READY).handle(learner_lost(), 0.0) == []


def test_an_evaluation_stops_when_asked() -> None:
    expected: list[Command] = [Stop(reason="Ctrl-C", failed=False)]
    assert evaluation(*READY).handle(e.StopRequested(reason="Ctrl-C"), 0.0) == expected


def test_what_concerns_training_means_nothing() -> None:
    assert evaluation(*READY).handle(update_done(1), 0.0) == []


def test_the_success_rate_counts_failures_as_no_success() -> None:
    assert Result().success_rate == 0.0
    assert Result(ends=[episode_end(), episode_end(success=False)], failed=2).success_rate == 0.25


@pytest.mark.parametrize("failure", ["invalid", "died"])
def test_an_environment_that_always_fails_ends_the_evaluation(failure: str) -> None:
    scheduler = EvaluationScheduler(make_plan(num_shards=1, num_cpus=1, max_env_failures=1), num_episodes=100)
    scheduler.handle(env_worker_ready(0), 0.0)
    events: list[e.Event] = [episode_invalid(0), episode_invalid(0)]
    detail = "reward was not finite"
    if failure == "died":
        events = [env_worker_lost(0), env_worker_lost(0, epoch=1)]
        detail = "killed by SIGKILL"
    scheduler.handle(events[0], 0.0)
    assert scheduler.handle(events[1], 0.0) == [
        Stop(reason=f"environment 0 failed 2 times in a row ({failure})", failed=True, detail=detail)
    ]
