"""``toy/dial-v1`` that really works for its time: what its steps cost is CPU time, whoever else runs.

The dial's own busy wait watches the clock, and that goes on while the process is kept off its CPU;
a simulator's work does not.
"""

from __future__ import annotations

import time

from ebrl.envs.toy import Dial


class Load(Dial):
    """A dial whose ``step_s`` and ``reset_s`` are seconds of CPU if it is ``busy``."""

    def _spend(self, duration_s: float) -> None:
        if duration_s <= 0 or not self.config.busy:
            super()._spend(duration_s)
            return
        end = time.thread_time() + duration_s
        while time.thread_time() < end:
            pass
