"""The few calls of the CUDA driver that green contexts need, with errors raised instead of returned.

Every function of ``cuda.bindings.driver`` returns a tuple that begins with an error code. Flags are passed as
numbers: the names of their types differ between releases of the bindings.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

from ebrl.host.sharing.gated import Obstacle

OLDEST = 12080
"""First driver interface that torch's own streams and green contexts agree with: CUDA 12.8."""

SM_RESOURCE = "CU_DEV_RESOURCE_TYPE_SM"


class DriverError(RuntimeError):
    """A driver call failed."""

    def __init__(self, call: str, code: object) -> None:
        self.call = call
        self.code = code
        super().__init__(f"{call} failed: {getattr(code, 'name', code)}")


class Driver:
    """``cuda.bindings.driver``, or something that behaves like it."""

    def __init__(self, module: Any) -> None:
        self._module = module

    def version(self) -> int:
        """Newest interface that the driver knows: 12080 is CUDA 12.8."""
        return int(self._call("cuDriverGetVersion"))

    def initialize(self, device: int) -> Any:
        """The device, with its primary context in existence."""
        self._call("cuInit", 0)
        handle = self._call("cuDeviceGet", device)
        self._call("cuDevicePrimaryCtxRetain", handle)
        return handle

    def num_sms(self, device: int) -> int:
        """SMs of the whole device; makes no context."""
        self._call("cuInit", 0)
        attribute = self._module.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
        return int(self._call("cuDeviceGetAttribute", attribute, self._call("cuDeviceGet", device)))

    def release(self, device: Any) -> None:
        """Give up the hold on the primary context."""
        self._call("cuDevicePrimaryCtxRelease", device)

    def device_sms(self, device: Any) -> Any:
        """All SMs of the device, as one resource."""
        return self._call("cuDeviceGetDevResource", device, self._sm_type())

    def cut(self, resource: Any, num_parts: int, sms_per_part: int, flags: int) -> tuple[list[Any], Any]:
        """Cut a resource into equal parts that have no SM in common, and what remains."""
        parts, count, remainder = self._call("cuDevSmResourceSplitByCount", num_parts, resource, flags, sms_per_part)
        return list(parts[: int(count)]), remainder

    def green_context(self, parts: Sequence[Any], device: Any) -> Any:
        """A context on the SMs of all these parts, which must come from one cut."""
        descriptor = self._call("cuDevResourceGenerateDesc", list(parts), len(parts))
        flag = int(self._module.CUgreenCtxCreate_flags.CU_GREEN_CTX_DEFAULT_STREAM)
        return self._call("cuGreenCtxCreate", descriptor, device, flag)

    def context_sms(self, context: Any) -> int:
        """SMs that a green context really has."""
        return int(self._call("cuGreenCtxGetDevResource", context, self._sm_type()).sm.smCount)

    def stream(self, context: Any, priority: int) -> Any:
        """A stream of a green context; it does not wait for the default stream."""
        flag = int(self._module.CUstream_flags.CU_STREAM_NON_BLOCKING)
        return self._call("cuGreenCtxStreamCreate", context, flag, priority)

    def destroy_stream(self, stream: Any) -> None:
        """Destroy a stream; before its context, and only when nothing runs on it."""
        self._call("cuStreamDestroy", stream)

    def destroy_context(self, context: Any) -> None:
        """Destroy a green context."""
        self._call("cuGreenCtxDestroy", context)

    def _sm_type(self) -> Any:
        return getattr(self._module.CUdevResourceType, SM_RESOURCE)

    def _call(self, name: str, *arguments: Any) -> Any:
        error, *values = getattr(self._module, name)(*arguments)
        if int(error):
            raise DriverError(name, error)
        return values[0] if len(values) == 1 else tuple(values)


def load() -> Driver:
    """The driver of this machine, new enough for green contexts.

    Raises:
        Obstacle: says what is missing.
    """
    try:
        module = importlib.import_module("cuda.bindings.driver")
    except ImportError as error:
        raise Obstacle(f"cuda.bindings is not installed ({error}); run: pip install cuda-bindings") from error
    driver = Driver(module)
    try:
        version = driver.version()
    except Exception as error:  # the bindings look for the library at the first call, and have error types of their own
        raise Obstacle(f"no usable CUDA driver library (libcuda): {type(error).__name__}: {error}") from error
    require(version)
    return driver


def require(version: int) -> None:
    """Refuse a driver that is too old.

    Raises:
        Obstacle: it is.
    """
    if version < OLDEST:
        found, wanted = (f"{number // 1000}.{number % 1000 // 10}" for number in (version, OLDEST))
        raise Obstacle(f"the driver knows CUDA {found}; green contexts need {wanted} or newer")


def cuda_device() -> Any:
    """``torch.cuda``, if there is a device.

    Raises:
        Obstacle: there is none, or no torch.
    """
    try:
        cuda = importlib.import_module("torch").cuda
    except ImportError as error:
        raise Obstacle(f"torch cannot be imported: {error}") from error
    if not cuda.is_available():
        raise Obstacle("torch sees no CUDA device (no GPU, no driver, or a build of torch for CPUs only)")
    return cuda


def count_sms(device: int) -> int:
    """SMs of a device, found out without making this process a user of it.

    Raises:
        Obstacle: there is no device.
    """
    driver = load()
    try:
        return driver.num_sms(device)
    except DriverError as error:
        raise Obstacle(f"the driver has no device {device}: {error}") from error
