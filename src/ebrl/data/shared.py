"""Named numpy arrays in memory that several processes map.

The memory is anonymous (``memfd_create``): it is reached through a file descriptor that is handed
from process to process, has no name in the file system, does not count against the size of
``/dev/shm``, and disappears with the last process that maps it. So nothing can be left behind,
whatever is killed and in whatever order, and there is nothing to clean up.
"""

from __future__ import annotations

import math
import mmap
import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from ebrl.data.spec import ArraySpec

_ALIGN = 64
"""Bytes; every array starts on its own cache line."""

Layout = Mapping[str, ArraySpec]


class SharedArrays:
    """A set of arrays in one shared mapping; ``arrays[name]`` is a numpy view of it."""

    def __init__(self, fd: int, layout: Layout) -> None:
        """Map ``fd``, which this object owns from now on, as ``layout`` says."""
        self.fd = fd
        self.layout = dict(layout)
        offsets, size = _offsets(self.layout)
        self._map = mmap.mmap(fd, size)
        self.arrays = {
            name: np.ndarray(spec.shape, spec.dtype, buffer=self._map, offset=offsets[name])
            for name, spec in self.layout.items()
        }

    @staticmethod
    def create(label: str, layout: Layout) -> SharedArrays:
        """New arrays, all zero; ``label`` is what ``/proc/<pid>/maps`` shows."""
        fd = os.memfd_create(f"ebrl-{label}", os.MFD_CLOEXEC)
        os.ftruncate(fd, num_bytes(layout))
        return SharedArrays(fd, layout)

    def __getitem__(self, name: str) -> np.ndarray:
        return self.arrays[name]

    def layout_json(self) -> dict[str, Any]:
        """The layout, for the process that maps the same descriptor."""
        return {name: spec.to_json() for name, spec in self.layout.items()}

    @staticmethod
    def attach(fd: int, layout_json: Mapping[str, Any]) -> SharedArrays:
        """Map arrays that another process created."""
        return SharedArrays(fd, {name: ArraySpec.from_json(value) for name, value in layout_json.items()})

    def close(self) -> None:
        """Give the descriptor back; views stay valid until they are dropped."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def num_bytes(layout: Layout) -> int:
    """Size of the memory that holds ``layout``."""
    return _offsets(layout)[1]


def _offsets(layout: Layout) -> tuple[dict[str, int], int]:
    offsets: dict[str, int] = {}
    end = 0
    for name, spec in layout.items():
        offsets[name] = end
        end += math.prod(spec.shape) * np.dtype(spec.dtype).itemsize
        end = -(-end // _ALIGN) * _ALIGN
    return offsets, max(end, _ALIGN)
