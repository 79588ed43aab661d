"""A GPU that is not there: real work on a CPU, stretched to the time that the device would take.

The process sleeps for the rest, so an emulated device costs no CPU beyond the real work. Work that takes longer on
the CPU than it would on the device cannot be shortened; how often that happened, and by how much, is counted.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any


class EmulatedDevice:
    """Seconds of one process's work, by how much of the device it has."""

    def __init__(self, setup: Mapping[str, Any]) -> None:
        """From the setup message of a worker.

        Args:
            setup: ``table``, rows of units, seconds of a batch whatever its size, seconds for each item of it; and
                ``units``, the row that is in use at first.
        """
        self._rows = {int(units): (float(fixed_s), float(item_s)) for units, fixed_s, item_s in setup["table"]}
        self.units = int(setup["units"])
        self.overruns = 0
        self.overrun_s = 0.0
        """Seconds by which real work took longer than the device would have."""

    def set_units(self, units: int) -> None:
        """Have another share of the device from the next work on; 0 changes nothing.

        Raises:
            KeyError: the device cannot be split so.
        """
        if units:
            self._rows[units]
            self.units = units

    def seconds(self, num_items: int) -> float:
        """That the device takes for so many items."""
        fixed_s, item_s = self._rows[self.units]
        return fixed_s + item_s * num_items

    def rest(self, start: float, num_items: int) -> None:
        """Sleep until the device would be done with what was begun at ``start`` (``time.perf_counter``)."""
        left_s = start + self.seconds(num_items) - time.perf_counter()
        if left_s > 0:
            time.sleep(left_s)
        else:
            self.overruns += 1
            self.overrun_s -= left_s
