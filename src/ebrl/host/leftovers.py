"""What a run that was killed may leave behind: worker processes and unfinished files.

Workers die with their parent by themselves; this is for what escapes that, such as a process that
a simulator started. There is no shared memory to find: it is made without a name (``memfd``).
"""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

OWNER_VARIABLE = "EBRL_OWNER_PID"
"""Set for every worker process to the pid of the process that owns it."""

MIN_AGE_S = 60.0
"""Younger files are left alone: a run that this machine cannot see may be writing them."""


@dataclass(frozen=True, slots=True)
class Marked:
    """A process that belongs to a run."""

    pid: int
    owner: int
    """Process id of the run's main process."""
    command: str
    output: str
    """The file that it prints to, in its run directory's ``logs``."""
    orphaned: bool
    """The main process is gone."""


def find_marked() -> list[Marked]:
    """All processes of runs in this container, as far as this user may look, without our own ancestors."""
    mark = f"{OWNER_VARIABLE}=".encode()
    own, namespace = _ancestors(os.getpid()), _namespace(os.getpid())
    found = []
    for pid in _pids():
        if pid in own or _namespace(pid) != namespace:
            continue
        try:
            environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
            output = os.readlink(f"/proc/{pid}/fd/1")
        except OSError:
            continue  # it ended, or is somebody else's
        owners = [entry.removeprefix(mark) for entry in environment if entry.startswith(mark)]
        if owners and owners[0].isdigit():
            owner = int(owners[0])
            found.append(Marked(pid, owner, command, output, orphaned=_is_gone(owner, pid)))
    return sorted(found, key=lambda process: process.pid)


def kill(process: Marked) -> None:
    """End a process now; one that has ended by itself is no error."""
    try:
        os.kill(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def is_running(group: int) -> bool:
    """Whether a process group has a member that has not ended; one that is only not yet waited for has."""
    members = (stat for stat in map(_stat, _pids()) if len(stat) > 2 and int(stat[2]) == group)
    return any(stat[0] not in "ZX" for stat in members)


def find_unfinished(runs: Path, marked: list[Marked], *, min_age_s: float = MIN_AGE_S) -> list[Path]:
    """Files and directories under ``runs`` that a crash left half written.

    Args:
        runs: where run directories are.
        marked: processes of runs; those that live protect what is in their run directory.
        min_age_s: leave younger ones alone.
    """
    live = {Path(process.output).parent.parent for process in marked if not process.orphaned}
    patterns = (
        ".latest-*",
        "*/.config.toml.*",
        "*/.*.json.*",
        "*/.demonstrations.npz.*.part",
        "*/checkpoints/.update-*",
        "*/pretrained/.update-*",
    )
    found = {path.parent.resolve() / path.name for pattern in patterns for path in runs.glob(pattern)}
    oldest = time.time() - min_age_s
    return sorted(path for path in found if not live & set(path.parents) and path.lstat().st_mtime <= oldest)


def remove(path: Path) -> None:
    """Remove a file, link or directory."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _is_gone(owner: int, pid: int) -> bool:
    """Whether ``owner`` has ended; a process that is younger than its worker only has the same number."""
    state, started = _state_and_start(owner)
    return state in ("", "Z", "X") or started > _state_and_start(pid)[1]


def _pids() -> Iterator[int]:
    return (int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit())


def _namespace(pid: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/ns/pid")
    except OSError:
        return ""


def _ancestors(pid: int) -> set[int]:
    seen: set[int] = set()
    while pid > 0:
        seen.add(pid)
        pid = int(next(iter(_stat(pid)[1:]), "0"))
    return seen


def _stat(pid: int) -> list[str]:
    """State, parent and so on: what follows the process's name, which may hold anything."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return []


def _state_and_start(pid: int) -> tuple[str, int]:
    fields = _stat(pid)
    return (fields[0], int(fields[19])) if fields else ("", 0)
