"""Which EGL device is which GPU, against a stand-in for the EGL library."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import pytest

from drills import make_setup
from ebrl.config.load import make_config
from ebrl.errors import ConfigError
from ebrl.host.egl import egl_devices
from ebrl.runtime.local import render_devices


class Address:
    """``eglGetProcAddress``, as ctypes has it."""

    restype: Any = None

    def __init__(self, functions: dict[bytes, Any]) -> None:
        self._functions = functions

    def __call__(self, name: bytes) -> Any:
        return self._functions.get(name)


class FakeEgl:
    """EGL of a host with these devices: CUDA's number of each, or None of one that is no GPU of CUDA."""

    def __init__(self, *cuda: int | None, extensions: bool = True) -> None:
        self._cuda = cuda
        functions = {b"eglQueryDevicesEXT": self.devices, b"eglQueryDeviceAttribEXT": self.attribute}
        self.eglGetProcAddress = Address(functions if extensions else {})

    def devices(self, most: int, handles: Any, count: Any) -> int:
        assert len(self._cuda) <= most
        for number in range(len(self._cuda)):
            handles[number] = 1000 + number
        count._obj.value = len(self._cuda)
        return 1

    def attribute(self, handle: ctypes.c_void_p, attribute: int, value: Any) -> int:
        cuda = self._cuda[(handle.value or 0) - 1000]
        if attribute != 0x323A or cuda is None:
            return 0
        value._obj.value = cuda
        return 1


def test_devices_are_matched_by_what_the_driver_says() -> None:
    assert egl_devices(FakeEgl(1, None, 0, None)) == {1: 0, 0: 2}


@pytest.mark.parametrize("library", [FakeEgl(), FakeEgl(None), FakeEgl(0, extensions=False), object()])
def test_who_cannot_tell_says_nothing(library: Any) -> None:
    assert egl_devices(library) == {}


def test_this_host_is_asked_without_an_error() -> None:
    assert isinstance(egl_devices(), dict)


def config_of(**sections: Any) -> Any:
    return make_config({"env": {"name": "toy/dial-v1"}} | sections)


def test_env_workers_render_where_generation_works() -> None:
    known = {0: 3, 1: 5}
    assert render_devices(config_of(generation={"device": "cuda:1"}), known) == (5,)
    assert render_devices(config_of(generation={"device": "cuda"}), known) == (3,)
    assert render_devices(config_of(generation={"device": "cuda:7"}), known) == ()
    assert render_devices(config_of(), known) == ()


def test_gpus_that_are_chosen_are_taken_in_turn(tmp_path: Path) -> None:
    devices = render_devices(config_of(simulation={"render_gpus": [1, 0]}), {0: 3, 1: 5})
    setup = make_setup(tmp_path, render_devices=devices)
    numbers = [setup.env_variables(shard)["MUJOCO_EGL_DEVICE_ID"] for shard in range(3)]
    assert numbers == ["5", "3", "5"]
    assert make_setup(tmp_path).env_variables(0) == {}


def test_a_gpu_that_egl_does_not_know_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"EGL does not know GPUs \[2\]; it knows \[0\]"):
        render_devices(config_of(simulation={"render_gpus": [0, 2]}), {0: 0})
