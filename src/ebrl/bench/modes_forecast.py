"""What a cell of ``ebrl bench modes --engine local`` should measure, said before it is measured.

The plan of the cell is played on the virtual engine. Emulated GPUs, and simulators that sleep, take the times that the
processes are told to take. What the processes' real work costs beside that is in ``HostCosts`` (``modes_costs``), which
were measured before the first cell: no cell's own rate is used.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import fmean
from typing import Any

from ebrl.bench.modes_costs import HostCosts, Sleeps, sleeps_of
from ebrl.config.schema import RunConfig
from ebrl.engines.virtual.costs import spread
from ebrl.engines.virtual.engine import VirtualEngine
from ebrl.engines.virtual.shared import SharedEngine
from ebrl.errors import RunError
from ebrl.host.meters import nice_works
from ebrl.host.probe import usable_cpus
from ebrl.ids import ShardId
from ebrl.resources.profile import Work
from ebrl.runtime.emulation import emulation_of
from ebrl.runtime.engine import Engine
from ebrl.runtime.loop import run
from ebrl.scheduling import commands as c
from ebrl.scheduling.events import Event, UpdateDone
from ebrl.scheduling.plan import SchedulerPlan
from ebrl.scheduling.quotas import Stage
from ebrl.scheduling.scheduler import Scheduler

_NOW_S = 1e-9
"""What is due within this time is due now."""


def steady_rate(engine: Engine, plan: SchedulerPlan, *, warm_up: int) -> float:
    """Trajectories per second between update ``warm_up`` and the last one, of a run on any engine.

    Raises:
        RunError: the run failed, or had no update after those.
    """
    scheduler = Scheduler(plan)
    times: list[float] = []

    def record(now: float, event: Event, commands: list[c.Command]) -> None:
        if isinstance(event, UpdateDone) and not event.skipped:
            times.append(now)

    stop = run(scheduler.handle, engine, record)
    if stop.failed or len(times) <= warm_up:
        raise RunError(f"{stop.reason} after {len(times)} updates\n{stop.detail}")
    return (len(times) - warm_up) * plan.batch / (times[-1] - times[warm_up - 1])


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """Seconds of the emulated GPUs under one allocation."""

    batch_s: float
    """Of a generation batch, whatever its size."""
    chunk_s: float
    """For each chunk of it."""
    update_s: float
    """Hand-over included; of as many chunks as an update has on average."""
    by_units: dict[int, tuple[float, float]] = field(default_factory=dict)
    """``batch_s`` and ``chunk_s`` by SMs that a generator may have."""

    def with_units(self, units: int) -> Device:
        """With other SMs for generation."""
        batch_s, chunk_s = self.by_units[units]
        return replace(self, batch_s=batch_s, chunk_s=chunk_s)


def device_of(config: RunConfig) -> Device:
    """What the processes of a run are told.

    Raises:
        RunError: its devices are real.
    """
    emulation = emulation_of(config, len(usable_cpus()))
    if emulation is None:
        raise RunError(f"{config.env.name}: want emulated devices")
    batch_s, chunk_s = emulation.generation.at_first
    update_fixed_s, update_item_s = emulation.training.at_first
    return Device(
        batch_s=batch_s,
        chunk_s=chunk_s,
        update_s=update_fixed_s
        + update_item_s * emulation.workload.batch_trajectories * emulation.workload.training_chunks,
        by_units={units: (fixed_s, item_s) for units, fixed_s, item_s in emulation.generation.table},
    )


class CellCosts:
    """How long everything takes in one cell; see ``CostModel``.

    Of generator and learner ``other_s`` is what is left of the device's time when the real work is done.
    """

    start_s = 0.0
    update_heard_s = 0.0
    loss_heard_s = 0.0

    def __init__(self, config: RunConfig, device: Device, host: HostCosts, *, step_barrier: bool) -> None:
        """``step_barrier`` decides which of the two short runs the cell is taken to be like."""
        simulation = config.simulation
        self._device = device
        self._host = host
        self._company = host.lock_step if step_barrier else host.greedy
        self._sleeps: Sleeps = sleeps_of(config) or Sleeps()
        self._chunk_len = config.policy.chunk_len
        self._every_step = simulation.observe == "every_step"
        self._to_horizon = simulation.finished_episodes == "run_to_horizon"
        self._places: dict[ShardId, tuple[int, int]] = {}
        """Tape of each shard, and its place there."""

    def episode(self, rng: random.Random, env_steps: int) -> tuple[int, bool]:
        """See ``CostModel``."""
        sleeps, lengths = self._sleeps, self._host.env.lengths
        if self._to_horizon:
            return self._host.env.max_episode_steps, False
        if sleeps.max_steps:
            return rng.randint(sleeps.min_steps, sleeps.max_steps), False
        return rng.choice(lengths), False

    def steps(self, shard: ShardId, env: int, num_steps: int, rng: random.Random) -> Work:
        """See ``CostModel``; a frame is asked for after every env step, or at the end of a whole chunk."""
        one, sleeps = self._host.env, self._sleeps
        frames = num_steps if self._every_step else num_steps // self._chunk_len
        cpu_s = one.grant_cpu_s + one.step_cpu_s * self._factors(shard, num_steps, rng) + one.frame_cpu_s * frames
        other_s = one.step_late_s * num_steps + (sleeps.observe_s + one.frame_late_s) * frames
        if sleeps.step_s:
            other_s += sum(spread(sleeps.step_s, sleeps.sigma, rng) for _ in range(num_steps))
        return Work(cpu_s * self._company.simulation, other_s)

    def _factors(self, shard: ShardId, num_steps: int, rng: random.Random) -> float:
        """Sum over the next env steps of the shard's tape, each over the mean; a tape is begun anywhere."""
        tapes = self._host.env.factors
        if not tapes:
            return float(num_steps)
        found = self._places.get(shard)
        if found is None:
            number = rng.randrange(len(tapes))
            found = number, rng.randrange(len(tapes[number]))
        number, place = found
        tape = tapes[number]
        self._places[shard] = (number, (place + num_steps) % len(tape))
        return sum(tape[(place + step) % len(tape)] for step in range(num_steps))

    def reset(self, shard: ShardId, env: int, rng: random.Random) -> Work:
        """See ``CostModel``."""
        self._places.pop(shard, None)
        return Work(rng.choice(self._host.env.resets) * self._company.simulation, self._sleeps.reset_s)

    def generation(self, num_chunks: int) -> Work:
        """See ``CostModel``."""
        host, device = self._host, self._device
        cpu_s = (host.batch_cpu_s + host.chunk_cpu_s * num_chunks) * self._company.generation
        return _stretched(cpu_s, device.batch_s + device.chunk_s * num_chunks)

    def adoption(self) -> Work:
        """See ``CostModel``."""
        return Work(self._host.adopt_cpu_s)

    def update(self, rng: random.Random) -> Work:
        """See ``CostModel``."""
        return _stretched(self._host.update_cpu_s, self._device.update_s)

    def checkpoint(self) -> Work:
        """See ``CostModel``; what comes after the last update is not measured."""
        return Work(0.0)

    def set_quota(self, stage: Stage, index: int, num_cpus: int, units: int) -> None:
        """See ``CostModel``; only generation's SMs change in a cell, by what is lent."""
        if stage == "generation":
            self._device = self._device.with_units(units)


def _stretched(cpu_s: float, device_s: float) -> Work:
    return Work(cpu_s, max(0.0, device_s - cpu_s))


class EmulatedEngine(SharedEngine):
    """Shared CPUs under processes that stretch their work to the time of a device.

    The device's time passes while a process waits for a CPU, so only work that ends after it makes an answer late.
    """

    def __init__(self, *, bound: bool, **settings: Any) -> None:
        """See ``SharedEngine``.

        Args:
            bound: whether env workers stay on the CPUs of their grants.
            settings: those of ``SharedEngine``.
        """
        self._bound = bound
        super().__init__(**settings)

    def _pin(self, command: c.StepEnv | c.ResetEnv) -> None:
        if self._bound:
            super()._pin(command)

    def _begin(self, runner: Any) -> None:
        if runner.task.kind == "simulation":
            super()._begin(runner)
            return
        runner.started = self.now
        self.host.submit(runner.task, runner.jobs[0][0].cpu_s, self.now)

    def _finished(self, runner: Any) -> None:
        left_s = runner.started + sum(runner.jobs[0][0]) - self.now
        if runner.task.kind == "simulation" or left_s <= _NOW_S:
            super()._finished(runner)
        else:
            self._after(left_s, partial(super()._finished, runner))


def forecast(config: RunConfig, plan: SchedulerPlan, host: HostCosts, *, warm_up: int, seeds: int) -> float:
    """Trajectories per second that a cell should measure: the mean of as many runs on paper.

    Args:
        config: of the cell.
        plan: of the cell; its last update is the last that is measured.
        host: what the processes cost on this machine.
        warm_up: updates before what is measured.
        seeds: runs.
    """
    device = device_of(config)
    company = host.lock_step if plan.step_barrier else host.greedy
    rates = []
    for seed in range(seeds):
        engine = EmulatedEngine(
            bound=config.simulation.binding == "cpu" and not config.emulation.cpus,
            num_shards=plan.num_shards,
            chunk_len=plan.chunk_len,
            num_generators=plan.num_generators,
            costs=CellCosts(config, device, host, step_barrier=plan.step_barrier),
            control=company.control,
            cpus=usable_cpus(),
            tick_s=host.tick_s,
            learner_weight=1.25**-config.training.nice if nice_works() else 1.0,
            seed=seed,
        )
        rates.append(steady_rate(engine, plan, warm_up=warm_up))
    return fmean(rates)


def forecast_of_emulation(
    config: RunConfig, plan: SchedulerPlan, host: HostCosts, *, warm_up: int, seeds: int
) -> float:
    """The same if this machine's own work took no time: what the emulated machine would do.

    Only where simulation is emulated too.
    """
    costs = CellCosts(config, device_of(config), host.without_work(), step_barrier=plan.step_barrier)
    rates = []
    for seed in range(seeds):
        engine = VirtualEngine(
            num_shards=plan.num_shards,
            chunk_len=plan.chunk_len,
            num_generators=plan.num_generators,
            costs=costs,
            seed=seed,
        )
        rates.append(steady_rate(engine, plan, warm_up=warm_up))
    return fmean(rates)
