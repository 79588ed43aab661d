"""CPUs that move at any time, under faults: nobody takes what another has still to leave, and nothing is lost."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from ebrl.engines.virtual.costs import Costs
from ebrl.engines.virtual.engine import VirtualEngine
from ebrl.engines.virtual.faults import Faults
from ebrl.ids import CpuId, CpuSet
from ebrl.scheduling import commands as c
from ebrl.scheduling import events as e
from ebrl.scheduling import invariants
from ebrl.scheduling.plan import SchedulerPlan
from ebrl.scheduling.quotas import Split
from ebrl.scheduling.scheduler import Scheduler

MAX_EVENTS = 30_000
NUM_CPUS = 5
NUM_SMS = 12

CPUS = st.sets(st.integers(0, NUM_CPUS - 1), min_size=1).map(lambda ids: tuple(CpuId(one) for one in sorted(ids)))


@st.composite
def disjoint(draw: st.DrawFn) -> Split:
    """A split in which nobody shares."""
    order = draw(st.permutations(range(NUM_CPUS)))
    first, second = sorted(draw(st.sets(st.integers(1, NUM_CPUS - 1), min_size=2, max_size=2)))
    parts = [order[:first], order[first:second], order[second:]]
    simulation, generation, training = (tuple(CpuId(one) for one in sorted(part)) for part in parts)
    return Split(simulation=simulation, generation=generation, training=training)


SHARING = st.builds(
    Split, simulation=CPUS, generation=CPUS, training=CPUS, min_batch=st.integers(0, 3), max_batch=st.integers(0, 3)
)


@dataclass
class Watcher:
    """Knows from events and commands alone who may run where."""

    split: Split
    told: dict[tuple[str, int], CpuSet] = field(default_factory=dict)
    """What each process was told last."""
    held: dict[tuple[str, int], set[CpuId]] = field(default_factory=dict)
    """CPUs that each process may still run on."""
    grants: dict[int, CpuSet] = field(default_factory=dict)
    """By shard."""
    units: dict[tuple[str, int], list[int]] = field(default_factory=dict)
    """SMs that each process has, and those that it was told and has not answered yet."""
    trains: bool = False

    def see(self, event: e.Event, commands: list[c.Command]) -> None:
        match event:
            case e.QuotaApplied():
                self.held[event.stage, event.index] = set(event.cpus)
                units = self.units[event.stage, event.index]
                units[:] = units[units.index(event.units) :]
            case e.GeneratorLost():
                self.held.pop(("generation", event.generator), None)
                self.units.pop(("generation", event.generator), None)
            case e.LearnerLost():
                self.held.pop(("training", 0), None)
                self.units.pop(("training", 0), None)
                self.trains = False
            case e.UpdateDone():
                self.trains = False
            case e.StepsDone() | e.ResetDone() | e.EnvWorkerLost() | e.EpisodeInvalid():
                self.grants.pop(event.shard, None)
            case _:
                pass
        for command in commands:
            match command:
                case c.SetQuota():
                    key = command.stage, command.index
                    self.told[key] = command.cpus
                    self.held[key] = self.held.get(key, set()) | set(command.cpus)
                    self.units.setdefault(key, []).append(command.units)
                case c.Train():
                    self.trains = True
                case c.StepEnv() | c.ResetEnv():
                    self.grants[command.shard] = command.cpus
                case _:
                    pass

    def overlaps(self) -> bool:
        """Whether two stages may run on one CPU now."""
        simulation = {cpu for cpus in self.grants.values() for cpu in cpus}
        stages = [simulation, set(), set()]
        for (stage, _), cpus in self.held.items():
            stages[1 if stage == "generation" else 2] |= cpus
        return any(stages[a] & stages[b] for a, b in ((0, 1), (0, 2), (1, 2)))

    def most_units(self) -> int:
        """SMs of one GPU that may be in use at once: generators have each their own GPU, the learner all of them."""
        generation = max((max(units) for (stage, _), units in self.units.items() if stage == "generation"), default=0)
        return generation + (max(self.units.get(("training", 0), [0])) if self.trains else 0)


def drive(plan: SchedulerPlan, moves: list[tuple[float, Split]], faults: Faults, seed: int) -> tuple[Scheduler, bool]:
    """The run to its end; and whether two stages ever ran on one CPU."""
    assert plan.split is not None
    engine = VirtualEngine(
        num_shards=plan.num_shards,
        chunk_len=plan.chunk_len,
        num_generators=plan.num_generators,
        costs=Costs(env_step_sigma=0.5, reset_sigma=1.0, training_sigma=0.5),
        faults=faults,
        seed=seed,
    )
    for at, split in moves:
        engine.happen(e.SplitRequested(split=split), at=at)
    scheduler, watcher, overlapped = Scheduler(plan), Watcher(plan.split), False
    for _ in range(MAX_EVENTS):
        event, now = engine.next_event()
        commands = scheduler.handle(event, now)
        invariants.check(scheduler)
        watcher.see(event, commands)
        overlapped |= watcher.overlaps()
        assert watcher.most_units() <= NUM_SMS, f"{watcher.units} of {NUM_SMS}, {event}, {commands}"
        if commands and isinstance(commands[-1], c.Stop):
            assert scheduler.gate.ledger.balances(scheduler.gate.num_held_untrained)
            return scheduler, overlapped
        for command in commands:
            engine.execute(command)
    raise AssertionError(f"no end after {MAX_EVENTS} events of {plan}, {moves}")


@given(
    splits=st.lists(disjoint() | SHARING, min_size=1, max_size=6),
    gaps=st.lists(st.floats(0.0, 2.0), min_size=6, max_size=6),
    generators=st.integers(1, 3),
    quantum=st.integers(0, 3),
    faulty=st.booleans(),
    seed=st.integers(0, 1000),
)
@settings(max_examples=150, deadline=None)
def test_a_run_ends_whatever_moves(
    splits: list[Split], gaps: list[float], generators: int, quantum: int, faulty: bool, seed: int
) -> None:
    first, *rest = splits
    plan = SchedulerPlan(
        num_shards=4,
        nodes=(first.simulation,),
        num_generators=generators,
        chunk_len=4,
        trajectory_chunks=2,
        quantum=quantum,
        batch=4,
        max_updates=6,
        max_env_failures=1000,
        split=first,
    )
    moves = [(1.0 + sum(gaps[: index + 1]), split) for index, split in enumerate(rest)]
    faults = Faults(env_worker_lost=0.01, generator_lost=0.01, learner_lost=0.02) if faulty else Faults()
    scheduler, _ = drive(plan, moves, faults, seed)
    assert scheduler.manager is not None
    assert scheduler.manager.quotas.counts.mismatches == 0


@given(
    splits=st.lists(disjoint(), min_size=2, max_size=6),
    gaps=st.lists(st.floats(0.0, 2.0), min_size=6, max_size=6),
    seed=st.integers(0, 1000),
)
@settings(max_examples=100, deadline=None)
def test_nobody_takes_what_another_has_still_to_leave(splits: list[Split], gaps: list[float], seed: int) -> None:
    first, *rest = splits
    plan = SchedulerPlan(
        num_shards=4, nodes=(first.simulation,), chunk_len=4, trajectory_chunks=2, batch=4, max_updates=6, split=first
    )
    moves = [(1.0 + sum(gaps[: index + 1]), split) for index, split in enumerate(rest)]
    scheduler, overlapped = drive(plan, moves, Faults(), seed)
    assert scheduler.manager is not None
    assert not overlapped or scheduler.manager.quotas.counts.overlaps


@given(
    shares=st.lists(st.integers(1, NUM_SMS - 1), min_size=1, max_size=6),
    gaps=st.lists(st.floats(0.0, 2.0), min_size=6, max_size=6),
    generators=st.integers(1, 3),
    faulty=st.booleans(),
    seed=st.integers(0, 1000),
)
@settings(max_examples=150, deadline=None)
def test_nobody_trains_with_sms_that_are_lent(
    shares: list[int], gaps: list[float], generators: int, faulty: bool, seed: int
) -> None:
    cpus = tuple(CpuId(one) for one in range(NUM_CPUS))
    first, *rest = [
        Split(
            simulation=cpus,
            generation=cpus,
            training=cpus,
            generation_units=share,
            training_units=NUM_SMS - share,
        )
        for share in shares
    ]
    plan = SchedulerPlan(
        num_shards=4,
        nodes=(cpus,),
        num_generators=generators,
        chunk_len=4,
        trajectory_chunks=2,
        batch=4,
        max_updates=6,
        max_env_failures=1000,
        split=first,
        lend=True,
    )
    moves = [(1.0 + sum(gaps[: index + 1]), split) for index, split in enumerate(rest)]
    faults = Faults(env_worker_lost=0.01, generator_lost=0.01, learner_lost=0.02) if faulty else Faults()
    scheduler, _ = drive(plan, moves, faults, seed)
    assert scheduler.manager is not None
    assert scheduler.manager.quotas.counts.loans
