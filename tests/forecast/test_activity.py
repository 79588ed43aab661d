"""What a run's records say of everybody, checked against the control plane that made them."""

from __future__ import annotations

import pytest

from ebrl.engines.virtual.costs import Costs
from ebrl.engines.virtual.engine import VirtualEngine
from ebrl.engines.virtual.faults import Faults
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
) -> tuple[Activity, Scheduler, list[str]]:
    """A run, and every moment at which its records say something else of an environment than control does."""
    plan = make_plan(**{"num_shards": 6, "batch": 4, "max_updates": 30, "max_env_failures": 50, **changes})
    scheduler, activity, wrong = Scheduler(plan), Activity(plan), list[str]()
    costs = Costs(env_step_sigma=0.5, episode_steps=(5, 50), generation_alpha_s=0.02)
    engine = VirtualEngine(
        num_shards=6, chunk_len=4, num_generators=plan.num_generators, costs=costs, faults=faults, seed=seed
    )

    def see(now: float, event: Event, commands: list[Command]) -> None:
        activity.see(now, event, commands)
        if scheduler.stopping is None and not scheduler.stopped:
            for shard, phase in enumerate(scheduler.step_level.phases):
                if STATE[type(phase)] != activity.envs[shard].state:
                    wrong.append(f"{now}: shard {shard} is {phase}, not {activity.envs[shard].state}")

    run(scheduler.handle, engine, see)
    activity.finish()
    return activity, scheduler, wrong


@pytest.mark.parametrize("slack", [0, 1, 2])
@pytest.mark.parametrize("num_generators", [1, 2])
def test_records_tell_what_every_environment_does(slack: int, num_generators: int) -> None:
    activity, scheduler, wrong = observed(slack=slack, num_generators=num_generators)
    assert wrong == []
    assert sum(size for _, size in activity.updates) == scheduler.gate.ledger.trained
    assert activity.env_steps == scheduler.counters.env_steps


def test_failures_do_not_confuse_it_for_long() -> None:
    for seed in range(3):
        _, _, wrong = observed(faults=Faults(env_worker_lost=0.01, episode_invalid=0.01), seed=seed)
        assert wrong == []


def test_every_second_is_busy_or_idle_for_a_reason() -> None:
    activity, _, _ = observed()
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
