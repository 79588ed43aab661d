"""Longest first starves nobody: whoever wants a CPU gets one within a bound."""

from __future__ import annotations

from dataclasses import replace

from driving import NO_FAULTS, Run, all_costs, all_faults, drive, engine_for, plans, seeds
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ebrl.engines.virtual.costs import Costs
from ebrl.engines.virtual.faults import Faults
from ebrl.ids import CpuId, ShardId
from ebrl.scheduling import commands as c
from ebrl.scheduling import events as e
from ebrl.scheduling.plan import SchedulerPlan
from ebrl.scheduling.shards import PATIENCE


def longest_waits(run: Run, chunk_len: int) -> tuple[float, float]:
    """The longest wait for a CPU, and the longest that could be justified.

    Among shards of the same update one that became ready at t is overtaken only by those that became ready before
    t + PATIENCE · (largest estimate); after that at most every other shard runs one job before it. All that earlier
    updates still want goes first too: no more than all chunks of all trajectories that may be held, in so many grants
    each, and a reset for each. No estimate is above the largest time that was ever measured.
    """
    wants: dict[int, float] = {}
    began: dict[int, float] = {}
    longest_wait = longest_job = largest_estimate = 0.0
    for event, now, commands in run.records:
        if isinstance(event, e.StepsDone | e.ResetDone | e.EpisodeInvalid | e.EnvWorkerLost | e.EnvWorkerReady):
            longest_job = max(longest_job, now - began.pop(event.shard, now))
            wants.pop(event.shard, None)
        wants.update((shard, now) for shard in who_wants(event) if shard not in began)
        largest_estimate = max(largest_estimate, measured(event, chunk_len))
        for command in commands:
            if isinstance(command, c.StepEnv | c.ResetEnv):
                longest_wait = max(longest_wait, now - wants.pop(command.shard, now))
                began[command.shard] = now
    plan = run.scheduler.plan
    grants = -(-plan.chunk_len // (plan.quantum or plan.chunk_len))
    earlier = (plan.slack + 1) * plan.batch // plan.envs_per_shard * plan.trajectory_chunks * (grants + 1)
    return longest_wait, PATIENCE * largest_estimate + (plan.num_shards + earlier) * longest_job


def who_wants(event: e.Event) -> tuple[int, ...]:
    """Shards that want a CPU because of this event."""
    match event:
        case e.StepsDone(episode_ends=ends, chunk_over=over, shard=shard) if ends or not over:
            return (shard,)
        case e.EnvWorkerReady(shard=shard) | e.EpisodeInvalid(shard=shard):
            return (shard,)
        case e.ChunksReady(shards=shards):
            return shards
        case _:
            return ()


def measured(event: e.Event, chunk_len: int) -> float:
    """Seconds that a whole job would take at the rate that this event reports."""
    match event:
        case e.StepsDone(step_s=step_s, num_steps=num_steps):
            return chunk_len * step_s / num_steps
        case e.ResetDone(reset_s=reset_s):
            return reset_s
        case _:
            return 0.0


HASTE = SchedulerPlan(
    num_shards=3, nodes=((CpuId(0),),), chunk_len=4, trajectory_chunks=50, batch=3, slack=4, window=4, max_updates=4
)


@settings(max_examples=200)
@given(
    plan=plans().filter(lambda plan: not plan.whole_episodes),
    costs=all_costs(),
    faults=all_faults() | st.just(NO_FAULTS),
    seed=seeds,
)
@example(plan=HASTE, costs=Costs(shard_factors=(0.01, 1.0, 1.0), generation_alpha_s=0.0), faults=NO_FAULTS, seed=0)
def test_whoever_wants_a_cpu_gets_one_within_a_bound(
    plan: SchedulerPlan, costs: Costs, faults: Faults, seed: int
) -> None:
    run = drive(replace(plan, step_barrier=False), engine_for(plan, costs, faults=faults, seed=seed))
    wait, bound = longest_waits(run, plan.chunk_len)
    assert wait <= bound + 1e-9


def test_without_patience_the_short_one_would_starve() -> None:
    """The example above is one in which pure longest-first lets the short shard wait for ever."""
    costs = Costs(shard_factors=(0.01, 1.0, 1.0), generation_alpha_s=0.0)
    run = drive(HASTE, engine_for(HASTE, costs))
    played = [event.shard for event, _, _ in run.records if isinstance(event, e.StepsDone)]
    assert played[: len(played) // 2].count(ShardId(0)) > len(played) // 20
