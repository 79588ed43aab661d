"""Eleven configurations of policy, benchmark and machine, on which ways of running are compared.

They follow the paper's matrix: four policies, four benchmarks, 1 to 16 GPUs, PPO and GRPO. Times come from the
shipped workloads, which are derived or published and not measured, and are moved to each machine's GPU by data sheets.
So what is made of them is virtual, or emulated, and never a measurement of a model.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from ebrl.errors import UsageError, nearest
from ebrl.plan.devices import on_device
from ebrl.plan.hardware import load_hardware
from ebrl.plan.planner import DEVICE_HEADROOM
from ebrl.plan.workloads import hand_over_s, load_workload, simulated_chunk_s
from ebrl.resources.allocation import Shape, shape_of
from ebrl.resources.decoding import decode
from ebrl.resources.workload import Workload, check

_FILE = Path(__file__).with_name("matrix.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """One policy in one benchmark on one machine."""

    name: str
    about: str
    """Why it is here, in one sentence."""
    machine: str
    """As ``ebrl plan --hardware`` knows it."""
    workload: Workload
    """With times of the machine's GPU, and with what this configuration changes."""
    shape: Shape
    """Of the machine, without the share of GPU memory that no plan gives away."""
    siblings: int
    """Episodes of one start that are compared; 1 where there are no such groups."""
    whole_episodes: bool
    """Whether a trajectory is an episode; else it is a segment, as long as an episode in the mean."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Machine:
    """What a hardware file does not say."""

    host_gbytes_per_s: float
    """Between a GPU and its host."""
    sync_factor: float
    """On ``sync_s``, whose source takes GPUs to be linked within one node."""
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    """A configuration as the file has it; 0 keeps the workload's number."""

    name: str
    about: str
    workload: str
    machine: str
    algorithm: Literal["ppo", "grpo"]
    num_envs: int
    batch_trajectories: int
    siblings: int = 1
    epochs: int = 0
    horizon_steps: int = 0
    episode_steps: float = 0.0
    reset_s: float = 0.0
    sources: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Matrix:
    machines: Mapping[str, object]
    configurations: tuple[_Entry, ...]


def configurations() -> tuple[Configuration, ...]:
    """All of them, in the order of the page ``docs/matrix.md``."""
    matrix: _Matrix = decode(_Matrix, json.loads(_FILE.read_text(encoding="utf-8")), "matrix")
    machines: dict[str, _Machine] = {
        name: decode(_Machine, machine, f"matrix.machines.{name}") for name, machine in matrix.machines.items()
    }
    return tuple(_configuration(entry, machines[entry.machine]) for entry in matrix.configurations)


def configuration(name: str) -> Configuration:
    """The one of that name.

    Raises:
        UsageError: there is none.
    """
    known = {one.name: one for one in configurations()}
    if name not in known:
        hint = nearest(name, tuple(known))
        raise UsageError(f"no configuration {name!r}; {hint + ' ' if hint else ''}there are: {', '.join(known)}")
    return known[name]


def _configuration(entry: _Entry, machine: _Machine) -> Configuration:
    hardware = load_hardware(entry.machine)
    shape = shape_of(hardware)
    spared = replace(shape, device_memory_bytes=int(shape.device_memory_bytes * (1 - DEVICE_HEADROOM)))
    workload = _changed(load_workload(entry.workload), entry)
    workload = _on_machine(workload, machine, shape.num_nodes * shape.num_gpus)
    workload = on_device(workload, hardware.nodes[0].gpus[0].name)
    check(workload)
    return Configuration(
        name=entry.name,
        about=entry.about,
        machine=entry.machine,
        workload=workload,
        shape=spared,
        siblings=entry.siblings,
        whole_episodes=entry.algorithm == "grpo",
    )


def _changed(workload: Workload, entry: _Entry) -> Workload:
    """With the configuration's numbers, and with those that follow from them."""
    old = workload.simulation
    simulation = replace(
        old,
        horizon_steps=entry.horizon_steps or old.horizon_steps,
        episode_steps=entry.episode_steps or old.episode_steps,
        reset_s=entry.reset_s or old.reset_s,
    )
    simulation = replace(simulation, chunk_s=simulated_chunk_s(simulation, workload.chunk_len))
    steps = simulation.episode_steps if entry.algorithm == "grpo" else simulation.horizon_steps
    changed = replace(
        workload,
        num_envs=entry.num_envs,
        batch_trajectories=entry.batch_trajectories,
        epochs=entry.epochs or workload.epochs,
        trajectory_chunks=steps / workload.chunk_len,
        simulation=simulation,
    )
    ratio = _chunks_trained(changed) / _chunks_trained(workload)
    follows = {
        "trajectory_chunks": f"derived: {steps:g} env steps in chunks of {workload.chunk_len}",
        "batch_trajectories": f"derived: {entry.batch_trajectories / entry.num_envs:g} for each environment",
        "sync_s": f"{workload.sources['sync_s']}; × {ratio:.3g}, as many optimizer steps",
    }
    return replace(
        changed, sync_s=workload.sync_s * ratio, sources=dict(workload.sources) | follows | dict(entry.sources)
    )


def _on_machine(workload: Workload, machine: _Machine, num_gpus: int) -> Workload:
    """With what depends on links between GPUs, and between a GPU and its host."""
    sources = dict(workload.sources)
    sources["hand_over_s"] += f"; here at {machine.host_gbytes_per_s:g} GB/s, shards of {num_gpus}: {machine.source}"
    sources["sync_s"] += f"; × {machine.sync_factor:g}: {machine.source}"
    return replace(
        workload,
        hand_over_s=hand_over_s(workload, num_learners=num_gpus, bytes_per_s=machine.host_gbytes_per_s * 1e9),
        sync_s=workload.sync_s * machine.sync_factor,
        sources=sources,
    )


def _chunks_trained(workload: Workload) -> float:
    """In an update, each as often as it is looked at."""
    return workload.batch_trajectories * workload.trajectory_chunks * workload.epochs
