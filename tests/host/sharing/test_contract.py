"""What every back-end promises, whatever is behind it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sharing_rigs import MOVING, RIGS, Rig, ends, rig_of

from ebrl.errors import UsageError
from ebrl.host.sharing.base import STAGES, Split, Stage, other
from ebrl.host.sharing.gate import GRACE_S

NOWHERE = Split(generation=10_000, training=1)


@pytest.fixture(params=RIGS)
def rig(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    with rig_of(request.param, tmp_path, monkeypatch) as made:
        yield made


@pytest.fixture(params=MOVING)
def moving(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    """A rig whose back-end has a choice of splits."""
    with rig_of(request.param, tmp_path, monkeypatch) as made:
        yield made


def switch(rig: Rig, split: Split) -> None:
    """All the way, whichever stage has to go first."""
    assert rig.sharing.request(split, 0.0)
    for stage in (*STAGES, *STAGES):
        if rig.sharing.split(stage) != split:
            rig.pass_gate(stage)
    if rig.sharing.split("training") != split:  # they exchange all they have
        rig.sharing.park("generation", 0.0)
        rig.pass_gate("training")
        rig.pass_gate("generation")


def in_force(rig: Rig) -> dict[Stage, int]:
    found = rig.sharing.readback()
    return {stage: found.of(stage).units for stage in STAGES}


def test_it_works_here_and_says_of_what_it_has_how_much(rig: Rig) -> None:
    found = rig.sharing.probe()
    assert found.works
    assert found.total >= 2
    assert 0 <= found.step <= found.total
    assert found == rig.sharing.probe()


def test_the_table_ascends_and_gives_out_no_more_than_there_is(rig: Rig) -> None:
    total = rig.sharing.probe().total
    own = [split for split in rig.sharing.table() if not split.shared]
    shared = rig.sharing.table()[len(own) :]
    assert all(0 < split.generation + split.training <= total for split in own)
    assert own == sorted(set(own), key=lambda split: (split.generation, -split.training))
    assert shared in ((), (Split(generation=total, training=total, shared=True),))


def test_it_begins_at_an_entry_of_its_table_and_has_what_that_says(rig: Rig) -> None:
    split = rig.sharing.split("generation")
    assert split in rig.sharing.table()
    assert split == rig.sharing.split("training")
    assert in_force(rig) == {stage: split.of(stage) for stage in STAGES}


def test_what_is_not_in_the_table_is_refused(rig: Rig) -> None:
    before = rig.sharing.split("generation")
    assert not rig.sharing.request(NOWHERE, 0.0)
    assert not rig.pass_gate("generation")
    assert rig.sharing.split("generation") == before
    with pytest.raises(UsageError, match=f"sharing {rig.sharing.name}: cannot split 10000/1; the nearest that it can"):
        rig.sharing.prepare(NOWHERE)


def test_to_want_what_is_there_changes_nothing(rig: Rig) -> None:
    split = rig.sharing.split("generation")
    assert rig.sharing.request(split, 0.0)
    assert [rig.pass_gate(stage) for stage in STAGES] == [False, False]
    assert rig.sharing.readback().epoch == 0


def test_every_split_is_in_force_once_both_have_passed_their_gates(rig: Rig) -> None:
    for split in (*rig.sharing.table(), *reversed(rig.sharing.table())):
        switch(rig, split)
        assert in_force(rig) == {stage: split.of(stage) for stage in STAGES}
        found = rig.sharing.readback()
        assert found.forced == 0
        assert split.shared or not set(found.generation.ids) & set(found.training.ids)
        for stage in STAGES:
            rig.work(stage)
    assert rig.gpu.disorders() == []


def test_work_under_way_never_meets_the_others_on_a_unit_that_only_one_has(moving: Rig) -> None:
    one, two = ends(moving.sharing.table())
    middle = moving.sharing.split("generation")
    for split in (one, two, middle, two, one, middle):
        for stage in STAGES:
            moving.work(stage)
        switch(moving, split)
    for stage in STAGES:
        moving.work(stage)
    assert (moving.gpu.overlaps(), moving.gpu.disorders()) == ([], [])


def test_a_second_request_waits_for_the_first(moving: Rig) -> None:
    one, two = ends(moving.sharing.table())
    switch(moving, one)
    assert moving.sharing.request(two, 0.0)
    assert not moving.sharing.request(one, 0.0)
    moving.sharing.park("training", 0.0)
    moving.pass_gate("generation")
    moving.pass_gate("training")
    assert moving.sharing.request(one, 0.0)
    assert moving.sharing.readback().epoch in (2, 3)


def test_who_gains_goes_on_with_what_it_has_until_the_other_has_given_up(moving: Rig) -> None:
    one, two = ends(moving.sharing.table())
    total = moving.sharing.probe().total
    switch(moving, two)
    moving.pass_gate("training")
    moving.sharing.request(one, 0.0)
    if moving.sharing.split("training") == two:  # it has some, so it did not park
        assert not moving.pass_gate("training")  # returns at once
        moving.work("training")
    assert moving.pass_gate("generation") or moving.sharing.name == "mig"
    assert sum(in_force(moving).values()) <= total
    moving.sharing.park("generation", 0.0)
    moving.pass_gate("training")
    moving.pass_gate("generation")
    assert moving.sharing.split("training") == moving.sharing.split("generation") == one
    assert sum(in_force(moving).values()) <= total
    assert moving.sharing.readback().forced == 0


def test_what_is_not_given_up_in_time_is_taken_and_counted(moving: Rig) -> None:
    one, two = ends(moving.sharing.table())
    switch(moving, one)
    moving.sharing.request(two, 100.0)
    assert not moving.pass_gate("generation", 100.0)
    assert moving.pass_gate("generation", 100.0 + GRACE_S)
    assert moving.sharing.readback().forced == 1
    moving.pass_gate("training", 101.0)
    assert in_force(moving) == {stage: two.of(stage) for stage in STAGES}


@pytest.mark.parametrize("parked", STAGES)
def test_a_stage_that_is_parked_holds_up_neither_the_other_nor_the_switch(moving: Rig, parked: Stage) -> None:
    one, two = ends(moving.sharing.table())
    switch(moving, one)
    moving.work(parked)
    moving.sharing.park(parked, 0.0)
    assert moving.sharing.request(two, 0.0)
    moving.pass_gate(other(parked))
    assert moving.sharing.split(other(parked)) == two
    assert moving.sharing.request(one, 0.0)
    assert moving.sharing.readback().forced == 0
    moving.work(other(parked))
    assert moving.gpu.overlaps() == []


def test_a_process_gets_an_environment_of_text(rig: Rig) -> None:
    for split in rig.sharing.table():
        for stage in STAGES:
            found = rig.sharing.environment(stage, split)
            assert all(isinstance(text, str) for pair in found.items() for text in pair)


def test_closing_twice_is_closing_once_and_nothing_works_afterwards(rig: Rig) -> None:
    for stage in STAGES:
        rig.work(stage)
    rig.end()
    rig.sharing.close()
    rig.sharing.close()
    assert not rig.sharing.request(rig.sharing.table()[0], 0.0)
    assert not rig.sharing.gate("training", 0.0)
    assert not rig.sharing.probe().works
    with pytest.raises(RuntimeError, match=f"sharing {rig.sharing.name} was closed"):
        rig.sharing.lane("training")


def test_one_that_never_began_can_be_closed(rig: Rig, tmp_path: Path) -> None:
    (tmp_path / "again").mkdir()
    fresh = RIGS[rig.sharing.name](tmp_path / "again").sharing
    fresh.probe()
    fresh.close()
    with pytest.raises(RuntimeError, match="was closed"):
        fresh.table()
