"""One MPS control daemon of our own: started in private directories, asked by its own command, stopped at the end.

It runs as the user who starts it and serves nobody else, so it needs no rights, and it changes no setting of the
card. A process belongs to it by its environment alone; without that, it runs beside the daemon and unrestricted.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from ebrl.errors import RunError
from ebrl.host.sharing.gated import Obstacle

CONTROL = "nvidia-cuda-mps-control"
SERVER = "nvidia-cuda-mps-server"

ANSWER_S = 10.0
"""The daemon answers within so long, or is taken to hang."""

LONGEST_PATH = 80
"""Of the pipe directory, in bytes: the names of sockets in it have to stay below the kernel's 108."""


class MpsError(RunError):
    """The MPS control daemon did not do what it was told."""


class MpsDaemon:
    """The daemon, whether it runs or not."""

    def __init__(self, *, directory: Path | None = None, answer_s: float = ANSWER_S) -> None:
        """Keep pipes and logs in ``directory``, or in a fresh one that only this user can read."""
        self._directory = directory
        self._own_directory = directory is None
        self._answer_s = answer_s
        self.running = False

    @property
    def directory(self) -> Path:
        """Where pipes and logs are; made at the first use."""
        if self._directory is None:
            self._directory = Path(tempfile.mkdtemp(prefix="ebrl-mps-"))
        return self._directory

    def variables(self) -> dict[str, str]:
        """What a process needs in its environment to find the daemon."""
        return {
            "CUDA_MPS_PIPE_DIRECTORY": str(self.directory / "pipe"),
            "CUDA_MPS_LOG_DIRECTORY": str(self.directory / "log"),
        }

    def start(self) -> None:
        """Start the daemon, unless it runs.

        Raises:
            Obstacle: it cannot run here.
            MpsError: it did not start, or does not answer.
        """
        if self.running:
            return
        find_programs()
        self._make_directories()
        log = self.directory / "log" / "start"
        with log.open("w+b") as output:  # a daemon would hold a pipe open for ever
            self._run(["-d"], stdin=None, output=output.fileno())
        self.running = True
        self.servers()

    def ask(self, command: str) -> str:
        """What the daemon answers to a command.

        Raises:
            MpsError: no answer in time, or a refusal.
        """
        with tempfile.TemporaryFile() as output:
            self._run([], stdin=command, output=output.fileno())
            output.seek(0)
            return output.read().decode(errors="replace").strip()

    def servers(self) -> tuple[int, ...]:
        """Processes that hold the card for the clients; none until the first client has come."""
        return numbers(self.ask("get_server_list"))

    def state(self, server: int) -> str:
        """``ACTIVE``, ``FAULT`` or whatever else the server is; FAULT lasts until its last client has gone."""
        answer = self.ask(f"get_server_status {server}")
        return next((word for word in re.findall(r"[A-Z]{4,}", answer)), answer)

    def clients(self) -> tuple[int, ...]:
        """Processes that are clients, of whichever server."""
        return tuple(pid for server in self.servers() for pid in numbers(self.ask(f"get_client_list {server}")))

    def stop(self) -> None:
        """Stop the daemon, and remove the directory if it was made here.

        Raises:
            MpsError: clients are left, or it does not answer. Its directory stays then, for its logs.
        """
        if self.running:
            if left := self.clients():
                raise MpsError(
                    f"MPS: processes {', '.join(map(str, left))} are still clients; let them end first (one that is "
                    "killed at work can make the others hang)"
                )
            self.ask("quit")
            self.running = False
        if self._own_directory and self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
            self._directory = None

    def _make_directories(self) -> None:
        for name in ("pipe", "log"):
            path = self.directory / name
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            if path.stat().st_uid != os.getuid():
                raise Obstacle(f"{path} belongs to user {path.stat().st_uid}; want one of user {os.getuid()}")
        if len(os.fsencode(self.directory / "pipe")) > LONGEST_PATH:
            raise Obstacle(f"{self.directory / 'pipe'} is longer than {LONGEST_PATH} bytes; set TMPDIR to a short path")

    def _run(self, arguments: list[str], *, stdin: str | None, output: int) -> None:
        what = f"{CONTROL} {' '.join(arguments)}".strip() if stdin is None else f"{CONTROL}: {stdin}"
        try:
            result = subprocess.run(
                [CONTROL, *arguments],
                input=None if stdin is None else (stdin + "\n").encode(),
                stdin=subprocess.DEVNULL if stdin is None else None,
                stdout=output,
                stderr=output,
                timeout=self._answer_s,
                env=self._environment(),
            )
        except subprocess.TimeoutExpired:
            raise MpsError(f"{what}: no answer within {self._answer_s:g} s") from None
        except OSError as error:
            raise MpsError(f"{what}: {error.strerror}") from error
        if result.returncode:
            os.lseek(output, 0, os.SEEK_SET)
            said = os.read(output, 500).decode(errors="replace").strip() or "nothing"
            raise MpsError(f"{what}: failed with status {result.returncode} and said: {said}")

    def _environment(self) -> Mapping[str, str]:
        return {**os.environ, **self.variables()}


def find_programs() -> None:
    """See whether MPS is installed.

    Raises:
        Obstacle: a program is missing.
    """
    if missing := [name for name in (CONTROL, SERVER) if shutil.which(name) is None]:
        raise Obstacle(f"{' and '.join(missing)} not on PATH; they come with NVIDIA's driver")


def numbers(answer: str) -> tuple[int, ...]:
    """Process ids in an answer: bare, one a line, or at the end of a sentence each."""
    found = (re.search(r"(\d+)\D*$", line) for line in answer.splitlines())
    return tuple(int(match[1]) for match in found if match)
