"""Runs on the virtual engine, recorded as a real run is."""

from __future__ import annotations

from pathlib import Path

from ebrl.engines.virtual.costs import Costs
from ebrl.engines.virtual.engine import VirtualEngine
from ebrl.records.eventlog import EventLog, Level, event_file, plan_file
from ebrl.records.schema import plan_to_json
from ebrl.records.writer import write_json
from ebrl.runtime.loop import run
from ebrl.scheduling.commands import Command
from ebrl.scheduling.events import Event
from ebrl.scheduling.plan import SchedulerPlan
from ebrl.scheduling.scheduler import Scheduler
from ebrl.testing.build import make_plan

UNEVEN = Costs(env_step_s=0.1, shard_factors=(1.0, 1.3, 3.0), episode_steps=(5, 40))

ONE_CPU = make_plan(num_shards=3, num_cpus=1, quantum=1, min_generation_batch=1, batch=2, max_updates=12)


def record_run(run_dir: Path, *, plan: SchedulerPlan = ONE_CPU, level: Level = "steps", part: str = "") -> list[Event]:
    """Record a run into ``run_dir``; returns all its events."""
    write_json(run_dir / plan_file(part), {"scheduler": plan_to_json(plan), "records_level": level})
    log = EventLog(run_dir / event_file(part), level=level)
    seen: list[Event] = []
    engine = VirtualEngine(
        num_shards=plan.num_shards,
        chunk_len=plan.chunk_len,
        envs_per_shard=plan.envs_per_shard,
        num_generators=plan.num_generators,
        costs=UNEVEN,
        first_version=plan.first_version,
    )

    def record(now: float, event: Event, commands: list[Command]) -> None:
        seen.append(event)
        log.write(now, event, commands)

    run(Scheduler(plan).handle, engine, record)
    log.close()
    return seen
