"""Films are made in the command's own process; it shows its stack and ends where an environment hangs."""

from __future__ import annotations

import subprocess
import sys

HANGING = """
import signal
from ebrl.runtime.playback import _within

def quick_step():
    with _within(0.2):
        pass

def hanging_step():
    with _within(0.2):
        signal.pause()

quick_step()
signal.sigtimedwait([], 0.5)  # a deadline that was kept is forgotten
print("still here", flush=True)
hanging_step()
"""


def test_an_environment_that_hangs_while_it_is_filmed_ends_the_command_with_its_stack() -> None:
    done = subprocess.run([sys.executable, "-c", HANGING], capture_output=True, text=True, timeout=60.0)
    assert (done.returncode, done.stdout) == (1, "still here\n")
    assert "Timeout" in done.stderr
    assert "in hanging_step" in done.stderr
