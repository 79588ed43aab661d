"""What this machine has, as far as this process may use it."""

from __future__ import annotations

import os
import platform
from typing import Any

from ebrl.ids import CpuId


def usable_cpus() -> tuple[CpuId, ...]:
    """Logical processors in this process's affinity mask, in ascending order."""
    return tuple(CpuId(cpu) for cpu in sorted(os.sched_getaffinity(0)))


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
