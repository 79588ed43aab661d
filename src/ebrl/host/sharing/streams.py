"""Two CUDA streams of different priority: both stages use the whole device, and generation's blocks go first.

Priority is a hint for blocks that wait. Nothing is taken back from what already runs, so this helps short
generation kernels beside training made of short blocks, and does little beside long ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any, cast

from ebrl.host.sharing.base import STAGES, Capabilities, Held, Split, Stage
from ebrl.host.sharing.driver import cuda_device
from ebrl.host.sharing.gate import Gate
from ebrl.host.sharing.gated import GatedSharing

PRIORITIES: Mapping[Stage, int] = {"generation": -1, "training": 0}
"""Lower goes first; the driver clips what is out of its range."""


class Streams(GatedSharing):
    """One stream per stage, in one process."""

    name = "streams"

    def __init__(self, *, device: int = 0, cuda: Any = None, priorities: Mapping[Stage, int] = PRIORITIES) -> None:
        """Streams on a device; ``cuda`` is ``torch.cuda`` unless another one is given."""
        super().__init__(initial=None)
        self._device = device
        self._cuda = cuda
        self._priorities = priorities
        self._streams: dict[Stage, Any] = {}

    def _examine(self) -> tuple[Capabilities, tuple[Split, ...]]:
        if self._cuda is None:
            self._cuda = cuda_device()
        total = int(self._cuda.get_device_properties(self._device).multi_processor_count)
        found = Capabilities(
            works=True, reason="no split: generation only goes first where both wait", total=total, live_resplit=True
        )
        return found, (Split(generation=total, training=total, shared=True),)

    def _started(self, gate: Gate) -> None:
        for stage in STAGES:
            self._streams[stage] = self._cuda.Stream(device=self._device, priority=self._priorities[stage])

    def _lane(self, stage: Stage, split: Split) -> AbstractContextManager[object]:
        return cast("AbstractContextManager[object]", self._cuda.stream(self._streams[stage]))

    def _held(self, stage: Stage) -> Held:
        units = int(self._cuda.get_device_properties(self._device).multi_processor_count)
        return Held(units=units, remark=f"priority {self._streams[stage].priority}: a hint, not a share")

    def _release(self) -> None:
        for stream in self._streams.values():
            stream.synchronize()
        self._streams.clear()
