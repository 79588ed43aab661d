"""From a configuration that wants a planned allocation to a plan that has one."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from ebrl.config.schema import RunConfig
from ebrl.errors import ConfigError, UsageError
from ebrl.host.hardware import probe_hardware
from ebrl.host.sharing.choose import probe_device
from ebrl.ids import CpuId, CpuSet
from ebrl.plan.plan import make_plan
from ebrl.profiling.workload import workload_of
from ebrl.resources.allocation import largest_batch, shape_of
from ebrl.resources.allocator import allocate
from ebrl.resources.hardware import Hardware
from ebrl.resources.pool import Infeasible
from ebrl.resources.profile import Profile
from ebrl.runtime.emulation import Emulation, emulation_of
from ebrl.scheduling.management import Manager, split_of, split_of_sms
from ebrl.scheduling.plan import Management, SchedulerPlan

SWITCH_S = 0.1
"""Seconds of throughput that a move of CPUs costs: more than ``ebrl bench split`` measures."""


def run_plan(config: RunConfig, hardware: Hardware | None = None, **firsts: int) -> SchedulerPlan:
    """The control plane's plan, allocation included.

    Args:
        config: what the user chose.
        hardware: the machine; None looks at this one.
        firsts: of a run that is resumed; see ``make_plan``.

    Raises:
        ConfigError: the run asks for CPUs that this process may not use, or for what cannot be planned.
        UsageError: the profile is not there, or of another run.
    """
    machine = hardware or probe_hardware(sharing=probe_device)
    usable = tuple(cpu.id for cpu in machine.nodes[0].cpus)
    plan = make_plan(config, usable, **firsts)
    emulation = emulation_of(config, len(usable))
    if emulation is not None:
        return _emulated(config, plan, emulation, usable)
    return plan if config.resources.allocation == "by_hand" else _planned(config, plan, machine)


def by_hand(config: RunConfig) -> RunConfig:
    """The same run without a planned allocation, and so without a profile."""
    return config.model_copy(update={"resources": config.resources.model_copy(update={"allocation": "by_hand"})})


def _emulated(config: RunConfig, plan: SchedulerPlan, emulation: Emulation, usable: CpuSet) -> SchedulerPlan:
    """Simulation has emulated CPUs, where it is to have more than there are; SMs are shared out as emulated."""
    _check(config, _CHOSEN_BY_EMULATION, "an emulated device")
    one, width = emulation.chosen.allocation, plan.envs_per_shard
    generators = one.num_generators * emulation.shape.num_nodes
    cpus = plan.nodes[0]
    if config.emulation.cpus:
        workers = one.simulation_cpus * emulation.shape.num_nodes // plan.cpus_per_shard
        if not workers:
            raise ConfigError(
                "emulation.cpus",
                f"= {config.emulation.cpus}: want at least the {plan.cpus_per_shard} of one env worker",
            )
        cpus = tuple(CpuId(cpu) for cpu in range(workers * plan.cpus_per_shard))
    split = split_of_sms(one, simulation=cpus, host=usable)
    largest = largest_batch(one.max_batch, plan.env_groups, emulation.workload.num_envs, generators)
    return replace(
        plan,
        nodes=(cpus,),
        split=split,
        lend=config.resources.lend and one.gpu_sharing == "split",
        num_generators=min(generators, plan.num_shards),
        max_generation_batch=max(1, largest // width),
    )


def _planned(config: RunConfig, plan: SchedulerPlan, machine: Hardware) -> SchedulerPlan:
    _check(config, _CHOSEN_BY_PLANNING, 'resources.allocation = "planned"')
    workload = workload_of(_profile(Path(config.resources.profile)), config)
    if workload.unit == "gpu":
        raise ConfigError(
            "resources.allocation",
            '= "planned": SMs are planned (ebrl plan) but not yet applied to the processes of a run; '
            'want "by_hand" where generation and training work on a GPU',
        )
    try:
        shape = shape_of(machine)
    except ValueError as error:
        raise ConfigError("resources.allocation", f'= "planned": {error}') from error
    choice = allocate(workload, shape)
    if isinstance(choice, Infeasible):
        raise ConfigError("resources.allocation", f'= "planned": {choice}')
    allocation = choice.best.allocation
    management = Management(
        workload=replace(workload, sources={}),
        shape=shape,
        allocation=allocation,
        cpus=machine.nodes[0].cpus,
        sample_s=config.resources.sample_s,
        switch_s=SWITCH_S,
    )
    split = split_of(allocation, management)
    width = plan.envs_per_shard
    return replace(
        plan,
        nodes=(split.simulation,),
        split=split,
        management=management if config.resources.rebalance else None,
        min_generation_batch=-(-allocation.min_batch // width),
        max_generation_batch=max(1, allocation.max_batch // width),
    )


_CHOSEN_BY_PLANNING = (
    "run.deterministic",
    "generation.num_generators",
    "generation.env_groups",
    "simulation.cpus",
    "generation.cpus",
    "training.cpus",
    "simulation.binding",
)
_CHOSEN_BY_EMULATION = ("generation.num_generators", "generation.cpus", "training.cpus", "resources.allocation")


def _check(config: RunConfig, fields: Iterable[str], chooser: str) -> None:
    """What is chosen for the user must not be chosen already."""
    wrong = {
        "run.deterministic": (config.run.deterministic, "true", "false: threads and batches follow the machine"),
        "generation.num_generators": (config.generation.num_generators > 1, "more than 1", "1"),
        "generation.env_groups": (config.generation.env_groups > 0, "above 0", "0, greedy generation"),
        "simulation.cpus": (config.simulation.cpus != "all", str(config.simulation.cpus), '"all"'),
        "generation.cpus": (config.generation.cpus != "all", str(config.generation.cpus), '"all"'),
        "training.cpus": (config.training.cpus != "all", str(config.training.cpus), '"all"'),
        "simulation.binding": (config.simulation.binding == "none", '"none"', '"cpu"'),
        "resources.allocation": (config.resources.allocation == "planned", '"planned"', '"by_hand"'),
    }
    for field in fields:
        is_wrong, value, wanted = wrong[field]
        if is_wrong:
            raise ConfigError(field, f"= {value}: {chooser} wants {wanted}")


def _profile(path: Path) -> Profile:
    try:
        return Profile.from_json(json.loads(path.read_text()))
    except OSError as error:
        raise UsageError(
            f"resources.profile: {path} cannot be read ({error.strerror}); `ebrl profile RUN.toml` takes one"
        ) from error
    except ValueError as error:
        raise UsageError(f"resources.profile: {path}: {error}") from error


def summary_of(manager: Manager) -> dict[str, Any]:
    """What became of a run's resources, for its summary."""
    follower = manager.follower
    return {
        "split": asdict(manager.quotas.split),
        "switches": asdict(manager.quotas.counts),
        "moves": [asdict(move) for move in manager.moves],
        "decisions": [] if follower is None else [asdict(decision) for decision in follower.decisions],
    }
