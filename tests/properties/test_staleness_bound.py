"""The bound on staleness is not only kept but reached: a smaller one would be wrong."""

from __future__ import annotations

import pytest
from driving import drive, engine_for

from ebrl.engines.virtual.costs import Costs
from ebrl.ids import CpuId
from ebrl.scheduling.plan import SchedulerPlan

LONG_TAIL = Costs(
    env_step_s=0.01,
    env_step_sigma=1.5,
    shard_factors=(1.0, 1.0, 1.0, 40.0),
    reset_s=0.001,
    episode_steps=(1000,),
    generation_alpha_s=0.001,
    generation_beta_s=0.0,
    training_s=0.001,
    publish_s=0.001,
)


def worst_staleness(*, batch: int, slack: int, window: int) -> tuple[int, int]:
    """Largest staleness in a few runs with stragglers, and the bound."""
    num_shards = (slack + 1) * batch + 2
    plan = SchedulerPlan(
        num_shards=num_shards,
        nodes=(tuple(CpuId(cpu) for cpu in range(num_shards)),),
        chunk_len=4,
        trajectory_chunks=2,
        batch=batch,
        slack=slack,
        window=window,
        max_updates=60,
    )
    worst, bound = 0, 0
    for seed in range(4):
        run = drive(plan, engine_for(plan, LONG_TAIL, seed=seed))
        worst, bound = max(worst, *run.observer.staleness), run.scheduler.gate.bound
    return worst, bound


@pytest.mark.parametrize("window", [1, 2, 3, 4])
@pytest.mark.parametrize("slack", [1, 2, 3, 4])
def test_stragglers_reach_the_bound(slack: int, window: int) -> None:
    worst, bound = worst_staleness(batch=1, slack=slack, window=window)
    assert worst == bound == slack + window - 1


@pytest.mark.parametrize(("slack", "window", "bound"), [(1, 1, 1), (1, 2, 2), (1, 4, 3), (2, 3, 3)])
def test_stragglers_reach_the_bound_in_batches_of_two(slack: int, window: int, bound: int) -> None:
    assert worst_staleness(batch=2, slack=slack, window=window) == (bound, (2 * (slack + 1) + window - 2) // 2)


@pytest.mark.parametrize("window", [1, 2, 3, 4])
def test_without_slack_nothing_can_overtake(window: int) -> None:
    worst, _ = worst_staleness(batch=2, slack=0, window=window)
    assert worst == 0
