"""Rates that drift while a run goes on: the split follows, soon, once or twice, and loses nothing.

The run happens on the virtual engine. What it should reach is the same run under the allocation that is best for
the costs after the drift, of those that a run can be moved to: processes, micro-batches and the way in which GPUs are
shared stay as they are.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from ebrl.engines.virtual.engine import VirtualEngine
from ebrl.engines.virtual.workload import Drift, WorkloadCosts
from ebrl.ids import CpuId
from ebrl.resources.allocation import Allocation, Shape
from ebrl.resources.allocator import Choice, allocate
from ebrl.resources.hardware import Cpu
from ebrl.resources.workload import BatchCosts, SimulationCosts, Workload
from ebrl.scheduling import events as e
from ebrl.scheduling.management import Manager, split_of
from ebrl.scheduling.plan import Management, SchedulerPlan
from ebrl.scheduling.scheduler import Scheduler

DRIFT_AT_S = 200.0
NUM_SAMPLES = 60
"""Within which the run must have recovered."""
WATCHED_S = 600.0
"""Of steady state, before and after."""

WORKLOAD = Workload(
    name="drifting",
    num_envs=64,
    chunk_len=8,
    trajectory_chunks=8,
    batch_trajectories=16,
    slack=3,
    epochs=1,
    unit="gpu",
    simulation=SimulationCosts(chunk_s=0.32),
    generation=BatchCosts(fixed_s=0.04, item_s=0.004, serial=0.1, saturation=0.9),
    training=BatchCosts(fixed_s=0.01, item_s=0.006, serial=0.05),
    update_s=0.05,
    corun=1.05,
    shared_cpu_factor=3.0,  # the virtual engine does not know what sharing costs, so nobody is to share with simulation
)
MACHINE = Shape(
    num_nodes=1, num_cpus=24, memory_bytes=2**40, num_gpus=1, num_sms=132, sm_step=8, device_memory_bytes=2**36
)

ON_CPUS = replace(
    WORKLOAD,
    unit="cpu",
    generation=BatchCosts(fixed_s=0.02, item_s=0.02, serial=0.1, saturation=6),
    training=BatchCosts(fixed_s=0.01, item_s=0.06, serial=0.05, saturation=8),
)
"""The same kind of run without a GPU, on 24 CPUs."""
WITHOUT_GPU = replace(MACHINE, num_gpus=0, num_sms=0)


@dataclass(frozen=True)
class Case:
    """What changes, and what it is then."""

    workload: Workload
    shape: Shape
    drifts: tuple[Drift, ...]
    after: Workload
    whole_episodes: bool = False
    cpus_left: int = 0
    """0 leaves all."""


def slower(workload: Workload, *, simulation: float = 1.0, generation: float = 1.0, training: float = 1.0) -> Workload:
    def times(costs: BatchCosts, factor: float) -> BatchCosts:
        return replace(costs, fixed_s=costs.fixed_s * factor, item_s=costs.item_s * factor)

    return replace(
        workload,
        simulation=replace(workload.simulation, chunk_s=workload.simulation.chunk_s * simulation),
        generation=times(workload.generation, generation),
        training=times(workload.training, training),
        update_s=workload.update_s * training,
    )


def case(workload: Workload, shape: Shape, **factors: float) -> Case:
    drifts = tuple(Drift(at_s=DRIFT_AT_S, what=what, factor=factor) for what, factor in factors.items())  # type: ignore[arg-type]
    return Case(workload, shape, drifts, slower(workload, **factors))


EPISODES = replace(WORKLOAD, trajectory_chunks=24, batch_trajectories=16)
"""Whole episodes of 192 env steps."""

CASES = {
    "episodes are 31 % shorter": Case(
        EPISODES,
        MACHINE,
        (Drift(at_s=DRIFT_AT_S, what="episode", factor=0.69),),
        replace(EPISODES, trajectory_chunks=24 * 0.69),
        whole_episodes=True,
    ),
    "generation takes twice as long": case(WORKLOAD, MACHINE, generation=2.0),
    "training takes twice as long": case(WORKLOAD, MACHINE, training=2.0),
    "another job works on the GPU": case(WORKLOAD, MACHINE, generation=1.6, training=1.3),
    "another job works on the CPUs": case(WORKLOAD, MACHINE, simulation=1.5),
    "a CPU is lost": replace(case(WORKLOAD, MACHINE), cpus_left=23),
    "half of the CPUs are lost": replace(case(WORKLOAD, MACHINE), cpus_left=12),
    "without a GPU, generation takes twice as long": case(ON_CPUS, WITHOUT_GPU, generation=2.0),
    "without a GPU, simulation takes twice as long": case(ON_CPUS, WITHOUT_GPU, simulation=2.0),
    "without a GPU, a quarter of the CPUs is lost": replace(case(ON_CPUS, WITHOUT_GPU), cpus_left=18),
}


@dataclass
class Played:
    """A run."""

    scheduler: Scheduler
    trained: list[float]
    """When each update ended."""
    samples: list[float]
    """When each sample was due."""

    @property
    def manager(self) -> Manager:
        assert self.scheduler.manager is not None
        return self.scheduler.manager

    def updates(self, begin: float) -> int:
        return sum(begin < time <= begin + WATCHED_S for time in self.trained)


def best(workload: Workload, shape: Shape, running: Allocation | None = None) -> Allocation:
    choice = allocate(workload, shape, running)
    assert isinstance(choice, Choice), choice
    assert choice.best.allocation.cpu_sharing != "all"
    return choice.best.allocation


def play(
    one: Case,
    workload: Workload,
    shape: Shape,
    allocation: Allocation,
    *,
    until: float,
    drift: bool,
    manage: bool = True,
) -> Played:
    """Run a workload under an allocation; with the case's drift, or as if it had always been so."""
    cpus = tuple(Cpu(id=CpuId(cpu), core=cpu) for cpu in range(shape.num_cpus))
    management = Management(workload=workload, shape=shape, allocation=allocation, cpus=cpus, switch_s=0.1)
    split = split_of(allocation, management)
    plan = SchedulerPlan(
        num_shards=workload.num_envs,
        nodes=(split.simulation,),
        num_generators=allocation.num_generators,
        chunk_len=workload.chunk_len,
        trajectory_chunks=round(workload.trajectory_chunks),
        whole_episodes=one.whole_episodes,
        max_generation_batch=allocation.max_batch,
        batch=workload.batch_trajectories,
        slack=workload.slack,
        split=split,
        management=management if manage else None,
    )
    now = 0.0
    costs = WorkloadCosts(
        workload,
        shape,
        allocation,
        clock=lambda: now,
        drifts=one.drifts if drift else (),
        episode_steps=round(workload.trajectory_chunks * workload.chunk_len) if one.whole_episodes else 10**9,
        env_step_sigma=0.2,
    )
    engine = VirtualEngine(num_shards=plan.num_shards, chunk_len=plan.chunk_len, costs=costs, seed=5)
    if drift and one.cpus_left:
        engine.happen(e.CpusChanged(cpus=tuple(CpuId(cpu) for cpu in range(one.cpus_left))), at=DRIFT_AT_S)
    played = Played(Scheduler(plan), [], [])
    while now < until:
        event, now = engine.next_event()
        for command in played.scheduler.handle(event, now):
            engine.execute(command)
        if isinstance(event, e.UpdateDone):
            played.trained.append(now)
        if isinstance(event, e.TimerFired) and event.name == "sample":
            played.samples.append(now)
    return played


@pytest.mark.parametrize("name", CASES)
def test_a_run_recovers_from_a_drift(name: str) -> None:
    one = CASES[name]
    until = DRIFT_AT_S + 5 * NUM_SAMPLES + WATCHED_S
    first = best(one.workload, one.shape)
    played = play(one, one.workload, one.shape, first, until=until, drift=True)
    recovered = [time for time in played.samples if time > DRIFT_AT_S][NUM_SAMPLES]
    assert recovered + WATCHED_S <= until
    shape = replace(one.shape, num_cpus=one.cpus_left or one.shape.num_cpus)
    ideal = best(one.after, shape, first)
    wanted = play(one, one.after, shape, ideal, until=100.0 + WATCHED_S, drift=False, manage=False)
    assert played.updates(recovered) >= 0.95 * wanted.updates(100.0)
    assert len(played.manager.moves) <= 2
    assert len(played.manager.moves) == played.manager.quotas.counts.switches
    gate = played.scheduler.gate
    assert gate.ledger.dropped == {}
    assert gate.ledger.balances(gate.num_held_untrained)


def test_nothing_moves_where_nothing_drifts() -> None:
    for workload, shape in ((WORKLOAD, MACHINE), (ON_CPUS, WITHOUT_GPU)):
        one = case(workload, shape)
        played = play(one, workload, shape, best(workload, shape), until=1000.0, drift=True)
        assert len(played.samples) > 500
        assert played.manager.moves == []


def test_without_management_the_drift_would_have_cost_more() -> None:
    """Else the other tests would show nothing."""
    one = CASES["generation takes twice as long"]
    until = DRIFT_AT_S + 100.0 + WATCHED_S
    first = best(one.workload, one.shape)
    left_alone = play(one, one.workload, one.shape, first, until=until, drift=True, manage=False)
    managed = play(one, one.workload, one.shape, first, until=until, drift=True)
    after = DRIFT_AT_S + 100.0
    assert managed.updates(after) > 1.15 * left_alone.updates(after)
