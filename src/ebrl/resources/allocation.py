"""An allocation: who gets how many CPUs, how much of each GPU, and which batches; and what a run makes of it.

All nodes are alike and get the same. Rates follow from the roofline (``queueing``), with each stage's times
stretched to its quota.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ebrl.resources.hardware import Hardware
from ebrl.resources.pool import Infeasible
from ebrl.resources.queueing import StageTimes, binding, limits, rollout_rate
from ebrl.resources.workload import BatchCosts, Workload

CpuSharing = Literal["all", "rollout", "compute", "none"]
"""Who shares CPUs: all stages; simulation with generation; generation with training; nobody."""

GpuSharing = Literal["none", "split", "turns", "whole"]
"""How generation and training share GPUs: not at all, since they run on CPUs; by SMs of every GPU; by time on
every GPU; by whole GPUs."""

SPLITTING = frozenset({"green", "mps", "mig", "emulated"})
"""Back-ends that split a GPU by SMs."""

PERCENT = 100
"""Units of a GPU that is shared by time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The machine as the allocator sees it: so many nodes like this one."""

    num_nodes: int
    num_cpus: int
    memory_bytes: int
    num_gpus: int = 0
    num_sms: int = 0
    """Of each GPU."""
    sm_step: int = 1
    device_memory_bytes: int = 0
    """Of each GPU."""
    can_split: bool = True
    """Whether a back-end that works here splits GPUs by SMs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """Of one node."""

    cpu_sharing: CpuSharing
    gpu_sharing: GpuSharing
    simulation_cpus: int
    generation_cpus: int
    training_cpus: int
    """Stages that share CPUs have the same number: of all that they share."""
    num_generators: int
    num_learners: int
    generation_units: int
    training_units: int
    """Of each GPU that they share or have: SMs, or percent of its time; 0 on CPUs."""
    min_batch: int
    """Chunks that a generator waits for: more than 1 where generation takes CPUs from simulation."""
    max_batch: int
    """Most chunks of a generation batch."""
    micro_batch: int
    """Chunks that a learner trains on at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Bytes that an allocation needs."""

    generation_device_bytes: int
    """On each GPU that generates; simulation's rendering not included."""
    training_device_bytes: int
    """On each GPU that trains."""
    rendering_device_bytes: int
    """On each GPU that generates."""
    host_bytes: int
    """On each node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """What a run makes of an allocation, as the roofline has it."""

    trajectories_per_s: float
    binding: str
    """Name of the lowest limit."""
    limits: dict[str, float]
    """In trajectories per second."""
    chunk_s: float
    generation_fixed_s: float
    generation_item_s: float
    """T(b) = fixed + item · b of a generation batch at its quota."""
    update_s: float


def shape_of(hardware: Hardware) -> Shape:
    """The machine as the allocator sees it.

    Raises:
        ValueError: its nodes or GPUs differ; an allocation is the same on each.
    """
    shapes = {_node_shape(hardware, number) for number in range(len(hardware.nodes))}
    if len(shapes) > 1:
        raise ValueError(
            f"{hardware.name}: its nodes differ, and an allocation is the same on each; plan for each kind alone"
        )
    return shapes.pop()


def _node_shape(hardware: Hardware, number: int) -> Shape:
    node = hardware.nodes[number]
    kinds = {(gpu.num_sms, gpu.sm_step, gpu.memory_bytes) for gpu in node.gpus}
    if len(kinds) > 1:
        raise ValueError(f"{hardware.name}: the GPUs of node {number} differ, and an allocation is the same on each")
    num_sms, sm_step, device_memory_bytes = kinds.pop() if kinds else (0, 1, 0)
    splitting = {b.name for gpu in node.gpus for b in gpu.sharing if b.works} & SPLITTING
    return Shape(
        num_nodes=len(hardware.nodes),
        num_cpus=node.num_cpus,
        memory_bytes=node.memory_bytes,
        num_gpus=len(node.gpus),
        num_sms=num_sms,
        sm_step=sm_step,
        device_memory_bytes=device_memory_bytes,
        can_split=bool(splitting) or not any(gpu.sharing for gpu in node.gpus),
    )


def chunks_per_learner(workload: Workload, shape: Shape, allocation: Allocation) -> float:
    """Chunks that a learner looks at in each epoch of an update."""
    learners = shape.num_nodes * allocation.num_learners
    return workload.batch_trajectories * workload.training_chunks / learners


def memory_of(workload: Workload, shape: Shape, allocation: Allocation) -> Memory:
    """What it needs, whether or not it is there."""
    generation = workload.generation.memory_bytes + workload.generation.item_memory_bytes * allocation.max_batch
    training = workload.training.memory_bytes + workload.training.item_memory_bytes * allocation.micro_batch
    training += -(-workload.sharded_bytes // (shape.num_nodes * allocation.num_learners))
    workers = -(-workload.num_envs // shape.num_nodes)
    host = workers * workload.simulation.memory_bytes
    if workload.unit == "cpu":
        host += generation * allocation.num_generators + training * allocation.num_learners
        return Memory(generation_device_bytes=0, training_device_bytes=0, rendering_device_bytes=0, host_bytes=host)
    return Memory(
        generation_device_bytes=generation,
        training_device_bytes=training,
        rendering_device_bytes=-(-workers // allocation.num_generators) * workload.simulation.device_memory_bytes,
        host_bytes=host,
    )


def shortage(workload: Workload, shape: Shape, allocation: Allocation) -> Infeasible | None:
    """The memory that an allocation lacks; None where all of it is there."""
    need = memory_of(workload, shape, allocation)
    parts = {"generation": need.generation_device_bytes, "rendering": need.rendering_device_bytes}
    if allocation.gpu_sharing != "whole":
        parts["training"] = need.training_device_bytes
    elif need.training_device_bytes > shape.device_memory_bytes:
        parts = {"training": need.training_device_bytes}
    if shape.num_gpus and sum(parts.values()) > shape.device_memory_bytes:
        return _short("device memory of each GPU", parts, shape.device_memory_bytes)
    if need.host_bytes > shape.memory_bytes:
        simulation = -(-workload.num_envs // shape.num_nodes) * workload.simulation.memory_bytes
        parts = {"simulation": simulation, "generation and training": need.host_bytes - simulation}
        return _short("memory of each node", parts, shape.memory_bytes)
    return None


def _short(budget: str, parts: dict[str, int], available: int) -> Infeasible:
    listed = " + ".join(f"{name} {part / 2**30:.1f} GiB" for name, part in parts.items() if part)
    return Infeasible(budget, sum(parts.values()), available, f"({listed})")


def largest_batch(cap: int, env_groups: int, num_envs: int, num_generators: int) -> int:
    """Most chunks of a batch: the members of an env group are shared out over all generators."""
    return max(1, min(cap, -(-num_envs // (env_groups * num_generators)))) if env_groups else cap


def predict(workload: Workload, shape: Shape, allocation: Allocation, *, env_groups: int = 0) -> Prediction:
    """Rates of a run under an allocation that fits (formulas B.3 to B.5).

    Args:
        workload: what the run costs.
        shape: the machine.
        allocation: who has what of it.
        env_groups: that are generated for together; 0 is greedy.
    """
    one, nodes, chunks = allocation, shape.num_nodes, workload.trajectory_chunks
    generators, learners = nodes * one.num_generators, nodes * one.num_learners
    on_cpus = workload.unit == "cpu"
    slower = workload.shared_cpu_factor
    chunk_s = workload.simulation.chunk_s * (slower if one.cpu_sharing in ("all", "rollout") else 1.0)
    generation_factor = _factor(workload.generation, one, shape, one.generation_cpus, one.generation_units)
    training_factor = _factor(workload.training, one, shape, one.training_cpus, one.training_units)
    if on_cpus:
        generation_factor *= slower if one.cpu_sharing != "none" else 1.0
        training_factor *= slower if one.cpu_sharing in ("all", "compute") else 1.0
    elif one.gpu_sharing == "split":
        generation_factor, training_factor = generation_factor * workload.corun, training_factor * workload.corun
    alpha_s = workload.generation.fixed_s * generation_factor
    beta_s = workload.generation.item_s * generation_factor
    items = chunks_per_learner(workload, shape, allocation)
    batches_s = -(-items // one.micro_batch) * workload.training.fixed_s + items * workload.training.item_s
    update_s = workload.epochs * batches_s * training_factor + workload.update_s
    update_s += workload.sync_s if learners > 1 else 0.0
    times = StageTimes(
        num_envs=workload.num_envs,
        num_cpus=max(1, one.simulation_cpus // workload.simulation.cpus_per_worker) * nodes,
        num_generators=generators,
        max_batch=largest_batch(one.max_batch, env_groups, workload.num_envs, generators),
        chunk_s=chunk_s,
        chunk_sd_s=workload.simulation.chunk_sd_s,
        alpha_s=alpha_s,
        beta_s=beta_s,
        update_s=update_s,
        batch=workload.batch_trajectories,
        slack=workload.slack,
        trajectory_chunks=chunks,
        env_groups=env_groups,
    )
    found = limits(times)
    pool = _shared_pool(workload, shape, one, times)
    if pool is not None:
        found["shared CPUs"] = pool / chunks
    return Prediction(
        trajectories_per_s=min(found.values()),
        binding=binding(found),
        limits=found,
        chunk_s=chunk_s,
        generation_fixed_s=alpha_s,
        generation_item_s=beta_s,
        update_s=update_s,
    )


def _factor(costs: BatchCosts, one: Allocation, shape: Shape, num_cpus: int, units: int) -> float:
    if one.gpu_sharing == "none":
        return costs.factor(num_cpus)
    if one.gpu_sharing == "turns":  # launches take turns too: a GPU is not lent to the other stage in between
        return PERCENT / units
    return costs.factor(units / shape.num_sms)


def _shared_pool(workload: Workload, shape: Shape, one: Allocation, times: StageTimes) -> float | None:
    """Chunks per second that CPUs which stages share allow; None where each stage has its own."""
    if one.cpu_sharing == "none":
        return None
    simulation, generation, training = _cpu_seconds(workload, shape, one, times)
    seconds = {
        "all": simulation + generation + training,
        "rollout": simulation + generation,
        "compute": generation + training,
    }[one.cpu_sharing]
    num_cpus = one.generation_cpus * shape.num_nodes
    return num_cpus / seconds if seconds else None


def _cpu_seconds(workload: Workload, shape: Shape, one: Allocation, times: StageTimes) -> tuple[float, float, float]:
    """Of each stage, for one chunk."""
    simulation = times.chunk_s * workload.simulation.cpus_per_worker
    if workload.unit == "gpu":  # processes that drive GPUs keep CPUs busy for as long as they work
        rate = rollout_rate(times, times.num_envs) / times.num_generators
        batch = _usual_batch(rate, times.alpha_s, times.beta_s, one.max_batch)
        generation = workload.host_cpus * (times.alpha_s / batch + times.beta_s)
        learners = shape.num_nodes * one.num_learners
        training = workload.host_cpus * learners * times.update_s / (times.batch * times.trajectory_chunks)
        return simulation, generation, training
    slower = workload.shared_cpu_factor
    generation = (workload.generation.fixed_s / one.min_batch + workload.generation.item_s) * slower
    items = chunks_per_learner(workload, shape, one)
    costs = workload.training
    training_s = workload.epochs * (-(-items // one.micro_batch) * costs.fixed_s + items * costs.item_s)
    share = workload.training_chunks / workload.trajectory_chunks
    return simulation, generation, (training_s * slower + workload.update_s) / items * share


def _usual_batch(rate: float, alpha_s: float, beta_s: float, largest: int) -> float:
    """The batch b at which one generator makes ``rate`` chunks per second: rate = b / (α + β·b)."""
    left = 1.0 - rate * beta_s
    return min(float(largest), max(1.0, rate * alpha_s / left)) if left > 0 else float(largest)
