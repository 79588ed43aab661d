"""Emulated devices of a run: which GPUs are pretended, who has how much of them, and how long work takes there."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from ebrl.config.schema import RunConfig
from ebrl.engines.local.setup import EmulatedTimes
from ebrl.errors import ConfigError
from ebrl.plan.devices import on_device
from ebrl.plan.hardware import load_hardware
from ebrl.plan.workloads import load_workload, read_document, read_workload
from ebrl.resources.allocation import Allocation, Shape, predict, shape_of
from ebrl.resources.allocator import Candidate
from ebrl.resources.pool import Infeasible
from ebrl.resources.uses import Habits, allocation_for, turns_s, with_habits
from ebrl.resources.workload import BatchCosts, Workload

EMULATED = "emulated"
"""As a device."""


def torch_device(name: str) -> str:
    """Where the real work of a device is done."""
    return "cpu" if name == EMULATED else name


@dataclass(frozen=True, slots=True, kw_only=True)
class Emulation:
    """GPUs that are not there."""

    workload: Workload
    """With the run's own numbers, at the emulated speed."""
    shape: Shape
    chosen: Candidate
    """Who has how much."""
    generation: EmulatedTimes
    training: EmulatedTimes
    about: str
    """For every output of the run."""


def emulation_of(config: RunConfig, num_real_cpus: int) -> Emulation | None:
    """What the run pretends; None where its devices are real.

    Raises:
        ConfigError: only one stage is emulated, or the workload does not fit the machine.
        UsageError: there is no such workload or machine.
    """
    devices = (config.generation.device, config.training.device)
    if EMULATED not in devices:
        return None
    if devices != (EMULATED, EMULATED):
        raise ConfigError(
            "generation.device, training.device", f'= {devices[0]!r}, {devices[1]!r}: want "emulated" for both, or none'
        )
    gpu_use, slack = config.resources.gpu_use, config.training.slack
    if gpu_use in ("hand_over", "hybrid") and slack:
        raise ConfigError(
            "resources.gpu_use, training.slack", f"= {gpu_use!r}, {slack}: want slack 0, since stages take turns"
        )
    machine = load_hardware(config.emulation.machine)
    try:
        shape = shape_of(machine)
    except ValueError as error:
        raise ConfigError("emulation.machine", f"= {config.emulation.machine!r}: {error}") from error
    shape = replace(shape, num_cpus=config.emulation.cpus or num_real_cpus)
    if config.emulation.gpus > shape.num_gpus:
        raise ConfigError("emulation.gpus", f"= {config.emulation.gpus}: a node of {machine.name} has {shape.num_gpus}")
    if config.emulation.gpus:
        shape = replace(shape, num_nodes=1, num_gpus=config.emulation.gpus)
    if not shape.num_gpus:
        raise ConfigError("emulation.machine", f"= {config.emulation.machine!r}: has no GPU")
    workload = _workload(config, machine.nodes[0].gpus[0].name)
    chosen = allocation_for(
        config.resources.gpu_use, workload, shape, env_groups=min(config.generation.env_groups, workload.num_envs)
    )
    if isinstance(chosen, Infeasible):
        raise ConfigError("emulation.workload", f"= {config.emulation.workload!r}: {chosen}")
    one = chosen.allocation
    return Emulation(
        workload=workload,
        shape=shape,
        chosen=chosen,
        generation=EmulatedTimes(table=_generation_table(workload, shape, one), units=one.generation_units),
        training=EmulatedTimes(
            table=_training_table(config, workload, shape, one),
            units=one.training_units,
            padding=config.emulation.padding == "masked"
            and config.simulation.finished_episodes == "run_to_horizon",  # else there is none
        ),
        about=f"GPUs are emulated: {workload.name} on {machine.name}, {config.emulation.speed:g} times as fast",
    )


def _workload(config: RunConfig, gpu: str) -> Workload:
    path = Path(config.emulation.workload)
    named = read_workload(read_document(path), path) if path.is_file() else load_workload(config.emulation.workload)
    given = on_device(named, gpu)
    training, simulation = config.training, config.simulation
    own = replace(
        given,
        num_envs=simulation.num_envs,
        chunk_len=config.policy.chunk_len,
        trajectory_chunks=float(training.trajectory_chunks),
        batch_trajectories=training.batch_trajectories,
        slack=training.slack,
        max_batch=min(given.max_batch, config.generation.max_batch),
    )
    habits = Habits(
        observe_every_step=simulation.observe == "every_step",
        run_to_horizon=simulation.finished_episodes == "run_to_horizon",
        trains_on_padding=config.emulation.padding == "masked",
    )
    segment = training.trajectory == "segment"
    costs = own.simulation
    known = costs.env_step_s and costs.horizon_steps and costs.episode_steps
    if not segment or known:  # else a segment costs what the workload says
        try:
            own = with_habits(own, habits, segment_chunks=training.trajectory_chunks if segment else None)
        except ValueError as error:
            raise ConfigError("emulation.workload", f'{error}, so training.trajectory must be "segment"') from error
    return _faster(own, config.emulation.speed)


def _faster(workload: Workload, speed: float) -> Workload:
    """Everything takes less time, simulation too: proportions stay."""

    def batch(costs: BatchCosts) -> BatchCosts:
        return replace(costs, fixed_s=costs.fixed_s / speed, item_s=costs.item_s / speed)

    simulation = workload.simulation
    names = ("chunk_s", "chunk_sd_s", "env_step_s", "env_step_sd_s", "observe_s", "reset_s", "hard_reset_s")
    return replace(
        workload,
        simulation=replace(simulation, **{name: getattr(simulation, name) / speed for name in names}),
        generation=batch(workload.generation),
        training=batch(workload.training),
        update_s=workload.update_s / speed,
        sync_s=workload.sync_s / speed,
        hand_over_s=workload.hand_over_s / speed,
    )


def _shares(shape: Shape, one: Allocation) -> list[tuple[int, int]]:
    """Units of generation and training that a GPU can be split into; those of the allocation, where it cannot."""
    if one.gpu_sharing != "split":
        return [(one.generation_units, one.training_units)]
    return [(sms, shape.num_sms - sms) for sms in range(shape.sm_step, shape.num_sms, shape.sm_step)]


def _generation_table(workload: Workload, shape: Shape, one: Allocation) -> tuple[tuple[int, float, float], ...]:
    shares = _shares(shape, one)
    if one.gpu_sharing == "split":
        shares.append((shape.num_sms, one.training_units))  # while the learner's are lent
    rows = []
    for generation, training in shares:
        found = predict(workload, shape, replace(one, generation_units=generation, training_units=training))
        rows.append((generation, found.generation_fixed_s, found.generation_item_s))
    return tuple(rows)


def _training_table(
    config: RunConfig, workload: Workload, shape: Shape, one: Allocation
) -> tuple[tuple[int, float, float], ...]:
    """Items are chunks that are trained on."""
    extra_s = turns_s(config.resources.gpu_use, workload, shape, one)
    fixed_s = workload.update_s + (workload.sync_s if shape.num_nodes * one.num_learners > 1 else 0.0)
    num_items = workload.batch_trajectories * workload.training_chunks
    rows = []
    for generation, training in _shares(shape, one):
        found = predict(workload, shape, replace(one, generation_units=generation, training_units=training))
        rows.append((training, fixed_s + extra_s, (found.update_s - fixed_s) / num_items))
    return tuple(rows)
