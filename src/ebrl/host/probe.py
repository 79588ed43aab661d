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


def available_bytes() -> int | None:
    """Memory that can be had without swapping, as kernel and control group tell; None where they do not."""
    limits = []
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        limits += [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    except OSError:
        pass
    try:
        group = Path("/sys/fs/cgroup")
        limits.append(int((group / "memory.max").read_text()) - int((group / "memory.current").read_text()))
    except (OSError, ValueError):
        pass  # no limit
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
