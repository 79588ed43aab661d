"""Starts the programs of ``bench/peer_programs``, one at a time.

Each has a deadline, and a process group of its own of which nothing is left at its end.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ebrl.bench.peer_programs.tasks import Request
from ebrl.errors import RunError
from ebrl.host import interpreters
from ebrl.host.leftovers import OWNER_VARIABLE, is_running

DEADLINE_S = 240.0
"""For one program from start to answer, beyond its warm-up and window; a simulator may take a minute to come up."""

_END_S = 2.0
"""For a program that has answered to end what it started, before it is killed."""
_PROGRAMS = "ebrl.bench.peer_programs"

Document = dict[str, Any]


def launch(program: str, request: Request, python: str, path: Path) -> Document:
    """Run one program to its answer.

    Args:
        program: of ``bench/peer_programs``.
        request: what it is asked for.
        python: its interpreter; for those that run under ebrl's own, the one of the simulator.
        path: a directory from which nothing but ebrl can be imported.

    Raises:
        RunError: it gave no answer; says what it said last.
    """
    own = program in ("run_ebrl", "run_parts")
    variables = interpreters.environment(sys.executable if own else python)
    variables |= {OWNER_VARIABLE: str(os.getpid()), "OMP_NUM_THREADS": "1", "EBRL_BENCH_PYTHON": python}
    if not own:
        variables["PYTHONPATH"] = str(path)
    command = [sys.executable if own else python, "-W", "ignore", "-m", f"{_PROGRAMS}.{program}"]
    with tempfile.TemporaryFile() as output, tempfile.TemporaryDirectory(prefix="ebrl-bench-peers-") as place:
        process = subprocess.Popen(
            [*command, json.dumps(dataclasses.asdict(request))],
            cwd=place,
            env=variables | {"TMPDIR": place},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        late = False
        try:
            process.wait(DEADLINE_S + request.warm_up_s + request.window_s)
        except subprocess.TimeoutExpired:
            late = True
        finally:
            end_all(process)
        output.seek(0)
        said = output.read().decode(errors="replace")
    return answer_in(said, program, late=late)


def end_all(process: subprocess.Popen[bytes]) -> None:
    """End a program and all that it has started.

    First by asking: Python's resource tracker stays, and unlinks the semaphores of the others once they are gone.
    """
    try:
        _signal_all(process, signal.SIGTERM)
    finally:  # also if somebody is too impatient to wait
        _signal_all(process, signal.SIGKILL)
    process.wait()


def _signal_all(process: subprocess.Popen[bytes], kind: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, kind)
    deadline = time.monotonic() + _END_S
    while is_running(process.pid) and time.monotonic() < deadline:
        time.sleep(0.02)


def answer_in(said: str, program: str, *, late: bool) -> Document:
    """The last line of a program's output that is a JSON object.

    Raises:
        RunError: there is none; says what the program said last.
    """
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    for line in reversed(lines):
        if line.startswith('{"') and line.endswith("}"):
            with contextlib.suppress(ValueError):
                return dict(json.loads(line))
    last = lines[-1] if lines else "nothing"
    raise RunError(f"{program} {'gave no answer in time' if late else 'ended without an answer'}; it said last: {last}")


@contextlib.contextmanager
def importable() -> Iterator[Path]:
    """A directory for ``PYTHONPATH`` that has this package and nothing else."""
    with tempfile.TemporaryDirectory(prefix="ebrl-bench-peers-") as name:
        (Path(name) / "ebrl").symlink_to(Path(__file__).parents[1], target_is_directory=True)
        yield Path(name)
