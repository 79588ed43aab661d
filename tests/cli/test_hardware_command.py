"""``ebrl hardware``: this machine and those that are shipped, for people and for programs."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from ebrl.cli.hardware import describe, hardware
from ebrl.errors import ConfigError, UsageError
from ebrl.ids import CpuId
from ebrl.plan.hardware import load_hardware
from ebrl.resources.hardware import BackEnd, Cpu, Gpu, Hardware, Node


def test_this_machine_is_shown_with_what_else_there_is() -> None:
    answer = hardware()
    assert [cpu["id"] for cpu in answer.document["nodes"][0]["cpus"]] == sorted(os.sched_getaffinity(0))
    assert "probed on 2" in answer.text
    assert answer.text.endswith(
        "others to plan for: 1xa100, 2-cpu-laptop, 2x8-h20, 2x8-l40s, 4xa100, 4xrtx4090, 8xa100, 8xh100, 8xh20, rtx4090"
    )


def test_what_is_written_can_be_loaded(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    answer = hardware(output=path)
    assert json.loads(path.read_text()) == json.loads(json.dumps(answer.document))
    assert load_hardware(str(path)).to_json() == answer.document
    assert answer.text.endswith(f"written to {path}")


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^--output: .*/no/mine\.json cannot be written: No such file"):
        hardware("rtx4090", output=tmp_path / "no" / "mine.json")


def test_an_unknown_machine_is_refused() -> None:
    with pytest.raises(UsageError, match="did you mean 'rtx4090'"):
        hardware("rtx4080")


def test_a_shipped_machine_is_shown() -> None:
    text = hardware("8xh100").text
    assert "CPUs     192, 192 cores without SMT" in text
    assert text.count("ways to share") == 1
    assert "NUMA 1   CPUs 96-191" in text
    assert "GPU 7    NVIDIA H100 80GB HBM3: 132 SMs in steps of 8, 79.6 GiB, NUMA 1" in text
    assert hardware("2x8-h20").text.count("CPUs     192, 96 cores with SMT") == 2


def test_limits_and_reasons_are_said() -> None:
    sharing = (
        BackEnd(name="streams", works=True),
        BackEnd(name="mig", works=False, reason="there is no instance"),
    )
    gpu = Gpu(index=0, name="Some", num_sms=8, sm_step=2, memory_bytes=2**30, driver="580", sharing=sharing)
    cpus = tuple(Cpu(id=CpuId(cpu), core=cpu // 2) for cpu in (0, 1, 2, 5))
    node = Node(cpus=cpus, memory_bytes=3 * 2**29, cpu_quota=1.5, gpus=(gpu,))
    assert list(describe(Hardware(name="box", nodes=(node,)))) == [
        "box",
        "  CPUs     4, 3 cores with SMT",
        "  quota    1.5 CPUs of time: keeps at most 1 CPUs busy",
        "  NUMA 0   CPUs 0-2,5",
        "  memory   1.5 GiB",
        "  GPU 0    Some: 8 SMs in steps of 2, 1.0 GiB, NUMA 0, driver 580",
        "           sharing by streams works",
        "           sharing by mig does not work: there is no instance",
    ]
