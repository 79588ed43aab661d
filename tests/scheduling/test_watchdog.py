from __future__ import annotations

import pytest
from test_scheduler import answer

from ebrl.ids import PolicyVersion
from ebrl.scheduling import events as e
from ebrl.scheduling.commands import Command, ReportWaits, SetTimer, Stop
from ebrl.scheduling.scheduler import Scheduler
from ebrl.scheduling.staleness import Batch
from ebrl.scheduling.watchdog import who_waits
from ebrl.testing.build import (
    all_ready,
    chunks_ready,
    env_worker_lost,
    env_worker_ready,
    generator_lost,
    generator_ready,
    learner_lost,
    learner_ready,
    make_plan,
    reset_done,
    scheduler_with,
)

PLAN = make_plan(num_shards=4, num_cpus=2, watchdog_s=5.0, min_generation_batch=2, batch=2, slack=0)
TIMER: Command = SetTimer(name="watchdog", after_s=5.0)
FIRED = e.TimerFired(name="watchdog")


def waits(scheduler: Scheduler) -> list[str]:
    return who_waits(scheduler.step_level, scheduler.chunk_level, scheduler.gate, scheduler.learner)


def test_the_watchdog_begins_with_the_run() -> None:
    assert answer(Scheduler(PLAN), e.RunStarted()) == [TIMER]
    assert answer(Scheduler(make_plan()), e.RunStarted()) == []


def test_nothing_is_said_while_something_moves() -> None:
    scheduler = scheduler_with([e.RunStarted(), learner_ready(), env_worker_ready(0), reset_done(0)], plan=PLAN)
    assert answer(scheduler, FIRED) == [TIMER]


def test_who_waits_is_said_when_nothing_moved() -> None:
    scheduler = scheduler_with([e.RunStarted(), learner_ready(), generator_ready(), env_worker_ready(0)], plan=PLAN)
    assert answer(scheduler, FIRED) == [
        ReportWaits(
            lines=(
                "waiting for an env worker to start: shards 1, 2, 3",
                "waiting for a reset to end: shards 0",
                "generator 0 waits for shards",
                "the learner waits for 2 more of 2 trajectories",
            )
        ),
        TIMER,
    ]


def test_every_wait_has_its_words() -> None:
    ready = list(all_ready(PLAN))
    scheduler = scheduler_with(ready, [reset_done(0), reset_done(1)], plan=PLAN)
    assert waits(scheduler)[:2] == [
        "waiting for a reset to end: shards 2, 3",
        "waiting for a generator to finish: shards 0, 1",
    ]
    assert (
        "all 2 trajectory slots are held: 2 by trajectories on their way, 0 until weights newer than version 0"
        in (waits(scheduler)[-1])
    )
    scheduler = scheduler_with(ready, [reset_done(0), reset_done(1), chunks_ready([0, 1])], plan=PLAN)
    assert "waiting for a CPU to step on: shards 0, 1" in waits(scheduler)
    scheduler = scheduler_with(
        ready, [reset_done(shard) for shard in range(4)], [chunks_ready([0, 1]), generator_lost()], plan=PLAN
    )
    assert "waiting for a trajectory slot: shards 2, 3" in waits(scheduler)
    assert "waiting for env steps to end: shards 0, 1" in waits(scheduler)
    assert "generator 0 is being started" in waits(scheduler)
    scheduler.learner.batch = Batch((), (), ())
    assert "the learner trains version 1" in waits(scheduler)
    scheduler.gate.live_version = PolicyVersion(2)
    scheduler.chunk_level.generators[0].up = True
    assert "generator 0 must adopt version 2, it holds 0" in waits(scheduler)
    assert "the learner is being started" in waits(scheduler_with([learner_lost()], plan=PLAN))


def test_long_lists_are_cut() -> None:
    scheduler = Scheduler(make_plan(num_shards=12))
    assert waits(scheduler)[0] == "waiting for an env worker to start: shards 0, 1, 2, 3, 4, 5, 6, 7 and 4 more"


def stuck() -> Scheduler:
    """Everybody is there and nobody owes anything: a fault of ours, made by hand."""
    scheduler = scheduler_with(all_ready(PLAN), [reset_done(shard) for shard in range(4)], plan=PLAN)
    scheduler.handle(chunks_ready([0, 1]), 1.0)
    for shard in range(4):
        scheduler.step_level.phases[shard] = scheduler.step_level.phases[2]
    answered = scheduler.handle(FIRED, 1.0)
    assert answered == [TIMER]
    return scheduler


def test_a_run_that_stands_still_fails_with_the_reasons() -> None:
    scheduler = stuck()
    [stop] = scheduler.handle(FIRED, 2.0)
    assert isinstance(stop, Stop)
    assert (stop.failed, stop.reason) == (True, "the run stands still")
    assert "waiting for a trajectory slot" in stop.detail


@pytest.mark.parametrize("owed", ["env worker", "generator", "weights", "learner"])
def test_a_run_that_is_owed_an_answer_goes_on(owed: str) -> None:
    scheduler = stuck()
    if owed == "env worker":
        scheduler.handle(env_worker_lost(3), 1.0)
    elif owed == "generator":
        scheduler.handle(generator_lost(), 1.0)
    elif owed == "weights":
        scheduler.learner.policy_version = PolicyVersion(1)
        assert scheduler.handle(FIRED, 1.5) == [TIMER]
    else:
        scheduler.handle(learner_lost(), 1.0)
    report, timer = scheduler.handle(FIRED, 2.0)
    assert isinstance(report, ReportWaits)
    assert timer == TIMER
