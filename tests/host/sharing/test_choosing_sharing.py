"""The best back-end that works, or the named one, or an error with the reason: never another one in silence."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from sharing_fakes import Cuda, FakeKernel, Gpu, listing

from ebrl.errors import ConfigError
from ebrl.host.probe import usable_cpus
from ebrl.host.sharing.choose import ORDER, back_ends, choose, on_host
from ebrl.host.sharing.cpu import Cpu
from ebrl.host.sharing.emulated import Emulated
from ebrl.host.sharing.mig import Mig
from ebrl.host.sharing.streams import Streams
from ebrl.host.sharing.time_slice import TimeSlice
from ebrl.ids import CpuId
from ebrl.resources.hardware import BackEnd

no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")


def cpu(*, usable: int = 4) -> Cpu:
    return Cpu(cpus=[CpuId(n) for n in range(4)], kernel=FakeKernel(usable))


def mig(*profiles: str) -> Mig:
    return Mig(lister=lambda: listing(*profiles))


def test_auto_takes_the_first_in_order_that_works() -> None:
    streams = Streams(cuda=Cuda(Gpu()))
    assert choose("auto", [cpu(), streams, mig()]) is streams
    pair = mig("3g.71gb", "4g.71gb")
    assert choose("auto", [cpu(), streams, pair]) is pair


def test_auto_takes_only_what_fits_the_processes() -> None:
    only = cpu()
    assert choose("auto", [only, Streams(cuda=Cuda(Gpu()))], processes=2) is only
    slices = TimeSlice(synchronize=lambda: None)
    assert choose("auto", [only, slices], processes=1) is slices


def test_auto_never_takes_an_emulated_device() -> None:
    emulated = Emulated(num_sms=132, sm_step=8)
    with pytest.raises(ConfigError, match="no way of sharing works here; cpu: this process may not use CPUs"):
        choose("auto", [emulated, cpu(usable=2)])
    assert choose("emulated", [emulated, cpu()], processes=1) is emulated


def test_a_named_one_that_does_not_work_is_an_error_with_the_reason() -> None:
    with pytest.raises(ConfigError) as caught:
        choose("mig", [cpu(), mig()], field="resources.sharing")
    assert str(caught.value) == (
        "resources.sharing: = 'mig': does not work here: GPU 0 has 0 MIG instances; want 2, made by an administrator "
        "(nvidia-smi mig); auto takes what works"
    )


def test_a_named_one_that_does_not_fit_is_an_error_too() -> None:
    with pytest.raises(ConfigError, match=r"'streams': .* it is for stages in 1 process\(es\), and here they are in 2"):
        choose("streams", [Streams(cuda=Cuda(Gpu()))], processes=2)


def test_an_unknown_name_suggests_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"'stream': there is no such way of sharing; did you mean 'streams'\?"):
        choose("stream", [cpu(), Streams(cuda=Cuda(Gpu()))])
    with pytest.raises(ConfigError, match="want auto or one of cpu"):
        choose("xyz", [cpu()])


def test_what_was_probed_can_be_kept_with_a_device() -> None:
    assert back_ends([cpu(), mig()]) == (
        BackEnd(name="cpu", works=True),
        BackEnd(
            name="mig",
            works=False,
            reason="GPU 0 has 0 MIG instances; want 2, made by an administrator (nvidia-smi mig)",
        ),
    )


@no_gpu
def test_without_a_gpu_every_way_but_cpus_gives_its_reason(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    found = {one.name: one for one in back_ends(on_host(device=0, cpus=usable_cpus()))}
    assert tuple(found) == ORDER
    assert [name for name, one in found.items() if one.works] == ["cpu"]
    assert "cuda.bindings" in found["green"].reason or "libcuda" in found["green"].reason
    assert "nvidia-smi" in found["mig"].reason
    assert "nvidia-cuda-mps-control" in found["mps"].reason
    assert "torch sees no CUDA device" in found["streams"].reason
    assert "torch sees no CUDA device" in found["time_slice"].reason
    assert choose("auto", on_host(device=0, cpus=usable_cpus())).name == "cpu"
