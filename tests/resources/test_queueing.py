"""The roofline's formulas against exact solutions and worked numbers."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebrl.resources.queueing import (
    StageTimes,
    bounds,
    expected_max,
    greedy,
    groups,
    rollout_rate,
    roofline,
)

TIMES = StageTimes(
    num_envs=64,
    num_cpus=16,
    num_generators=1,
    max_batch=64,
    chunk_s=0.32,
    chunk_sd_s=0.064,
    alpha_s=0.05,
    beta_s=0.004,
    update_s=4.0,
    batch=32,
    slack=1,
    trajectory_chunks=8,
)


def exact(num_jobs: int, demands_s: list[float], delay_s: float) -> float:
    """Mean value analysis of the closed network, job by job."""
    queues = [0.0] * len(demands_s)
    rate = 0.0
    for jobs in range(1, num_jobs + 1):
        residence = [demand * (1 + queue) for demand, queue in zip(demands_s, queues, strict=True)]
        rate = jobs / (sum(residence) + delay_s)
        queues = [rate * one for one in residence]
    return rate


@given(
    num_jobs=st.integers(1, 60),
    demands_s=st.lists(st.floats(0.001, 1.0), min_size=1, max_size=4),
    delay_s=st.floats(0.0, 5.0),
)
def test_the_exact_rate_lies_between_the_bounds(num_jobs: int, demands_s: list[float], delay_s: float) -> None:
    found = bounds(num_jobs, tuple(demands_s), delay_s)
    rate = exact(num_jobs, demands_s, delay_s)
    room = 1 + 1e-9
    assert found.lower <= found.balanced_lower * room
    assert found.balanced_lower <= rate * room
    assert rate <= found.balanced_upper * room
    assert found.balanced_upper <= found.upper * room


def test_greedy_batches_keep_littles_law() -> None:
    rate = greedy(64, 64, 0.32, 0.12, 0.006)
    batch = rate * 0.12 / (1 - rate * 0.006)
    assert rate * 0.32 + 1.5 * batch == pytest.approx(64)


def test_greedy_is_bounded_by_cpus_and_by_the_largest_batch() -> None:
    assert greedy(64, 4, 0.32, 0.001, 0.0) == pytest.approx(4 / 0.32)
    assert greedy(64, 64, 0.01, 0.1, 0.0, max_batch=2) == pytest.approx(20.0)
    assert greedy(64, 64, 0.32, 0.12, 0.006, num_generators=2) > greedy(64, 64, 0.32, 0.12, 0.006)


def test_the_largest_of_some_normal_numbers() -> None:
    assert expected_max(1) == 0.0
    assert expected_max(2) == pytest.approx(0.564, abs=0.03)
    assert [expected_max(count) for count in (16, 64, 256)] == pytest.approx([1.77, 2.34, 2.82], abs=0.01)


def test_one_group_pays_for_its_slowest_member() -> None:
    round_s = 0.32 + 0.064 * expected_max(16) + 0.05 + 0.004 * 16
    assert groups(16, 16, 1, 0.32, 0.064, 0.05, 0.004) == pytest.approx(16 / round_s)


def test_the_largest_batch_decides_how_a_group_is_shared_out() -> None:
    def rate(num_groups: int = 1, **more: int) -> float:
        return groups(64, 64, num_groups, 0.32, 0.0, 0.05, 0.004, **more)

    whole = 64 / (0.32 + 0.05 + 0.004 * 64)
    assert rate() == rate(num_generators=2) == pytest.approx(whole)  # it stays together
    assert rate(num_generators=4, max_batch=16) == pytest.approx(64 / (0.32 + 0.05 + 0.004 * 16))
    assert rate(num_generators=4, max_batch=8) == pytest.approx(64 / (0.32 + 2 * (0.05 + 0.004 * 8)))
    assert rate(num_generators=5, max_batch=16) == rate(num_generators=4, max_batch=16)


def test_groups_are_served_side_by_side() -> None:
    one_s = 2.0 + 0.004 * 16
    busy = groups(64, 64, 4, 0.32, 0.0, 2.0, 0.004, max_batch=16)
    assert busy == pytest.approx(64 / (4 * one_s))
    assert groups(64, 64, 4, 0.32, 0.0, 2.0, 0.004, num_generators=2, max_batch=16) == pytest.approx(2 * busy)
    idle = 64 / (0.32 + one_s)  # each group has its own generator, which waits while the group is simulated
    assert groups(64, 64, 4, 0.32, 0.0, 2.0, 0.004, num_generators=16, max_batch=16) == pytest.approx(idle)


def test_slots_in_an_update_are_not_in_rollout() -> None:
    """A round of all slots takes as long as one trajectory with so many beside it, and one update."""
    times = replace(TIMES, num_cpus=64)
    rate = roofline(times).limits["staleness"]
    in_rollout = 2 * 32 - rate * 4.0
    first_s = 0.05 + 0.004 * 32 + 0.32 + 0.064 * 8**0.5 * expected_max(32)
    lasts_s = first_s + 7 * in_rollout / rollout_rate(times, in_rollout)
    assert rate == pytest.approx(2 * 32 / (lasts_s + 4.0), rel=0.01)


def test_with_slack_to_spare_slots_do_not_limit() -> None:
    found = roofline(replace(TIMES, slack=20)).limits
    assert found["staleness"] > found["simulation with generation"]


def test_the_lowest_limit_binds() -> None:
    cpus = roofline(replace(TIMES, num_cpus=64, update_s=3.0))
    assert (cpus.binding, cpus.trajectories_per_s) == ("staleness", cpus.limits["staleness"])
    assert roofline(replace(TIMES, update_s=0.1, slack=8)).binding == "simulation"
    assert roofline(replace(TIMES, update_s=50.0)).binding == "training"
    assert roofline(replace(TIMES, num_cpus=999, alpha_s=2.0, update_s=0.1, slack=20)).binding == "generation"
    assert (
        roofline(replace(TIMES, num_cpus=48, num_envs=48, alpha_s=0.12, update_s=0.1, slack=20)).binding
        == "environments"
    )
    assert roofline(replace(TIMES, update_s=0.1, slack=9, host_cpus=1, host_chunk_s=1.0)).binding == "host CPUs"


def test_without_slack_the_stages_take_turns() -> None:
    times = replace(TIMES, slack=0, num_envs=32)
    first_s = 0.05 + 0.004 * 32 + 2 * 0.32 + 0.064 * 8**0.5 * expected_max(32)
    round_s = first_s + 7 * 32 / rollout_rate(times, 32) + 4.0
    assert roofline(times).limits["staleness"] == pytest.approx(32 / round_s)
    half = replace(times, num_envs=16)  # the second half of a batch begins when the first is over
    assert roofline(half).limits["staleness"] < roofline(times).limits["staleness"]


def test_groups_have_their_own_formula() -> None:
    times = replace(TIMES, env_groups=2, num_generators=2, max_batch=8)
    expected = groups(64, 16, 2, 0.32, 0.064, 0.05, 0.004, num_generators=2, max_batch=8)
    assert rollout_rate(times, 64) == pytest.approx(expected)
