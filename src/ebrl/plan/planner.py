"""Divides a machine for a workload, and says what came of it: the allocator's choice with everything that explains it.

The allocator knows numbers of CPUs; here they become CPUs. It knows the best way of sharing; here is also what the
others lack.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from ebrl.errors import UsageError
from ebrl.ids import CpuId
from ebrl.plan.devices import on_device
from ebrl.plan.workloads import kinds_of_sources
from ebrl.resources.allocation import Allocation, Memory, Prediction, Shape, memory_of, shape_of
from ebrl.resources.allocator import Candidate, Choice, allocate, marginal_values, name_of
from ebrl.resources.hardware import Hardware
from ebrl.resources.pool import Infeasible, share_cpus
from ebrl.resources.workload import Workload

FORMAT = 1
"""Of the JSON document."""

DEVICE_HEADROOM = 0.1
"""Share of a GPU's memory that no plan gives away: caching allocators leave gaps, and drivers keep some of it."""

MORE_ENVS = 8
"""The value of more environments is that of one more for each so many."""

_SAME = 5e-3
"""Relative difference below which two rates are called the same: no formula here is better than that."""

Splitting = Literal["no GPUs", "probed", "assumed", "impossible"]
"""Whether SMs can be divided: seen on this host, taken for granted of one that is only described, or seen to fail."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rival:
    """The best allocation of another way of sharing."""

    name: str
    allocation: Allocation
    trajectories_per_s: float
    limit: str
    """Its lowest."""
    reason: str
    """Why it is not the plan, in one sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourcePlan:
    """Who gets what of a machine, what that makes, and why not otherwise."""

    hardware: str
    workload: Workload
    """With times of the GPU that the machine has."""
    moved_from: str
    """GPU that the times were measured or published for, if that is another one; else empty."""
    shape: Shape
    sharing: str
    """The way of sharing, in words."""
    allocation: Allocation
    """Of each node."""
    cpus: Mapping[str, tuple[CpuId, ...]]
    """Of the first node: which CPUs, by the stages that have them."""
    prediction: Prediction
    memory: Memory
    more: Mapping[str, float]
    """Trajectories per second more, by what there would be one more of."""
    rivals: tuple[Rival, ...]
    """Best first."""
    refused: tuple[tuple[str, Infeasible], ...]
    """Ways of sharing for which something is too small."""
    splitting: Splitting
    splitting_how: str
    """Back-ends that work, or why none does."""

    def to_json(self) -> dict[str, Any]:
        """The plan for programs."""
        fields = ("hardware", "moved_from", "sharing", "splitting", "splitting_how")
        parts = ("shape", "allocation", "prediction", "memory")
        return {
            "format": FORMAT,
            "kind": "plan",
            "workload": self.workload.to_json(),
            **{name: getattr(self, name) for name in fields},
            **{name: dataclasses.asdict(getattr(self, name)) for name in parts},
            "cpus": {stages: list(cpus) for stages, cpus in self.cpus.items()},
            "more": dict(self.more),
            "rivals": [dataclasses.asdict(rival) for rival in self.rivals],
            "refused": [{"name": name, **dataclasses.asdict(short)} for name, short in self.refused],
            "sources": kinds_of_sources(self.workload),
        }


def plan_resources(workload: Workload, hardware: Hardware) -> ResourcePlan | Infeasible:
    """Divide a machine.

    Args:
        workload: what the run costs; its times may be of another GPU.
        hardware: nodes that are all alike.

    Returns:
        The plan, or the budget that is too small whatever the way of sharing.

    Raises:
        UsageError: nodes or GPUs differ, or the times cannot be moved to these GPUs.
    """
    shape = _shape(hardware)
    here = workload
    if workload.unit == "gpu" and shape.num_gpus:
        here = on_device(workload, _gpu_name(hardware))
    spared = replace(shape, device_memory_bytes=int(shape.device_memory_bytes * (1 - DEVICE_HEADROOM)))
    choice = allocate(here, spared)
    if isinstance(choice, Infeasible):
        return _with_advice(choice, here, spared, shape.device_memory_bytes)
    one = choice.best.allocation
    cpus = _cpus(hardware, one, on_gpus=workload.unit == "gpu")
    if isinstance(cpus, Infeasible):
        return cpus
    splitting, how = _splitting(hardware)
    return ResourcePlan(
        hardware=hardware.name,
        workload=here,
        moved_from="" if here is workload else workload.device,
        shape=shape,
        sharing=_name(one),
        allocation=one,
        cpus=cpus,
        prediction=choice.best.prediction,
        memory=memory_of(here, shape, one),
        more=_more(here, spared, choice),
        rivals=tuple(_rival(other, choice.best) for other in choice.others),
        refused=choice.refused,
        splitting=splitting,
        splitting_how=how,
    )


def lowest_limit(prediction: Prediction) -> str:
    """Name of the limit that a run meets first."""
    return min(prediction.limits, key=lambda name: prediction.limits[name])


def figure(number: float) -> str:
    """Three digits that count, and never an exponent."""
    digits = 2 - math.floor(math.log10(abs(number))) if number else 0
    return f"{number:,.{max(0, digits)}f}"


def _shape(hardware: Hardware) -> Shape:
    try:
        return shape_of(hardware)
    except ValueError as error:
        raise UsageError(str(error)) from error


def _gpu_name(hardware: Hardware) -> str:
    names = sorted({gpu.name for node in hardware.nodes for gpu in node.gpus})
    if len(names) > 1:
        raise UsageError(f"{hardware.name}: has {' and '.join(names)}, and a plan is for one kind; plan for each alone")
    return names[0]


def _name(one: Allocation) -> str:
    return name_of((one.cpu_sharing, one.gpu_sharing))


def _with_advice(short: Infeasible, workload: Workload, shape: Shape, whole_bytes: int) -> Infeasible:
    """The same with what was kept back of a GPU's memory, and with what would fit."""
    if "memory" not in short.budget:
        return short
    parts = [short.detail] if short.detail else []
    if short.budget.startswith("device"):
        parts.append(f"{DEVICE_HEADROOM:.0%} of {whole_bytes / 2**30:.1f} GiB are kept free")
    fits = _most_envs(workload, shape)
    if fits:
        parts.append(f"it would fit with {fits} instead of {workload.num_envs} environments")
    else:
        parts.append(
            "not even one environment would fit: train fewer parameters (LoRA, or a frozen backbone), "
            "or take a machine with more memory"
        )
    return replace(short, detail="; ".join(parts))


def _most_envs(workload: Workload, shape: Shape) -> int:
    """Largest number of environments that there is memory for; 0 if there is none for one."""
    low, high = 0, workload.num_envs
    while high - low > 1:
        middle = (low + high) // 2
        if isinstance(allocate(replace(workload, num_envs=middle), shape), Choice):
            low = middle
        else:
            high = middle
    return low


# What explains a choice.


def _rival(other: Candidate, best: Candidate) -> Rival:
    theirs, ours = other.prediction, best.prediction
    lowest = lowest_limit(theirs)
    lost = 1 - theirs.trajectories_per_s / ours.trajectories_per_s
    allowed, here = theirs.limits[lowest], ours.limits.get(lowest, 0.0)
    if lost < _SAME:
        reason = f"as fast, within {_SAME:.1%}: {lowest} at {figure(allowed)}"
    elif allowed < here * (1 - _SAME):
        reason = f"{lost:.1%} slower: {lowest} at only {figure(allowed)}, where the plan has {figure(here)}"
    else:
        reason = f"{lost:.1%} slower: {lowest} at only {figure(allowed)}"
    return Rival(
        name=_name(other.allocation),
        allocation=other.allocation,
        trajectories_per_s=theirs.trajectories_per_s,
        limit=lowest,
        reason=reason,
    )


def _more(workload: Workload, shape: Shape, choice: Choice) -> dict[str, float]:
    """Marginal values, those of more environments among them."""
    values = marginal_values(workload, shape)
    extra = max(1, workload.num_envs // MORE_ENVS)
    then = allocate(replace(workload, num_envs=workload.num_envs + extra), shape)
    if isinstance(then, Choice):
        gained = then.best.prediction.trajectories_per_s - choice.best.prediction.trajectories_per_s
        values[f"{extra} environments"] = gained
    return values


# From numbers to things.


def _cpus(hardware: Hardware, one: Allocation, *, on_gpus: bool) -> dict[str, tuple[CpuId, ...]] | Infeasible:
    """Which CPUs of the first node, near the GPUs that their stages drive."""
    match one.cpu_sharing:
        case "all":
            counts = {"all stages": one.simulation_cpus}
        case "rollout":
            counts = {"simulation and generation": one.simulation_cpus, "training": one.training_cpus}
        case "compute":
            counts = {"simulation": one.simulation_cpus, "generation and training": one.training_cpus}
        case "none":
            counts = {
                "simulation": one.simulation_cpus,
                "generation": one.generation_cpus,
                "training": one.training_cpus,
            }
    node = hardware.nodes[0]
    gpus = {"generation and training": [gpu.index for gpu in node.gpus]} if on_gpus else {}
    return share_cpus(node, counts, gpus=gpus)


def _splitting(hardware: Hardware) -> tuple[Splitting, str]:
    gpus = [gpu for node in hardware.nodes for gpu in node.gpus]
    if not gpus:
        return "no GPUs", ""
    if not any(gpu.sharing for gpu in gpus):
        return "assumed", f"{hardware.name} is a description, and nobody has tried"
    works = sorted({end.name for gpu in gpus for end in gpu.sharing if end.works} & {"green", "mps", "mig", "emulated"})
    if works:
        return "probed", ", ".join(works)
    reasons = sorted({f"{end.name}: {end.reason}" for gpu in gpus for end in gpu.sharing if end.reason})
    return "impossible", "; ".join(reasons)
