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
from typing import IO, Any

from ebrl.bench.peer_programs.tasks import ANSWER, Request
from ebrl.errors import RunError
from ebrl.host import interpreters
from ebrl.host.leftovers import OWNER_VARIABLE, is_running

DEADLINE_S = 240.0
"""For one program from start to answer, beyond its warm-up and window; a simulator may take a minute to come up."""
QUICK_DEADLINE_S = 120.0
"""The same for a quick look, and for what builds one environment or none."""

_LOOK_S = 0.1
"""How often it is looked whether a program has answered."""
_EXIT_S = 15.0
"""For a program that has answered to leave by itself."""
_MOST_BYTES = 1 << 16
"""How much of the end of a program's output is read."""
_LAST_LINES = 40
"""How many of its last lines are told of a program that is late: where it stands, and what it noticed before."""
_END_S = 2.0
"""For a program to end what it started, before it is killed."""
_STACK_DUMP_S = 0.5
"""For a late one to print its stack."""
_PROGRAMS = "ebrl.bench.peer_programs"

Document = dict[str, Any]


def launch(program: str, request: Request, python: str, path: Path, *, within_s: float = DEADLINE_S) -> Document:
    """Run one program to its answer; it is not waited for any longer then.

    Args:
        program: of ``bench/peer_programs``.
        request: what it is asked for.
        python: its interpreter; for those that run under ebrl's own, the one of the simulator.
        path: a directory from which nothing but ebrl can be imported.
        within_s: from start to answer, beyond its warm-up and window.

    Raises:
        RunError: it gave no answer; says what it said last.
    """
    own = program in ("run_ebrl", "run_parts")
    variables = interpreters.environment(sys.executable if own else python)
    variables |= {OWNER_VARIABLE: str(os.getpid()), "OMP_NUM_THREADS": "1", "EBRL_BENCH_PYTHON": python}
    if not own:
        variables["PYTHONPATH"] = str(path)
    command = [sys.executable if own else python, "-W", "ignore", "-m", f"{_PROGRAMS}.{program}"]
    with tempfile.TemporaryFile() as output, _directory() as place:
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
            late = not _ends_in_time(process, output, within_s + request.warm_up_s + request.window_s)
            if late:
                process.send_signal(signal.SIGUSR1)  # it prints where it stands
                time.sleep(_STACK_DUMP_S)
        finally:
            end_all(process)
        said = _said(output)
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
    """The last answer in a program's output.

    Raises:
        RunError: there is none; says what the program said last.
    """
    found = _answer(said)
    if found is not None:
        return found
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    if late:
        raise RunError("\n  ".join([f"{program} gave no answer in time; it said last:", *lines[-_LAST_LINES:]]))
    raise RunError(f"{program} ended without an answer; it said last: {lines[-1] if lines else 'nothing'}")


def _ends_in_time(process: subprocess.Popen[bytes], output: IO[bytes], within_s: float) -> bool:
    """Wait until it has answered and left, or has left; False if it is late."""
    deadline = time.monotonic() + within_s
    while process.poll() is None:
        now = time.monotonic()
        if _answer(_said(output)) is not None:
            deadline = min(deadline, now + _EXIT_S)
        if now > deadline:
            return _answer(_said(output)) is not None
        time.sleep(_LOOK_S)
    return True


def _said(output: IO[bytes]) -> str:
    size = os.fstat(output.fileno()).st_size
    return os.pread(output.fileno(), _MOST_BYTES, max(0, size - _MOST_BYTES)).decode(errors="replace")


def _answer(said: str) -> Document | None:
    for line in reversed(said.splitlines()):
        if line.startswith(ANSWER):
            with contextlib.suppress(ValueError):  # it has not been written to its end
                return dict(json.loads(line.removeprefix(ANSWER)))
    return None


def _directory() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="ebrl-bench-peers-", ignore_cleanup_errors=True)


@contextlib.contextmanager
def importable() -> Iterator[Path]:
    """A directory for ``PYTHONPATH`` that has this package and nothing else."""
    with _directory() as name:
        (Path(name) / "ebrl").symlink_to(Path(__file__).parents[1], target_is_directory=True)
        yield Path(name)
