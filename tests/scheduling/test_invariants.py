"""Each invariant can fail: a scheduler with one wrong number in its books is found out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from ebrl.ids import CpuId, CpuSet, PolicyVersion, ShardId, SlotId, TrajectoryId
from ebrl.scheduling import events as e
from ebrl.scheduling import invariants
from ebrl.scheduling.quotas import Split
from ebrl.scheduling.scheduler import Scheduler
from ebrl.scheduling.transitions import NeedsReset, Place, Running
from ebrl.testing.build import all_ready, chunks_ready, make_plan, reset_done, resets, scheduler_with

Corruption = Callable[[Scheduler], Any]


def stepping() -> Scheduler:
    """Two shards run, a third waits, and a fourth is idle."""
    plan = make_plan(num_shards=4, num_cpus=4, batch=3, slack=0)
    first = [*all_ready(plan), reset_done(0), reset_done(1)]
    return scheduler_with(first, [chunks_ready([0, 1]), reset_done(2), reset_done(3)], plan=plan)


def generating() -> Scheduler:
    plan = make_plan()
    return scheduler_with(all_ready(plan), resets(plan), plan=plan)


def split() -> Scheduler:
    """Simulation has CPUs 0 and 1 of four, the learner lends SMs; one shard runs."""
    own = Split(simulation=cpus(0, 1), generation=cpus(2), training=cpus(3), generation_units=48, training_units=60)
    plan = make_plan(num_shards=2, num_cpus=2, batch=1, slack=0, split=own, lend=True)
    return scheduler_with(all_ready(plan), [reset_done(0), chunks_ready([0])], plan=plan)


def cpus(*numbers: int) -> CpuSet:
    return tuple(CpuId(number) for number in numbers)


def moved(shard: int, phase: Any) -> Corruption:
    def corrupt(scheduler: Scheduler) -> None:
        scheduler.step_level.phases[shard] = phase

    return corrupt


def place(number: int, *, slot: int | None = None) -> Place:
    return Place(TrajectoryId(number), SlotId(number if slot is None else slot), 0)


def forget_the_loss(scheduler: Scheduler) -> None:
    scheduler.gate._slot.clear()


def free_everything(scheduler: Scheduler) -> None:
    scheduler.gate._free = [SlotId(slot) for slot in range(scheduler.gate.capacity)]


def free_one_twice(scheduler: Scheduler) -> None:
    scheduler.gate._free = [SlotId(0)] * (scheduler.gate.capacity + 1)


def keep_the_learners_cpu(scheduler: Scheduler) -> None:
    scheduler.step_level._nodes[0].kept |= {cpus(3)}
    scheduler.step_level._nodes[0].free.append(cpus(3))


def run_on_the_learners_cpu(scheduler: Scheduler) -> None:
    scheduler.step_level.phases[0] = Running(place(0), 0, 4, cpus(3))
    scheduler.step_level._nodes[0].free[:] = [cpus(0)]


def want_a_reset(scheduler: Scheduler) -> None:
    scheduler.step_level.phases[3] = NeedsReset(None, ())
    scheduler.step_level.num_preparing[0] += 1


CORRUPTIONS: dict[str, tuple[Callable[[], Scheduler], Corruption, str]] = {
    "a CPU is lost": (stepping, lambda s: s.step_level._nodes[0].free.clear(), "node 0: CPUs used"),
    "a CPU is used twice": (stepping, moved(1, Running(place(1), 0, 4, (CpuId(0),))), "a CPU is used twice"),
    "a waiting shard is not queued": (stepping, lambda s: s.chunk_level.remove(ShardId(2)), "queue"),
    "a queued shard does not wait": (stepping, lambda s: s.chunk_level.add(ShardId(3)), "queue"),
    "a generator forgot a shard": (
        generating,
        lambda s: setattr(s.chunk_level.generators[0], "busy_with", (ShardId(0),)),
        "the generator serves",
    ),
    "moving shards are miscounted": (stepping, lambda s: setattr(s.step_level, "num_moving", [1]), "counted"),
    "preparing shards are miscounted": (stepping, lambda s: setattr(s.step_level, "num_preparing", [1]), "counted"),
    "a trajectory is in two shards": (
        stepping,
        moved(1, Running(place(0, slot=1), 0, 4, (CpuId(1),))),
        "a trajectory in two shards",
    ),
    "a slot is in two shards": (
        stepping,
        moved(1, Running(place(1, slot=0), 0, 4, (CpuId(1),))),
        "a slot in two shards",
    ),
    "a slot is freed twice": (stepping, free_one_twice, "held of"),
    "slots are freed too early": (stepping, free_everything, "untrained of"),
    "a trajectory is forgotten": (stepping, forget_the_loss, "Ledger"),
    "a trajectory ends twice": (stepping, lambda s: setattr(s.gate.ledger, "trained", 1), "Ledger"),
    "weights are live before they exist": (
        stepping,
        lambda s: setattr(s.gate, "live_version", PolicyVersion(1)),
        "live 1, made 0",
    ),
    "something too stale was trained": (stepping, lambda s: setattr(s.learner, "staleness_max", 1), "staleness 1"),
    "a generator holds weights of the future": (
        stepping,
        lambda s: setattr(s.chunk_level.generators[0], "policy_version", PolicyVersion(1)),
        "a generator holds version 1",
    ),
    "a CPU is free beside a shard that wants one": (
        stepping,
        want_a_reset,
        r"CPUs of nodes \[0\] are free beside shards \[3\]",
    ),
    "a shard is idle beside a free slot": (
        stepping,
        lambda s: s.groups._with_unplayed.add(TrajectoryId(2)),
        r"shards \[3\] are idle",
    ),
    "the learner trains with what it lends": (
        split,
        lambda s: setattr(s.learner, "batch", object()),
        "the learner trains while its SMs are lent",
    ),
    "simulation keeps CPUs of another stage": (split, keep_the_learners_cpu, "simulation has CPUs"),
    "simulation runs on CPUs of another stage": (split, run_on_the_learners_cpu, "simulation runs on CPUs"),
    "a shard waits beside a free generator": (
        stepping,
        lambda s: setattr(s.chunk_level, "_min_batch", [1]),
        "env group 0 can be served beside a free generator",
    ),
}


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_what_is_wrong_is_named(name: str) -> None:
    situation, corrupt, complaint = CORRUPTIONS[name]
    scheduler = situation()
    invariants.check(scheduler)
    corrupt(scheduler)
    with pytest.raises(AssertionError, match=complaint):
        invariants.check(scheduler)


def test_a_run_that_ends_need_not_conserve_work() -> None:
    scheduler = stepping()
    scheduler.handle(e.StopRequested(reason="enough"), 0.0)
    want_a_reset(scheduler)
    invariants.check(scheduler)


def test_during_a_move_simulation_may_still_be_where_it_was() -> None:
    scheduler = split()
    assert scheduler.manager is not None
    smaller = replace(scheduler.manager.quotas.split, simulation=cpus(1), training=cpus(0, 3))
    scheduler.handle(e.SplitRequested(split=smaller), 0.0)
    assert isinstance(scheduler.step_level.phases[0], Running)
    invariants.check(scheduler)
