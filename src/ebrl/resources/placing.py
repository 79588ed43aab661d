"""From counts of an allocation to CPUs by number."""

from __future__ import annotations

from ebrl.ids import CpuId
from ebrl.resources.allocation import Allocation
from ebrl.resources.hardware import Cpu, Node
from ebrl.resources.pool import Infeasible, share_cpus

Stages = dict[str, tuple[CpuId, ...]]
"""CPUs of ``simulation``, ``generation`` and ``training``."""


def place(allocation: Allocation, cpus: tuple[Cpu, ...]) -> Stages:
    """Which CPUs each stage has; stages that share some have the same.

    Raises:
        ValueError: there are fewer CPUs than the allocation has.
    """
    one = allocation
    counts = {
        "all": {"all": one.simulation_cpus},
        "rollout": {"rollout": one.simulation_cpus, "training": one.training_cpus},
        "compute": {"simulation": one.simulation_cpus, "compute": one.generation_cpus},
        "none": {
            "simulation": one.simulation_cpus,
            "generation": one.generation_cpus,
            "training": one.training_cpus,
        },
    }[one.cpu_sharing]
    pools = share_cpus(Node(cpus=cpus, memory_bytes=1), counts)
    if isinstance(pools, Infeasible):
        raise ValueError(f"{pools.budget}: {pools.needed:g} needed, {pools.available:g} there; {pools.detail}")
    owners = {
        "all": "simulation generation training",
        "rollout": "simulation generation",
        "compute": "generation training",
    }
    return {stage: pool for name, pool in pools.items() for stage in owners.get(name, name).split()}
