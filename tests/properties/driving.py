"""Random plans and costs, and runs that are watched at every event."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from hypothesis import strategies as st
from observer import Observer

from ebrl.engines.virtual.costs import Costs
from ebrl.engines.virtual.engine import VirtualEngine
from ebrl.engines.virtual.faults import Faults
from ebrl.ids import CpuId
from ebrl.scheduling import commands as c
from ebrl.scheduling import events as e
from ebrl.scheduling import invariants
from ebrl.scheduling.plan import SchedulerPlan
from ebrl.scheduling.scheduler import Scheduler

MAX_EVENTS = 30_000
"""More than any run of these plans needs."""

NO_FAULTS = Faults()


@dataclass
class Run:
    """One run, to its end."""

    scheduler: Scheduler
    observer: Observer
    records: list[tuple[e.Event, float, list[c.Command]]] = field(default_factory=list)
    stop: c.Stop | None = None

    @property
    def stopped(self) -> c.Stop:
        assert self.stop is not None
        return self.stop


def engine_for(plan: SchedulerPlan, costs: Costs, *, faults: Faults = NO_FAULTS, seed: int = 0) -> VirtualEngine:
    if plan.whole_episodes:
        costs = replace(costs, episode_steps=tuple(min(length, 40) for length in costs.episode_steps))
    return VirtualEngine(
        num_shards=plan.num_shards,
        envs_per_shard=plan.envs_per_shard,
        chunk_len=plan.chunk_len,
        num_generators=plan.num_generators,
        costs=costs,
        faults=faults,
        seed=seed,
    )


def drive(plan: SchedulerPlan, engine: VirtualEngine, *, stop_after: int | None = None) -> Run:
    """Let the scheduler run, check it after every event, and compare its books at the end.

    Args:
        plan: the run.
        engine: it runs on.
        stop_after: events after which somebody asks for the end.
    """
    run = Run(Scheduler(plan), Observer(plan))
    for count in range(MAX_EVENTS):
        if count == stop_after:
            engine.request_stop("enough", at=engine.now)
        event, now = engine.next_event()
        commands = run.scheduler.handle(event, now)
        run.records.append((event, now, commands))
        run.observer.see(event, commands)
        invariants.check(run.scheduler)
        if commands and isinstance(commands[-1], c.Stop):
            run.stop = commands[-1]
            _compare(run)
            return run
        for command in commands:
            engine.execute(command)
    raise AssertionError(f"no end after {MAX_EVENTS} events of {plan}")


def _compare(run: Run) -> None:
    """Ledger, staleness and counters of the scheduler against the observer's own."""
    ledger, observer = run.scheduler.gate.ledger, run.observer
    how, width = list(observer.fate.values()), run.scheduler.plan.envs_per_shard
    assert all(0 <= trajectory * width < ledger.admitted for trajectory in observer.fate)
    assert ledger.trained == how.count("trained") * width
    dropped = {reason: how.count(reason) * width for reason in how if reason != "trained"}
    late, seen = ledger.dropped.get("group_deadline", 0), dropped.get("group_deadline", 0)
    assert seen <= late
    assert late % run.scheduler.plan.siblings == 0
    assert {**ledger.dropped, "group_deadline": late} == {**dropped, "group_deadline": late}
    assert ledger.abandoned == ledger.admitted - len(how) * width - (late - seen)
    assert run.scheduler.gate.num_held_untrained == 0
    learner = run.scheduler.learner
    assert learner.staleness_max == max(observer.staleness, default=0) <= run.scheduler.gate.bound
    assert learner.staleness_counts == {s: observer.staleness.count(s) * width for s in observer.staleness}
    assert run.scheduler.counters.ignored_answers == observer.stale_answers


@st.composite
def plans(draw: st.DrawFn, *, max_slack: int = 4, max_window: int = 4, deadlines: bool = False) -> SchedulerPlan:
    num_shards = draw(st.integers(1, 12))
    env_groups = draw(st.sampled_from([0, 0, 1, 2, 3]))
    env_groups = min(env_groups, num_shards)
    least = -(-num_shards // env_groups) if env_groups else 1
    whole_episodes = draw(st.sampled_from([False, False, True]))
    siblings = draw(st.sampled_from([1, 2, 3])) if whole_episodes else 1
    width = 1 if whole_episodes else draw(st.sampled_from([1, 1, 2, 3]))
    together = draw(st.sampled_from([1, 1, 2]))
    sizes = draw(st.lists(st.integers(1, 3 if together > 1 else 5), min_size=1, max_size=2))
    return SchedulerPlan(
        num_shards=num_shards,
        nodes=tuple(tuple(CpuId(cpu) for cpu in range(size * together)) for size in sizes),
        cpus_per_shard=together,
        envs_per_shard=width,
        whole_episodes=whole_episodes,
        siblings=siblings,
        group_deadline_s=draw(st.sampled_from([0.05, 0.5, 3.0])) if deadlines and whole_episodes else 0.0,
        env_groups=env_groups,
        round_robin=draw(st.booleans()),
        step_barrier=bool(env_groups) and draw(st.booleans()),
        generation_buckets=draw(st.sampled_from([(), (), (1, 2, 4), (3,)])) if not env_groups else (),
        num_generators=draw(st.sampled_from([1, 1, 2, 3])),
        chunk_len=draw(st.integers(1, 5)),
        trajectory_chunks=draw(st.integers(1, 4)),
        quantum=draw(st.sampled_from([0, 0, 1, 2, 7])),
        min_generation_batch=draw(st.integers(1, 14)),
        max_generation_batch=draw(st.integers(least, 14)),
        batch=draw(st.integers(1, 6)) * siblings * width,
        slack=draw(st.integers(0, max_slack)),
        window=draw(st.integers(1, max_window)),
        max_updates=draw(st.integers(1, 8)),
        checkpoint_every=draw(st.integers(0, 2)),
        drain_s=20.0,
    )


@st.composite
def all_costs(draw: st.DrawFn) -> Costs:
    """From everything at the same moment to heavy tails."""
    return Costs(
        env_step_s=draw(st.sampled_from([0.0, 0.01, 0.1])),
        env_step_sigma=draw(st.sampled_from([0.0, 0.5, 2.0])),
        shard_factors=draw(st.sampled_from([(1.0,), (1.0, 30.0), (0.2, 1.0, 5.0)])),
        reset_s=draw(st.sampled_from([0.0, 0.02, 0.3])),
        reset_sigma=draw(st.sampled_from([0.0, 1.5])),
        episode_steps=draw(st.sampled_from([(1,), (3, 4, 5), (2, 40), (1000,)])),
        generation_alpha_s=draw(st.sampled_from([0.0, 0.01, 0.2])),
        generation_beta_s=draw(st.sampled_from([0.0, 0.01])),
        training_s=draw(st.sampled_from([0.0, 0.05, 1.0])),
        training_sigma=draw(st.sampled_from([0.0, 1.0])),
        publish_s=draw(st.sampled_from([0.0, 0.005, 0.3])),
        checkpoint_s=draw(st.sampled_from([0.0, 0.1])),
        start_s=draw(st.sampled_from([0.0, 0.5])),
        update_heard_s=draw(st.sampled_from([0.0, 0.05])),
        loss_heard_s=draw(st.sampled_from([0.0, 0.1])),
    )


@st.composite
def all_faults(draw: st.DrawFn) -> Faults:
    rates = st.sampled_from([0.0, 0.002, 0.02, 0.1])
    return Faults(
        env_worker_lost=draw(rates),
        episode_invalid=draw(rates),
        generator_lost=draw(rates),
        learner_lost=draw(rates),
        update_skipped=draw(rates),
        idle_lost=draw(st.sampled_from([0.0, 0.0, 0.01, 0.05])),
        late_answer=draw(st.sampled_from([0.0, 0.5, 0.9])),
    )


seeds = st.integers(0, 2**16)
