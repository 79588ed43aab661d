"""Workloads for emulated GPUs beside a simulator that is really there."""

from __future__ import annotations

from dataclasses import replace

from ebrl.plan.workloads import load_workload
from ebrl.resources.workload import SimulationCosts, Workload

_TIMES = ("chunk_s", "chunk_sd_s", "env_step_s", "env_step_sd_s", "observe_s", "reset_s", "hard_reset_s")


def metaworld_costs() -> SimulationCosts:
    """What Meta-World with states takes, in real seconds."""
    return load_workload("mlp-metaworld").simulation


def beside_real(workload: str, simulation: SimulationCosts, *, speed: float) -> Workload:
    """GPU times of a workload that is emulated, beside the simulation that is there.

    Who has how much of a GPU is decided from it, so it must tell the truth about the run: simulation takes its real
    time, which is long beside GPUs that are so many times faster; and a process that sleeps keeps no CPU busy.

    Args:
        workload: whose GPU times are emulated.
        simulation: in real seconds.
        speed: how many times as fast as that the emulated GPUs are.
    """
    slower = replace(simulation, **{name: getattr(simulation, name) * speed for name in _TIMES})
    return replace(load_workload(workload), simulation=slower, host_cpus=0.0, sources={})
