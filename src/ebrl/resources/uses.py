"""How a run uses its simulator and its GPUs: what habits make of a workload, and the allocation that goes with them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from ebrl.resources.allocation import PERCENT, Allocation, GpuSharing, Prediction, Shape, predict, shortage
from ebrl.resources.allocator import Candidate, allocate, best_of, layouts, sizes
from ebrl.resources.pool import Infeasible
from ebrl.resources.workload import Workload

GpuUse = Literal["best", "split", "whole", "turns", "hand_over", "hybrid"]
"""``best``: whatever is fastest. ``split``: by SMs of every GPU. ``whole``: each stage its own GPUs. ``turns``: every
GPU shared by time. ``hand_over``: every GPU to one stage at a time, memory included. ``hybrid``: generation on half of
them, then training on all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Habits:
    """What simulation does."""

    observe_every_step: bool = False
    run_to_horizon: bool = False

    def episode_steps(self, workload: Workload) -> float:
        """Env steps that are simulated, and trained on, for an episode."""
        simulation = workload.simulation
        return float(simulation.horizon_steps) if self.run_to_horizon else simulation.episode_steps

    def chunk_s(self, workload: Workload) -> float:
        """Seconds of simulating a chunk, its share of resets included."""
        simulation, length = workload.simulation, workload.chunk_len
        frames = length if self.observe_every_step else 1
        reset_s = simulation.reset_s * length / self.episode_steps(workload)
        return length * simulation.env_step_s + frames * simulation.observe_s + reset_s


def with_habits(workload: Workload, habits: Habits) -> Workload:
    """The workload of a run with these habits, whose trajectories are whole episodes."""
    if not workload.simulation.env_step_s:
        raise ValueError(f"{workload.name}: seconds of env steps and observations are not known apart")
    chunks = habits.episode_steps(workload) / workload.chunk_len
    simulation = replace(workload.simulation, chunk_s=habits.chunk_s(workload))
    return replace(workload, trajectory_chunks=chunks, simulation=simulation)


def allocation_for(use: GpuUse, workload: Workload, shape: Shape, *, env_groups: int = 0) -> Candidate | Infeasible:
    """The best allocation of one way to use GPUs.

    Args:
        use: of GPUs; on a workload without, CPUs are shared out in the best way whatever it is.
        workload: what the run costs.
        shape: the machine.
        env_groups: that are generated for together; 0 is greedy.

    Raises:
        ValueError: the stages are to take turns, and slack lets them overlap.
    """
    if workload.unit == "cpu" or use == "best":
        found = allocate(workload, shape)
        return found if isinstance(found, Infeasible) else _in_groups(workload, shape, found.best, env_groups)
    if use in ("hand_over", "hybrid"):
        if workload.slack:
            raise ValueError(f"gpu_use = {use!r} with slack {workload.slack}: want 0, since stages take turns")
        return _handed_over(use, workload, shape, env_groups)
    wanted: GpuSharing = "split" if use == "split" else "whole" if use == "whole" else "turns"
    candidates = [best_of(workload, shape, layout) for layout in layouts(workload, shape) if layout[1] == wanted]
    fitting = [one for one in candidates if isinstance(one, Candidate)]
    if not fitting:
        short = [one for one in candidates if isinstance(one, Infeasible)]
        return short[0] if short else Infeasible("GPUs", 2, shape.num_gpus, f"too few for gpu_use = {use!r}")
    grouped = [_in_groups(workload, shape, one, env_groups) for one in fitting]
    return max(grouped, key=lambda one: one.prediction.trajectories_per_s)


def _in_groups(workload: Workload, shape: Shape, one: Candidate, env_groups: int) -> Candidate:
    if not env_groups:
        return one
    return Candidate(
        allocation=one.allocation, prediction=predict(workload, shape, one.allocation, env_groups=env_groups)
    )


def _handed_over(use: GpuUse, workload: Workload, shape: Shape, env_groups: int) -> Candidate | Infeasible:
    """All memory of a GPU is the stage's whose turn it is; the other one's waits in the node's."""
    generators = max(1, shape.num_gpus // 2) if use == "hybrid" else shape.num_gpus
    hosts = max(1, min(shape.num_cpus // 2, round(workload.host_cpus * shape.num_gpus)))
    alone = replace(workload, sharded_bytes=0, training=replace(workload.training, memory_bytes=0, item_memory_bytes=0))
    other = replace(workload, generation=replace(workload.generation, memory_bytes=0, item_memory_bytes=0))
    cap = max(1, min(workload.max_batch, -(-workload.num_envs // (shape.num_nodes * generators))))
    frame = Allocation(
        cpu_sharing="compute",
        gpu_sharing="turns",
        simulation_cpus=shape.num_cpus - hosts,
        generation_cpus=hosts,
        training_cpus=hosts,
        num_generators=generators,
        num_learners=shape.num_gpus,
        generation_units=PERCENT,
        training_units=PERCENT,
        min_batch=1,
        max_batch=cap,
        micro_batch=1,
    )
    fitting = [one for size in sizes(cap) if shortage(alone, shape, one := replace(frame, max_batch=size)) is None]
    items = max(1, int(workload.batch_trajectories * workload.trajectory_chunks) // (shape.num_nodes * shape.num_gpus))
    largest = min(items, workload.minibatch_chunks or items)
    micro = next((m for m in sizes(largest) if not shortage(other, shape, replace(frame, micro_batch=m))), 0)
    if not fitting or not micro:
        short = shortage(alone, shape, replace(frame, max_batch=1)) or shortage(other, shape, frame)
        assert short is not None
        return short
    allocation = replace(fitting[0], micro_batch=micro)
    costs = replace(workload, update_s=workload.update_s + 2 * workload.hand_over_s)
    prediction: Prediction = predict(costs, shape, allocation, env_groups=env_groups)
    return Candidate(allocation=allocation, prediction=prediction)


def largest_batch(cap: int, env_groups: int, num_envs: int, num_generators: int) -> int:
    """Most chunks of a batch: the members of an env group are shared out over all generators."""
    return max(1, min(cap, -(-num_envs // (env_groups * num_generators)))) if env_groups else cap
