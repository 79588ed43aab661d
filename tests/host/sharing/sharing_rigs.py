"""One rig per back-end: the back-end on a stand-in of its mechanism, and what the stand-in saw."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from sharing_fakes import Cuda, DriverModule, FakeKernel, FakeMps, Gpu, listing

from ebrl.host.sharing.base import STAGES, Sharing, Split, Stage
from ebrl.host.sharing.cpu import Cpu
from ebrl.host.sharing.driver import Driver
from ebrl.host.sharing.emulated import Emulated
from ebrl.host.sharing.green import Green
from ebrl.host.sharing.mig import SMS_OF_SLICES, Mig
from ebrl.host.sharing.mps import Mps
from ebrl.host.sharing.mps_daemon import MpsDaemon
from ebrl.host.sharing.streams import Streams
from ebrl.host.sharing.time_slice import TimeSlice
from ebrl.ids import CpuId


class Rig:
    """A back-end with stages that work, park and are replaced as it wants."""

    def __init__(self, sharing: Sharing) -> None:
        self.sharing = sharing
        self.gpu = Gpu()

    def begin(self) -> None:
        """Start what the back-end governs, at its first split."""

    def work(self, stage: Stage) -> None:
        """The stage gives several pieces of work, if it has anything to run them on."""
        if self.sharing.split(stage).of(stage):
            with self.sharing.lane(stage):
                self.launch(stage)

    def launch(self, stage: Stage) -> None:
        """On the lane."""

    def pass_gate(self, stage: Stage, now: float = 0.0) -> bool:
        """The stage comes to its gate, and does what follows from it."""
        changed = self.sharing.gate(stage, now)
        if changed:
            self.changed(stage)
        if not self.sharing.split(stage).of(stage):
            self.sharing.park(stage, now)
        return changed

    def changed(self, stage: Stage) -> None:
        """The stage has another split."""

    def end(self) -> None:
        """Let the stages end, so that the back-end may be closed."""


class CudaRig(Rig):
    """A device that notes who ran where."""

    def __init__(self, sharing: Sharing, cuda: Cuda) -> None:
        super().__init__(sharing)
        self.cuda, self.gpu = cuda, cuda.gpu

    def launch(self, stage: Stage) -> None:
        for _ in range(3):
            self.cuda.current.launch(stage, 5.0)
        self.gpu.now += 1.0


class CpuRig(Rig):
    """Two processes per stage."""

    def __init__(self, sharing: Cpu, kernel: FakeKernel) -> None:
        super().__init__(sharing)
        self.cpu, self.kernel = sharing, kernel

    def begin(self) -> None:
        for pid, stage in enumerate((*STAGES, *STAGES), start=1):
            self.kernel.start(pid, 4)
            self.cpu.add(stage, pid)


class ReplacingRig(Rig):
    """A process per stage that is replaced when its split changes, and sees what its environment lets it see."""

    def __init__(self, sharing: Mps | Mig, sees: Callable[[Mapping[str, str]], int], mps: FakeMps | None) -> None:
        super().__init__(sharing)
        self.replacing, self.sees, self.mps = sharing, sees, mps
        self.pids: dict[Stage, int] = {}

    def begin(self) -> None:
        self.sharing.prepare(self.sharing.split("generation"))
        for stage in STAGES:
            self.changed(stage)

    def changed(self, stage: Stage) -> None:
        self.pids[stage] = 100 * self.pids.get(stage, STAGES.index(stage) + 1) + 1
        environment = self.sharing.environment(stage, self.sharing.split(stage))
        self.replacing.add(stage, self.pids[stage], self.sees(environment))
        if self.mps is not None:
            self.mps.serve(list(self.pids.values()))

    def end(self) -> None:
        if self.mps is not None and self.mps.state.exists():
            self.mps.serve([])


def cpu_rig(_: Path) -> Rig:
    kernel = FakeKernel(8)
    return CpuRig(Cpu(cpus=[CpuId(cpu) for cpu in range(8)], kernel=kernel), kernel)


def emulated_rig(_: Path) -> Rig:
    return Rig(Emulated(num_sms=132, sm_step=8))


def time_slice_rig(_: Path) -> Rig:
    cuda = Cuda(Gpu())
    rig = CudaRig(TimeSlice(synchronize=cuda.synchronize, clock=lambda: cuda.gpu.now), cuda)
    return rig


def streams_rig(_: Path) -> Rig:
    cuda = Cuda(Gpu())
    return CudaRig(Streams(cuda=cuda), cuda)


def green_rig(_: Path) -> Rig:
    cuda = Cuda(Gpu())
    return CudaRig(Green(driver=Driver(DriverModule(cuda)), cuda=cuda), cuda)


def mps_rig(directory: Path) -> Rig:
    fake = FakeMps(directory)
    daemon = MpsDaemon(directory=fake.home)
    sharing = Mps(num_sms=lambda: 132, daemon=daemon, step_percent=25)
    return ReplacingRig(sharing, lambda found: 132 * int(found["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"]) // 100, fake)


def mig_rig(_: Path) -> Rig:
    profiles = ("1g.18gb", "2g.35gb", "4g.71gb")
    slices = {f"MIG-{n:08x}": SMS_OF_SLICES["H200"][int(profile[0])] for n, profile in enumerate(profiles)}
    sharing = Mig(lister=lambda: listing(*profiles))
    return ReplacingRig(sharing, lambda found: slices[found["CUDA_VISIBLE_DEVICES"]], None)


RIGS: Mapping[str, Callable[[Path], Rig]] = {
    "cpu": cpu_rig,
    "emulated": emulated_rig,
    "time_slice": time_slice_rig,
    "streams": streams_rig,
    "green": green_rig,
    "mps": mps_rig,
    "mig": mig_rig,
}

MOVING = [name for name in RIGS if name != "streams"]
"""Those with a choice of splits."""


@contextmanager
def rig_of(name: str, directory: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    """A rig that has begun, and is closed afterwards."""
    monkeypatch.setenv("PATH", f"{directory / 'bin'}{os.pathsep}{os.environ['PATH']}")
    rig = RIGS[name](directory)
    rig.begin()
    try:
        yield rig
    finally:
        rig.end()
        rig.sharing.close()
    assert rig.gpu.complaints == []


def ends(table: tuple[Split, ...]) -> tuple[Split, Split]:
    """Two entries of a table that are exclusive and far apart, the one with less for generation first."""
    own = [split for split in table if not split.shared]
    return own[0], own[-1]
