"""Green contexts on a driver with the real one's rules."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest
from sharing_fakes import Cuda, DriverModule, Gpu

from ebrl.errors import UsageError
from ebrl.host.sharing.base import STAGES, Split
from ebrl.host.sharing.driver import Driver, DriverError, count_sms
from ebrl.host.sharing.gated import Obstacle
from ebrl.host.sharing.green import Green

INNER = [(units, 132 - units) for units in range(8, 121, 8)]


def made(*, remainder: str = "joins", num_sms: int = 132, version: int = 13000) -> tuple[Green, DriverModule]:
    cuda = Cuda(Gpu(num_sms))
    module = DriverModule(cuda, remainder=remainder, version=version)
    return Green(driver=Driver(module), cuda=cuda), module


def pairs(green: Green) -> list[tuple[int, int]]:
    return [(split.generation, split.training) for split in green.table()]


def switch(green: Green, split: Split) -> None:
    assert green.request(split, 0.0)
    for stage in (*STAGES, *STAGES):
        green.gate(stage, 0.0)
        if not green.split(stage).of(stage):
            green.park(stage, 0.0)
    assert green.split("generation") == green.split("training") == split


def test_the_device_is_cut_once_and_every_step_of_it_can_be_reached() -> None:
    green, module = made()
    assert pairs(green) == [(0, 132), *INNER, (132, 0)]
    for split in green.table():
        green.prepare(split)
    assert module.num_cuts == 1


@pytest.mark.parametrize("remainder", ["descriptor", "context"])
def test_a_remainder_that_the_driver_gives_to_nobody_stays_idle(remainder: str) -> None:
    green, module = made(remainder=remainder)
    assert green.probe().reason == "4 SMs stay idle: the driver gives the remainder to nobody"
    assert green.probe().total == 128
    assert pairs(green)[0] == (0, 128)
    assert pairs(green)[-1] == (128, 0)
    for split in green.table():
        switch(green, split)
        assert green.readback().training.remark == ""
    assert module.num_cuts == 1


def test_a_remainder_that_is_refused_late_is_dropped_and_missed_in_the_readback() -> None:
    green, _ = made(remainder="later")
    found = green.readback().training
    assert (found.units, green.split("training").training) == (64, 68)
    assert found.remark.startswith("4 SMs stay idle: cuDevResource") or found.remark.startswith("4 SMs stay idle: cuG")
    assert "has 64, should have 68" in found.remark


def test_lanes_of_one_split_have_nothing_in_common_and_neighbours_are_nested() -> None:
    green, module = made()
    before: dict[str, frozenset[int]] = {"generation": frozenset(), "training": frozenset(range(132))}
    for split in green.table()[1:-1]:
        green.prepare(split)
        found: dict[str, frozenset[int]] = {}
        for stage in STAGES:
            lane = green.made(stage, split)
            assert lane is not None
            found[stage] = lane.context.sms
        assert not found["generation"] & found["training"]
        assert len(found["generation"] | found["training"]) == 132
        assert before["generation"] < found["generation"]
        assert found["training"] < before["training"]
        before = {**found}
    assert module.gpu.complaints == []


def test_a_lane_is_made_once_and_a_switch_makes_and_destroys_nothing() -> None:
    green, module = made()
    one, two = green.table()[3], green.table()[9]
    for split in (one, two, one):
        green.prepare(split)
    contexts = module.num_contexts
    for split in (one, two, one, two):
        switch(green, split)
    assert (module.num_contexts, module.calls) == (contexts, ["cuGreenCtxDestroy"])  # the trial of the remainder


def test_a_stage_stays_in_order_even_if_it_had_nothing_in_between() -> None:
    green, module = made()
    cuda = module.cuda
    with green.lane("generation"):
        cuda.current.launch("generation", 50.0)
    switch(green, green.table()[0])
    with pytest.raises(RuntimeError, match="generation has nothing at split 0/132: it has to park until the next one"):
        green.lane("generation")
    with green.lane("training"):
        cuda.current.launch("training", 5.0)
    switch(green, green.table()[5])
    for stage in STAGES:
        with green.lane(stage):
            cuda.current.launch(stage, 5.0)
    assert (module.gpu.overlaps(), module.gpu.disorders()) == ([], [])


def test_closing_waits_for_the_work_and_destroys_streams_before_contexts() -> None:
    green, module = made()
    for stage in STAGES:
        with green.lane(stage):
            module.cuda.current.launch(stage, 100.0)
    green.close()
    assert (module.gpu.complaints, module.contexts, module.primary) == ([], [], 0)
    assert module.calls[1:] == ["cuStreamDestroy", "cuGreenCtxDestroy"] * 2


def test_one_that_cannot_be_destroyed_does_not_keep_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    green, module = made()
    green.table()
    destroy, failed = module.cuStreamDestroy, []

    def failing(pointer: int) -> tuple[object, ...]:
        result = destroy(pointer)
        failed.append(pointer)
        return (201,) if len(failed) == 1 else result

    monkeypatch.setattr(module, "cuStreamDestroy", failing)
    with pytest.raises(DriverError, match="cuStreamDestroy failed: 201"):
        green.close()
    assert (module.contexts, module.primary, len(failed)) == ([], 0, 2)


def test_steps_of_two_for_those_who_want_them() -> None:
    cuda = Cuda(Gpu())
    green = Green(driver=Driver(DriverModule(cuda)), cuda=cuda, fine=True)
    assert green.probe().step == 2
    assert len(green.table()) == 67


def test_a_device_that_cannot_be_split_says_so() -> None:
    assert made(num_sms=12)[0].probe().reason == "the device can be cut into 1 part; want 2 at least"
    green, module = made(num_sms=4)
    assert green.probe().reason == "the driver cannot cut 4 SMs into parts of 8"
    assert module.primary == 0


def test_an_old_driver_says_so() -> None:
    green, _ = made(version=12040)
    assert green.probe().reason == "the driver knows CUDA 12.4; green contexts need 12.8 or newer"
    with pytest.raises(UsageError, match=r"sharing green does not work here: the driver knows CUDA 12\.4"):
        green.table()


def test_under_a_percentage_of_mps_it_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "50")
    assert "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=50 is set" in made()[0].probe().reason
    monkeypatch.setenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "100")
    assert made()[0].probe().works


def test_no_such_device() -> None:
    cuda = Cuda(Gpu())
    green = Green(device=3, driver=Driver(DriverModule(cuda)), cuda=cuda)
    assert green.probe().reason == "DriverError: cuDeviceGet failed: INVALID_DEVICE"


def test_without_bindings_or_without_a_driver_library_the_reason_says_which(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cuda", None)
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    monkeypatch.setitem(sys.modules, "cuda.bindings.driver", None)
    assert Green().probe().reason.startswith("cuda.bindings is not installed (")
    bindings = ModuleType("cuda.bindings.driver")

    class DynamicLibNotFoundError(Exception):
        pass

    def missing() -> None:
        raise DynamicLibNotFoundError("libcuda.so.1")

    vars(bindings)["cuDriverGetVersion"] = missing
    for name in ("cuda", "cuda.bindings"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, "cuda.bindings.driver", bindings)
    assert Green().probe().reason == ("no usable CUDA driver library (libcuda): DynamicLibNotFoundError: libcuda.so.1")


def test_sms_are_counted_without_a_context(monkeypatch: pytest.MonkeyPatch) -> None:
    module = DriverModule(Cuda(Gpu(114)))
    for name in ("cuda", "cuda.bindings"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, "cuda.bindings.driver", module)
    assert count_sms(0) == 114
    assert module.primary == 0
    with pytest.raises(Obstacle, match="the driver has no device 1: cuDeviceGet failed: INVALID_DEVICE"):
        count_sms(1)


def test_the_fake_driver_refuses_what_the_real_one_does() -> None:
    cuda = Cuda(Gpu())
    module = DriverModule(cuda)
    driver = Driver(module)
    device = driver.initialize(0)
    whole = driver.device_sms(device)
    parts, _ = driver.cut(whole, 4, 3, 0)
    assert [part.sm.smCount for part in parts] == [8] * 4  # rounded up
    others, _ = driver.cut(whole, 4, 8, 0)
    with pytest.raises(DriverError, match="cuDevResourceGenerateDesc failed: INVALID_RESOURCE_CONFIGURATION"):
        driver.green_context([parts[0], others[1]], device)
    with pytest.raises(DriverError, match="cuDevSmResourceSplitByCount failed"):
        driver.cut(parts[0], 1, 4, 0)
