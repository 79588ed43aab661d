"""A short run of the real thing, for what can only be seen when all stages work."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from ebrl.host.meters import Usage
from ebrl.profiling.rig import Rig
from ebrl.records.eventlog import EventLog
from ebrl.records.metrics import RunMetrics
from ebrl.records.writer import MetricsWriter
from ebrl.resources.profile import BatchCost, GenerationProfile, PlayedEpisode, Work, generation_cost
from ebrl.runtime.loop import run
from ebrl.scheduling.commands import Command
from ebrl.scheduling.events import ChunksReady, Event, StepsDone, UpdateDone
from ebrl.scheduling.scheduler import Scheduler

_FEW = 20
"""Fewer samples than this tell nothing of a kind of event or of an interference."""

_FEW_UPDATES = 5
"""Updates that a run should see, for its first ones differ most from each other."""
_PATIENCE = 2
"""How many times as long as planned it may go on to see them."""


@dataclass
class Company:
    """What was counted."""

    event_s: dict[str, float] = field(default_factory=dict)
    """CPU seconds of the main process per event, by kind, without its commands."""
    command_s: float = 0.0
    used: dict[str, Usage] = field(default_factory=dict)
    """By stage."""
    env_steps: int = 0
    batch_sizes: list[int] = field(default_factory=list)
    num_updates: int = 0
    episodes: list[PlayedEpisode] = field(default_factory=list)
    note: str = ""

    def ratios(
        self,
        *,
        env_step_s: float,
        table: Sequence[BatchCost],
        update_s: float,
        adopt_s: float,
        num_generators: int,
        checkpoint_s: float,
    ) -> dict[str, float]:
        """CPU seconds of each stage here over what the same work needs alone."""
        generation = GenerationProfile(table=tuple(table), adopt=Work(0.0))
        alone = {
            "simulation": env_step_s * self.env_steps,
            "generation": sum(generation_cost(generation, size).cpu_s for size in self.batch_sizes)
            + adopt_s * self.num_updates * num_generators,
            "training": update_s * self.num_updates + checkpoint_s,
        }
        enough = {
            "simulation": self.env_steps >= _FEW,
            "generation": len(self.batch_sizes) >= _FEW,
            "training": self.num_updates >= 1,
        }
        return {
            stage: self.used[stage].run_s / seconds if enough[stage] and seconds > 0 else 1.0
            for stage, seconds in alone.items()
        }


def together(rig: Rig, directory: Path, *, seconds: float, show: Callable[[], None] = lambda: None) -> Company:
    """Run for so long, with records as a real run keeps them, and count; ``show`` is called at every event."""
    plan = replace(
        rig.plan,
        first_version=rig.version,
        first_episode=10_000,
        first_serial=10_000,
        max_env_steps=10**12,
        max_updates=10**9,
    )
    scheduler = Scheduler(plan)
    counter = _Counter(scheduler, directory, seconds=seconds, stop=rig.engine.request_stop, show=show)
    rig.engine.begin(evaluation=False)
    before = _by_stage(rig)
    start = time.monotonic()
    try:
        run(scheduler.handle, rig.engine, counter.see)
    finally:
        counter.close()
    after = _by_stage(rig)
    company = counter.company
    company.used = {stage: after[stage].since(before[stage]) for stage in before}
    simulation = company.used["simulation"]
    resets = counter.metrics.simulation_reset_s / max(counter.metrics.simulation_busy_s, 1e-9)
    company.used["simulation"] = Usage(simulation.run_s * (1 - resets), simulation.wait_s)
    company.event_s, company.command_s = _event_costs(counter.rows[1:])
    company.note = (
        f"all stages together for {time.monotonic() - start:.1f} s: {len(counter.rows)} events, "
        f"{len(company.batch_sizes)} generation batches, {company.num_updates} updates"
    )
    return company


class _Counter:
    """Keeps records as a session does, counts work, and looks at what each event costs this process."""

    def __init__(
        self,
        scheduler: Scheduler,
        directory: Path,
        *,
        seconds: float,
        stop: Callable[[str], None],
        show: Callable[[], None],
    ) -> None:
        self.company = Company()
        self.metrics = RunMetrics(scheduler)
        self._envs_per_shard = scheduler.plan.envs_per_shard
        self.rows: list[tuple[str, int, float]] = []
        """Kind of event, number of its commands, CPU seconds until the next event was recorded."""
        self._log = EventLog(directory / "events.jsonl.zst", level="chunks")
        self._writer = MetricsWriter(directory)
        self._seconds = seconds
        self._until = time.monotonic() + seconds  # after the writers, whose libraries take long to import
        self._stop: Callable[[str], None] | None = stop
        self._show = show
        self._before = (time.process_time(), "", 0)

    def see(self, now: float, event: Event, commands: list[Command]) -> None:
        """Record and count one event."""
        self._log.write(now, event, commands)
        self.metrics.see(now, event)
        self._count(event)
        late_s = time.monotonic() - self._until
        enough = self.company.num_updates >= _FEW_UPDATES or late_s > _PATIENCE * self._seconds
        if self._stop is not None and late_s > 0 and enough:
            self._stop("measured")
            self._stop = None
        since, kind, num_commands = self._before
        self.rows.append((kind, num_commands, time.process_time() - since))
        self._show()  # between the two looks at the clock, so that no event pays for it
        self._before = (time.process_time(), type(event).__name__, len(commands))

    def _count(self, event: Event) -> None:
        company = self.company
        match event:
            case StepsDone():
                company.env_steps += event.env_steps
                for end in event.episode_ends:
                    company.episodes.append(PlayedEpisode(end.num_steps, end.success, finished=True))
            case ChunksReady():
                company.batch_sizes.append(len(event.shards) * self._envs_per_shard)
            case UpdateDone():
                company.num_updates += 1
                self._writer.write(self.metrics.row())

    def close(self) -> None:
        """Write what is left."""
        self._log.close()
        self._writer.close()


def _by_stage(rig: Rig) -> dict[str, Usage]:
    stages = {"env": "simulation", "generator": "generation", "learner": "training"}
    found = {stage: Usage(0.0, 0.0) for stage in stages.values()}
    for key in rig.everybody():
        one, sum_ = rig.usage(key), found[stages[key.kind]]
        found[stages[key.kind]] = Usage(sum_.run_s + one.run_s, sum_.wait_s + one.wait_s)
    return found


def _event_costs(rows: list[tuple[str, int, float]]) -> tuple[dict[str, float], float]:
    """Least squares of seconds on the kind of event and the number of its commands.

    A row is one event and what was spent until the next one was recorded.
    """
    kinds = sorted({kind for kind, _, _ in rows})
    x_RK = np.zeros((len(rows), len(kinds) + 1))
    for number, (kind, commands, _) in enumerate(rows):
        x_RK[number, kinds.index(kind)] = 1.0
        x_RK[number, -1] = commands
    y_R = np.array([seconds for _, _, seconds in rows])
    fitted_K, *_ = np.linalg.lstsq(x_RK, y_R, rcond=None)
    costs = {kind: max(0.0, float(fitted_K[index])) for index, kind in enumerate(kinds)}
    return costs, max(0.0, float(fitted_K[-1]))
