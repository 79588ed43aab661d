"""Whatever the plan, the costs and the faults: what holds for every run."""

from __future__ import annotations

from dataclasses import replace

from driving import NO_FAULTS, all_costs, all_faults, drive, engine_for, plans, seeds
from hypothesis import given, settings
from hypothesis import strategies as st

from ebrl.engines.virtual.costs import Costs
from ebrl.engines.virtual.faults import Faults
from ebrl.scheduling import commands as c
from ebrl.scheduling.plan import SchedulerPlan
from ebrl.scheduling.scheduler import Scheduler


@settings(max_examples=200)
@given(plan=plans(), costs=all_costs(), seed=seeds)
def test_a_run_without_faults_reaches_its_goal(plan: SchedulerPlan, costs: Costs, seed: int) -> None:
    run = drive(plan, engine_for(plan, costs, seed=seed))
    assert not run.stopped.failed
    assert run.stopped.reason == f"{plan.max_updates} updates"
    assert run.scheduler.gate.ledger.trained == plan.max_updates * plan.batch
    assert run.scheduler.gate.ledger.dropped == {}


@settings(max_examples=200)
@given(plan=plans(), costs=all_costs(), faults=all_faults(), seed=seeds)
def test_a_run_with_faults_ends(plan: SchedulerPlan, costs: Costs, faults: Faults, seed: int) -> None:
    run = drive(plan, engine_for(plan, costs, faults=faults, seed=seed))
    assert run.stopped.failed or run.scheduler.learner.policy_version >= plan.max_updates


@settings(max_examples=200)
@given(plan=plans(max_slack=0), costs=all_costs(), faults=all_faults() | st.just(NO_FAULTS), seed=seeds)
def test_without_slack_training_is_synchronous(plan: SchedulerPlan, costs: Costs, faults: Faults, seed: int) -> None:
    run = drive(plan, engine_for(plan, costs, faults=faults, seed=seed))
    assert set(run.observer.staleness) <= {0}
    assert set(run.observer.spreads) <= {0}


@settings(max_examples=200)
@given(
    plan=plans(deadlines=True),
    costs=all_costs(),
    faults=all_faults() | st.just(NO_FAULTS),
    seed=seeds,
    stop_after=st.integers(0, 400),
)
def test_a_request_to_stop_ends_the_run_soon(
    plan: SchedulerPlan, costs: Costs, faults: Faults, seed: int, stop_after: int
) -> None:
    plan = replace(plan, max_updates=10_000, drain_s=5.0)
    engine = engine_for(plan, costs, faults=faults, seed=seed)
    run = drive(plan, engine, stop_after=stop_after)
    asked = [i for i, record in enumerate(run.records) if c.SetTimer(name="drain", after_s=5.0) in record[2]]
    if not asked:
        assert run.stopped.failed  # before anybody asked
        return
    after = run.records[asked[0] :]
    assert after[-1][1] - after[0][1] <= 10.0 + 1e-9
    if faults == NO_FAULTS:
        assert run.stopped == c.Stop(reason="enough", failed=False)
        assert len(after) <= 4 * plan.num_shards + 4 * plan.num_generators + 10


@settings(max_examples=200)
@given(plan=plans(), costs=all_costs(), faults=all_faults() | st.just(NO_FAULTS), seed=seeds)
def test_recorded_events_give_the_same_commands(plan: SchedulerPlan, costs: Costs, faults: Faults, seed: int) -> None:
    run = drive(plan, engine_for(plan, costs, faults=faults, seed=seed))
    again = Scheduler(plan)
    for event, now, commands in run.records:
        assert again.handle(event, now) == commands
