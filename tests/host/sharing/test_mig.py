"""MIG instances, from what the listing says."""

from __future__ import annotations

from pathlib import Path

import pytest
from sharing_fakes import listing

from ebrl.host.sharing.base import Split
from ebrl.host.sharing.gated import Obstacle
from ebrl.host.sharing.mig import SMS_OF_SLICES, Instance, Mig, instances, list_devices


def made(*profiles: str, card: str = "NVIDIA H200") -> Mig:
    return Mig(lister=lambda: listing(*profiles, card=card))


def test_instances_are_read_with_their_sms() -> None:
    text = listing("3g.71gb", "4g.71gb") + "GPU 1: NVIDIA H200 (UUID: GPU-1)\n"
    assert instances(text, 0, SMS_OF_SLICES) == (
        Instance(uuid="MIG-00000000", profile="3g.71gb", num_sms=60),
        Instance(uuid="MIG-00000001", profile="4g.71gb", num_sms=64),
    )
    assert instances(text, 1, SMS_OF_SLICES) == ()
    with pytest.raises(Obstacle, match="nvidia-smi lists no GPU 2"):
        instances(text, 2, SMS_OF_SLICES)


def test_every_pair_of_instances_is_a_split_and_a_process_sees_its_own_alone() -> None:
    mig = made("3g.71gb", "4g.71gb")
    small, large = mig.table()
    assert (small, large) == (Split(generation=60, training=64), Split(generation=64, training=60))
    assert mig.environment("generation", small) == {"CUDA_VISIBLE_DEVICES": "MIG-00000000"}
    assert mig.environment("generation", large) == {"CUDA_VISIBLE_DEVICES": "MIG-00000001"}


def test_equal_instances_are_one_split() -> None:
    assert made("3g.71gb", "3g.71gb").table() == (Split(generation=60, training=60),)


def test_an_instance_that_has_gone_is_noticed() -> None:
    found = ["3g.71gb", "4g.71gb"]
    mig = Mig(lister=lambda: listing(*found))
    mig.add("generation", 11, 60)
    mig.add("training", 12, 64)
    assert mig.readback().training.remark == ""
    found.pop()
    assert mig.readback().training.remark == "instance MIG-00000001 (4g.71gb) is gone"


@pytest.mark.parametrize(
    ("profiles", "card", "reason"),
    [
        ((), "NVIDIA H200", "GPU 0 has 0 MIG instances; want 2, made by an administrator (nvidia-smi mig)"),
        (("7g.141gb",), "NVIDIA H200", "GPU 0 has 1 MIG instances; want 2, made by an administrator (nvidia-smi mig)"),
        (("3g.1gb", "4g.1gb"), "NVIDIA X", "how many SMs 3g.1gb, 4g.1gb has on 'NVIDIA X' is not known here"),
    ],
)
def test_what_is_missing_is_said(profiles: tuple[str, ...], card: str, reason: str) -> None:
    assert made(*profiles, card=card).probe().reason == reason


def program(directory: Path, body: str) -> None:
    path = directory / "nvidia-smi"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)


def test_the_program_is_asked_and_may_be_missing_or_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert Mig().probe().reason == "nvidia-smi is not on PATH; it comes with NVIDIA's driver"
    program(tmp_path, "echo No devices were found; exit 6")
    assert Mig().probe().reason == "nvidia-smi -L failed with status 6: No devices were found"
    program(tmp_path, f"echo '{listing('3g.71gb', '4g.71gb')}'")
    assert "4g.71gb" in list_devices()
    assert Mig().probe().works
    (tmp_path / "nvidia-smi").write_text("not a program")
    assert Mig().probe().reason == "nvidia-smi -L did not run: Exec format error"
