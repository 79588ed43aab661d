from __future__ import annotations

import pytest

from ebrl.ids import CpuId, EpisodeId, GeneratorId, SlotId, TrajectoryId
from ebrl.ids import ShardId as S
from ebrl.scheduling.commands import EpisodeStart, ResetEnv, StepEnv
from ebrl.scheduling.shards import PATIENCE, Node, StepLevel
from ebrl.scheduling.transitions import Down, Generating, Idle, NeedsReset, Place, Ready, Resetting, Running, Waiting

START = (EpisodeStart(0, EpisodeId(7)),)


def place(shard: int) -> Place:
    return Place(TrajectoryId(shard), SlotId(shard), 0)


def level(
    num_shards: int, num_cpus: int, *, quantum: int = 0, step_barrier: bool = False, batch: int = 1_000
) -> StepLevel:
    """Trajectories have the numbers of their shards; ``batch`` of them train together."""
    return StepLevel(
        rank_of=lambda place: 0 if place is None else place.trajectory // batch,
        group_of=(0,) * num_shards,
        step_barrier=step_barrier,
        cpu_sets=(tuple((CpuId(cpu),) for cpu in range(num_cpus)),),
        node_of=(0,) * num_shards,
        chunk_len=8,
        quantum=quantum,
    )


def make_ready(step_level: StepLevel, shard: int, now: float = 0.0, *, first_step: int = 0) -> None:
    """The shard was down and has a chunk now."""
    at = place(shard)
    for phase in (Idle(), Waiting(at), Generating(at, GeneratorId(0)), Ready(at, first_step)):
        step_level.set_phase(S(shard), phase, now)


def bound(step_level: StepLevel, now: float = 0.0) -> list[tuple[int, ...]]:
    """Shard and CPU of each command."""
    return [
        (command.shard, *command.cpus) for command in step_level.bind(now) if isinstance(command, StepEnv | ResetEnv)
    ]


def test_at_first_nobody_wants_a_cpu() -> None:
    step_level = level(2, 2)
    assert step_level.bind(0.0) == []
    assert step_level.free_cpus(0) == ((0,), (1,))
    assert (step_level.num_moving, step_level.num_preparing, step_level.longest_idle()) == ([0], [2], None)


def test_a_grant_covers_the_rest_of_the_chunk() -> None:
    step_level = level(1, 1)
    make_ready(step_level, 0, first_step=3)
    assert step_level.bind(0.0) == [
        StepEnv(shard=S(0), slot=SlotId(0), chunk=0, first_step=3, num_steps=5, cpus=(CpuId(0),))
    ]
    assert step_level.phases == [Running(place(0), 3, 5, (CpuId(0),))]


def test_a_quantum_cuts_the_grant() -> None:
    step_level = level(1, 1, quantum=3)
    make_ready(step_level, 0)
    assert step_level.bind(0.0) == [
        StepEnv(shard=S(0), slot=SlotId(0), chunk=0, first_step=0, num_steps=3, cpus=(CpuId(0),))
    ]


def test_a_reset_starts_the_episodes_it_was_made_for() -> None:
    step_level = level(3, 1)
    step_level.set_phase(S(1), NeedsReset(place(1), START), 0.0)
    assert step_level.bind(0.0) == [ResetEnv(shard=S(1), starts=START, cpus=(CpuId(0),))]
    assert step_level.phases[1] == Resetting(place(1), (CpuId(0),))


def test_work_for_an_earlier_update_goes_first_however_short() -> None:
    step_level = level(4, 1, batch=2)
    for shard, step_s in ((3, 0.9), (1, 0.1), (2, 0.5), (0, 0.2)):
        step_level.estimates.add_steps(S(shard), 1, step_s)
        make_ready(step_level, shard)
    order = []
    for now in range(4):
        ((shard, _),) = bound(step_level, float(now))
        order.append(shard)
        step_level.set_phase(S(shard), Idle(), float(now))
    assert order == [0, 1, 3, 2]


def test_the_longest_work_goes_first() -> None:
    step_level = level(4, 1)
    for shard, step_s in enumerate((0.1, 0.3, 0.2)):
        step_level.estimates.add_steps(S(shard), 1, step_s)
        make_ready(step_level, shard)
    step_level.estimates.add_reset(S(3), 2.0)
    step_level.set_phase(S(3), NeedsReset(None, START), 0.0)
    assert bound(step_level) == [(1, 0)]
    step_level.set_phase(S(1), Waiting(place(1)), 0.0)
    assert bound(step_level) == [(3, 0)]


def test_equals_go_by_number() -> None:
    step_level = level(3, 2)
    for shard in (2, 0, 1):
        make_ready(step_level, shard)
    assert bound(step_level) == [(0, 0), (1, 1)]


@pytest.mark.parametrize(("waited_s", "first"), [(0.0, 1), (PATIENCE * 0.8 - 1e-6, 1), (PATIENCE * 0.8 + 1e-6, 0)])
def test_long_waiting_outweighs_long_work(waited_s: float, first: int) -> None:
    step_level = level(2, 1)
    step_level.estimates.add_steps(S(0), 1, 0.1)
    step_level.estimates.add_steps(S(1), 1, 0.2)
    make_ready(step_level, 0, now=0.0)
    make_ready(step_level, 1, now=waited_s)
    assert bound(step_level, waited_s) == [(first, 0)]


def test_a_shard_runs_where_it_ran_before() -> None:
    step_level = level(2, 3)
    for shard in (0, 1):
        make_ready(step_level, shard)
    assert bound(step_level) == [(0, 0), (1, 1)]
    for shard in (0, 1):
        step_level.set_phase(S(shard), NeedsReset(None, START), 0.0)
    step_level.estimates.add_reset(S(0), 1.0)
    assert bound(step_level) == [(0, 0), (1, 1)]
    for shard in (0, 1):
        step_level.set_phase(S(shard), Down(), 0.0)
    make_ready(step_level, 1)
    assert bound(step_level) == [(1, 1)]


def test_a_shard_whose_cpu_is_taken_runs_on_the_first_free_one() -> None:
    step_level = level(2, 2)
    make_ready(step_level, 0)
    assert bound(step_level) == [(0, 0)]
    step_level.set_phase(S(0), Down(), 0.0)
    make_ready(step_level, 1)
    assert bound(step_level) == [(1, 0)]
    make_ready(step_level, 0)
    assert bound(step_level) == [(0, 1)]


@pytest.mark.parametrize("shard", [0, 1])
def test_a_lost_shard_wants_no_cpu(shard: int) -> None:
    step_level = level(3, 1)
    make_ready(step_level, 2)
    assert bound(step_level) == [(2, 0)]
    make_ready(step_level, 0)
    step_level.set_phase(S(1), NeedsReset(None, START), 0.0)
    step_level.set_phase(S(shard), Down(), 0.0)
    step_level.set_phase(S(2), Waiting(place(2)), 0.0)
    assert bound(step_level) == [(1 - shard, 0)]


def test_idle_shards_queue_for_a_trajectory() -> None:
    step_level = level(3, 1)
    for shard in (2, 0, 1):
        step_level.set_phase(S(shard), Idle(), 0.0)
    assert step_level.longest_idle() == 2
    step_level.set_phase(S(2), Down(), 0.0)
    assert step_level.longest_idle() == 0
    step_level.set_phase(S(0), Waiting(place(0)), 0.0)
    assert step_level.longest_idle() == 1
    assert (step_level.num_moving, step_level.num_preparing) == ([0], [1])


def test_a_phase_that_cannot_follow_is_refused() -> None:
    with pytest.raises(AssertionError, match=r"shard 0: Down\(\) cannot become Running"):
        level(1, 1).set_phase(S(0), Running(place(0), 0, 8, (CpuId(0),)), 0.0)


def test_what_wants_a_cpu_must_be_able_to_use_it() -> None:
    step_level = level(1, 1)
    step_level.set_phase(S(0), NeedsReset(None, START), 0.0)
    step_level.phases[0] = Idle()
    with pytest.raises(AssertionError, match=r"shard 0 wants a CPU in Idle"):
        step_level.bind(0.0)


def stepped(step_level: StepLevel, shard: int, first_step: int) -> None:
    """A shard has ended its env step and wants the next."""
    step_level.set_phase(S(shard), Ready(place(shard), first_step), 0.0)


def test_a_barrier_lets_nobody_begin_a_step_before_all_have_ended_the_last() -> None:
    step_level = level(3, 2, step_barrier=True)
    for shard in range(3):
        make_ready(step_level, shard)
    assert bound(step_level) == [(0, 0), (1, 1)]
    stepped(step_level, 0, 1)
    assert [step_level.wants_cpu(S(shard)) for shard in range(3)] == [False, False, True]
    assert bound(step_level) == [(2, 0)]
    stepped(step_level, 1, 1)
    assert bound(step_level) == []
    stepped(step_level, 2, 1)
    assert bound(step_level) == [(0, 0), (1, 1)]


def test_a_barrier_does_not_wait_for_who_left_the_chunk() -> None:
    step_level = level(2, 2, step_barrier=True)
    for shard in range(2):
        make_ready(step_level, shard)
    bound(step_level)
    stepped(step_level, 0, 1)
    step_level.set_phase(S(1), NeedsReset(place(1), START), 0.0)
    assert sorted(bound(step_level)) == [(0, 0), (1, 1)]


@pytest.mark.parametrize("num_cpus", [1, 2])
def test_a_barrier_does_not_wait_for_who_was_lost_behind_it(num_cpus: int) -> None:
    step_level = level(2, num_cpus, step_barrier=True)
    for shard in range(2):
        make_ready(step_level, shard)
    bound(step_level)
    stepped(step_level, 0, 1)
    step_level.set_phase(S(1), Down(), 0.0)
    assert bound(step_level) == [(0, 0)]


def test_who_was_lost_before_a_barrier_is_forgotten() -> None:
    step_level = level(2, 2, step_barrier=True)
    for shard in range(2):
        make_ready(step_level, shard)
    bound(step_level)
    stepped(step_level, 0, 1)
    step_level.set_phase(S(0), Down(), 0.0)
    stepped(step_level, 1, 1)
    assert bound(step_level) == [(1, 1)]


def test_cpu_sets_that_are_cut_otherwise_wait_for_those_they_overlap() -> None:
    pairs = [tuple(CpuId(cpu) for cpu in pair) for pair in ((0, 1), (2, 3), (1, 2), (4, 5))]
    node = Node((pairs[0], pairs[1]))
    node.want((0, 0.0, S(7)))
    assert node.next_pair() == (7, pairs[0])
    node.set_cpus((pairs[2], pairs[3]))
    assert (node.free, node.has_left) == ([pairs[3]], False)
    node.give_back(pairs[0])
    assert (node.free, node.has_left) == ([pairs[2], pairs[3]], True)
