"""How a run uses its simulator and its GPUs: what habits make of a workload, and the allocation that goes with them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

from ebrl.resources.allocation import PERCENT, Allocation, GpuSharing, Shape, largest_batch, predict, shortage
from ebrl.resources.allocator import Candidate, allocate, best_of, layouts, sizes
from ebrl.resources.pool import Infeasible
from ebrl.resources.workload import Workload

GpuUse = Literal["best", "split", "whole", "turns", "hand_over", "hybrid"]
"""``best``: whatever is fastest. ``split``: by SMs of every GPU. ``whole``: each stage its own GPUs. ``turns``: every
GPU shared by time. ``hand_over``: every GPU to one stage at a time, memory included where it is short. ``hybrid``:
generation on half of them, then training on all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Habits:
    """What a run does with its simulator, and with what was simulated after an episode's end."""

    observe_every_step: bool = False
    run_to_horizon: bool = False
    trains_on_padding: bool = False
    """Chunks that were never executed take as long to train on as others: their losses are masked. ebrl's own learner
    leaves them out."""

    def episode_steps(self, workload: Workload) -> float:
        """Env steps that are simulated for an episode."""
        simulation = workload.simulation
        return float(simulation.horizon_steps) if self.run_to_horizon else simulation.episode_steps


def with_habits(workload: Workload, habits: Habits, *, segment_chunks: int | None = None) -> Workload:
    """The workload of a run with these habits.

    Args:
        workload: what everything costs, and how long episodes are.
        habits: of the run.
        segment_chunks: chunks of a trajectory, which goes on over the ends of episodes; None if it is an episode.

    Raises:
        ValueError: the workload does not say what env steps and observations take apart, or how long episodes are.
    """
    simulation, length = workload.simulation, workload.chunk_len
    if not simulation.env_step_s:
        raise ValueError(f"{workload.name}: seconds of env steps and observations are not known apart")
    if not habits.episode_steps(workload):
        raise ValueError(f"{workload.name}: how many env steps an episode has is not known")
    steps, executed = habits.episode_steps(workload), executed_chunks(workload)
    chunks = float(math.ceil(simulation.horizon_steps / length)) if habits.run_to_horizon else executed
    frames = steps if habits.observe_every_step else steps / length
    episode_s = steps * simulation.env_step_s + frames * simulation.observe_s + simulation.reset_s
    trajectory = chunks if segment_chunks is None else float(segment_chunks)
    return replace(
        workload,
        trajectory_chunks=trajectory,
        trained_chunks=trajectory if habits.trains_on_padding else trajectory * (executed / chunks),
        simulation=replace(simulation, chunk_s=episode_s / chunks),
    )


def segment_like_episode(workload: Workload, habits: Habits) -> tuple[int, float]:
    """The segment that is as long as an episode with these habits is in the mean.

    Returns:
        Its chunks, which are whole; and how many episodes they are.

    Raises:
        ValueError: as ``with_habits`` does.
    """
    mean = with_habits(workload, habits).trajectory_chunks
    chunks = max(1, round(mean))
    return chunks, chunks / mean


def executed_chunks(workload: Workload) -> float:
    """Mean number of chunks of an episode, the last one included, of which only a part is executed.

    Episodes whose length is not always the horizon end anywhere in their last chunk, so on average
    ``(1 - 1 / chunk_len) / 2`` of a chunk is not executed.
    """
    simulation, length = workload.simulation, workload.chunk_len
    most = math.ceil(simulation.horizon_steps / length)
    if simulation.horizon_steps and simulation.episode_steps >= simulation.horizon_steps:
        return float(most)
    mean = simulation.episode_steps / length + (1.0 - 1.0 / length) / 2.0
    return max(1.0, min(mean, float(most)) if most else mean)


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


def turns_s(use: GpuUse, workload: Workload, shape: Shape, allocation: Allocation) -> float:
    """Seconds of an update in which GPUs go from one stage to the other, and back: 0 where no memory has to move."""
    if use not in ("hand_over", "hybrid") or shortage(workload, shape, allocation) is None:
        return 0.0
    return 2.0 * workload.hand_over_s


def _handed_over(use: GpuUse, workload: Workload, shape: Shape, env_groups: int) -> Candidate | Infeasible:
    """Stages take turns. Both stay on their GPUs where there is memory for that, with smaller micro-batches if that is
    better; else all memory is the stage's whose turn it is, and the other one's waits in the node's."""
    generators = max(1, shape.num_gpus // 2) if use == "hybrid" else shape.num_gpus
    hosts = max(1, min(shape.num_cpus // 2, round(workload.host_cpus * shape.num_gpus)))
    alone = replace(workload, sharded_bytes=0, training=replace(workload.training, memory_bytes=0, item_memory_bytes=0))
    other = replace(workload, generation=replace(workload.generation, memory_bytes=0, item_memory_bytes=0))
    cap = max(1, min(workload.max_batch, -(-workload.num_envs // (shape.num_nodes * generators))))
    cap = largest_batch(cap, env_groups, workload.num_envs, shape.num_nodes * generators)
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
    items = max(1, int(workload.batch_trajectories * workload.training_chunks) // (shape.num_nodes * shape.num_gpus))
    largest = min(items, workload.minibatch_chunks or items)
    largest_batches = (replace(frame, max_batch=size) for size in sizes(cap))
    roomy = next((one for one in largest_batches if shortage(alone, shape, one) is None), None)
    micros = [m for m in sizes(largest) if shortage(other, shape, replace(frame, micro_batch=m)) is None]
    if roomy is None or not micros:
        short = shortage(alone, shape, replace(frame, max_batch=1)) or shortage(other, shape, frame)
        assert short is not None
        return short
    found = []
    for one in (replace(roomy, micro_batch=micro) for micro in micros):
        costs = replace(workload, update_s=workload.update_s + turns_s(use, workload, shape, one))
        found.append(Candidate(allocation=one, prediction=predict(costs, shape, one, env_groups=env_groups)))
    return max(found, key=lambda one: one.prediction.trajectories_per_s)
