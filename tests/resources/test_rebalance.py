"""When resources are shared out again, and when not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ebrl.resources.allocation import Shape
from ebrl.resources.allocator import Choice, allocate
from ebrl.resources.rebalance import COOLDOWN, PATIENCE, Decision, Ratios, Rebalancer
from ebrl.resources.workload import BatchCosts, SimulationCosts, Workload

WORKLOAD = Workload(
    name="small",
    num_envs=64,
    chunk_len=8,
    trajectory_chunks=8,
    batch_trajectories=32,
    slack=2,
    epochs=1,
    unit="gpu",
    simulation=SimulationCosts(chunk_s=0.32),
    generation=BatchCosts(fixed_s=0.04, item_s=0.004, serial=0.1, saturation=0.9),
    training=BatchCosts(fixed_s=0.01, item_s=0.006, serial=0.05),
    shared_cpu_factor=3.0,
)
SHAPE = Shape(
    num_nodes=1, num_cpus=24, memory_bytes=2**40, num_gpus=1, num_sms=132, sm_step=8, device_memory_bytes=2**36
)
AS_PREDICTED = Ratios(chunk=1.0, generation=1.0, update=1.0)


def rebalancer(switch_s: float = 0.0) -> Rebalancer:
    choice = allocate(WORKLOAD, SHAPE)
    assert isinstance(choice, Choice)
    return Rebalancer(WORKLOAD, SHAPE, choice.best.allocation, switch_s=switch_s)


def decisions(subject: Rebalancer, ratios: Ratios, count: int) -> list[Decision]:
    return [found for _ in range(count) if (found := subject.sample(ratios)) is not None]


def test_what_goes_as_predicted_is_left_alone() -> None:
    subject = rebalancer()
    near = Ratios(chunk=1.14, generation=0.87, update=1.1)
    assert decisions(subject, AS_PREDICTED, 50) == decisions(subject, near, 50) == []


def test_a_slow_generator_gets_more_sms_after_twenty_samples() -> None:
    subject = rebalancer()
    before = subject.allocation
    assert decisions(subject, replace(AS_PREDICTED, generation=2.0), PATIENCE - 1) == []
    decision = subject.sample(replace(AS_PREDICTED, generation=2.0))
    assert decision is not None
    assert decision.accepted
    assert decision.sample == PATIENCE
    assert decision.allocation.generation_units > before.generation_units
    assert decision.reason.startswith("measured over predicted: generation × 2.00; a move gains")
    assert decision.gain > 0.05


def test_one_sample_as_predicted_begins_the_count_anew() -> None:
    subject = rebalancer()
    slow = replace(AS_PREDICTED, generation=2.0)
    for _ in range(5):
        assert decisions(subject, slow, PATIENCE - 1) == []
        assert subject.sample(AS_PREDICTED) is None


def test_afterwards_the_new_rates_are_what_is_predicted() -> None:
    subject = rebalancer()
    old = subject.prediction
    decisions(subject, replace(AS_PREDICTED, generation=2.0), PATIENCE)
    share = subject.prediction.generation_fixed_s / old.generation_fixed_s
    assert 1.0 < share < 2.0  # twice the work on more SMs
    assert decisions(subject, AS_PREDICTED, 100) == []


def test_what_gains_too_little_is_refused_once_and_remembered() -> None:
    subject = rebalancer()
    before = subject.allocation
    slow = replace(AS_PREDICTED, chunk=3.0)  # simulation binds the more: nobody can help it
    found = decisions(subject, slow, PATIENCE)
    assert [one.accepted for one in found] == [False]
    assert subject.allocation == before
    assert subject.workload.simulation.chunk_s == pytest.approx(3 * 0.32)
    assert decisions(subject, AS_PREDICTED, 100) == []


def test_a_move_that_costs_more_than_it_gains_is_refused() -> None:
    subject = rebalancer(switch_s=500.0)
    [decision] = decisions(subject, replace(AS_PREDICTED, generation=2.0), PATIENCE)
    assert not decision.accepted
    assert "want 5%" in decision.reason


def test_after_a_move_it_is_quiet_for_a_while() -> None:
    subject = rebalancer()
    decisions(subject, replace(AS_PREDICTED, generation=2.0), PATIENCE)
    slow = replace(AS_PREDICTED, update=2.0)
    assert decisions(subject, slow, COOLDOWN - 1) == []
    assert len(decisions(subject, slow, PATIENCE)) == 1


def test_a_stage_that_reports_rarely_is_believed_after_three_reports() -> None:
    subject = rebalancer()
    silent = replace(AS_PREDICTED, update=None)
    found = []
    for number in range(60):
        found += decisions(subject, replace(AS_PREDICTED, update=2.0) if number % 25 == 0 else silent, 1)
    assert [one.sample for one in found] == [51]


def test_shorter_trajectories_are_fewer_chunks_of_everything() -> None:
    subject = rebalancer()
    decisions(subject, Ratios(chunk=1.0, generation=1.0, update=0.69, trajectory=0.69), PATIENCE)
    assert subject.workload.trajectory_chunks == pytest.approx(8 * 0.69)
    assert subject.workload.training.item_s == pytest.approx(WORKLOAD.training.item_s)


def test_updates_that_still_train_on_longer_trajectories_say_nothing_of_shorter_ones() -> None:
    subject = rebalancer()
    decisions(subject, replace(AS_PREDICTED, trajectory=0.7), PATIENCE)
    assert subject.workload.trajectory_chunks == pytest.approx(0.7 * 8)
    assert subject.workload.training == WORKLOAD.training


def test_a_cpu_that_is_gone_is_answered_at_once() -> None:
    subject = rebalancer()
    decision = subject.set_num_cpus(12)
    assert decision.accepted
    assert decision.reason.startswith("12 CPUs instead of 24")
    taken = decision.allocation
    assert taken.simulation_cpus + (taken.generation_cpus if taken.cpu_sharing == "compute" else 0) == 12
