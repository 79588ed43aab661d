"""Policy weights from the learner to generators, through a versioned double buffer.

The learner writes version v into buffer v mod 2 and never waits; a generator copies the one that
control told it of, or the next, and never waits. A copy that was overtaken while it was being
taken shows a changed stamp and is taken again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ebrl.data.shared import SharedArrays
from ebrl.data.spec import ArraySpec

_WRITING = -1


def weights_layout(state: Mapping[str, Tensor]) -> dict[str, ArraySpec]:
    """Layout of the double buffer for a policy's ``state_dict``."""
    layout = {"newest": ArraySpec((1,), "int64"), "stamp": ArraySpec((2,), "int64")}
    for name, tensor in state.items():
        dtype = str(_bits(tensor).dtype).removeprefix("torch.")
        layout[f"weight/{name}"] = ArraySpec((2, *tensor.shape), dtype)
    return layout


def _bits(tensor: Tensor) -> Tensor:
    """The tensor, or its bits as integers where numpy has no such dtype (bfloat16, the 8-bit floats)."""
    if not tensor.dtype.is_floating_point or tensor.dtype in (torch.float16, torch.float32, torch.float64):
        return tensor
    return tensor.detach().view({1: torch.int8, 2: torch.int16}[tensor.element_size()])


def layout_to_json(layout: Mapping[str, ArraySpec]) -> dict[str, Any]:
    """``layout`` for a message."""
    return {name: spec.to_json() for name, spec in layout.items()}


class Weights:
    """One side of the double buffer."""

    def __init__(self, shared: SharedArrays) -> None:
        self._newest = shared["newest"]
        self._stamp = shared["stamp"]
        self._buffers = {
            name.removeprefix("weight/"): torch.from_numpy(array)
            for name, array in shared.arrays.items()
            if name.startswith("weight/")
        }

    @property
    def newest(self) -> int:
        """Version written last."""
        return int(self._newest[0])

    def write(self, version: int, state: Mapping[str, Tensor]) -> None:
        """Put ``state`` into the buffer that readers of the version before do not use."""
        side = version % 2
        self._stamp[side] = _WRITING
        for name, tensor in state.items():
            self._buffers[name][side].copy_(_bits(tensor))
        self._stamp[side] = version
        self._newest[0] = version

    def read_again(self, version: int, state: Mapping[str, Tensor]) -> None:
        """Copy ``version`` into ``state``, even if the learner that is being replaced wrote a newer one.

        It may have died before it could say that its last update was done; that update is taken
        again. Nobody writes meanwhile.

        Raises:
            RuntimeError: the buffer no longer holds that version.
        """
        if self._stamp[version % 2] != version:
            raise RuntimeError(f"weights of version {version} are gone; stamps {np.asarray(self._stamp)}")
        self._copy(version % 2, state)

    def forget_newer(self, version: int) -> None:
        """Make ``version`` the newest again; what a learner wrote after it and could not say is nobody's."""
        self._newest[0] = version
        other = 1 - version % 2
        if self._stamp[other] > version:
            self._stamp[other] = _WRITING

    def _copy(self, side: int, state: Mapping[str, Tensor]) -> None:
        with torch.no_grad():
            for name, tensor in state.items():
                _bits(tensor).copy_(self._buffers[name][side])

    def read_into(self, state: Mapping[str, Tensor], *, wanted: int | None = None) -> int:
        """Copy weights into ``state`` and say which version they are.

        Args:
            state: is overwritten.
            wanted: a version that is known to be good; it is taken, or the next one if it is gone already. The newest
                may be of an update that nobody will ever hear of, because its learner dies before it can say so. None
                takes the newest.

        A reader can only be overtaken while the learner finishes two whole updates, so the second
        try succeeds; the loop is bounded all the same.

        Raises:
            RuntimeError: the buffer changed under every one of 100 tries.
        """
        for _ in range(100):
            version = self.newest if wanted is None else self._oldest_since(wanted)
            side = version % 2
            self._copy(side, state)
            if self._stamp[side] == version:
                return version
        raise RuntimeError(
            f"weights changed under 100 reads; newest is {self.newest}, stamps {np.asarray(self._stamp)}"
        )

    def _oldest_since(self, version: int) -> int:
        return min((int(stamp) for stamp in self._stamp if stamp >= version), default=self.newest)
