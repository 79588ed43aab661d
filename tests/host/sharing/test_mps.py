"""The MPS daemon, as a program on PATH that behaves like NVIDIA's."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from sharing_fakes import FakeMps

from ebrl.errors import UsageError
from ebrl.host.sharing.base import Split
from ebrl.host.sharing.gated import Obstacle
from ebrl.host.sharing.mps import Mps
from ebrl.host.sharing.mps_daemon import MpsDaemon, MpsError

HALF = Split(generation=66, training=66)


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeMps:
    made = FakeMps(tmp_path)
    monkeypatch.setenv("PATH", f"{made.programs}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("FAKE_MPS", raising=False)
    return made


def sharing(fake: FakeMps, *, answer_s: float = 30.0) -> Mps:
    return Mps(num_sms=lambda: 132, daemon=MpsDaemon(directory=fake.home, answer_s=answer_s), step_percent=25)


def test_a_percentage_becomes_sms_rounded_down(fake: FakeMps) -> None:
    mps = Mps(num_sms=lambda: 130, daemon=MpsDaemon(directory=fake.home), step_percent=25)
    assert [str(split) for split in mps.table()] == ["32/97", "65/65", "97/32", "130/130 shared"]
    mps.close()


def test_a_process_is_told_its_percentage_and_where_the_daemon_is_and_nothing_of_devices(fake: FakeMps) -> None:
    mps = Mps(
        num_sms=lambda: 132,
        daemon=MpsDaemon(directory=fake.home),
        step_percent=25,
        memory_bytes={"generation": 60 << 30},
    )
    split = Split(generation=33, training=99)
    assert mps.environment("generation", split) == {
        "CUDA_MPS_PIPE_DIRECTORY": str(fake.home / "pipe"),
        "CUDA_MPS_LOG_DIRECTORY": str(fake.home / "log"),
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "25",
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=61440M",
    }
    training = mps.environment("training", split)
    assert training["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "75"
    assert "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT" not in training
    with pytest.raises(UsageError, match="cannot split 1/2"):
        mps.environment("training", Split(generation=1, training=2))
    mps.close()


def test_a_probe_leaves_no_daemon_behind_but_keeps_one_that_ran(fake: FakeMps) -> None:
    mps = sharing(fake)
    found = mps.probe()
    assert (found.works, found.live_resplit, found.exclusive, found.memory_cap) == (True, False, False, True)
    assert not fake.state.exists()
    mps.prepare(HALF)
    assert fake.state.exists()
    assert mps.probe() == found
    assert fake.state.exists()
    mps.close()
    assert not fake.state.exists()


def test_only_this_user_can_look_into_the_directories(fake: FakeMps) -> None:
    daemon = MpsDaemon()
    daemon.start()
    modes = {name: stat.S_IMODE((daemon.directory / name).stat().st_mode) for name in (".", "pipe", "log")}
    assert modes == {".": 0o700, "pipe": 0o700, "log": 0o700}
    made = daemon.directory
    daemon.stop()
    assert not made.exists()


def test_a_process_that_is_no_client_is_noticed(fake: FakeMps) -> None:
    mps = sharing(fake)
    mps.prepare(HALF)
    fake.serve([11])
    mps.add("generation", 11, 66)
    mps.add("training", 12, 132)
    mps.remove("training", 10)  # the one before it
    found = mps.readback()
    assert (found.generation.units, found.generation.remark) == (66, "")
    assert found.training.remark == "process 12 is no client of MPS: it runs unrestricted; has 132, should have 66"
    fake.serve([])
    mps.close()


@pytest.mark.parametrize("wording", ["", "wordy"])
def test_both_ways_of_wording_answers_are_understood(
    fake: FakeMps, wording: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_MPS", wording)
    daemon = MpsDaemon(directory=fake.home)
    daemon.start()
    assert daemon.servers() == ()
    fake.serve([11, 12], server=701, status="FAULT")
    assert (daemon.servers(), daemon.clients(), daemon.state(701)) == ((701,), (11, 12), "FAULT")
    fake.serve([], server=701)
    assert daemon.state(701) == "ACTIVE"
    daemon.stop()


def test_a_fault_is_a_remark_of_both_stages(fake: FakeMps) -> None:
    mps = sharing(fake)
    mps.prepare(HALF)
    mps.add("generation", 11, 66)
    mps.add("training", 12, 66)
    fake.serve([11, 12], status="FAULT")
    found = mps.readback()
    assert found.generation.remark == found.training.remark == "server 700 is FAULT"
    fake.serve([])
    mps.close()


def test_it_is_not_stopped_under_its_clients(fake: FakeMps) -> None:
    mps = sharing(fake)
    mps.prepare(HALF)
    fake.serve([11, 12])
    with pytest.raises(MpsError, match="processes 11, 12 are still clients; let them end first"):
        mps.close()
    assert fake.state.exists()
    assert not mps.request(HALF, 0.0)
    fake.serve([])
    mps.close()
    assert not fake.state.exists()


def test_no_answer_is_an_error_with_the_command_and_the_time(fake: FakeMps, monkeypatch: pytest.MonkeyPatch) -> None:
    daemon = MpsDaemon(directory=fake.home, answer_s=30.0)
    daemon.start()
    monkeypatch.setenv("FAKE_MPS", "hang")
    slow = MpsDaemon(directory=fake.home, answer_s=0.05)
    with pytest.raises(MpsError, match=r"nvidia-cuda-mps-control: get_server_list: no answer within 0.05 s"):
        slow.servers()
    with pytest.raises(MpsError, match=r"nvidia-cuda-mps-control -d: no answer within 0.05 s"):
        slow.start()
    assert sharing(fake, answer_s=0.05).probe().reason == "nvidia-cuda-mps-control -d: no answer within 0.05 s"


def test_a_daemon_that_starts_and_does_not_answer_does_not_work(fake: FakeMps, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_MPS", "hang later")
    reason = sharing(fake, answer_s=1.0).probe().reason
    assert reason == "nvidia-cuda-mps-control: get_server_list: no answer within 1 s"


@pytest.mark.parametrize(
    ("mode", "said"),
    [
        ("refuse", "nvidia-cuda-mps-control -d: failed with status 1 and said: An instance of this daemon is"),
        ("wrong user", "nvidia-cuda-mps-control: get_server_list: failed with status 1 and said: Cannot find MPS"),
    ],
)
def test_a_refusal_is_passed_on(fake: FakeMps, mode: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_MPS", mode)
    found = sharing(fake).probe()
    assert not found.works
    assert found.reason.startswith(said)


def test_a_daemon_that_keeps_its_output_open_does_not_hold_the_start_up(
    fake: FakeMps, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_MPS", "stays")
    daemon = MpsDaemon(directory=fake.home)
    daemon.start()
    assert daemon.servers() == ()
    daemon.stop()


def test_a_path_too_long_for_sockets_is_an_obstacle(fake: FakeMps, tmp_path: Path) -> None:
    daemon = MpsDaemon(directory=tmp_path / ("x" * 100))
    with pytest.raises(Obstacle, match="is longer than 80 bytes; set TMPDIR to a short path"):
        daemon.start()


def test_without_the_programs_the_reason_names_them(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert Mps().probe().reason == (
        "nvidia-cuda-mps-control and nvidia-cuda-mps-server not on PATH; they come with NVIDIA's driver"
    )
