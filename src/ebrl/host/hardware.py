"""What this machine has, as far as this process may use it, in the form that plans are made for.

Read from ``/proc`` and ``/sys``; of GPUs, from the driver. What a machine does not tell is replaced by
something that is true all the same: one NUMA node, every CPU a core of its own, no limit, no GPU.
"""

from __future__ import annotations

import datetime
import importlib
import os
import platform
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ebrl.host.probe import usable_cpus
from ebrl.ids import CpuId
from ebrl.resources.hardware import BackEnd, Cpu, Gpu, Hardware, Node

_GROUP_PLACES = (
    "sys/fs/cgroup",
    "sys/fs/cgroup/unified",
    "sys/fs/cgroup/cpu",
    "sys/fs/cgroup/cpu,cpuacct",
    "sys/fs/cgroup/memory",
)
"""Where control groups are mounted if the kernel does not say."""

_DRIVER_FILES = ("/dev/nvidiactl", "/proc/driver/nvidia", "/dev/dxg")
"""One of these is there if a driver is; the last in a Linux that runs under Windows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundGpu:
    """A device as its driver describes it."""

    name: str
    capability: tuple[int, int]
    num_sms: int
    memory_bytes: int
    pci_bus: str = ""
    """Address on the bus, e.g. ``0000:3b:00.0``."""
    driver: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundGpus:
    """Devices in the order in which CUDA numbers them, and what has to be said about them."""

    gpus: tuple[FoundGpu, ...] = ()
    reason: str = ""
    """Why there is none, or not all of them."""


def probe_hardware(
    root: Path = Path("/"),
    *,
    usable: Iterable[int] | None = None,
    list_gpus: Callable[[], FoundGpus] | None = None,
    sharing: Callable[[int], tuple[BackEnd, ...]] | None = None,
) -> Hardware:
    """This machine as one node; never raises.

    Args:
        root: where ``proc`` and ``sys`` are.
        usable: CPUs that this process may run on; by default its affinity mask.
        list_gpus: finds devices; by default ``nvml_gpus``.
        sharing: what was probed of the ways to share the GPU with this index; by default nothing.
    """
    found = (list_gpus or nvml_gpus)()
    groups = list(_groups(root))
    cpus = _cpus(root, usable_cpus() if usable is None else usable)
    node = Node(
        cpus=cpus,
        memory_bytes=_memory_bytes(root, groups),
        cpu_quota=_cpu_quota(groups),
        gpus=tuple(
            _gpu(root, index, gpu, cpus, sharing(index) if sharing else ()) for index, gpu in enumerate(found.gpus)
        ),
    )
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    notes = [f"probed on {today}", *([found.reason] if found.reason else [])]
    return Hardware(name=platform.node() or "this machine", nodes=(node,), source="; ".join(notes))


def sm_step(capability: tuple[int, int]) -> int:
    """SMs come in groups of so many when a device is split.

    What the driver's split by count does, by architecture. From 9.0 on thread blocks form clusters that must
    run together on neighbouring SMs, so groups are of 8. Before, only what is wired together stays together:
    4 on 8.x, and the two SMs of one texture cluster on older ones. Finer steps exist but give clusters up.
    """
    if capability >= (9, 0):
        return 8
    return 4 if capability >= (8, 0) else 2


def nvml_gpus(nvml: Any = None, environment: Mapping[str, str] = os.environ) -> FoundGpus:
    """Devices that CUDA programs of this process see, from NVIDIA's management library.

    It makes no CUDA context, so processes may still be forked. It counts devices by their place on the bus;
    CUDA does so too among devices that are alike.

    Args:
        nvml: the module ``pynvml``, if it is not to be imported.
        environment: where ``CUDA_VISIBLE_DEVICES`` is looked up.
    """
    try:
        nvml = nvml or importlib.import_module("pynvml")
    except ImportError:
        if not any(map(os.path.exists, _DRIVER_FILES)):
            return FoundGpus(reason="no GPU: there is no driver of NVIDIA's")
        return FoundGpus(reason="GPUs were not looked for: pynvml is not installed; run: pip install nvidia-ml-py")
    try:
        nvml.nvmlInit()
    except Exception as error:  # no driver, or one that does not answer
        return FoundGpus(reason=f"no GPU: {error}")
    try:
        return _visible_gpus(nvml, environment.get("CUDA_VISIBLE_DEVICES"))
    except Exception as error:  # a strange driver must not stop the rest
        return FoundGpus(reason=f"GPUs could not be looked at: {type(error).__name__}: {error}")
    finally:
        nvml.nvmlShutdown()


def _visible_gpus(nvml: Any, visible: str | None) -> FoundGpus:
    handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
    if visible is None:
        chosen = list(range(len(handles)))
    else:
        chosen = _chosen(visible, [_text(nvml.nvmlDeviceGetUUID(handle)) for handle in handles])
    gpus, notes = [], []
    if len(chosen) < len(handles):
        notes.append(f"CUDA_VISIBLE_DEVICES={visible} shows {len(chosen)} of {len(handles)} GPUs")
    for index in chosen:
        try:
            gpus.append(_describe(nvml, handles[index]))
        except Exception as error:  # e.g. one that is cut into instances
            notes.append(f"GPU {index} and those after it are left out: {type(error).__name__}: {error}")
            break  # later ones would have other numbers than CUDA gives them
    return FoundGpus(gpus=tuple(gpus), reason="; ".join(notes) or ("" if gpus else "no GPU"))


def _chosen(visible: str, uuids: Sequence[str]) -> list[int]:
    """Devices that the variable names, up to the first one that does not exist, as CUDA reads it."""
    chosen: list[int] = []
    for text in visible.split(","):
        name = text.strip()
        if name.isdecimal() and int(name) < len(uuids):
            index = int(name)
        else:
            matches = [i for i, uuid in enumerate(uuids) if name.startswith("GPU-") and uuid.startswith(name)]
            if len(matches) != 1:
                break
            index = matches[0]
        if index in chosen:
            break
        chosen.append(index)
    return chosen


def _describe(nvml: Any, handle: Any) -> FoundGpu:
    major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
    return FoundGpu(
        name=_text(nvml.nvmlDeviceGetName(handle)),
        capability=(major, minor),
        num_sms=nvml.nvmlDeviceGetNumGpuCores(handle) // _lanes_per_sm((major, minor)),
        memory_bytes=int(nvml.nvmlDeviceGetMemoryInfo(handle).total),
        pci_bus=_text(nvml.nvmlDeviceGetPciInfo(handle).busId),
        driver=_text(nvml.nvmlSystemGetDriverVersion()),
    )


def _lanes_per_sm(capability: tuple[int, int]) -> int:
    """What NVIDIA calls CUDA cores: 64 an SM in 6.0, 7.x and 8.0, else 128.

    The library counts these cores for a whole device, and SMs only for parts of one.
    """
    return 64 if capability in ((6, 0), (8, 0)) or capability[0] == 7 else 128


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _gpu(root: Path, index: int, found: FoundGpu, cpus: tuple[Cpu, ...], sharing: tuple[BackEnd, ...]) -> Gpu:
    num_sms = max(1, found.num_sms)
    domain, _, place = found.pci_bus.lower().partition(":")  # the library writes 8 digits, the kernel 4
    address = f"{domain.lstrip('0'):0>4}:{place}"
    told = _read(root / "sys/bus/pci/devices" / address / "numa_node").strip()
    return Gpu(
        index=index,
        name=found.name,
        num_sms=num_sms,
        sm_step=min(sm_step(found.capability), num_sms),
        memory_bytes=found.memory_bytes,
        numa=int(told) if told.isdecimal() else min((cpu.numa for cpu in cpus), default=0),  # -1: the kernel cannot say
        driver=found.driver,
        sharing=sharing,
    )


def _cpus(root: Path, usable: Iterable[int]) -> tuple[Cpu, ...]:
    numa = {
        cpu: int(path.parent.name.removeprefix("node"))
        for path in sorted((root / "sys/devices/system/node").glob("node[0-9]*/cpulist"))
        for cpu in _numbers(_read(path))
    }
    return tuple(Cpu(id=CpuId(cpu), core=_core(root, cpu), numa=numa.get(cpu, 0)) for cpu in sorted(usable))


def _core(root: Path, cpu: int) -> int:
    """The lowest of its siblings, usable or not; cores have numbers of their own, but only within a socket."""
    topology = root / f"sys/devices/system/cpu/cpu{cpu}/topology"
    for name in ("core_cpus_list", "thread_siblings_list"):  # the second is its name in older kernels
        siblings = _numbers(_read(topology / name))
        if cpu in siblings:
            return min(siblings)
    return cpu


def _numbers(text: str) -> list[int]:
    """Of a list like ``0-3,8``; empty if it is none."""
    numbers: list[int] = []
    try:
        for part in filter(None, text.strip().split(",")):
            first, _, last = part.partition("-")
            numbers += range(int(first), int(last or first) + 1)
    except ValueError:
        return []
    return numbers


def _memory_bytes(root: Path, groups: list[Path]) -> int:
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")] if root == Path("/") else []
    for line in _read(root / "proc/meminfo").splitlines():
        name, _, value = line.partition(":")
        if name == "MemTotal":
            limits += [int(number) * 1024 for number in value.split() if number.isdecimal()]
    for group in groups:
        for file in ("memory.max", "memory.limit_in_bytes"):
            told = _read(group / file).strip()
            limits += [int(told)] if told.isdecimal() and int(told) else []
    return min(limits, default=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))


def _cpu_quota(groups: list[Path]) -> float:
    """CPUs of time that the tightest control group allows; 0 if none sets a limit."""
    quotas = []
    for group in groups:
        told = _read(group / "cpu.max").split()
        told = told or [*_read(group / "cpu.cfs_quota_us").split(), *_read(group / "cpu.cfs_period_us").split()]
        if len(told) == 2 and all(number.isdecimal() and int(number) for number in told):  # not max, not -1
            quotas.append(int(told[0]) / int(told[1]))
    return min(quotas, default=0.0)


def _groups(root: Path) -> Iterator[Path]:
    """Directories of the control groups of this process: its own and all above, as far as they can be seen."""
    paths = [line.split(":", 2)[1:] for line in _read(root / "proc/self/cgroup").splitlines() if line.count(":") >= 2]
    for place, top, controllers in _group_mounts(root):
        yield place
        for named, path in paths:
            if controllers is not None and not set(named.split(",")) & controllers:
                continue
            below = Path(path).relative_to(top).parts if Path(path).is_relative_to(top) else ()
            if ".." not in below:  # else it is above what this name space shows
                for depth in range(1, len(below) + 1):
                    yield place.joinpath(*below[:depth])


def _group_mounts(root: Path) -> Iterator[tuple[Path, str, set[str] | None]]:
    """Where hierarchies are mounted, which group is seen there, and their controllers; None: not known.

    Version 2 has one hierarchy, which ``/proc/self/cgroup`` lists with an empty name.
    """
    told = False
    for line in _read(root / "proc/self/mountinfo").splitlines():
        before, _, after = line.partition(" - ")
        fields, kind = before.split(), after.split()
        if len(fields) > 4 and kind and kind[0] in ("cgroup", "cgroup2"):
            told = True
            controllers = {""} if kind[0] == "cgroup2" else set(kind[-1].split(","))
            yield root / fields[4].lstrip("/"), fields[3], controllers
    if not told:
        for place in _GROUP_PLACES:
            yield root / place, "/", None


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, ValueError):
        return ""
