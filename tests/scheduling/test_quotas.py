"""Moves of CPUs and SMs between stages: shrink, then grow, and nobody waits."""

from __future__ import annotations

import pytest

from ebrl.ids import CpuId, CpuSet, Epoch
from ebrl.scheduling.quotas import Member, Quota, Quotas, Split, SwitchCounts

GENERATOR, LEARNER = Member("generation", 0), Member("training")
FIRST = Epoch(0)


def cpus(*numbers: int) -> CpuSet:
    return tuple(CpuId(number) for number in numbers)


def split(simulation: CpuSet, generation: CpuSet, training: CpuSet, sms: tuple[int, int] = (0, 0)) -> Split:
    return Split(
        simulation=simulation,
        generation=generation,
        training=training,
        generation_units=sms[0],
        training_units=sms[1],
    )


def running(start: Split) -> Quotas:
    """Both processes have started."""
    quotas = Quotas(start, num_generators=1)
    for member in (GENERATOR, LEARNER):
        given = quotas.started(member, FIRST)
        quotas.applied(member, FIRST, given.cpus, given.units)
    return quotas


def test_a_process_is_told_what_it_has_when_it_starts() -> None:
    quotas = Quotas(split(cpus(0), cpus(1), cpus(2), (48, 84)), num_generators=2)
    assert quotas.started(Member("generation", 1), FIRST) == Quota(cpus(1), 1, 48)
    assert quotas.started(LEARNER, FIRST) == Quota(cpus(2), 1, 84)


def test_who_loses_something_gives_it_up_before_anybody_takes_it() -> None:
    quotas = running(split(cpus(0), cpus(1), cpus(2, 3), (48, 84)))
    tell = quotas.ask(split(cpus(0), cpus(1, 2), cpus(3), (84, 48)))
    assert tell == {LEARNER: Quota(cpus(3), 1, 48)}
    assert quotas.grow(simulation_has_left=True) is None  # the learner still trains
    quotas.applied(LEARNER, FIRST, cpus(3), 48)
    assert quotas.grow(simulation_has_left=True) == {GENERATOR: Quota(cpus(1, 2), 1, 84)}
    assert quotas.moving
    quotas.applied(GENERATOR, FIRST, cpus(1, 2), 84)
    assert not quotas.moving
    assert quotas.counts == SwitchCounts(switches=1)


def test_simulation_is_waited_for_too() -> None:
    quotas = running(split(cpus(0, 1), cpus(2), cpus(2)))
    assert quotas.ask(split(cpus(0), cpus(1, 2), cpus(2))) == {}
    assert quotas.grow(simulation_has_left=False) is None
    assert quotas.grow(simulation_has_left=True) == {GENERATOR: Quota(cpus(1, 2), 1, 0)}


def test_a_move_of_simulation_alone_is_over_when_it_has_left() -> None:
    quotas = running(split(cpus(0, 1), cpus(2), cpus(2)))
    quotas.ask(split(cpus(0), cpus(2), cpus(2)))
    assert quotas.grow(simulation_has_left=True) == {}
    assert not quotas.moving


def test_a_process_that_would_be_left_without_a_cpu_moves_at_once() -> None:
    quotas = running(split(cpus(0), cpus(1), cpus(1)))
    tell = quotas.ask(split(cpus(1), cpus(0), cpus(0)))
    assert tell == {GENERATOR: Quota(cpus(0), 1, 0), LEARNER: Quota(cpus(0), 1, 0)}
    assert quotas.counts.overlaps == 2


@pytest.mark.parametrize("growing", [False, True])
def test_nobody_waits_for_a_process_that_was_lost(growing: bool) -> None:
    quotas = running(split(cpus(0), cpus(1), cpus(2, 3)))
    quotas.ask(split(cpus(0), cpus(1, 2), cpus(3)))
    if growing:
        quotas.applied(LEARNER, FIRST, cpus(3), 0)
        quotas.grow(simulation_has_left=True)
        quotas.lost(GENERATOR, FIRST)
        assert not quotas.moving
        assert quotas.started(GENERATOR, Epoch(1)) == Quota(cpus(1, 2), 1, 0)
    else:
        quotas.lost(LEARNER, FIRST)
        assert quotas.grow(simulation_has_left=True) == {GENERATOR: Quota(cpus(1, 2), 1, 0)}
        assert quotas.started(LEARNER, Epoch(1)) == Quota(cpus(3), 1, 0)


def test_a_replaced_process_is_not_believed() -> None:
    quotas = running(split(cpus(0), cpus(1), cpus(2, 3)))
    quotas.ask(split(cpus(0), cpus(1, 2), cpus(3)))
    quotas.lost(LEARNER, FIRST)
    quotas.started(LEARNER, Epoch(1))
    quotas.lost(LEARNER, FIRST)  # heard again
    assert quotas.grow(simulation_has_left=True) is None  # the new one has not said what it has
    quotas.applied(LEARNER, FIRST, cpus(9), 0)
    assert quotas.counts.mismatches == 0


def test_an_answer_is_to_the_oldest_question() -> None:
    quotas = Quotas(split(cpus(0), cpus(1), cpus(2, 3)), num_generators=1)
    quotas.started(LEARNER, FIRST)
    quotas.ask(split(cpus(0), cpus(1), cpus(3)))
    quotas.applied(LEARNER, FIRST, cpus(2, 3), 0)
    assert quotas.grow(simulation_has_left=True) is None
    quotas.applied(LEARNER, FIRST, cpus(3), 0)
    assert quotas.grow(simulation_has_left=True) == {}
    assert quotas.counts.mismatches == 0


def test_what_the_kernel_does_not_have_is_counted() -> None:
    quotas = running(split(cpus(0), cpus(1, 2), cpus(3)))
    quotas.ask(split(cpus(0), cpus(1), cpus(3)))
    quotas.applied(GENERATOR, FIRST, cpus(1, 2), 0)
    assert quotas.counts.mismatches == 1


def test_every_stage_wants_a_cpu() -> None:
    with pytest.raises(ValueError, match="every stage wants a CPU"):
        split(cpus(), cpus(1), cpus(2))


def test_what_is_lent_is_the_learner_s_again_when_every_generator_says_so() -> None:
    quotas = Quotas(split(cpus(0), cpus(1), cpus(2), (48, 60)), num_generators=2)
    first, second = Member("generation", 0), Member("generation", 1)
    for member in (first, second, LEARNER):
        given = quotas.started(member, FIRST)
        quotas.applied(member, FIRST, given.cpus, given.units)
    assert quotas.lend() == {member: Quota(cpus(1), 1, 108) for member in (first, second)}
    assert not quotas.returned
    for member in (first, second):
        quotas.applied(member, FIRST, cpus(1), 108)
    assert not quotas.returned
    assert quotas.call_back() == {member: Quota(cpus(1), 1, 48) for member in (first, second)}
    quotas.applied(second, FIRST, cpus(1), 48)
    assert not quotas.returned
    quotas.applied(first, FIRST, cpus(1), 48)
    assert quotas.returned
    assert quotas.counts == SwitchCounts(loans=1)


def test_a_generator_that_starts_meanwhile_has_what_is_lent() -> None:
    quotas = running(split(cpus(0), cpus(1), cpus(2), (48, 60)))
    quotas.lend()
    quotas.lost(GENERATOR, FIRST)
    assert quotas.started(GENERATOR, Epoch(1)) == Quota(cpus(1), 1, 108)
    quotas.applied(GENERATOR, Epoch(1), cpus(1), 108)
    quotas.call_back()
    quotas.lost(GENERATOR, Epoch(1))  # with what it had to give back
    assert quotas.returned


def test_a_move_ends_a_loan() -> None:
    quotas = running(split(cpus(0), cpus(1), cpus(2), (48, 60)))
    quotas.lend()
    quotas.applied(GENERATOR, FIRST, cpus(1), 108)
    assert quotas.ask(split(cpus(0), cpus(1), cpus(2), (60, 48))) == {
        GENERATOR: Quota(cpus(1), 1, 60),
        LEARNER: Quota(cpus(2), 1, 48),
    }
    assert not quotas.lent
    quotas.applied(LEARNER, FIRST, cpus(2), 48)
    assert quotas.grow(simulation_has_left=True) is None  # the generator may still work with what was lent
    quotas.applied(GENERATOR, FIRST, cpus(1), 60)
    assert quotas.grow(simulation_has_left=True) == {}
    assert quotas.returned
    assert quotas.counts == SwitchCounts(switches=1, loans=1)


@pytest.mark.parametrize(("has", "mismatches"), [(108, 0), (48, 1), (0, 1)])
def test_a_device_that_has_other_sms_than_were_asked_for_is_counted(has: int, mismatches: int) -> None:
    quotas = running(split(cpus(0), cpus(1), cpus(2), (48, 60)))
    quotas.lend()
    quotas.applied(GENERATOR, FIRST, cpus(1), has)
    assert quotas.counts.mismatches == mismatches


def test_where_no_sms_are_asked_for_it_does_not_matter_what_the_device_has() -> None:
    quotas = running(split(cpus(0), cpus(1), cpus(2)))
    quotas.ask(split(cpus(0), cpus(1), cpus(2, 3)))
    quotas.grow(simulation_has_left=True)
    quotas.applied(LEARNER, FIRST, cpus(2, 3), 108)
    assert quotas.counts == SwitchCounts(switches=1)


def test_who_has_not_answered_is_named() -> None:
    quotas = running(split(cpus(0), cpus(1), cpus(2), (48, 60)))
    assert not quotas.owing
    quotas.lend()
    assert list(map(str, quotas.owing)) == ["generator 0"]
    quotas.ask(split(cpus(0), cpus(1), cpus(2), (60, 48)))
    assert list(map(str, quotas.owing)) == ["generator 0", "the learner"]
