"""Runs checks under a simulator's own interpreter, where neither pytest nor this project is installed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ebrl.errors import EbrlError
from ebrl.host.simulators import python_for

HERE = Path(__file__).parent
SOURCE = HERE.parents[1] / "src"
WITHIN_S = 280.0


def interpreter(simulator: str) -> str:
    """What ``EBRL_TEST_PYTHON_<SIMULATOR>`` names, else what ``ebrl install`` has made; skips the test if neither."""
    variable = f"EBRL_TEST_PYTHON_{simulator.upper()}"
    if variable in os.environ:
        return os.environ[variable]
    try:
        return python_for(f"{simulator}/any")
    except EbrlError:
        pytest.skip(f"{simulator} is not here; run: ebrl install {simulator}, or set {variable} to its interpreter")


def run_check(simulator: str, check: str, *arguments: str, where: Path, **variables: str) -> str:
    """Run one function of ``<simulator>_checks.py`` in the directory ``where``; what it printed."""
    python = interpreter(simulator)
    own = {"PYTHONPATH": str(SOURCE), "PYTHONNOUSERSITE": "1", "OMP_NUM_THREADS": "1", "LP_NUM_THREADS": "0"}
    done = subprocess.run(
        [python, str(HERE / f"{simulator}_checks.py"), check, *arguments],
        cwd=where,
        env={**os.environ, **own, **variables},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
    )
    assert done.returncode == 0, f"{check}{arguments} under {python}:\n{done.stderr[-4000:]}"
    sys.stderr.write(done.stderr)
    return done.stdout
