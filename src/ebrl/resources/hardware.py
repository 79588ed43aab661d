"""The machine, or several alike, as far as resources are given out: CPUs, GPUs, memory. JSON in and out.

So a plan can be made for a machine that one does not have.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ebrl.ids import CpuId
from ebrl.resources.decoding import decode

FORMAT = 1
"""Of the JSON document; another one is refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cpu:
    """One logical processor."""

    id: CpuId
    core: int
    """Physical core, unique within its node; logical processors of one core are SMT siblings."""
    numa: int = 0
    """NUMA node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackEnd:
    """A way to share a GPU between two stages, and whether it works on this host."""

    name: str
    works: bool
    reason: str = ""
    """Why not; what is restricted, where it works."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One device."""

    index: int
    name: str
    num_sms: int
    """Streaming multiprocessors."""
    sm_step: int
    """SMs come in groups of so many when a GPU is split."""
    memory_bytes: int
    numa: int = 0
    """NUMA node that it hangs on."""
    driver: str = ""
    sharing: tuple[BackEnd, ...] = ()
    """What was probed; empty in files that were written by hand, which promise nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One machine."""

    cpus: tuple[Cpu, ...]
    """That this process may run on."""
    memory_bytes: int
    cpu_quota: float = 0.0
    """CPU seconds per second that the control group allows; 0 sets no limit."""
    gpus: tuple[Gpu, ...] = ()

    @property
    def num_cpus(self) -> int:
        """CPUs that can be kept busy at once: those there are, or what the quota allows of them."""
        count = len(self.cpus)
        return max(1, min(count, int(self.cpu_quota))) if self.cpu_quota else count


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """Everything a run may use."""

    name: str
    nodes: tuple[Node, ...]
    source: str = ""
    """Where the numbers come from: probed when, or which data sheet."""

    def to_json(self) -> dict[str, Any]:
        """The document that ``from_json`` reads."""
        return {"format": FORMAT, "kind": "hardware", **dataclasses.asdict(self)}

    @staticmethod
    def from_json(document: Mapping[str, Any]) -> Hardware:
        """The hardware that ``to_json`` wrote.

        Raises:
            ValueError: not a hardware file, of another version, or a field is missing, unknown or out of range.
        """
        if document.get("kind") != "hardware" or document.get("format") != FORMAT:
            kind, form = document.get("kind"), document.get("format")
            raise ValueError(f"kind {kind!r}, format {form!r}: want a hardware file, format {FORMAT}")
        fields = {name: value for name, value in document.items() if name not in ("format", "kind")}
        hardware: Hardware = decode(Hardware, fields, "hardware")
        check(hardware)
        return hardware


def check(hardware: Hardware) -> None:
    """Refuse a machine that cannot be.

    Raises:
        ValueError: names the field and what was wanted.
    """
    if not hardware.nodes:
        raise ValueError("nodes: want at least one")
    for number, node in enumerate(hardware.nodes):
        ids = [cpu.id for cpu in node.cpus]
        wrong = {
            "cpus: want at least one": not ids,
            "cpus: want every id once": len(set(ids)) != len(ids),
            "cpu_quota: want 0 (no limit) or more": node.cpu_quota < 0,
            "memory_bytes: want more than 0": node.memory_bytes <= 0,
            "gpus: want every index once": len({gpu.index for gpu in node.gpus}) != len(node.gpus),
            "gpus: want num_sms ≥ sm_step ≥ 1": any(not 1 <= gpu.sm_step <= gpu.num_sms for gpu in node.gpus),
            "gpus: want memory_bytes more than 0": any(gpu.memory_bytes <= 0 for gpu in node.gpus),
        }
        for text, is_wrong in wrong.items():
            if is_wrong:
                raise ValueError(f"nodes[{number}].{text}")
