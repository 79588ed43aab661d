"""How long the kernel lets a process run while another one wants the same CPU."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from statistics import median

_GAP_S = 3e-4
"""A clock that stands still for longer was read by a process that had lost its CPU."""
_LOOK_S = 0.4
_FEWEST = 10
"""Slices that make a measurement."""
USUAL_S = 0.004
"""One tick of a kernel with 250 Hz, where it cannot be measured."""

_HOG = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 9)  # it dies with whoever started it
os.sched_setaffinity(0, {int(sys.argv[1])})
print(flush=True)
while True: pass
"""


def tick_s(cpu: int) -> float:
    """Median time for which a busy process runs before a busy rival on the same CPU gets it, in seconds."""
    allowed = os.sched_getaffinity(0)
    rival = subprocess.Popen([sys.executable, "-c", _HOG, str(cpu)], stdout=subprocess.PIPE, start_new_session=True)
    try:
        assert rival.stdout is not None
        rival.stdout.readline()
        os.sched_setaffinity(0, {cpu})
        runs = _runs()
    finally:
        os.sched_setaffinity(0, allowed)
        rival.kill()
        rival.communicate()
    return median(runs) if len(runs) >= _FEWEST else USUAL_S


def _runs() -> list[float]:
    start = begun = last = time.perf_counter()
    runs: list[float] = []
    while last - start < _LOOK_S:
        now = time.perf_counter()
        if now - last > _GAP_S:
            runs.append(last - begun)
            begun = now
        last = now
    return runs[1:]
