"""Turns: shares over time, and nobody starves. Time is what the test says it is."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sharing_fakes import Cuda, Gpu

from ebrl.host.sharing.base import STAGES, Split, Stage, other
from ebrl.host.sharing.time_slice import CREDIT_S, TimeSlice, Turns

LENGTHS = st.sampled_from([0.0, 0.01, 0.1, 0.3])


def both_want(turns: Turns, lengths: dict[Stage, float], *, until_s: float) -> dict[Stage, float]:
    """Both ask all the time; the time that each had."""
    now, before = 0.0, dict(turns.used_s)
    while now < until_s:
        for stage in STAGES:
            turns.ask(stage)
        first = next(stage for stage in STAGES if turns.may_begin(stage))
        turns.begin(first, now)
        now += lengths[first]
        turns.end(now)
    return {stage: turns.used_s[stage] - before[stage] for stage in STAGES}


@pytest.mark.parametrize("percent", [10, 25, 50, 90])
def test_who_both_want_it_get_their_shares_however_long_their_turns_are(percent: int) -> None:
    turns = Turns({"generation": percent, "training": 100 - percent})
    used = both_want(turns, {"generation": 0.01, "training": 0.3}, until_s=100.0)
    assert used["generation"] / sum(used.values()) == pytest.approx(percent / 100, abs=0.03)


def test_who_is_alone_has_it_at_once() -> None:
    turns = Turns({"generation": 5, "training": 95})
    for now in range(10):
        turns.ask("generation")
        assert turns.may_begin("generation")
        turns.begin("generation", float(now))
        turns.end(now + 1.0)
    assert turns.used_s == {"generation": 10.0, "training": 0.0}


def test_who_did_not_want_it_for_long_cannot_keep_the_other_out_for_long() -> None:
    turns = Turns({"generation": 50, "training": 50})
    turns.ask("generation")
    turns.begin("generation", 0.0)
    turns.end(1000.0)
    used = both_want(turns, dict.fromkeys(STAGES, 0.1), until_s=3.0)
    assert used["training"] - used["generation"] <= CREDIT_S + 0.2


def test_turns_too_short_to_measure_alternate() -> None:
    turns = Turns({"generation": 50, "training": 50})
    order = []
    for _ in range(6):
        for stage in STAGES:
            turns.ask(stage)
        first = next(stage for stage in STAGES if turns.may_begin(stage))
        order.append(first)
        turns.begin(first, 0.0)
        turns.end(0.0)
    assert order == ["generation", "training"] * 3


def test_who_gives_up_is_waited_for_no_longer() -> None:
    turns = Turns({"generation": 50, "training": 50})
    for stage in STAGES:
        turns.ask(stage)
    assert not turns.may_begin("training")
    turns.give_up("generation")
    assert turns.may_begin("training")


@given(
    percent=st.integers(5, 95),
    steps=st.lists(st.tuples(st.sampled_from(STAGES), LENGTHS, st.booleans()), max_size=80),
)
def test_one_at_a_time_and_whoever_waits_goes_before_long(percent: int, steps: list[tuple[Stage, float, bool]]) -> None:
    """A stage waits no longer than its rival's credit and what its share makes of one turn."""
    turns = Turns({"generation": percent, "training": 100 - percent})
    now, waited, wanting = 0.0, dict.fromkeys(STAGES, 0.0), set[Stage]()
    for stage, length_s, insists in steps:
        wanting |= {stage, other(stage)} if insists else {stage}
        for one in STAGES:
            if one in wanting:
                turns.ask(one)
        able = [one for one in STAGES if turns.may_begin(one)]
        assert len(able) == 1
        turns.begin(able[0], now)
        assert not any(turns.may_begin(one) for one in STAGES)
        now += length_s
        turns.end(now)
        wanting.discard(able[0])
        waited[able[0]] = 0.0
        for one in wanting:
            waited[one] += length_s
            dearest = 0.3 * 100 / min(turns.shares.values())
            assert waited[one] * 100 / turns.shares[other(one)] <= max(CREDIT_S, dearest) + dearest


def test_a_turn_lasts_until_the_device_is_done_and_is_measured() -> None:
    cuda = Cuda(Gpu())
    sharing = TimeSlice(synchronize=cuda.synchronize, clock=lambda: cuda.gpu.now)
    with sharing.lane("training"):
        cuda.current.launch("training", 4.0)
    assert sharing.readback().training.used_s == 4.0
    assert sharing.readback().generation.used_s == 0.0


def test_work_that_fails_ends_its_turn() -> None:
    sharing = TimeSlice(synchronize=lambda: None)
    with pytest.raises(ValueError, match="bad"), sharing.lane("training"):
        raise ValueError("bad")
    with sharing.lane("generation"):
        pass


def test_threads_take_turns() -> None:
    sharing = TimeSlice(synchronize=lambda: None)
    inside, clashes, done = set[Stage](), list[Stage](), dict.fromkeys(STAGES, 0)

    def turns_of(stage: Stage) -> None:
        for _ in range(200):
            with sharing.lane(stage):
                clashes.extend(inside)
                inside.add(stage)
                done[stage] += 1
                inside.remove(stage)

    threads = [threading.Thread(target=turns_of, args=(stage,)) for stage in STAGES]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (clashes, done) == ([], {"generation": 200, "training": 200})


def test_shares_follow_the_split() -> None:
    now = [0.0]
    sharing = TimeSlice(synchronize=lambda: None, clock=lambda: now[0], step_percent=25)
    assert sharing.request(Split(generation=25, training=75), 0.0)
    for stage in STAGES:
        assert sharing.gate(stage, 0.0) or sharing.gate(other(stage), 0.0) or stage == "training"
    for stage in STAGES:
        sharing.gate(stage, 0.0)
        with sharing.lane(stage):
            now[0] += 1.0
    assert (sharing.readback().generation.units, sharing.readback().training.units) == (25, 75)
