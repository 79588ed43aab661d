"""What is given to whom: CPUs, streaming multiprocessors and memory of one node.

``share_cpus`` chooses which CPUs each stage gets, ``Pool`` keeps the books. A budget that is too small
is a value, ``Infeasible``, so that whoever asked can try another way.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ebrl.ids import CpuId
from ebrl.resources.hardware import Gpu, Node

_MIB = 2**20
_GIB = 2**30


@dataclass(frozen=True, slots=True)
class Infeasible:
    """A budget that is too small, as a value: whoever asked can look for another way."""

    budget: str
    """Which, e.g. ``device memory of GPU 0``; one that has the word memory in it counts bytes."""
    needed: float
    available: float
    detail: str
    """What the need is made of, in brackets, and what to do."""

    def __str__(self) -> str:
        """One line for people; never shows two different numbers as the same one."""
        needed, available = (
            _amount(self.budget, self.needed, math.ceil),
            _amount(self.budget, self.available, math.floor),
        )
        start = "" if not self.detail else " " if self.detail.startswith("(") else "; "
        return f"{self.budget}: {needed} needed, {available} there{start}{self.detail}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What a stage took at once."""

    cpus: tuple[CpuId, ...] = ()
    device: int | None = None
    """GPU that SMs and device memory are of."""
    sms: int = 0
    device_memory_bytes: int = 0
    memory_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Free:
    """What nobody holds."""

    cpus: tuple[CpuId, ...]
    num_cpus: int
    """How many of them may still be taken; fewer than there are under a quota."""
    memory_bytes: int
    sms: Mapping[int, int]
    """By GPU."""
    device_memory_bytes: Mapping[int, int]
    """By GPU."""


class Pool:
    """Who holds what of a node.

    What is held twice at the same time in reality, like the SMs of a GPU whose stages take turns, is not
    taken at all: only what is divided has a budget.
    """

    def __init__(self, node: Node) -> None:
        self._node = node
        self._gpus = {gpu.index: gpu for gpu in node.gpus}
        self._claims: dict[str, tuple[Claim, ...]] = {}

    def take(
        self,
        stage: str,
        *,
        cpus: Sequence[CpuId] = (),
        device: int | None = None,
        sms: int = 0,
        device_memory_bytes: int = 0,
        memory_bytes: int = 0,
    ) -> Infeasible | None:
        """Give a stage more than it holds, everything or nothing.

        Returns:
            None, or the first budget that is too small; then nothing has changed.
        """
        claim = Claim(
            cpus=tuple(cpus),
            device=device,
            sms=sms,
            device_memory_bytes=device_memory_bytes,
            memory_bytes=memory_bytes,
        )
        assert min(sms, device_memory_bytes, memory_bytes) >= 0, f"{stage}: {claim} takes less than nothing"
        assert device is not None or not (sms or device_memory_bytes), f"{stage}: {claim} names no device"
        assert len(set(claim.cpus)) == len(claim.cpus), f"{stage}: {claim} names a CPU twice"
        problem = self._lacks_cpus(claim) or self._lacks_memory(stage, claim) or self._lacks_device(stage, claim)
        if problem is None:
            self._claims[stage] = (*self.held(stage), claim)
        return problem

    def give_back(self, stage: str) -> None:
        """Everything that the stage holds is free again."""
        assert stage in self._claims, f"{stage} holds nothing; {sorted(self._claims)} do"
        del self._claims[stage]

    def held(self, stage: str) -> tuple[Claim, ...]:
        """What the stage took, in order."""
        return self._claims.get(stage, ())

    def free(self) -> Free:
        """What nobody holds."""
        holders = self._cpu_holders()
        claims = [claim for held in self._claims.values() for claim in held]
        sms = {index: gpu.num_sms for index, gpu in self._gpus.items()}
        device_memory_bytes = {index: gpu.memory_bytes for index, gpu in self._gpus.items()}
        for claim in claims:
            if claim.device is not None:
                sms[claim.device] -= claim.sms
                device_memory_bytes[claim.device] -= claim.device_memory_bytes
        return Free(
            cpus=tuple(cpu.id for cpu in self._node.cpus if cpu.id not in holders),
            num_cpus=self._node.num_cpus - len(holders),
            memory_bytes=self._node.memory_bytes - sum(claim.memory_bytes for claim in claims),
            sms=sms,
            device_memory_bytes=device_memory_bytes,
        )

    def _cpu_holders(self) -> dict[CpuId, str]:
        return {cpu: stage for stage, held in self._claims.items() for claim in held for cpu in claim.cpus}

    def _lacks_cpus(self, claim: Claim) -> Infeasible | None:
        holders, there = self._cpu_holders(), {cpu.id for cpu in self._node.cpus}
        wrong = [f"CPU {cpu} is not this process's" for cpu in claim.cpus if cpu not in there]
        wrong += [f"CPU {cpu} is held by {holders[cpu]}" for cpu in claim.cpus if cpu in holders]
        if wrong:
            some = ", ".join(wrong[:3]) + (f" and {len(wrong) - 3} more" if len(wrong) > 3 else "")
            return Infeasible("CPUs by number", len(claim.cpus), len(claim.cpus) - len(wrong), f"({some})")
        taken = len(holders) + len(claim.cpus)
        if claim.cpus and taken > self._node.num_cpus:
            return Infeasible("CPUs", taken, self._node.num_cpus, _cpu_limit(self._node))
        return None

    def _lacks_memory(self, stage: str, claim: Claim) -> Infeasible | None:
        parts = self._parts(stage, claim, lambda one: one.memory_bytes)
        advice = "lower simulation.num_envs"
        return _lack("memory", parts, self._node.memory_bytes, advice) if claim.memory_bytes else None

    def _lacks_device(self, stage: str, claim: Claim) -> Infeasible | None:
        if claim.device is None:
            return None
        gpu = self._gpus.get(claim.device)
        if gpu is None:
            names = ", ".join(map(str, sorted(self._gpus))) or "none"
            return Infeasible(f"GPU {claim.device}", 1, 0, f"(numbers of the GPUs there: {names})")
        return self._lacks_sms(stage, claim, gpu) or self._lacks_device_memory(stage, claim, gpu)

    def _lacks_sms(self, stage: str, claim: Claim, gpu: Gpu) -> Infeasible | None:
        parts = self._parts(stage, claim, lambda one: one.sms if one.device == gpu.index else 0)
        advice = "lower one of the shares, or use another GPU"
        return _lack(f"SMs of GPU {gpu.index}", parts, gpu.num_sms, advice) if claim.sms else None

    def _lacks_device_memory(self, stage: str, claim: Claim, gpu: Gpu) -> Infeasible | None:
        parts = self._parts(stage, claim, lambda one: one.device_memory_bytes if one.device == gpu.index else 0)
        advice = "lower generation.max_batch or the training micro-batch, or use another GPU"
        budget = f"device memory of GPU {gpu.index}"
        return _lack(budget, parts, gpu.memory_bytes, advice) if claim.device_memory_bytes else None

    def _parts(self, stage: str, claim: Claim, amount: Callable[[Claim], int]) -> dict[str, int]:
        """By stage, what it would hold if ``stage`` had ``claim`` too."""
        claims = self._claims | {stage: (*self.held(stage), claim)}
        return {name: sum(map(amount, held)) for name, held in claims.items() if sum(map(amount, held))}


def share_cpus(
    node: Node, counts: Mapping[str, int], *, gpus: Mapping[str, Sequence[int]] | None = None
) -> dict[str, tuple[CpuId, ...]] | Infeasible:
    """Choose CPUs for each stage, of the node's own.

    In this order: no core is shared by two stages if that can be; a CPU has its core for itself as long as there
    are cores, which is shared out in proportion; a stage stays within one NUMA node, that of its GPUs if it has some.

    Args:
        node: whose CPUs.
        counts: CPUs that each stage gets.
        gpus: by stage, indices of the GPUs that it works with.

    Returns:
        By stage, its CPUs in ascending order, no CPU twice; or that there are too few.
    """
    assert min(counts.values(), default=0) >= 0, f"{dict(counts)}: want 0 or more CPUs for each"
    total = sum(counts.values())
    if total > node.num_cpus:
        parts = " + ".join(f"{stage} {count}" for stage, count in counts.items())
        return Infeasible("CPUs", total, node.num_cpus, f"({parts}); {_cpu_limit(node)}")
    numa = {gpu.index: gpu.numa for gpu in node.gpus}
    near = {stage: {numa[index] for index in (gpus or {}).get(stage, ()) if index in numa} for stage in counts}
    first = sorted(counts, key=lambda stage: (not near[stage], -counts[stage]))  # ties stay in the order of counts
    wanted = [_Wanted(stage, counts[stage], frozenset(near[stage])) for stage in first]
    cores = _cores(node)
    shares = _whole_cores(wanted, cores)
    if shares is None:
        shares = _packed(wanted, cores)
    return {stage: tuple(sorted(shares[stage])) for stage in counts}


class _Wanted(NamedTuple):
    stage: str
    num_cpus: int
    near: frozenset[int]
    """NUMA nodes of its GPUs."""


class _Core(NamedTuple):
    numa: int
    cpus: tuple[CpuId, ...]


def _cores(node: Node) -> list[_Core]:
    """Physical cores with those of their CPUs that are this process's."""
    cpus: dict[int, list[CpuId]] = {}
    numa: dict[int, int] = {}
    for cpu in sorted(node.cpus, key=lambda cpu: cpu.id):
        cpus.setdefault(cpu.core, []).append(cpu.id)
        numa.setdefault(cpu.core, cpu.numa)
    return [_Core(numa[core], tuple(siblings)) for core, siblings in cpus.items()]


def _whole_cores(wanted: list[_Wanted], cores: list[_Core]) -> dict[str, list[CpuId]] | None:
    """CPUs on cores that no two stages share, as many cores as there are to be had; None where that cannot be."""
    width = max(len(core.cpus) for core in cores)
    targets = {one.stage: -(-one.num_cpus // width) for one in wanted}
    spare = len(cores) - sum(targets.values())
    if spare < 0:
        return None
    for _ in range(spare):
        crowded = [one for one in wanted if targets[one.stage] < one.num_cpus]
        if not crowded:
            break
        targets[max(crowded, key=lambda one: one.num_cpus / targets[one.stage]).stage] += 1
    free, shares = list(cores), {}
    for one in wanted:
        mine = _nearest_first(free, targets[one.stage], one.near, lambda core: 1)[: targets[one.stage]]
        in_turn = [core.cpus[i] for i in range(width) for core in mine if i < len(core.cpus)]
        if len(in_turn) < one.num_cpus:  # cores of different width
            return None
        shares[one.stage] = in_turn[: one.num_cpus]
        free = [core for core in free if core not in mine]
    return shares


def _packed(wanted: list[_Wanted], cores: list[_Core]) -> dict[str, list[CpuId]]:
    """CPUs core by core; what is left of each stage then stands in a line along the cores that are left.

    So a core is shared only where one stage ends and the next begins, and only for want of CPUs.
    """
    free, shares = list(cores), {}
    for one in wanted:
        mine: list[_Core] = []
        need = one.num_cpus
        for core in _nearest_first(free, need, one.near, lambda core: len(core.cpus)):
            if len(core.cpus) <= need:
                mine.append(core)
                need -= len(core.cpus)
        shares[one.stage] = [cpu for core in mine for cpu in core.cpus]
        free = [core for core in free if core not in mine]
    missing = {one.stage: one.num_cpus - len(shares[one.stage]) for one in wanted}
    room, demand = sum(len(core.cpus) for core in free), sum(missing.values())
    rest: list[CpuId] = []  # of the core that the line has come to
    for stage, need in missing.items():
        if need and room - len(rest) >= demand:
            room, rest = room - len(rest), []
        for _ in range(need):
            rest = rest or list(free.pop(0).cpus)
            shares[stage].append(rest.pop(0))
        room, demand = room - need, demand - need
    return shares


def _nearest_first(free: list[_Core], need: int, near: frozenset[int], size: Callable[[_Core], int]) -> list[_Core]:
    """Free cores in the order in which a stage takes them.

    NUMA nodes of its GPUs come first, then those where all of it fits, the fullest of them first; else the emptiest.
    """
    room: dict[int, int] = {}
    for core in free:
        room[core.numa] = room.get(core.numa, 0) + size(core)

    def rank(core: _Core) -> tuple[bool, bool, int, int, CpuId]:
        fits = room[core.numa] >= need
        fullness = room[core.numa] if fits else -room[core.numa]
        return core.numa not in near, not fits, fullness, core.numa, core.cpus[0]

    return sorted(free, key=rank)


def _cpu_limit(node: Node) -> str:
    """Why there are no more CPUs, and what to do."""
    if node.num_cpus < len(node.cpus):
        return f"a quota of {node.cpu_quota:g} CPUs of time leaves that many of {len(node.cpus)}; lower the shares"
    return "lower the shares, or let stages share CPUs"


def _lack(budget: str, parts: Mapping[str, int], available: int, advice: str) -> Infeasible | None:
    needed = sum(parts.values())
    if needed <= available:
        return None
    listed = " + ".join(f"{stage} {_amount(budget, part, round)}" for stage, part in parts.items())
    return Infeasible(budget, needed, available, f"({listed}); {advice}")


def _amount(budget: str, number: float, whole: Callable[[float], int]) -> str:
    """A number with its unit; ``whole`` rounds tenths of it."""
    if "memory" not in budget:
        return f"{number:g}"
    unit, name = (_GIB, "GiB") if abs(number) >= _GIB else (_MIB, "MiB")
    return f"{whole(number / unit * 10) / 10:.1f} {name}"
