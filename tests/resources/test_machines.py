"""Hardware files: what is shipped, what is refused, and that nothing is lost on the way."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebrl.errors import ConfigError, UsageError
from ebrl.ids import CpuId
from ebrl.plan.hardware import hardware_text, load_hardware, shipped_hardware
from ebrl.resources.hardware import BackEnd, Cpu, Gpu, Hardware, Node
from ebrl.resources.pool import Infeasible, share_cpus

NAMES = tuple(
    ["1xa100", "2-cpu-laptop", "2x8-h20", "2x8-l40s", "4xa100", "4xrtx4090", "8xa100", "8xh100", "8xh20", "rtx4090"]
)

BACK_ENDS = st.builds(BackEnd, name=st.text(max_size=5), works=st.booleans(), reason=st.text(max_size=5))
GPUS = st.builds(
    Gpu,
    index=st.integers(0, 9),
    name=st.text(max_size=5),
    num_sms=st.integers(8, 200),
    sm_step=st.integers(1, 8),
    memory_bytes=st.integers(1, 2**40),
    numa=st.integers(0, 3),
    sharing=st.lists(BACK_ENDS, max_size=2).map(tuple),
)
NODES = st.builds(
    Node,
    cpus=st.lists(
        st.builds(Cpu, id=st.integers(0, 99).map(CpuId), core=st.integers(0, 9), numa=st.integers(0, 3)),
        min_size=1,
        unique_by=lambda cpu: cpu.id,
    ).map(tuple),
    memory_bytes=st.integers(1, 2**45),
    cpu_quota=st.floats(0, 100),
    gpus=st.lists(GPUS, max_size=3, unique_by=lambda gpu: gpu.index).map(tuple),
)


@given(st.builds(Hardware, name=st.text(), nodes=st.lists(NODES, min_size=1, max_size=2).map(tuple), source=st.text()))
def test_what_is_written_is_what_is_read(hardware: Hardware) -> None:
    assert Hardware.from_json(json.loads(hardware_text(hardware))) == hardware


def test_these_machines_are_shipped() -> None:
    assert shipped_hardware() == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_shipped_machine_says_where_its_numbers_come_from(name: str) -> None:
    hardware = load_hardware(name)
    assert hardware == load_hardware(f"{name}.json")
    assert hardware.name == name
    assert len(hardware.source) > 40


@pytest.mark.parametrize(
    ("name", "facts"),
    [
        ("2-cpu-laptop", (1, 2, 2, 1, 0, 0, 0)),
        ("8xa100", (1, 56, 56, 2, 8, 108, 80)),
        ("8xh100", (1, 192, 192, 2, 8, 132, 79)),
        ("rtx4090", (1, 32, 16, 1, 1, 128, 23)),
        ("2x8-h20", (2, 192, 96, 2, 8, 78, 95)),
        ("1xa100", (1, 24, 24, 1, 1, 108, 80)),
        ("4xa100", (1, 96, 96, 4, 4, 108, 80)),
        ("4xrtx4090", (1, 32, 32, 1, 4, 128, 23)),
        ("8xh20", (1, 192, 96, 2, 8, 78, 95)),
        ("2x8-l40s", (2, 192, 96, 2, 8, 142, 44)),
    ],
)
def test_shipped_machines_have_these_parts(name: str, facts: tuple[int, ...]) -> None:
    """Nodes; of each: CPUs, cores, NUMA nodes, GPUs; of each GPU: SMs, whole GiB."""
    nodes = load_hardware(name).nodes
    for node in nodes:
        gpu = node.gpus[0] if node.gpus else None
        parts = (len(nodes), len(node.cpus), len({cpu.core for cpu in node.cpus}), len({cpu.numa for cpu in node.cpus}))
        assert (*parts, len(node.gpus), gpu.num_sms if gpu else 0, gpu.memory_bytes // 2**30 if gpu else 0) == facts


def test_cpus_of_a_shipped_machine_can_be_shared_out() -> None:
    node = load_hardware("8xa100").nodes[0]
    everywhere = list(range(8))
    shares = share_cpus(
        node,
        {"simulation": 40, "generation": 8, "training": 8},
        gpus={"generation": everywhere, "training": everywhere},
    )
    assert not isinstance(shares, Infeasible)
    assert shares["generation"] == tuple(range(8))
    assert shares["training"] == tuple(range(8, 16))
    assert shares["simulation"] == tuple(range(16, 56))


def test_a_file_of_ones_own_comes_before_a_shipped_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    mine = Hardware(name="mine", nodes=load_hardware("2-cpu-laptop").nodes)
    for name in ("8xa100.json", "8xa100"):
        Path(name).write_text(hardware_text(mine))
    assert load_hardware("8xa100.json") == mine
    assert load_hardware("./8xa100") == mine
    assert load_hardware("8xa100").name == "8xa100"


def test_an_unknown_machine_is_answered_with_the_nearest() -> None:
    with pytest.raises(UsageError) as caught:
        load_hardware("8xa10")
    assert str(caught.value) == (
        "no hardware file '8xa10'; did you mean '8xa100'? machines that come with ebrl: "
        f"{', '.join(NAMES)}; to describe this one: ebrl hardware --output FILE"
    )


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"kind": "workload"}, "kind 'workload', format 1: want a hardware file, format 1"),
        ({"format": 9}, "kind 'hardware', format 9: want a hardware file, format 1"),
        ({"nodes": []}, "nodes: want at least one"),
        ({"colour": "red"}, "hardware: unknown field 'colour'"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(change: dict[str, Any], text: str, tmp_path: Path) -> None:
    path = tmp_path / "machine.json"
    path.write_text(json.dumps(load_hardware("rtx4090").to_json() | change))
    with pytest.raises(ConfigError) as caught:
        load_hardware(str(path))
    assert str(caught.value) == f"{path}: {text}"


@pytest.mark.parametrize("content", [b"{", b"[]", b"\xff\xfe"])
def test_a_file_that_is_no_document_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "machine.json"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"machine\.json: "):
        load_hardware(str(path))
