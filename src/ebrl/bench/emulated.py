"""Emulated GPUs beside a simulator that is really there: their workloads, and how a measured run starts."""

from __future__ import annotations

from dataclasses import replace

from ebrl.engines.local.engine import LocalEngine
from ebrl.errors import RunError
from ebrl.plan.workloads import load_workload
from ebrl.resources.workload import SimulationCosts, Workload
from ebrl.scheduling.events import EnvWorkerLost, EnvWorkerReady
from ebrl.scheduling.plan import SchedulerPlan

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


def start_everybody(engine: LocalEngine, plan: SchedulerPlan) -> None:
    """Start every process, and wait until all are there: none works while another still imports its libraries.

    What is measured from here on would be another thing if a worker had to be replaced, so a loss is an error.

    Raises:
        RunError: an env worker failed.
    """
    engine.start()
    engine.begin(evaluation=False)
    missing = plan.num_shards
    while missing:
        event, _ = engine.next_event()
        if isinstance(event, EnvWorkerLost):
            raise RunError(f"env worker {event.shard} failed while starting: {event.detail}")
        missing -= isinstance(event, EnvWorkerReady)
    engine.begin(evaluation=False)
