from __future__ import annotations

import pytest

from ebrl.ids import PolicyVersion, SlotId, TrajectoryId
from ebrl.scheduling.siblings import Beginning, SiblingGroups
from ebrl.scheduling.staleness import Batch, Ledger, StalenessGate

V0, V1, V3 = PolicyVersion(0), PolicyVersion(1), PolicyVersion(3)


def groups(*, size: int, batch: int = 1, slack: int = 1) -> SiblingGroups:
    return SiblingGroups(StalenessGate(batch=batch, slack=slack, window=1, unit=size), size=size)


def begun(trajectory: int, slot: int, group: int, *, opens: bool = False) -> Beginning:
    return Beginning(TrajectoryId(trajectory), SlotId(slot), group, opens)


def drop(its: SiblingGroups, trajectory: int, slot: int, *, in_use: bool = False) -> bool:
    return its.drop(TrajectoryId(trajectory), SlotId(slot), "died", in_use=in_use)


def complete(its: SiblingGroups, *trajectories: int, version: PolicyVersion = V0) -> None:
    for trajectory in trajectories:
        its.complete(TrajectoryId(trajectory), SlotId(trajectory), version)


def all_begun(*, size: int) -> SiblingGroups:
    its = groups(size=size)
    while its.may_begin:
        its.begin()
    return its


def test_a_group_has_neighbouring_slots_and_opens_once() -> None:
    its = groups(size=2)
    assert [its.begin() for _ in range(4)] == [
        begun(0, 0, 0, opens=True),
        begun(1, 1, 0),
        begun(2, 2, 1, opens=True),
        begun(3, 3, 1),
    ]
    assert (its.may_begin, its.num_begun) == (False, 2)
    assert its.gate.ledger == Ledger(admitted=4)


def test_a_group_trains_when_its_last_member_is_complete() -> None:
    its = all_begun(size=2)
    complete(its, 1, version=V1)
    complete(its, 2, 3)
    assert its.take_batch() is None
    complete(its, 0, version=V3)
    assert its.take_batch() == Batch(
        (TrajectoryId(0), TrajectoryId(1)), (SlotId(0), SlotId(1)), oldest_versions=(V3, V1)
    )


def test_a_trajectory_has_the_rank_of_the_update_that_will_train_on_it() -> None:
    its = groups(size=2, batch=2, slack=1)
    assert its.rank_of(None) == 0
    numbers = [its.begin().trajectory for _ in range(7)]
    assert [its.rank_of(number) for number in numbers] == [0, 0, 0, 0, 1, 1, 1]
    assert its.rank_of(None) == 2
    drop(its, 0, 0)
    again = its.begin()
    assert (again.group, its.rank_of(again.trajectory)) == (0, 0)


def test_slots_are_free_when_the_weights_are_live() -> None:
    its = all_begun(size=2)
    complete(its, 0, 1)
    its.take_batch()
    its.trained(V1)
    assert not its.may_begin
    its.gate.live(V1)
    assert its.begin() == begun(4, 0, 2, opens=True)
    assert its.gate.ledger == Ledger(admitted=6, trained=2)


def test_a_lost_sibling_is_played_again_before_any_other_begins() -> None:
    its = groups(size=2)
    its.begin()
    its.begin()
    its.begin()
    assert drop(its, 0, 0)
    assert [its.begin(), its.begin()] == [begun(3, 0, 0), begun(4, 3, 1)]
    assert its.gate.ledger == Ledger(admitted=5, dropped={"died": 1})


def test_a_slot_that_a_generator_writes_to_is_not_played_again_yet() -> None:
    its = all_begun(size=2)
    assert drop(its, 0, 0, in_use=True)
    assert not its.may_begin
    its.release((SlotId(0),))
    assert its.begin() == begun(4, 0, 0)


def test_a_trajectory_without_siblings_is_simply_dropped() -> None:
    its = all_begun(size=1)
    assert drop(its, 0, 0)
    assert its.begin() == begun(2, 0, 2, opens=True)
    assert its.gate.ledger == Ledger(admitted=3, dropped={"died": 1})


def test_a_late_group_is_dropped_whole_and_its_slots_are_free_when_nobody_writes() -> None:
    its = all_begun(size=2)
    complete(its, 0)
    assert its.expire(0, "late") == [(TrajectoryId(0), SlotId(0)), (TrajectoryId(1), SlotId(1))]
    assert (its.is_dropped(TrajectoryId(1)), its.is_dropped(TrajectoryId(2))) == (True, False)
    assert not its.may_begin
    its.leave(TrajectoryId(1))
    assert its.begin() == begun(4, 0, 2, opens=True)
    assert its.gate.ledger == Ledger(admitted=6, dropped={"late": 2})


def test_a_member_of_a_late_group_that_is_lost_is_not_dropped_again() -> None:
    its = all_begun(size=2)
    its.expire(0, "late")
    its.leave(TrajectoryId(1))
    assert not drop(its, 0, 0, in_use=True)
    assert not its.may_begin
    its.release((SlotId(0),))
    assert its.begin() == begun(4, 0, 2, opens=True)
    assert its.gate.ledger == Ledger(admitted=6, dropped={"late": 2})


def test_members_of_a_late_group_that_were_never_begun_are_gone_too() -> None:
    its = groups(size=3)
    its.begin()
    assert its.expire(0, "late") == [(TrajectoryId(0), SlotId(0))]
    assert its.begin() == begun(1, 3, 1, opens=True)
    assert its.gate.ledger.dropped == {"late": 3}


@pytest.mark.parametrize("group", [0, 1, 7])
def test_a_complete_or_unknown_group_cannot_be_late(group: int) -> None:
    its = groups(size=2)
    its.begin()
    its.begin()
    complete(its, 0, 1)
    assert its.expire(group, "late") == []
    assert its.gate.ledger.dropped == {}


def test_a_late_group_expires_once() -> None:
    its = all_begun(size=2)
    assert its.expire(0, "late")
    assert its.expire(0, "late") == []


def test_a_refused_batch_is_dropped_with_all_siblings() -> None:
    its = all_begun(size=2)
    complete(its, 0, 1)
    its.take_batch()
    assert its.refuse_training("skipped") == [(TrajectoryId(0), SlotId(0)), (TrajectoryId(1), SlotId(1))]
    assert its.gate.ledger.dropped == {"skipped": 2}
    assert its.begin() == begun(4, 0, 2, opens=True)


def test_a_member_of_a_late_group_that_is_complete_all_the_same_trains_nobody() -> None:
    its = all_begun(size=2)
    its.expire(0, "late")
    complete(its, 0, 1)
    assert its.take_batch() is None
    assert its.gate.ledger == Ledger(admitted=4, dropped={"late": 2})
    assert its.begin() == begun(4, 0, 2, opens=True)
