"""How much memory a process had at its peak, as the kernel counts it."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

_KIB = 1024


def forget_peak(pid: int) -> None:
    """Let the peak begin anew; where the kernel does not allow it, the peak is that of the process's whole life."""
    with suppress(OSError):
        Path(f"/proc/{pid}/clear_refs").write_text("5")


def peak_own_bytes(pid: int) -> int:
    """The most memory since then that it shared with nobody: neither trajectories nor files; 0 if it has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    fields = dict(line.split(":", 1) for line in lines if ":" in line)

    def in_bytes(name: str) -> int:
        return int(fields.get(name, "0 kB").split()[0]) * _KIB

    return max(0, max(in_bytes("VmHWM"), in_bytes("VmRSS")) - in_bytes("RssFile") - in_bytes("RssShmem"))
