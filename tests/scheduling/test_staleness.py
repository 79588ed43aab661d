from __future__ import annotations

import pytest

from ebrl.ids import PolicyVersion, SlotId
from ebrl.scheduling.staleness import Ledger, StalenessGate

V0, V1 = PolicyVersion(0), PolicyVersion(1)


def full_gate(*, batch: int = 2, slack: int = 1, window: int = 1) -> StalenessGate:
    """A gate through which as many as possible have begun."""
    gate = StalenessGate(batch=batch, slack=slack, window=window)
    while gate.may_admit:
        gate.admit()
    return gate


def complete(gate: StalenessGate, *trajectories: int) -> None:
    slots = dict(gate._slot)
    for trajectory in slots:
        if trajectory in trajectories:
            gate.complete(trajectory, V0)


def taken(gate: StalenessGate) -> tuple[int, ...]:
    batch = gate.take_batch()
    return () if batch is None else batch.trajectories


@pytest.mark.parametrize(
    ("batch", "slack", "window", "bound"), [(1, 0, 1, 0), (8, 0, 1, 0), (2, 1, 1, 1), (2, 1, 4, 3), (4, 4, 4, 5)]
)
def test_capacity_and_window_bound_the_staleness(batch: int, slack: int, window: int, bound: int) -> None:
    gate = StalenessGate(batch=batch, slack=slack, window=window)
    assert (gate.capacity, gate.bound) == ((slack + 1) * batch, bound)


def test_trajectories_begin_in_slots_until_all_are_taken() -> None:
    gate = StalenessGate(batch=1, slack=1, window=1)
    assert [gate.admit(), gate.admit()] == [(0, 0), (1, 1)]
    assert not gate.may_admit
    assert (gate.num_held, gate.num_held_untrained, gate.num_complete) == (2, 2, 0)


def test_a_batch_waits_for_all_its_members() -> None:
    gate = full_gate()
    complete(gate, 0)
    assert gate.take_batch() is None
    complete(gate, 1)
    assert gate.num_complete == 2
    batch = gate.take_batch()
    assert batch is not None
    assert (batch.trajectories, batch.slots, batch.oldest_versions) == ((0, 1), (0, 1), (0, 0))


def test_window_one_is_strictly_in_order() -> None:
    gate = full_gate(window=1)
    complete(gate, 1, 2, 3)
    assert taken(gate) == ()
    complete(gate, 0)
    assert taken(gate) == (0, 1)


def test_a_wider_window_lets_a_straggler_be_overtaken() -> None:
    gate = full_gate(window=3)
    complete(gate, 1, 2, 3)
    assert taken(gate) == (1, 2)


def test_but_not_beyond_the_window() -> None:
    gate = full_gate(window=2)
    complete(gate, 1, 2, 3)
    assert taken(gate) == ()
    complete(gate, 0)
    assert taken(gate) == (0, 1)


def test_members_train_in_admission_order() -> None:
    gate = full_gate(window=2)
    complete(gate, 1)
    complete(gate, 0)
    assert taken(gate) == (0, 1)


def test_one_batch_trains_at_a_time() -> None:
    gate = full_gate()
    complete(gate, 0, 1, 2, 3)
    assert taken(gate) == (0, 1)
    assert taken(gate) == ()
    gate.trained(V1)
    assert taken(gate) == (2, 3)


def test_a_slot_is_free_when_its_weights_are_live_and_not_before() -> None:
    gate = full_gate()
    complete(gate, 0, 1)
    taken(gate)
    assert not gate.may_admit
    gate.trained(V1)
    gate.live(V0)
    assert not gate.may_admit
    assert (gate.num_held, gate.num_held_untrained, gate.ledger.trained) == (4, 2, 2)
    gate.live(V1)
    assert [gate.admit(), gate.admit()] == [(4, 0), (5, 1)]
    assert not gate.may_admit


def test_live_weights_free_the_slots_of_all_older_ones() -> None:
    gate = full_gate()
    complete(gate, 0, 1, 2, 3)
    for version in (1, 2):
        taken(gate)
        gate.trained(PolicyVersion(version))
    gate.live(PolicyVersion(2))
    assert (gate.num_held, gate.live_version) == (0, 2)


def test_a_dropped_trajectory_frees_its_slot_and_holds_nobody_up() -> None:
    gate = full_gate()
    complete(gate, 1, 2)
    trajectory = gate._unconsumed[0]
    gate.drop(trajectory, "died")
    assert not gate.may_admit
    gate.release((SlotId(0),))
    assert gate.may_admit
    assert gate.ledger.dropped == {"died": 1}
    assert taken(gate) == (1, 2)


def test_a_refused_batch_is_dropped() -> None:
    gate = full_gate()
    complete(gate, 0, 1)
    taken(gate)
    assert gate.refuse_training("update_skipped") == (0, 1)
    assert gate.ledger.dropped == {"update_skipped": 2}
    assert gate.num_held == 2


def test_at_the_end_everything_untrained_is_abandoned() -> None:
    gate = full_gate()
    complete(gate, 0, 1, 2)
    taken(gate)
    gate.abandon_all()
    assert (gate.ledger, gate.num_held, gate.num_complete) == (Ledger(admitted=4, abandoned=4), 0, 0)
    assert gate.ledger.balances(0)


def test_a_ledger_that_lost_one_does_not_balance() -> None:
    assert Ledger(admitted=6, trained=2, dropped={"died": 1}, abandoned=1).balances(2)
    assert not Ledger(admitted=6, trained=2, dropped={"died": 1}, abandoned=1).balances(1)
