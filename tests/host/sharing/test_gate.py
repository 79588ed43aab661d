"""The switch protocol, over every order in which two stages can come to their gates."""

from __future__ import annotations

import threading
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sharing_fakes import FakeStream, Gpu

from ebrl.host.sharing.base import STAGES, Split, Stage, other
from ebrl.host.sharing.gate import Gate

NUM = 8
TABLE = tuple(Split(generation=units, training=NUM - units) for units in range(1, NUM))
SHARED = Split(generation=NUM, training=NUM, shared=True)
GRACE_S = 10.0


def units_of(split: Split, stage: Stage) -> frozenset[int]:
    return frozenset(range(split.generation) if stage == "generation" else range(NUM - split.training, NUM))


class World:
    """Two stages that keep several launches in flight, on a device that notes who ran where and when."""

    def __init__(self, initial: Split = TABLE[3]) -> None:
        self.gpu = Gpu(NUM, 1)
        self.streams: dict[tuple[Stage, Split], FakeStream] = {}
        self.parked: set[Stage] = set()
        self.now = 0.0
        self.gate = Gate(initial, units=units_of, lanes=self, grace_s=GRACE_S)

    def stream(self, stage: Stage, split: Split) -> FakeStream:
        if (stage, split) not in self.streams:
            self.streams[stage, split] = FakeStream(self.gpu, units_of(split, stage))
        return self.streams[stage, split]

    def mark(self, stage: Stage, split: Split) -> object:
        return self.stream(stage, split).record_event()

    def follow(self, stage: Stage, split: Split, mark: object) -> None:
        assert isinstance(mark, float)
        self.stream(stage, split).wait_event(mark)

    def move(self, stage: Stage, split: Split) -> None:
        pass

    def work(self, stage: Stage, duration: float = 5.0) -> None:
        if stage not in self.parked:
            for _ in range(3):
                self.stream(stage, self.gate.split(stage)).launch(stage, duration)

    def pass_gate(self, stage: Stage) -> bool:
        self.parked.discard(stage)
        return self.gate.gate(stage, self.now)

    def park(self, stage: Stage) -> None:
        self.parked.add(stage)
        self.gate.park(stage)

    def both(self, split: Split) -> frozenset[int]:
        return units_of(split, "generation") & units_of(split, "training")


def test_nobody_moves_before_its_own_gate() -> None:
    world = World()
    assert world.gate.request(TABLE[5], now=0.0)
    assert (world.gate.split("generation"), world.gate.split("training")) == (TABLE[3], TABLE[3])
    assert world.gate.switching


def test_who_loses_moves_first_and_who_gains_follows() -> None:
    world = World()
    world.gate.request(TABLE[5], now=0.0)
    assert not world.pass_gate("generation")
    assert world.pass_gate("training")
    assert world.pass_gate("generation")
    assert not world.gate.switching
    assert not world.pass_gate("generation")


def test_a_second_request_has_to_wait_for_the_first() -> None:
    world = World()
    assert world.gate.request(TABLE[5], now=0.0)
    assert not world.gate.request(TABLE[1], now=0.0)
    world.pass_gate("training")
    assert not world.gate.request(TABLE[1], now=0.0)
    world.pass_gate("generation")
    assert world.gate.request(TABLE[1], now=0.0)
    assert world.gate.epoch == 2


def test_wanting_what_is_there_is_no_switch() -> None:
    world = World()
    assert world.gate.request(TABLE[3], now=0.0)
    assert (world.gate.epoch, world.gate.switching) == (0, False)


def test_after_the_grace_the_gainer_takes_what_it_wants_and_is_counted() -> None:
    world = World()
    world.gate.request(TABLE[5], now=0.0)
    world.now = GRACE_S - 0.01
    assert not world.pass_gate("generation")
    world.now = GRACE_S
    assert world.pass_gate("generation")
    assert world.gate.forced == 1
    assert world.gate.switching
    assert world.pass_gate("training")
    assert (world.gate.forced, world.gate.switching) == (1, False)


@pytest.mark.parametrize("target", [TABLE[5], TABLE[1], SHARED])
@pytest.mark.parametrize("stage", STAGES)
def test_a_parked_stage_holds_nobody_up(stage: Stage, target: Split) -> None:
    world = World()
    world.work(stage)
    world.park(stage)
    world.gate.request(target, now=0.0)
    assert world.pass_gate(other(stage))
    assert not world.gate.switching
    assert world.pass_gate(stage)  # it is told what happened to it while it was away
    assert world.gate.forced == 0


def test_two_parked_stages_are_moved_at_once() -> None:
    world = World()
    for stage in STAGES:
        world.park(stage)
    assert world.gate.request(TABLE[6], now=0.0)
    assert not world.gate.switching
    assert [world.pass_gate(stage) for stage in STAGES] == [True, True]


def test_parking_in_the_middle_of_a_switch_ends_it() -> None:
    world = World()
    world.gate.request(TABLE[5], now=0.0)
    assert not world.pass_gate("generation")
    world.park("training")
    assert world.pass_gate("generation")
    assert not world.gate.switching


def test_two_that_exchange_all_they_have_need_one_of_them_to_park() -> None:
    one, two = Split(generation=1, training=2), Split(generation=2, training=1)
    places: dict[tuple[Split, Stage], frozenset[int]] = {
        (one, "generation"): frozenset({0}),
        (one, "training"): frozenset({1}),
        (two, "generation"): frozenset({1}),
        (two, "training"): frozenset({0}),
    }
    world = World()
    gate = Gate(one, units=lambda split, stage: places[split, stage], lanes=world, grace_s=GRACE_S)
    world.streams = {(stage, split): FakeStream(world.gpu, sms) for (split, stage), sms in places.items()}
    world.stream("generation", one).launch("generation", 5.0)
    world.stream("training", one).launch("training", 9.0)
    gate.request(two, now=0.0)
    assert not gate.gate("generation", 0.0)
    assert not gate.gate("training", 0.0)
    gate.park("generation")
    assert gate.gate("training", 0.0)
    assert gate.gate("generation", 0.0)
    for stage in STAGES:
        world.stream(stage, two).launch(stage, 5.0)
    assert (gate.forced, world.gpu.overlaps(), world.gpu.disorders()) == (0, [], [])


def test_who_loses_waits_for_no_work_of_the_other() -> None:
    world = World()
    world.stream("generation", TABLE[3]).launch("generation", 100.0)
    for target in (TABLE[5], TABLE[6]):
        world.gate.request(target, now=0.0)
        assert [world.pass_gate(stage) for stage in ("training", "generation")] == [True, True]
        world.stream("training", target).launch("training", 1.0)
    assert max(run.end for run in world.gpu.runs if run.owner == "training") == 2.0


def test_to_share_and_back_nobody_waits() -> None:
    world = World()
    world.gate.request(SHARED, now=0.0)
    assert [world.pass_gate(stage) for stage in STAGES] == [True, True]
    world.gate.request(TABLE[0], now=0.0)
    assert [world.pass_gate(stage) for stage in STAGES] == [True, True]
    assert world.gate.forced == 0


def test_a_closed_gate_leaves_everybody_where_they_are() -> None:
    world = World()
    world.gate.request(TABLE[5], now=0.0)
    world.gate.close()
    assert not world.pass_gate("training")
    assert not world.gate.request(TABLE[5], now=0.0)
    assert world.gate.split("training") == TABLE[3]


ORDERS = st.permutations(STAGES)
STEPS = st.one_of(
    st.tuples(st.just("gate"), st.sampled_from(STAGES)),
    st.tuples(st.just("work"), st.sampled_from(STAGES)),
    st.tuples(st.just("park"), st.sampled_from(STAGES)),
    st.tuples(st.just("request"), st.sampled_from(TABLE)),
)


def play(world: World, action: str, what: object, *, waits: bool) -> None:
    match action:
        case "gate":
            world.pass_gate(what)  # type: ignore[arg-type]
            world.work(what)  # type: ignore[arg-type]
        case "work":
            world.work(what)  # type: ignore[arg-type]
        case "park":
            world.park(what)  # type: ignore[arg-type]
        case "request":
            world.gate.request(what, world.now)  # type: ignore[arg-type]
    world.now += 3.0 if waits else 0.0
    world.gpu.now += 1.0  # the host is much faster than its launches


@given(steps=st.lists(STEPS, max_size=60))
def test_without_force_no_unit_is_used_by_both_and_each_stage_stays_in_order(steps: list[tuple[str, object]]) -> None:
    world = World()
    for action, what in steps:
        play(world, action, what, waits=False)
        assert not world.gate.units("generation") & world.gate.units("training")
    assert (world.gate.forced, world.gpu.overlaps(), world.gpu.disorders()) == (0, [], [])


@given(steps=st.lists(STEPS, max_size=60))
def test_with_force_stages_stay_in_order_and_every_overlap_is_counted(steps: list[tuple[str, object]]) -> None:
    world = World()
    for action, what in steps:
        play(world, action, what, waits=True)
        if world.gate.units("generation") & world.gate.units("training"):
            assert world.gate.forced
    assert world.gpu.disorders() == []
    assert world.gate.forced <= world.gate.epoch
    if not world.gate.forced:
        assert world.gpu.overlaps() == []


@given(steps=st.lists(STEPS, max_size=40), target=st.sampled_from(TABLE), first=ORDERS, second=ORDERS)
def test_any_switch_is_over_once_both_have_come_to_their_gates_twice(
    steps: list[tuple[str, object]], target: Split, first: list[Stage], second: list[Stage]
) -> None:
    world = World()
    for action, what in steps:
        play(world, action, what, waits=False)
    for stage in (*first, *second):
        world.pass_gate(stage)
    assert not world.gate.switching
    assert world.gate.request(target, world.now)
    for stage in (*first, *second):
        world.pass_gate(stage)
    assert (world.gate.split("generation"), world.gate.split("training")) == (target, target)


@given(
    steps=st.lists(st.one_of(STEPS, st.tuples(st.just("request"), st.just(SHARED))), max_size=60),
)
def test_where_sharing_is_wanted_only_what_is_shared_is_used_by_both(steps: list[tuple[str, object]]) -> None:
    world = World()
    for action, what in steps:
        shares = SHARED in (world.gate.split("generation"), world.gate.split("training"))
        play(world, action, what, waits=False)
        shares |= SHARED in (world.gate.split("generation"), world.gate.split("training"))
        assert shares or not world.gate.units("generation") & world.gate.units("training")
    assert (world.gate.forced, world.gpu.disorders()) == (0, [])


def test_threads_that_come_to_their_gates_at_any_time_end_every_switch() -> None:
    world = World()
    over = threading.Event()

    def stage_loop(stage: Stage) -> None:
        while not over.is_set():
            world.gate.gate(stage, 0.0)

    threads = [threading.Thread(target=stage_loop, args=(stage,)) for stage in STAGES]
    for thread in threads:
        thread.start()
    try:
        for _, target in combinations(TABLE, 2):
            while not world.gate.request(target, 0.0):
                pass
        while world.gate.switching:
            pass
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert world.gate.forced == 0
