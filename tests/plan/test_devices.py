"""Times moved from one GPU to another."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ebrl.errors import UsageError
from ebrl.plan.devices import DENOISING, DEVICES, LAUNCHES, on_device
from ebrl.plan.hardware import load_hardware, shipped_hardware
from ebrl.plan.workloads import load_workload
from ebrl.resources.workload import Workload

PI = load_workload("openpi-robocasa")


def test_the_same_gpu_changes_nothing() -> None:
    assert on_device(PI, "NVIDIA A100-SXM4-80GB") is PI


def test_cpu_work_does_not_care() -> None:
    mlp = load_workload("mlp-metaworld")
    assert on_device(mlp, "no such GPU") is mlp


def test_an_h20_trains_slowly_and_reads_memory_fast() -> None:
    moved = on_device(PI, "NVIDIA H20")
    slower, narrower = 312 / 148, 2039 / 4000
    assert moved.training.item_s == pytest.approx(PI.training.item_s * slower)
    assert moved.generation.item_s == pytest.approx(
        PI.generation.item_s * ((1 - DENOISING) * slower + DENOISING * narrower)
    )
    assert moved.generation.fixed_s == pytest.approx(PI.generation.fixed_s * (LAUNCHES + (1 - LAUNCHES) * narrower))
    assert moved.generation.saturation == pytest.approx(PI.generation.saturation * 108 / 78)
    assert moved.device == "H20"


def test_there_and_back_is_where_it_was() -> None:
    there = on_device(PI, "H100 80GB HBM3")
    back = on_device(there, PI.device)
    assert back.training.item_s == pytest.approx(PI.training.item_s)
    assert back.generation.saturation == pytest.approx(PI.generation.saturation)
    assert there.training.memory_bytes == PI.training.memory_bytes


def test_what_was_moved_says_so() -> None:
    sources = on_device(PI, "H200").sources
    assert sources["training"] == (
        "derived: moved from A100-SXM4-80GB to H200 by data sheets: item × 0.32, fixed × 0.86"
    )
    assert sources["simulation.chunk_s"] == PI.sources["simulation.chunk_s"]


@pytest.mark.parametrize(
    ("workload", "gpu"), [(PI, "Quadro 9000"), (replace(PI, device="Quadro 9000"), "H100 80GB HBM3")]
)
def test_an_unknown_gpu_is_named_with_the_way_out(workload: Workload, gpu: str) -> None:
    wanted = r"no data sheet of the GPU 'Quadro 9000'.*known: .*H200.*ebrl profile RUN\.toml"
    with pytest.raises(UsageError, match=wanted):
        on_device(workload, gpu)


def test_every_shipped_machine_has_known_gpus_with_the_sms_of_the_table() -> None:
    for name in shipped_hardware():
        for node in load_hardware(name).nodes:
            for gpu in node.gpus:
                assert DEVICES[gpu.name.removeprefix("NVIDIA ")].num_sms == gpu.num_sms
