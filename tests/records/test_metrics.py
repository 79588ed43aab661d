"""What a run did, counted from its events."""

from __future__ import annotations

import dataclasses

import pytest

from ebrl.engines.virtual.costs import Costs
from ebrl.engines.virtual.engine import VirtualEngine
from ebrl.engines.virtual.faults import Faults
from ebrl.ids import CpuId
from ebrl.records.metrics import RunMetrics
from ebrl.runtime.loop import run
from ebrl.scheduling.events import Event
from ebrl.scheduling.scheduler import Scheduler
from ebrl.testing.build import (
    all_ready,
    chunks_ready,
    episode_end,
    make_plan,
    reset_done,
    resets,
    scheduler_with,
    steps_done,
)


def test_every_environment_of_a_shard_counts() -> None:
    plan = make_plan(envs_per_shard=3, batch=3)
    scheduler = scheduler_with(all_ready(plan), resets(plan), plan=plan)
    metrics = RunMetrics(scheduler)
    ends = (episode_end(0, num_steps=2), episode_end(2, success=False, num_steps=3))
    last = steps_done(0, env_steps=9, step_s=2.0, ends=ends)
    events: list[tuple[float, Event]] = [
        (0.0, chunks_ready([0, 1])),
        (4.0, last),
        (5.0, reset_done(0, reset_s=1.0)),
    ]
    for now, event in events:
        scheduler.handle(event, now)
        metrics.see(now, event)
    totals = metrics.totals()
    assert (totals["env_steps"], totals["episodes"], totals["success_rate_training"]) == (9, 2, 0.5)
    assert totals["generation_batch_mean"] == 3.0
    assert totals["busy"]["simulation"] == pytest.approx((2.0 + 1.0) / 2 / 5)
    assert totals["reset_fraction_of_simulation"] == pytest.approx(1 / 3)
    assert metrics.row()["rollout/episode_steps_mean"] == 2.5


def test_broken_images_are_counted_for_each_update_and_for_the_run() -> None:
    metrics = RunMetrics(Scheduler(make_plan()))
    rows = []
    for constant, repeated in ((2, 3), (5, 0), (0, 0)):
        end = dataclasses.replace(episode_end(), constant_frames=constant, repeated_frames=repeated)
        metrics.see(0.0, steps_done(0, ends=(end,)))
        rows.append(metrics.row())
    assert [row["simulation/constant_frames"] for row in rows] == [2, 5, 0]
    assert [row["simulation/repeated_frames"] for row in rows] == [3, 0, 0]
    totals = metrics.totals()
    assert (totals["constant_frames"], totals["repeated_frames"]) == (7, 3)


def test_cpus_that_are_granted_together_count_as_one() -> None:
    plan = make_plan(nodes=((CpuId(0), CpuId(1)), (CpuId(0), CpuId(1))), cpus_per_shard=2)
    metrics = RunMetrics(scheduler_with(all_ready(plan), plan=plan))
    metrics.see(0.0, reset_done(0, reset_s=1.0))
    metrics.see(1.0, reset_done(1, reset_s=1.0))
    assert metrics.totals()["busy"]["simulation"] == 1.0


def test_siblings_that_were_played_again_are_counted() -> None:
    plan = make_plan(num_shards=4, whole_episodes=True, siblings=3, batch=6, max_updates=5, max_env_failures=99)
    scheduler = Scheduler(plan)
    metrics = RunMetrics(scheduler)
    engine = VirtualEngine(
        num_shards=4, chunk_len=4, costs=Costs(episode_steps=(9,)), faults=Faults(episode_invalid=0.1), seed=1
    )
    run(scheduler.handle, engine, lambda now, event, commands: metrics.see(now, event))
    totals = metrics.totals()
    assert totals["siblings_replaced"] == totals["ledger"]["dropped"]["invalid"] > 0
    assert totals["ledger"]["trained"] == 30
    assert totals["ledger_balances"]
