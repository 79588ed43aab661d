"""One worker process: start, messages, deadline, certain death."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from ebrl.data import messages as m
from ebrl.host.affinity import bind_every_thread, bind_thread, cpus_of_threads
from ebrl.host.interpreters import command, environment
from ebrl.host.leftovers import OWNER_VARIABLE
from ebrl.ids import CpuId

_STACK_DUMP_S = 0.5
"""How long a hanging process gets to write its stack before it is killed."""

_PAGE = os.sysconf("SC_PAGE_SIZE")

_NUM_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
"""Variables that numeric libraries read."""
_NUM_RENDERING_THREADS = "LP_NUM_THREADS"
"""What Mesa's software renderer reads: threads that draw for the one that asked, which waits; 0 is that one itself."""


class WorkerProcess:
    """A process of ours, and the socket to it."""

    def __init__(
        self,
        module: str,
        label: str,
        log: Path,
        *,
        threads: int | None = 1,
        python: str = sys.executable,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        """Start ``python -m module``; what it prints goes to the file ``log``.

        Args:
            module: whose ``__main__`` part calls ``workers.process.enter``.
            label: how messages name the process, e.g. ``env worker 3``.
            log: appended to.
            threads: of numeric libraries and of the software renderer; None leaves them their own choice.
            python: absolute path of the interpreter.
            variables: of its environment, besides this process's own, which they do not replace.
        """
        self.label = label
        self.log = log
        self.deadline = float("inf")
        """Monotonic time by which the next answer is due."""
        self.waits_for = ""
        """What the deadline is for, e.g. ``a reset``."""
        self._owed: list[tuple[str, float]] = []
        self._cpus: tuple[int, ...] = ()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        given = dict(variables or {}) | environment(python) | {OWNER_VARIABLE: str(os.getpid())}
        if threads is not None:
            drawing = threads if threads > 1 else 0
            given |= dict.fromkeys(_NUM_THREADS, str(threads)) | {_NUM_RENDERING_THREADS: str(drawing)}
        log.parent.mkdir(parents=True, exist_ok=True)
        self._log_start = log.stat().st_size if log.exists() else 0
        with log.open("ab") as output, theirs:
            self._popen = subprocess.Popen(
                [*command(python, module), str(theirs.fileno()), str(os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
                env=given,
            )
        self.sock = ours

    @property
    def pid(self) -> int:
        """Process id."""
        return self._popen.pid

    def bind(self, cpus: tuple[int, ...]) -> bool:
        """Let the main thread of the sleeping process wake up on these CPUs; says whether any of them may be used.

        The process binds its other threads itself; but if it had to bind this one too, it would first wait for
        the CPU that it ran on last, which may be somebody else's by now.
        """
        if cpus == self._cpus:
            return True
        with suppress(ProcessLookupError):  # it is dead, which its socket will say
            if not bind_thread(self.pid, cpus):
                return False
        self._cpus = cpus
        return True

    def bind_every_thread(self, cpus: tuple[int, ...]) -> bool:
        """Let all of the process run on these CPUs, whatever it does now; says whether any of them may be used."""
        with suppress(ProcessLookupError, FileNotFoundError):  # it is dead, which its socket will say
            return bind_every_thread(self.pid, cpus)
        return True

    def cpus_of_every_thread(self) -> tuple[CpuId, ...]:
        """CPUs that some thread of the process may run on, as the kernel says; none of a dead one."""
        with suppress(ProcessLookupError, FileNotFoundError):
            return tuple(CpuId(cpu) for cpu in sorted(set().union(*cpus_of_threads(self.pid).values())))
        return ()

    @property
    def own_bytes(self) -> int:
        """Memory in use that it shares with nobody: neither trajectories nor files; 0 once it has ended."""
        try:
            with open(f"/proc/{self.pid}/statm") as file:
                resident, shared = file.read().split()[1:3]
        except OSError:
            return 0
        return (int(resident) - int(shared)) * _PAGE

    @property
    def owes(self) -> bool:
        """Whether an answer is still due."""
        return bool(self._owed)

    def begins_now(self) -> None:
        """What it owes first has all of its time from now on: before, it waited for others."""
        self._set_deadline()

    def expect(self, what: str, within_s: float) -> None:
        """The process owes one more answer; answers come in the order of the questions."""
        self._owed.append((what, within_s))
        if len(self._owed) == 1:
            self._set_deadline()

    def answered(self) -> None:
        """The oldest answer has come; the next one's time begins."""
        del self._owed[0]
        self._set_deadline()

    def _set_deadline(self) -> None:
        self.waits_for, within_s = self._owed[0] if self._owed else ("", float("inf"))
        self.deadline = time.monotonic() + within_s

    def send(self, data: bytes) -> None:
        """Send a message; to a dead process it is lost, and its death is heard elsewhere."""
        try:
            self.sock.send(data)
        except (BrokenPipeError, ConnectionResetError):
            pass

    def send_json(self, kind: int, document: Any, fds: tuple[int, ...] = ()) -> None:
        """Send a JSON message, with descriptors."""
        try:
            m.send_json(self.sock, kind, document, fds)
        except (BrokenPipeError, ConnectionResetError):
            pass

    def receive(self) -> tuple[int, bytes]:
        """The next message; kind 0 when the process is gone and everything it said was heard."""
        try:
            return m.receive(self.sock)
        except ConnectionResetError:
            return m.receive(self.sock)  # it left a question unread; its last words come after this error

    def kill(self, *, dump_stack: bool = False) -> str:
        """Make certain that the process is dead, and say how it ended.

        Args:
            dump_stack: let it write where it hangs first.
        """
        if self._popen.returncode is None:
            if dump_stack and not self.has_ended():
                os.kill(self.pid, signal.SIGUSR1)
                until = time.monotonic() + _STACK_DUMP_S
                while not self.has_ended() and time.monotonic() < until:
                    time.sleep(0.01)
            # With what an environment may have started itself. Whether or not the process lives, its number
            # is its group's until it has been waited for.
            os.killpg(self.pid, signal.SIGKILL)
        code = self._popen.wait(10.0)
        self.sock.close()
        return _describe_exit(code)

    def has_ended(self) -> bool:
        """Whether the process has exited; it still can be waited for."""
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def log_tail(self, max_bytes: int = 4000) -> str:
        """The end of what this process printed."""
        try:
            with self.log.open("rb") as file:
                end = file.seek(0, os.SEEK_END)
                file.seek(max(self._log_start, end - max_bytes))
                return file.read().decode(errors="replace").strip()
        except OSError:
            return ""


def _describe_exit(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"
