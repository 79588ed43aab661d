"""Which of EGL's devices is which GPU.

MuJoCo's renderer takes the number of an EGL device (``MUJOCO_EGL_DEVICE_ID``). EGL numbers devices in its own order,
software renderers included; CUDA has another. The driver says for each EGL device which GPU of CUDA it is.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

_CUDA_DEVICE = 0x323A
"""EGL_CUDA_DEVICE_NV."""
_MOST = 64
"""More devices than any host has."""


def egl_devices(library: Any = None) -> dict[int, int]:
    """EGL's device number of each GPU, by CUDA's number; empty where EGL or the driver cannot tell.

    Args:
        library: the EGL library; None loads the host's.
    """
    try:
        egl = ctypes.CDLL("libEGL.so.1") if library is None else library
        egl.eglGetProcAddress.restype = ctypes.c_void_p
        query_devices = _function(egl, b"eglQueryDevicesEXT")
        query_attribute = _function(egl, b"eglQueryDeviceAttribEXT")
    except (OSError, AttributeError):
        return {}
    if query_devices is None or query_attribute is None:
        return {}
    devices, count = (ctypes.c_void_p * _MOST)(), ctypes.c_int(0)
    if not query_devices(_MOST, devices, ctypes.byref(count)):
        return {}
    found: dict[int, int] = {}
    for number in range(count.value):
        cuda = ctypes.c_ssize_t(-1)
        handle = ctypes.c_void_p(devices[number])
        if query_attribute(handle, _CUDA_DEVICE, ctypes.byref(cuda)) and cuda.value >= 0:
            found.setdefault(cuda.value, number)
    return found


def _function(egl: Any, name: bytes) -> Callable[..., int] | None:
    address = egl.eglGetProcAddress(name)
    if not address:
        return None
    return address if callable(address) else ctypes.CFUNCTYPE(ctypes.c_int)(address)
