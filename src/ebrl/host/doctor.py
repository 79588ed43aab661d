"""What this machine has and lacks for EBRL, in words, with what to do about it."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ebrl.host.leftovers import find_marked
from ebrl.host.probe import group_memory, machine, usable_cpus

PROBE_S = 12.0
"""How long a probe in a process of its own may take."""

_LATE = "no answer"
_GIB = 2**30
_RENDER_PROBE = """
import os
from ebrl.envs.mujoco_camera import choose_gl
platform = choose_gl()
import mujoco
model = mujoco.MjModel.from_xml_string("<mujoco><worldbody><geom size='1'/></worldbody></mujoco>")
renderer = mujoco.Renderer(model, 32, 32)
renderer.update_scene(mujoco.MjData(model))
renderer.render()
from OpenGL import GL
print(platform, "draws on", (GL.glGetString(GL.GL_RENDERER) or b"an unknown device").decode())
os._exit(0)
"""
_TORCH_PROBE = """
import torch
print(torch.__version__)
print(torch.version.cuda or "")
print(torch.cuda.is_available())
for i in range(torch.cuda.device_count()):
    p = torch.cuda.get_device_properties(i)
    print(f"cuda:{i} {p.name}, {p.total_memory / 2**30:.0f} GiB")
"""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at."""

    name: str
    status: Literal["ok", "missing", "note"]
    text: str
    advice: str = ""
    """What to do; empty if nothing needs to be done."""
    required: bool = False
    """No run works without it."""


def examine(runs: Path) -> list[Finding]:
    """Look at everything; a look that fails is itself a finding.

    Args:
        runs: where run directories are made.
    """
    looks: list[tuple[str, Callable[[], Iterator[Finding]]]] = [
        ("cpus", _cpus),
        ("memory", _memory),
        ("disk", lambda: _disk(runs)),
        ("shared memory", _memfd),
        ("python", _python),
        ("packages", _packages),
        ("torch", _torch),
        ("rendering", _rendering),
        ("orphans", _orphans),
    ]
    with ThreadPoolExecutor() as pool:  # two of them wait for processes
        return [finding for found in pool.map(_look, looks) for finding in found]


def _look(named: tuple[str, Callable[[], Iterator[Finding]]]) -> list[Finding]:
    name, look = named
    try:
        return list(look())
    except Exception as error:  # a strange machine must not stop the rest
        return [Finding(name, "note", f"could not be looked at: {type(error).__name__}: {error}")]


def _cpus() -> Iterator[Finding]:
    cpus = usable_cpus()
    total = os.cpu_count() or len(cpus)
    text = f"{len(cpus)} of {total} logical processors usable ({machine()['cpu_model']})"
    quota = _cpu_quota()
    if quota is not None and quota < len(cpus):
        yield Finding(
            "cpus",
            "note",
            f"{text}, but a quota of {quota:.1f} CPUs of time",
            "binding to CPUs does not help against a quota; set simulation.cpus to about as many as the quota",
        )
    elif len(cpus) == 1:
        yield Finding("cpus", "note", text, "simulation, generation and training will take turns on one CPU")
    else:
        yield Finding("cpus", "ok", text)


def _cpu_quota() -> float | None:
    """CPUs' worth of time that control groups allow; None if there is no limit."""
    for path in (Path("/sys/fs/cgroup/cpu.max"), Path("/sys/fs/cgroup/cpu/cpu.cfs_quota_us")):
        try:
            fields = path.read_text().split()
        except OSError:
            continue
        if len(fields) == 1:
            fields.append(path.with_name("cpu.cfs_period_us").read_text().strip())
        return None if fields[0] in ("max", "-1") else int(fields[0]) / int(fields[1])
    return None


def _memory() -> Iterator[Finding]:
    import psutil

    memory = psutil.virtual_memory()
    total, available = memory.total, memory.available
    if (group := group_memory()) is not None:
        total, available = min(total, group[0]), min(available, group[1])
    text = f"{available / _GIB:.1f} of {total / _GIB:.1f} GiB available"
    if available < 2 * _GIB:
        yield Finding("memory", "note", text, "a small run needs about 2 GiB; lower simulation.num_envs")
    else:
        yield Finding("memory", "ok", text)


def _disk(runs: Path) -> Iterator[Finding]:
    place = next(path for path in (runs.absolute(), *runs.absolute().parents) if path.exists())
    free = shutil.disk_usage(place).free
    text = f"{free / _GIB:.1f} GiB free for {runs}"
    if not os.access(place, os.W_OK):
        yield Finding("disk", "missing", f"{place} cannot be written to", "set run.directory to another place")
    elif free < _GIB:
        yield Finding("disk", "note", text, "free some, or set run.directory to another place")
    else:
        yield Finding("disk", "ok", text)


def _memfd() -> Iterator[Finding]:
    try:
        os.close(os.memfd_create("ebrl-doctor"))
    except (AttributeError, OSError) as error:
        yield Finding(
            "shared memory",
            "missing",
            f"memfd_create does not work: {error}",
            "EBRL needs Linux with memfd_create; a sandbox may forbid it",
            required=True,
        )
    else:
        yield Finding("shared memory", "ok", "memfd works; the size of /dev/shm does not matter")


def _python() -> Iterator[Finding]:
    text = f"{platform.python_version()} at {sys.executable}, {platform.system()} {platform.release()}"
    yield Finding("python", "ok", text)


def _packages() -> Iterator[Finding]:
    from packaging.requirements import Requirement

    try:
        lines = importlib.metadata.requires("ebrl") or []
    except importlib.metadata.PackageNotFoundError:
        yield Finding("packages", "note", "ebrl is not installed as a package, so its plug-ins are not found")
        return
    requirements = [Requirement(line) for line in lines]
    core = [r for r in requirements if not r.extras and "extra" not in str(r.marker or "")]
    wrong = [problem for problem in map(_problem, core) if problem]
    versions = ", ".join(f"{r.name} {_version(r.name)}" for r in core if _version(r.name))
    if wrong:
        yield Finding("packages", "missing", "; ".join(wrong), "in ebrl's directory: make setup", required=True)
    else:
        yield Finding("packages", "ok", versions)
    extras: dict[str, list[Requirement]] = {}
    for requirement in requirements:
        found = re.search(r"extra == ['\"]([^'\"]+)['\"]", str(requirement.marker or ""))
        if found and found.group(1) != "dev":
            extras.setdefault(found.group(1), []).append(requirement)
    for extra, wanted in sorted(extras.items()):
        wrong = [problem for problem in map(_problem, wanted) if problem]
        if wrong:
            yield Finding(f"extra {extra}", "note", "; ".join(wrong), f"to use it: ebrl install {extra}")
        else:
            yield Finding(f"extra {extra}", "ok", ", ".join(f"{r.name} {_version(r.name)}" for r in wanted))


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _problem(requirement: object) -> str:
    from packaging.requirements import Requirement

    assert isinstance(requirement, Requirement)
    version = _version(requirement.name)
    if not version:
        return f"{requirement.name} is not installed"
    if not requirement.specifier.contains(version, prereleases=True):
        return f"{requirement.name} is {version}, want {requirement.specifier}"
    return ""


def _torch() -> Iterator[Finding]:
    result = _probe(_TORCH_PROBE)
    if isinstance(result, str) and result.startswith(_LATE):
        yield Finding("torch", "note", f"importing it gave {result}", "try again when the machine is less busy")
        return
    if isinstance(result, str):
        yield Finding("torch", "missing", f"cannot be imported: {result}", "pip install torch", required=True)
        return
    version, cuda, available, *devices = result
    if available == "True":
        yield Finding("gpu", "ok", f"torch {version}: {'; '.join(devices)}")
    elif not cuda:
        text = f"torch {version} is built without CUDA; policies run on CPUs"
        has_gpu = Path("/dev/nvidiactl").exists()
        yield Finding("gpu", "note", text, "this machine has a GPU: install a CUDA build of torch" if has_gpu else "")
    else:
        text = f"torch {version} is built for CUDA {cuda}, but finds no device"
        yield Finding("gpu", "note", text, "if there is a GPU, look at: nvidia-smi")


def _rendering() -> Iterator[Finding]:
    if importlib.util.find_spec("mujoco") is None:
        text = "mujoco is not installed, so cameras of Meta-World cannot be tried"
        yield Finding("rendering", "note", text, "to use it: ebrl install metaworld")
        return
    result = _probe(_RENDER_PROBE)
    if isinstance(result, str):
        text = f"no picture can be made: {result.rpartition('UsageError: ')[2]}"
        yield Finding("rendering", "missing", text, "only cameras and videos need it; a GPU's driver may bring EGL too")
    else:
        yield Finding("rendering", "ok", " ".join(result))


def _orphans() -> Iterator[Finding]:
    orphans = [process for process in find_marked() if process.orphaned]
    if orphans:
        pids = ", ".join(str(orphan.pid) for orphan in orphans)
        yield Finding("orphans", "note", f"worker processes of runs that are gone: {pids}", "ebrl clean")
    else:
        yield Finding("orphans", "ok", "no process is left of a run that is gone")


def _probe(code: str) -> list[str] | str:
    """Lines that ``code`` prints in a process of its own, or in one line why it failed."""
    try:
        result = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, timeout=PROBE_S, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired:
        return f"{_LATE} within {PROBE_S:.0f} s"
    if result.returncode:
        lines = [line for line in result.stderr.splitlines() if line.strip()]
        return lines[-1] if lines else f"exit code {result.returncode}"
    return result.stdout.splitlines()
