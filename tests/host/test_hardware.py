"""What is read of a machine, against trees of files as kernels lay them out."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ebrl.host.hardware import FoundGpu, FoundGpus, nvml_gpus, probe_hardware, sm_step
from ebrl.host.probe import group_memory
from ebrl.ids import CpuId
from ebrl.resources.hardware import BackEnd, Cpu, Node, check

GIB = 2**30
KIB = 1024
NO_GPU = FoundGpus(reason="no GPU")
A100 = FoundGpu(
    name="A100", capability=(8, 0), num_sms=108, memory_bytes=80 * GIB, pci_bus="00000000:3B:00.0", driver="580.1"
)


def plant(root: Path, files: dict[str, str]) -> None:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)


def probe(root: Path, usable: list[int], gpus: FoundGpus = NO_GPU) -> Node:
    hardware = probe_hardware(root, usable=usable, list_gpus=lambda: gpus)
    check(hardware)
    return hardware.nodes[0]


@pytest.fixture
def two_sockets(tmp_path: Path) -> Path:
    """Two sockets of two cores with SMT: siblings are 0 and 4, 1 and 5, and so on."""
    files = {
        f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list": f"{cpu % 4},{cpu % 4 + 4}\n"
        for cpu in range(8)
    }
    files |= {
        "sys/devices/system/node/node0/cpulist": "0-1,4-5\n",
        "sys/devices/system/node/node1/cpulist": "2-3,6-7\n",
        "sys/devices/system/node/node2/cpulist": "\n",  # memory only
        "sys/bus/pci/devices/0000:3b:00.0/numa_node": "1\n",
        "sys/bus/pci/devices/0000:5e:00.0/numa_node": "-1\n",
        "proc/meminfo": "MemTotal:       65536 kB\nMemFree:  1 kB\n",
    }
    plant(tmp_path, files)
    return tmp_path


def test_two_sockets_with_smt(two_sockets: Path) -> None:
    node = probe(two_sockets, list(range(8)))
    assert [(cpu.id, cpu.core, cpu.numa) for cpu in node.cpus] == [
        (0, 0, 0),
        (1, 1, 0),
        (2, 2, 1),
        (3, 3, 1),
        (4, 0, 0),
        (5, 1, 0),
        (6, 2, 1),
        (7, 3, 1),
    ]
    assert (node.memory_bytes, node.cpu_quota, node.num_cpus) == (65536 * KIB, 0.0, 8)


def test_only_cpus_of_the_affinity_mask_count(two_sockets: Path) -> None:
    assert probe(two_sockets, [7, 4]).cpus == (Cpu(id=CpuId(4), core=0, numa=0), Cpu(id=CpuId(7), core=3, numa=1))


def test_newer_kernels_call_the_list_of_siblings_otherwise(two_sockets: Path) -> None:
    plant(two_sockets, {"sys/devices/system/cpu/cpu5/topology/core_cpus_list": "3,5"})
    assert [cpu.core for cpu in probe(two_sockets, [4, 5]).cpus] == [0, 3]


def test_a_gpu_hangs_on_the_numa_node_that_its_bus_names(two_sockets: Path) -> None:
    lost = FoundGpu(name="H100", capability=(9, 0), num_sms=132, memory_bytes=80 * GIB, pci_bus="0000:5e:00.0")
    hardware = probe_hardware(
        two_sockets,
        usable=[0, 2],
        list_gpus=lambda: FoundGpus(gpus=(A100, lost), reason="GPU 2 is left out"),
        sharing=lambda index: (BackEnd(name="streams", works=index == 0, reason="some"),),
    )
    first, second = hardware.nodes[0].gpus
    assert (first.index, first.numa, first.num_sms, first.sm_step, first.driver) == (0, 1, 108, 4, "580.1")
    assert (second.index, second.numa, second.sm_step) == (1, 0, 8)  # not known: the first that there is
    assert [gpu.sharing[0].works for gpu in (first, second)] == [True, False]
    assert hardware.source.startswith("probed on 2")
    assert hardware.source.endswith("; GPU 2 is left out")


def test_groups_come_in_steps_that_grew_with_the_architecture() -> None:
    assert [sm_step(one) for one in ((7, 5), (8, 0), (8, 9), (9, 0), (10, 0), (12, 0))] == [2, 4, 4, 8, 8, 8]


V2 = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw\n"


@pytest.mark.parametrize(
    ("limits", "quota"),
    [
        ({"": "150000 100000"}, 1.5),
        ({"/a/b": "150000 100000", "/a": "max 100000"}, 1.5),
        ({"/a/b": "800000 100000", "/a": "300000 100000", "": "max 100000"}, 3.0),
        ({"/a/b": "max 100000", "/other": "100000 100000"}, 0.0),
        ({"/a/b": "what is this"}, 0.0),
    ],
)
def test_the_tightest_quota_of_the_group_and_those_above_counts(
    limits: dict[str, str], quota: float, tmp_path: Path
) -> None:
    plant(tmp_path, {f"sys/fs/cgroup{group}/cpu.max": limit for group, limit in limits.items()})
    plant(tmp_path, {"proc/self/cgroup": "0::/a/b\n", "proc/self/mountinfo": V2})
    node = probe(tmp_path, [0, 1, 2, 3])
    assert (node.cpu_quota, node.num_cpus) == (quota, int(quota) or 4)


def test_memory_of_a_container_is_what_the_groups_allow(tmp_path: Path) -> None:
    plant(
        tmp_path,
        {
            "proc/meminfo": f"MemTotal: {64 * 2**20} kB\n",
            "proc/self/cgroup": "0::/pod/box\n",
            "sys/fs/cgroup/pod/memory.max": f"{16 * GIB}\n",
            "sys/fs/cgroup/pod/box/memory.max": "max\n",
        },
    )
    assert probe(tmp_path, [0]).memory_bytes == 16 * GIB


def test_groups_of_version_1(tmp_path: Path) -> None:
    plant(
        tmp_path,
        {
            "proc/meminfo": f"MemTotal: {64 * 2**20} kB\n",
            "proc/self/cgroup": "4:memory:/docker/77\n3:cpu,cpuacct:/docker/77/inner\n1:name=systemd:/docker/77/x\n",
            # the container's own group is mounted as if it were the top
            "proc/self/mountinfo": (
                "33 32 0:29 /docker/77 /sys/fs/cgroup/cpu,cpuacct ro - cgroup cgroup rw,cpu,cpuacct\n"
                "36 32 0:32 /docker/77 /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n"
            ),
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "-1\n",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
            "sys/fs/cgroup/cpu,cpuacct/inner/cpu.cfs_quota_us": "250000\n",
            "sys/fs/cgroup/cpu,cpuacct/inner/cpu.cfs_period_us": "100000\n",
            "sys/fs/cgroup/cpu,cpuacct/x/cpu.cfs_quota_us": "100000\n",  # of a group that it is not in
            "sys/fs/cgroup/cpu,cpuacct/x/cpu.cfs_period_us": "100000\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{8 * GIB}\n",
        },
    )
    node = probe(tmp_path, [0, 1, 2, 3])
    assert (node.cpu_quota, node.memory_bytes) == (2.5, 8 * GIB)


def test_a_group_above_what_is_shown_is_not_looked_for(tmp_path: Path) -> None:
    plant(tmp_path, {"proc/self/cgroup": "0::/../up\n", "sys/fs/up/cpu.max": "100000 100000\n"})
    plant(tmp_path, {"sys/fs/cgroup/cpu.max": "300000 100000\n"})
    assert probe(tmp_path, [0, 1, 2, 3]).cpu_quota == 3.0


def test_no_limit_is_a_huge_number_in_version_1(tmp_path: Path) -> None:
    files = {"proc/meminfo": "MemTotal: 1024 kB", "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712"}
    plant(tmp_path, files)
    assert probe(tmp_path, [0]).memory_bytes == 2**20


@pytest.mark.parametrize(
    "files", [{}, {"proc/meminfo": "MemTotal: much\n", "proc/self/cgroup": "0::/../up\nnonsense\n"}]
)
def test_a_machine_that_tells_nothing(files: dict[str, str], tmp_path: Path) -> None:
    plant(tmp_path, files)
    node = probe(tmp_path, [3, 1])
    assert node.cpus == (Cpu(id=CpuId(1), core=1, numa=0), Cpu(id=CpuId(3), core=3, numa=0))
    assert (node.cpu_quota, node.gpus) == (0.0, ())
    assert node.memory_bytes > 0


def test_this_machine() -> None:
    hardware = probe_hardware()
    assert {cpu.id for cpu in hardware.nodes[0].cpus} == os.sched_getaffinity(0)
    check(hardware)


class Driver:
    """A management library with some GPUs, as far as it is asked."""

    def __init__(self, *names: str, fails_at: int = -1) -> None:
        self.names, self.fails_at = names, fails_at
        self.is_open = False

    def nvmlInit(self) -> None:
        self.is_open = True

    def nvmlShutdown(self) -> None:
        self.is_open = False

    def nvmlDeviceGetCount(self) -> int:
        return len(self.names)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetUUID(self, handle: int) -> str:
        return f"GPU-{handle}f00"

    def nvmlDeviceGetName(self, handle: int) -> bytes:  # as older versions of the module gave it
        return self.names[handle].encode()

    def nvmlDeviceGetCudaComputeCapability(self, handle: int) -> tuple[int, int]:
        return (8, 0) if "A100" in self.names[handle] else (9, 0)

    def nvmlDeviceGetNumGpuCores(self, handle: int) -> int:
        if handle == self.fails_at:
            raise RuntimeError("Not Supported")
        return 6912 if "A100" in self.names[handle] else 16896

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:
        return SimpleNamespace(total=80 * GIB)

    def nvmlDeviceGetPciInfo(self, handle: int) -> Any:
        return SimpleNamespace(busId=f"00000000:0{handle}:00.0")

    def nvmlSystemGetDriverVersion(self) -> str:
        return "580.1"


def test_sms_are_counted_by_their_lanes() -> None:
    driver = Driver("A100", "H100")
    found = nvml_gpus(driver, {})
    assert [(gpu.name, gpu.num_sms, gpu.capability) for gpu in found.gpus] == [
        ("A100", 108, (8, 0)),
        ("H100", 132, (9, 0)),
    ]
    assert (found.reason, driver.is_open) == ("", False)


@pytest.mark.parametrize(
    ("visible", "names"),
    [
        ("2,0", ["c", "a"]),
        ("GPU-1f", ["b"]),
        ("1,7,0", ["b"]),
        ("1,1", ["b"]),
        ("", []),
        ("-1", []),
        ("0,1,2", ["a", "b", "c"]),
    ],
)
def test_gpus_are_those_that_cuda_shows(visible: str, names: list[str]) -> None:
    found = nvml_gpus(Driver("a", "b", "c"), {"CUDA_VISIBLE_DEVICES": visible})
    assert [gpu.name for gpu in found.gpus] == names
    note = f"CUDA_VISIBLE_DEVICES={visible} shows {len(names)} of 3 GPUs"
    assert found.reason == (note if len(names) < 3 else "")


def test_a_gpu_that_does_not_answer_is_left_out_with_the_reason() -> None:
    found = nvml_gpus(Driver("a", "b", "c", fails_at=1), {})
    assert [gpu.name for gpu in found.gpus] == ["a"]
    assert found.reason == "GPU 1 and those after it are left out: RuntimeError: Not Supported"


def test_without_a_driver_there_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver()

    def refuse() -> None:
        raise RuntimeError("Driver Not Loaded")

    monkeypatch.setattr(driver, "nvmlInit", refuse)
    assert nvml_gpus(driver, {}) == FoundGpus(reason="no GPU: Driver Not Loaded")
    assert nvml_gpus(Driver(), {}) == FoundGpus(reason="no GPU")


def test_what_the_kernel_would_take_back_counts_as_available(tmp_path: Path) -> None:
    """Else a container that has read large files has no memory left."""
    assert group_memory(tmp_path) is None
    (tmp_path / "memory.max").write_text("16000\n")
    (tmp_path / "memory.current").write_text("15900\n")
    stat = "anon 900\nactive_file 5000\ninactive_file 9000\nslab_reclaimable 100\nslab 400\n"
    (tmp_path / "memory.stat").write_text(stat)
    assert group_memory(tmp_path) == (16000, 14200)
    (tmp_path / "memory.max").write_text("max\n")
    assert group_memory(tmp_path) is None
