"""How a run ends: drain, checkpoint, stop."""

from __future__ import annotations

import pytest
from test_scheduler import answer, publish, train, trained

from ebrl.ids import Epoch, PolicyVersion
from ebrl.scheduling import events as e
from ebrl.scheduling.commands import Command, SaveCheckpoint, SetTimer, StartEnvWorker, StartLearner, Stop
from ebrl.scheduling.scheduler import Scheduler
from ebrl.scheduling.staleness import Ledger
from ebrl.testing.build import (
    all_ready,
    checkpoint_saved,
    chunks_ready,
    env_worker_lost,
    episode_invalid,
    learner_lost,
    learner_ready,
    make_plan,
    reset_done,
    resets,
    scheduler_with,
    steps_done,
    update_done,
)

PLAN = make_plan()
STOP = e.StopRequested(reason="Ctrl-C")
DRAIN = SetTimer(name="drain", after_s=10.0)
CHECKPOINT = SetTimer(name="checkpoint", after_s=10.0)
LONG_DRAIN = SetTimer(name="drain", after_s=600.0)
LONG_CHECKPOINT = SetTimer(name="checkpoint", after_s=600.0)
STOPPED = Stop(reason="Ctrl-C", failed=False)


def save(version: int = 0) -> SaveCheckpoint:
    return SaveCheckpoint(policy_version=PolicyVersion(version))


def resetting() -> Scheduler:
    return scheduler_with(all_ready(PLAN))


def generating() -> Scheduler:
    return scheduler_with(all_ready(PLAN), resets(PLAN))


def stepping() -> Scheduler:
    return scheduler_with(all_ready(PLAN), resets(PLAN), [chunks_ready([0, 1])])


def asked(scheduler: Scheduler) -> Scheduler:
    answer(scheduler, STOP)
    return scheduler


def test_with_nothing_in_flight_the_checkpoint_is_written_at_once() -> None:
    scheduler = scheduler_with([learner_ready()])
    assert answer(scheduler, STOP) == [DRAIN, CHECKPOINT, save()]
    assert answer(scheduler, checkpoint_saved()) == [STOPPED]
    assert answer(scheduler, STOP) == []


def test_before_the_learner_is_ready_the_checkpoint_waits_for_it() -> None:
    scheduler = scheduler_with()
    assert answer(scheduler, STOP) == [DRAIN, CHECKPOINT]
    assert answer(scheduler, learner_ready()) == [save()]


@pytest.mark.parametrize(
    ("scheduler", "in_flight"),
    [
        (resetting(), [reset_done(0), reset_done(1)]),
        (generating(), [chunks_ready([0, 1])]),
        (stepping(), [steps_done(0), steps_done(1)]),
        (stepping(), [steps_done(0, num_steps=2, chunk_over=False), episode_invalid(1)]),
        (trained(), [update_done(1)]),
    ],
    ids=["resets", "chunks", "steps", "cut steps and an invalid one", "an update"],
)
def test_work_in_flight_is_waited_for_and_nothing_new_begins(scheduler: Scheduler, in_flight: list[e.Event]) -> None:
    assert answer(scheduler, STOP) == [DRAIN]
    assert answer(scheduler, STOP) == []
    *before, last = in_flight
    for event in before:
        assert answer(scheduler, event) == []
    assert answer(scheduler, last)[-2:] == [CHECKPOINT, save(scheduler.learner.policy_version)]


def test_the_last_update_is_published_and_counted() -> None:
    scheduler = asked(trained())
    assert answer(scheduler, update_done(1)) == [publish(1), CHECKPOINT, save(1)]
    assert answer(scheduler, checkpoint_saved(1)) == [STOPPED]
    assert scheduler.gate.ledger == Ledger(admitted=2, trained=1, abandoned=1)


def test_a_drain_that_takes_too_long_is_cut() -> None:
    scheduler = asked(stepping())
    assert answer(scheduler, e.TimerFired(name="drain")) == [CHECKPOINT, save()]
    assert answer(scheduler, e.TimerFired(name="drain")) == []
    assert answer(scheduler, checkpoint_saved()) == [STOPPED]


def test_an_update_that_outlasts_the_drain_still_counts_as_trained() -> None:
    scheduler = asked(trained())
    assert answer(scheduler, e.TimerFired(name="drain")) == [CHECKPOINT, save()]
    assert answer(scheduler, update_done(1)) == [publish(1)]
    assert answer(scheduler, checkpoint_saved(1)) == [STOPPED]
    assert scheduler.gate.ledger == Ledger(admitted=2, trained=1, abandoned=1)


def test_an_env_worker_may_be_lost_after_the_drain() -> None:
    scheduler = asked(stepping())
    answer(scheduler, e.TimerFired(name="drain"))
    commands: list[Command] = answer(scheduler, env_worker_lost(0))
    assert isinstance(commands[-1], StartEnvWorker)
    assert answer(scheduler, checkpoint_saved()) == [STOPPED]
    assert scheduler.gate.ledger == Ledger(admitted=2, dropped={"died": 1}, abandoned=1)


def test_a_checkpoint_that_takes_too_long_fails_the_run() -> None:
    scheduler = scheduler_with([learner_ready(), STOP])
    assert answer(scheduler, e.TimerFired(name="checkpoint")) == [
        Stop(reason="Ctrl-C", failed=True, detail="the last checkpoint was not written within 10.0 s")
    ]


def test_timers_of_others_mean_nothing() -> None:
    assert answer(stepping(), e.TimerFired(name="tea")) == []


def test_a_learner_lost_with_the_checkpoint_writes_it_again() -> None:
    scheduler = scheduler_with([learner_ready(), STOP])
    assert answer(scheduler, learner_lost()) == [StartLearner(epoch=Epoch(1))]
    assert answer(scheduler, checkpoint_saved()) == []
    assert answer(scheduler, learner_ready(epoch=1)) == [save()]
    assert answer(scheduler, checkpoint_saved(epoch=1)) == [STOPPED]


def test_a_learner_lost_while_draining_trains_no_more() -> None:
    scheduler = asked(stepping_and_training())
    assert answer(scheduler, learner_lost()) == [StartLearner(epoch=Epoch(1))]
    assert answer(scheduler, learner_ready(epoch=1)) == []
    assert answer(scheduler, chunks_ready([0])) == []
    assert answer(scheduler, steps_done(1)) == [CHECKPOINT, save()]
    assert answer(scheduler, checkpoint_saved(epoch=1)) == [STOPPED]
    assert scheduler.gate.ledger == Ledger(admitted=3, abandoned=3)


def test_nobody_waits_for_the_update_of_a_lost_learner() -> None:
    scheduler = asked(trained())
    assert answer(scheduler, learner_lost()) == [StartLearner(epoch=Epoch(1)), CHECKPOINT]
    assert answer(scheduler, learner_ready(epoch=1)) == [save()]
    assert answer(scheduler, checkpoint_saved(epoch=1)) == [STOPPED]


def stepping_and_training() -> Scheduler:
    """One trajectory trains while a chunk for another is made."""
    plan = make_plan(min_generation_batch=1, slack=2)
    scheduler = scheduler_with(all_ready(plan), [reset_done(0), reset_done(1)], plan=plan)
    for event in (chunks_ready([0]), steps_done(0), chunks_ready([1]), chunks_ready([0]), steps_done(0)):
        answer(scheduler, event)
    assert scheduler.learner.batch is not None
    return scheduler


def test_earlier_checkpoints_do_not_end_the_run() -> None:
    scheduler = trained({"checkpoint_every": 1})
    assert answer(scheduler, update_done(1)) == [publish(1), save(1), train((1, 1), version=1)]
    assert answer(scheduler, checkpoint_saved(1)) == []
    answer(scheduler, STOP)
    assert answer(scheduler, update_done(2)) == [publish(2), CHECKPOINT, save(2)]
    assert answer(scheduler, checkpoint_saved(1)) == []
    assert answer(scheduler, checkpoint_saved(2)) == [STOPPED]


def test_a_run_ends_after_its_last_update() -> None:
    scheduler = trained({"max_updates": 1})
    assert answer(scheduler, update_done(1)) == [publish(1), LONG_DRAIN, LONG_CHECKPOINT, save(1)]
    assert answer(scheduler, checkpoint_saved(1)) == [Stop(reason="1 updates", failed=False)]


def test_a_run_ends_after_its_last_env_step() -> None:
    plan = make_plan(max_env_steps=8)
    scheduler = scheduler_with(all_ready(plan), resets(plan), [chunks_ready([0, 1])], plan=plan)
    assert answer(scheduler, steps_done(0)) == []
    assert answer(scheduler, steps_done(1)) == [LONG_DRAIN, LONG_CHECKPOINT, save()]
    assert answer(scheduler, checkpoint_saved()) == [Stop(reason="8 env steps", failed=False)]


def test_a_run_that_reached_its_goal_gives_its_last_update_the_time_it_takes() -> None:
    plan = make_plan(max_env_steps=4, finish_s=50.0)
    scheduler = scheduler_with(all_ready(plan), resets(plan), [chunks_ready([0, 1])], plan=plan)
    assert answer(scheduler, steps_done(0)) == [SetTimer(name="drain", after_s=50.0)]
    assert answer(scheduler, steps_done(1)) == [SetTimer(name="checkpoint", after_s=50.0), save()]


def test_a_patient_request_gives_the_last_update_its_time_too() -> None:
    assert answer(stepping(), e.StopRequested(reason="10 minutes", patient=True)) == [LONG_DRAIN]


def test_an_interrupt_cuts_the_end_of_a_run_short() -> None:
    scheduler = stepping()
    answer(scheduler, e.StopRequested(reason="10 minutes", patient=True))
    assert answer(scheduler, STOP) == [DRAIN]
    assert answer(scheduler, steps_done(0)) == []
    assert answer(scheduler, steps_done(1)) == [CHECKPOINT, save()]
    assert answer(scheduler, checkpoint_saved()) == [Stop(reason="10 minutes", failed=False)]


def test_an_interrupt_cuts_the_last_checkpoint_short() -> None:
    scheduler = scheduler_with([learner_ready()])
    answer(scheduler, e.StopRequested(reason="10 minutes", patient=True))
    assert answer(scheduler, STOP) == [CHECKPOINT]
