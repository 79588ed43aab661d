"""What habits make of a workload, and which allocation goes with a way to use GPUs."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebrl.resources.allocation import PERCENT, Shape, largest_batch, predict
from ebrl.resources.allocator import Candidate
from ebrl.resources.pool import Infeasible
from ebrl.resources.uses import GpuUse, Habits, allocation_for, executed_chunks, turns_s, with_habits
from ebrl.resources.workload import BatchCosts, SimulationCosts, Workload

WORKLOAD = Workload(
    name="small",
    num_envs=32,
    chunk_len=10,
    trajectory_chunks=30,
    batch_trajectories=32,
    slack=0,
    epochs=1,
    unit="gpu",
    simulation=SimulationCosts(
        chunk_s=9.0, env_step_s=0.02, observe_s=0.01, reset_s=0.5, episode_steps=200, horizon_steps=300
    ),
    generation=BatchCosts(fixed_s=0.1, item_s=0.01, saturation=0.6, memory_bytes=8, item_memory_bytes=1),
    training=BatchCosts(fixed_s=0.1, item_s=0.02, memory_bytes=20, item_memory_bytes=2),
    update_s=0.5,
    hand_over_s=2.0,
    minibatch_chunks=64,
)
SHAPE = Shape(
    num_nodes=1, num_cpus=16, memory_bytes=10**9, num_gpus=4, num_sms=108, sm_step=4, device_memory_bytes=10**6
)


def test_a_frame_per_chunk_and_episodes_that_end() -> None:
    found = with_habits(WORKLOAD, Habits())
    assert found.trajectory_chunks == found.trained_chunks == pytest.approx(20.45)  # the last one is cut somewhere
    assert found.simulation.chunk_s * 20.45 == pytest.approx(200 * 0.02 + 20 * 0.01 + 0.5)


def test_a_frame_per_env_step_and_episodes_to_the_horizon() -> None:
    found = with_habits(WORKLOAD, Habits(observe_every_step=True, run_to_horizon=True))
    assert found.trajectory_chunks == 30
    assert found.trained_chunks == pytest.approx(20.45)
    assert found.simulation.chunk_s == pytest.approx(10 * 0.03 + 0.5 * 10 / 300)


def test_padding_takes_trainings_time_only_where_it_is_masked() -> None:
    habits = Habits(run_to_horizon=True)
    left_out, masked = (with_habits(WORKLOAD, replace(habits, trains_on_padding=on)) for on in (False, True))
    assert masked.training_chunks == masked.trajectory_chunks == left_out.trajectory_chunks == 30
    allocations = [allocation_for("turns", one, SHAPE) for one in (left_out, masked)]
    assert all(isinstance(one, Candidate) for one in allocations)
    one = allocations[0].allocation  # type: ignore[union-attr]
    less, more = (predict(workload, SHAPE, one).update_s - 0.5 for workload in (left_out, masked))
    assert less < more
    assert with_habits(WORKLOAD, Habits(trains_on_padding=True)) == with_habits(WORKLOAD, Habits())


@given(st.integers(1, 100), st.booleans(), st.booleans())
def test_a_segment_is_like_so_many_chunks_of_an_episode(chunks: int, to_horizon: bool, masked: bool) -> None:
    habits = Habits(run_to_horizon=to_horizon, trains_on_padding=masked)
    episode, segment = with_habits(WORKLOAD, habits), with_habits(WORKLOAD, habits, segment_chunks=chunks)
    assert segment.trajectory_chunks == pytest.approx(chunks)
    assert segment.simulation == episode.simulation
    share = episode.trained_chunks / episode.trajectory_chunks
    assert segment.trained_chunks == pytest.approx(chunks * share)
    assert replace(segment, trajectory_chunks=0.0, trained_chunks=0.0) == replace(
        episode, trajectory_chunks=0.0, trained_chunks=0.0
    )


@given(st.integers(1, 12), st.integers(1, 60), st.integers(0, 60))
def test_the_mean_number_of_executed_chunks_is_that_of_the_lengths(length: int, least: int, more: int) -> None:
    """Against counting: lengths spread evenly over whole chunks, so that ends fall anywhere in the last one."""
    lengths = range(least * length + 1, (least + more) * length + length + 1)
    mean = sum(lengths) / len(lengths)
    simulation = replace(WORKLOAD.simulation, episode_steps=mean, horizon_steps=lengths[-1])
    counted = sum(math.ceil(one / length) for one in lengths) / len(lengths)
    expected = executed_chunks(replace(WORKLOAD, chunk_len=length, simulation=simulation))
    assert expected == pytest.approx(counted)
    fixed = replace(simulation, episode_steps=float(lengths[-1]))
    assert executed_chunks(replace(WORKLOAD, chunk_len=length, simulation=fixed)) == least + more + 1


def test_a_workload_that_does_not_know_its_parts_has_no_habits() -> None:
    unknown = replace(WORKLOAD, simulation=SimulationCosts(chunk_s=1.0))
    with pytest.raises(ValueError, match="small: seconds of env steps and observations are not known apart"):
        with_habits(unknown, Habits())


@pytest.mark.parametrize("use", get_args(GpuUse))
def test_every_use_has_an_allocation(use: GpuUse) -> None:
    found = allocation_for(use, WORKLOAD, SHAPE)
    assert isinstance(found, Candidate), found
    sharing = {"split": "split", "whole": "whole", "turns": "turns", "hand_over": "turns", "hybrid": "turns"}
    assert use == "best" or found.allocation.gpu_sharing == sharing[use]


def test_handing_over_gives_everything_to_one_stage_at_a_time() -> None:
    found = allocation_for("hand_over", WORKLOAD, SHAPE)
    assert isinstance(found, Candidate)
    one = found.allocation
    assert (one.num_generators, one.num_learners) == (4, 4)
    assert (one.generation_units, one.training_units) == (PERCENT, PERCENT)
    assert found == allocation_for("hand_over", replace(WORKLOAD, hand_over_s=0.0), SHAPE)  # there is memory for both
    assert turns_s("hand_over", WORKLOAD, SHAPE, one) == 0.0


@pytest.mark.parametrize(("hand_over_s", "micro_batch", "expected_s"), [(2.0, 32, 0.0), (0.01, 64, 0.02)])
def test_memory_is_handed_over_where_that_beats_smaller_batches(
    hand_over_s: float, micro_batch: int, expected_s: float
) -> None:
    """With micro-batches of 64 generation's 16 bytes and training's 148 are more than there is; with 32 they fit."""
    workload, shape = replace(WORKLOAD, hand_over_s=hand_over_s), replace(SHAPE, device_memory_bytes=150)
    found = allocation_for("hand_over", workload, shape)
    assert isinstance(found, Candidate)
    one = found.allocation
    assert (one.max_batch, one.micro_batch) == (8, micro_batch)
    assert turns_s("hand_over", workload, shape, one) == pytest.approx(expected_s)
    assert turns_s("split", workload, shape, one) == 0.0
    at_no_cost = predict(workload, shape, one).update_s
    assert found.prediction.update_s == pytest.approx(at_no_cost + expected_s)


def test_hybrid_generates_on_half_of_the_gpus_and_trains_on_all() -> None:
    found = allocation_for("hybrid", WORKLOAD, SHAPE)
    assert isinstance(found, Candidate)
    assert (found.allocation.num_generators, found.allocation.num_learners) == (2, 4)


@pytest.mark.parametrize("use", ["hand_over", "hybrid"])
def test_who_takes_turns_has_no_slack(use: GpuUse) -> None:
    with pytest.raises(ValueError, match="with slack 1: want 0, since stages take turns"):
        allocation_for(use, replace(WORKLOAD, slack=1), SHAPE)


def test_no_batch_is_larger_than_an_env_groups_part_of_it() -> None:
    found = allocation_for("hybrid", WORKLOAD, SHAPE, env_groups=2)
    assert isinstance(found, Candidate)
    assert found.allocation.max_batch == 8  # 16 environments of a group on two generators


def test_memory_of_one_stage_at_a_time_is_enough_to_hand_over() -> None:
    tight = replace(SHAPE, device_memory_bytes=25)
    assert isinstance(allocation_for("split", WORKLOAD, tight), Infeasible)
    found = allocation_for("hand_over", WORKLOAD, tight)
    assert isinstance(found, Candidate)
    assert found.allocation.micro_batch == 2
    assert turns_s("hand_over", WORKLOAD, tight, found.allocation) == 4.0
    short = allocation_for("hand_over", WORKLOAD, replace(SHAPE, device_memory_bytes=15))
    assert isinstance(short, Infeasible)
    assert short.budget == "device memory of each GPU"


def test_one_gpu_cannot_be_whole_for_each_stage() -> None:
    found = allocation_for("whole", WORKLOAD, replace(SHAPE, num_gpus=1))
    assert found == Infeasible("GPUs", 2, 1, "too few for gpu_use = 'whole'")


def test_without_gpus_the_use_does_not_matter() -> None:
    on_cpus = replace(WORKLOAD, unit="cpu")
    shape = replace(SHAPE, num_gpus=0, num_sms=0)
    assert allocation_for("whole", on_cpus, shape) == allocation_for("best", on_cpus, shape)


def test_env_groups_are_shared_out_over_generators() -> None:
    assert largest_batch(100, 0, 64, 4) == 100
    assert largest_batch(100, 2, 64, 4) == 8
    assert largest_batch(5, 2, 64, 4) == 5
    assert largest_batch(100, 8, 4, 4) == 1
