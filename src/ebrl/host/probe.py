"""What this machine has, as far as this process may use it."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

from ebrl.ids import CpuId


def usable_cpus() -> tuple[CpuId, ...]:
    """Logical processors in this process's affinity mask, in ascending order."""
    return tuple(CpuId(cpu) for cpu in sorted(os.sched_getaffinity(0)))


CONTROL_GROUP = Path("/sys/fs/cgroup")
"""As a container sees its own."""

_CACHE = ("active_file", "inactive_file", "slab_reclaimable")
"""What the kernel takes back from a control group before it refuses memory."""


def group_memory(group: Path = CONTROL_GROUP) -> tuple[int, int] | None:
    """Bytes that a control group may have, and those of them that can still be had; None where there is no limit."""
    try:
        limit, used = (int((group / name).read_text()) for name in ("memory.max", "memory.current"))
        counts = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):
        return None
    return limit, min(limit, limit - used + sum(int(counts.get(name, 0)) for name in _CACHE))


def available_bytes() -> int | None:
    """Memory that can be had without swapping, as kernel and control group tell; None where they do not."""
    limits = []
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        limits += [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    except OSError:
        pass
    if (group := group_memory()) is not None:
        limits.append(group[1])
    return min(limits, default=None)


def machine() -> dict[str, Any]:
    """The machine in words and numbers, to be kept beside every result."""
    return {
        "cpu_model": _cpu_model(),
        "usable_cpus": len(usable_cpus()),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "kernel": platform.release(),
        "python": platform.python_version(),
    }


def _cpu_model() -> str:
    try:
        with open("/proc/cpuinfo") as file:
            return next((line.split(":", 1)[1].strip() for line in file if line.startswith("model name")), "unknown")
    except OSError:
        return "unknown"
