"""What it costs to move CPUs between the stages of a real run, and what each split makes of it.

A run on two CPUs goes from one CPU for simulation and one for generation and training, to both for everybody, and
back, again and again. A move costs what the run falls behind in the window around it, against the mean rate of the
two splits, in seconds of that rate.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from ebrl.config.load import make_config
from ebrl.config.schema import RunConfig
from ebrl.engines.local.engine import LocalEngine
from ebrl.errors import RunError, UsageError
from ebrl.host.probe import machine, usable_cpus
from ebrl.plan.plan import make_plan
from ebrl.runtime.local import local_setup
from ebrl.runtime.loop import run
from ebrl.scheduling.commands import Command
from ebrl.scheduling.events import Event, ResetDone, StepsDone
from ebrl.scheduling.quotas import Split
from ebrl.scheduling.scheduler import Scheduler

WINDOW_S = 0.5
"""Before and after a move."""


@dataclass
class _Run:
    """Asks for a move every ``gap_s`` seconds, and counts env steps."""

    engine: LocalEngine
    scheduler: Scheduler
    splits: list[Split]
    gap_s: float
    steps: list[tuple[float, int]] = field(default_factory=list)
    """Time, env steps by then."""
    asked: list[float] = field(default_factory=list)
    started: float = 0.0

    def see(self, now: float, event: Event, commands: list[Command]) -> None:
        if not isinstance(event, StepsDone | ResetDone):
            return
        self.started = self.started or now
        self.steps.append((now, self.scheduler.counters.env_steps))
        due = self.started + self.gap_s * (len(self.asked) + 1)
        if now < due:
            return
        if self.splits:
            self.asked.append(now)
            self.engine.request_split(self.splits.pop(0))
        else:
            self.engine.request_stop("measured")

    def rate(self, begin: float, end: float) -> float:
        """Env steps per second between two times."""
        inside = [(time, steps) for time, steps in self.steps if begin <= time <= end]
        if len(inside) < 2:
            return 0.0
        (first, before), (last, after) = inside[0], inside[-1]
        return (after - before) / (last - first)


def measure(*, quick: bool) -> dict[str, Any]:
    """Durations and costs of moves, in seconds.

    Args:
        quick: three moves instead of ten.

    Raises:
        UsageError: there is one CPU only.
        RunError: the run failed.
    """
    cpus = usable_cpus()[:2]
    if len(cpus) < 2:
        raise UsageError("moving CPUs between stages wants two of them, and this process may use one")
    apart = Split(simulation=cpus[:1], generation=cpus[1:], training=cpus[1:])
    together = Split(simulation=cpus, generation=cpus, training=cpus)
    num_moves, gap_s = (3, 2.0) if quick else (10, 4.0)
    with tempfile.TemporaryDirectory(prefix="ebrl-bench-split-") as directory:
        seen = _play(_config(), [together, apart] * (num_moves // 2) + [together] * (num_moves % 2), gap_s, directory)
    manager, ledger = seen.scheduler.manager, seen.scheduler.gate.ledger
    assert manager is not None
    moves = manager.moves
    bounds = [seen.started, *seen.asked, seen.steps[-1][0]]
    rates = [seen.rate(begin + WINDOW_S, end) for begin, end in pairwise(bounds)]
    cost_s = []
    for index, asked in enumerate(seen.asked):
        usual = (rates[index] + rates[index + 1]) / 2
        around = seen.rate(asked - WINDOW_S, asked + WINDOW_S)
        cost_s.append((1.0 - around / usual) * 2 * WINDOW_S)
    done_s = [move.done_s - move.asked_s for move in moves]
    return {
        "moves": len(moves),
        "done_s": done_s,
        "left_s": [move.left_s - move.asked_s for move in moves],
        "done_median_s": median(done_s),
        "done_max_s": max(done_s),
        "cost_s": cost_s,
        "cost_median_s": median(cost_s),
        "env_steps_per_s": {"apart": rates[0::2], "together": rates[1::2]},
        "restarts": dict(seen.scheduler.counters.restarts),
        "mismatches": manager.quotas.counts.mismatches,
        "overlaps": manager.quotas.counts.overlaps,
        "trajectories_dropped": dict(ledger.dropped),
        "ledger_balances": ledger.balances(seen.scheduler.gate.num_held_untrained),
        "machine": machine(),
    }


def _config() -> RunConfig:
    return make_config(
        {
            "env": {"name": "toy/reach-v1"},
            "policy": {"name": "mlp", "chunk_len": 8},
            "simulation": {"num_envs": 8},
            "generation": {"min_batch": 4},
            "training": {"batch_trajectories": 8, "trajectory_chunks": 8, "max_env_steps": 2**31 - 1},
            "checkpoint": {"every_updates": 0},
        }
    )


def _play(config: RunConfig, splits: list[Split], gap_s: float, directory: str) -> _Run:
    apart = splits[1]
    plan = replace(make_plan(config, usable_cpus()), nodes=(apart.simulation,), split=apart)
    scheduler = Scheduler(plan)
    engine = LocalEngine(local_setup(config, plan, Path(directory)))
    seen = _Run(engine, scheduler, list(splits), gap_s)
    try:
        engine.start()
        engine.begin(evaluation=False)
        stop = run(scheduler.handle, engine, seen.see)
    finally:
        engine.close()
    if stop.failed:
        raise RunError(f"{stop.reason}\n{stop.detail}")
    return seen
