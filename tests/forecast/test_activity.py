"""What a run's records say of everybody, checked against the control plane that made them."""

from __future__ import annotations

from typing import Any

import pytest

from ebrl.engines.virtual.costs import Costs
from ebrl.engines.virtual.engine import VirtualEngine
from ebrl.engines.virtual.faults import Faults
from ebrl.ids import CpuId
from ebrl.report import activity as a
from ebrl.report.activity import Activity
from ebrl.report.forecast import as_text, figures, relative_error, steady_rate
from ebrl.runtime.loop import run
from ebrl.scheduling import transitions as t
from ebrl.scheduling.commands import Command
from ebrl.scheduling.events import Event
from ebrl.scheduling.scheduler import Scheduler
from ebrl.testing.build import make_plan

STATE = {
    t.Down: a.STARTING,
    t.NeedsReset: a.WANTS_CPU,
    t.Resetting: a.RESETTING,
    t.Idle: a.NO_SLOT,
    t.Waiting: a.QUEUED,
    t.Generating: a.GENERATING,
    t.Ready: a.WANTS_CPU,
    t.Running: a.STEPPING,
}


def observed(
    *, faults: Faults | None = None, seed: int = 0, **changes: object
) -> tuple[Activity, Scheduler, list[str], int]:
    """A run, every moment at which its records say something else of an env worker than control does, and
    how many moments there were."""
    plan = make_plan(**{"num_shards": 6, "batch": 4, "max_updates": 30, "max_env_failures": 50, **changes})
    scheduler, activity, wrong, num_seen = Scheduler(plan), Activity(plan), list[str](), 0
    costs = Costs(env_step_sigma=0.5, episode_steps=(5, 50), generation_alpha_s=0.02)
    engine = VirtualEngine(
        num_shards=plan.num_shards,
        chunk_len=4,
        envs_per_shard=plan.envs_per_shard,
        num_generators=plan.num_generators,
        costs=costs,
        faults=faults,
        seed=seed,
    )

    def see(now: float, event: Event, commands: list[Command]) -> None:
        nonlocal num_seen
        activity.see(now, event, commands)
        num_seen += plan.num_shards
        if scheduler.stopping is None and not scheduler.stopped:
            for shard, phase in enumerate(scheduler.step_level.phases):
                if STATE[type(phase)] != activity.envs[shard].state:
                    wrong.append(f"{now}: shard {shard} is {phase}, not {activity.envs[shard].state}")

    run(scheduler.handle, engine, see)
    activity.finish()
    return activity, scheduler, wrong, num_seen


@pytest.mark.parametrize("slack", [0, 1, 2])
@pytest.mark.parametrize("num_generators", [1, 2])
def test_records_tell_what_every_environment_does(slack: int, num_generators: int) -> None:
    activity, scheduler, wrong, _ = observed(slack=slack, num_generators=num_generators)
    assert wrong == []
    assert sum(size for _, size in activity.updates) == scheduler.gate.ledger.trained
    assert activity.env_steps == scheduler.counters.env_steps


WHOLE: dict[str, Any] = {"whole_episodes": True, "batch": 8}
TWO_NODES = ((CpuId(0), CpuId(1)), (CpuId(0), CpuId(1)))
LARGER: dict[str, dict[str, Any]] = {
    "three environments a shard": {"envs_per_shard": 3, "batch": 12},
    "three, and grants of a step": {"envs_per_shard": 3, "batch": 12, "quantum": 1},
    "whole episodes": WHOLE,
    "siblings": WHOLE | {"siblings": 4},
    "siblings, no slack": WHOLE | {"siblings": 4, "slack": 0},
    "two nodes": {"nodes": TWO_NODES},
    "two CPUs at a time": {"nodes": TWO_NODES, "cpus_per_shard": 2},
    "a barrier": {"nodes": TWO_NODES, "env_groups": 2, "step_barrier": True},
}


@pytest.mark.parametrize("changes", LARGER.values(), ids=LARGER)
@pytest.mark.parametrize("num_generators", [1, 2])
def test_records_of_larger_runs_tell_it_too(changes: dict[str, Any], num_generators: int) -> None:
    activity, scheduler, wrong, _ = observed(num_generators=num_generators, **changes)
    assert wrong == []
    assert sum(size for _, size in activity.updates) == scheduler.gate.ledger.trained
    assert activity.env_steps == scheduler.counters.env_steps
    assert activity.chunks == pytest.approx(scheduler.counters.chunks * activity.plan.envs_per_shard, abs=18)


FAILING = Faults(
    env_worker_lost=0.01, episode_invalid=0.01, generator_lost=0.01, learner_lost=0.05, idle_lost=0.005, late_answer=0.5
)


@pytest.mark.parametrize("changes", [{}, *LARGER.values()], ids=["small", *LARGER])
def test_failures_do_not_confuse_it(changes: dict[str, Any]) -> None:
    for seed in range(3):
        _, _, wrong, _ = observed(faults=FAILING, seed=seed, **{"batch": 4, "slack": 0, **changes})
        assert wrong == []


@pytest.mark.parametrize("faults", [Faults(), FAILING])
def test_a_dropped_sibling_group_confuses_it_about_slots_only_and_not_for_long(faults: Faults) -> None:
    for seed in range(3):
        changes = WHOLE | {"siblings": 4, "group_deadline_s": 2.0}
        activity, scheduler, wrong, num_seen = observed(faults=faults, seed=seed, **changes)
        assert scheduler.gate.ledger.dropped["group_deadline"] > 20
        assert sum(size for _, size in activity.updates) == scheduler.gate.ledger.trained
        assert all("is Idle(), not waiting for a CPU" in line or line.endswith(a.NO_SLOT) for line in wrong)
        assert len(wrong) < 0.01 * num_seen


def test_every_second_is_busy_or_idle_for_a_reason() -> None:
    activity = observed()[0]
    document = figures(activity)
    for stage, busy in document["busy"].items():
        other = {"simulation": 0.0, "generation": 0.0, "training": 0.0}
        seconds = document["seconds"]
        other["generation"] = sum(lane.seconds.get("adopting weights", 0.0) for lane in activity.generators) / (
            seconds * activity.plan.num_generators
        )
        other["training"] = activity.learner.seconds.get("checkpoint", 0.0) / seconds
        assert busy + other[stage] + sum(document["idle"][stage].values()) == pytest.approx(1.0)
    assert sum(document["environments"].values()) == pytest.approx(1.0)
    assert "data" in document["idle"]["training"]
    assert as_text(document)[0].startswith("speed ")


def test_without_slack_simulation_waits_for_training() -> None:
    slow = figures(observed(slack=0, num_shards=6, batch=6)[0])["idle"]["simulation"]
    fast = figures(observed(slack=2, num_shards=6, batch=6)[0])["idle"]["simulation"]
    reason = "staleness (no trajectory slot)"
    assert slow[reason] > 2 * fast.get(reason, 0.0)


def test_the_steady_rate_leaves_the_start_out() -> None:
    assert steady_rate([(10.0, 4), (12.0, 4), (14.0, 4)], 0.0) == 2.0
    assert steady_rate([(10.0, 4)], 2.0) == 0.5
    assert steady_rate([], 0.0) == 0.0


def test_errors_are_of_medians() -> None:
    assert relative_error(11.0, [9.0, 10.0, 100.0]) == pytest.approx(0.1)
    assert relative_error(9.0, [9.0, 11.0]) == pytest.approx(-0.1)
