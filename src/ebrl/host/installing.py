"""Makes the private environment of a simulator: all of it, or nothing.

A virtual environment cannot be moved, so it is made where it will stay, and it is garbage until a
file that is written last declares it complete. Garbage is removed when an installation fails, and
when the next one, or ``ebrl clean``, finds what a killed one left.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TextIO

from ebrl.errors import RunError, UsageError
from ebrl.host.interpreters import PROBE_S, environment
from ebrl.host.leftovers import OWNER_VARIABLE
from ebrl.host.simulators import COMPLETE, Installed, Simulator, directory, installed, lock_of, write_complete

REPORT_EVERY_S = 10.0
SMOKE_S = 300.0
"""How long the simulator may take for its first env step; it compiles and caches on the way."""

_ROOM = 1.5
"""Space needed while installing, in sizes of what is installed: packages are there packed and unpacked."""

_WITH_PARENT = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 9)
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.argv[2], sys.argv[2:])
"""
"""Becomes the program that the other arguments name; the kernel kills it once its parent, the first, has ended."""

_FULL = 1 << 20
"""Bytes; a disk with less is full."""

_PIP = ("-m", "pip", "install", "--no-deps", "--no-input", "--progress-bar", "off", "--only-binary", ":all:")

_TRYING = "trying it"

_CAUSES = (
    (
        r"No space left on device|Disk quota exceeded",
        "the disk is full",
        "free some space, or set XDG_CACHE_HOME to a directory on another disk",
    ),
    (
        r"ensurepip is not available|No module named '?(?:ensurepip|venv)",
        "this Python cannot make virtual environments",
        "run: apt-get install python3-venv, or name another interpreter with --python",
    ),
    (
        r"CERTIFICATE_VERIFY_FAILED",
        "the certificate of the package registry is not trusted",
        "name the right ones with PIP_CERT",
    ),
    (
        r"(?s)(?:new connection|name resolution|timed out|unreachable|to proxy).*\(from versions: none\)",
        "the package registry cannot be reached",
        "look at the network and at HTTPS_PROXY, or name another registry with PIP_INDEX_URL",
    ),
    (
        r"No matching distribution found for (\S+)",
        "{} is not to be had for this machine and interpreter",
        "the log may say why; another interpreter is named with --python",
    ),
    (r"requested \(constraint\) (\S+)", "pip's own configuration wants {}", "look at: pip config list"),
    (
        r"(\S+\.so[.\d]*): cannot open shared object file",
        "the system library {} is missing",
        "install the package of your system that has it",
    ),
    (r"timed out", "the package registry stopped answering", "try again"),
)
"""What a log says, what that means, and what to do; the first that is found counts."""


def install(
    simulator: Simulator,
    *,
    python: str | None = None,
    force: bool = False,
    within_s: float = 3600.0,
    report: Callable[[str], None],
) -> tuple[Installed, bool]:
    """Install a simulator unless it is there; tells also whether it had to be installed.

    Args:
        simulator: what to install.
        python: the interpreter to make the environment from; None looks for one.
        force: make it anew though it is there; the old one stays if that fails.
        within_s: for making the environment and fetching the packages.
        report: told in words what goes on.

    Raises:
        UsageError: the interpreter or the place cannot be used.
        RunError: it did not work; nothing is left behind but a log.
    """
    found = installed(simulator)
    if found is not None and not force:
        return found, False
    path = directory() / simulator.tag
    with _locked(path, simulator.name, within_s, report) as lock:
        _tidy(path)
        found = installed(simulator)
        if found is not None and not force:  # whoever had the lock has done it
            return found, False
        base, version = _base(simulator, python)
        _check_machine(simulator, path.parent)
        try:
            with _replacing(path):
                return _Installation(simulator, path, lock, report).run(base, version, within_s), True
        except OSError as error:
            raise RunError(f"{simulator.name} is not installed: {error}") from error


@contextlib.contextmanager
def _locked(path: Path, name: str, within_s: float, report: Callable[[str], None]) -> Iterator[TextIO]:
    """Nobody else installs the same simulator meanwhile; gives the file that is locked."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = lock_of(path).open("a+")
    except OSError as error:
        raise UsageError(
            f"{path.parent} cannot be written to ({error.strerror}); set XDG_CACHE_HOME to a directory that can be"
        ) from error
    with lock:
        _take(lock, name, within_s, report)
        yield lock


def _take(lock: TextIO, name: str, within_s: float, report: Callable[[str], None]) -> None:
    """Wait for whoever else installs the same simulator; leave our process id in the file."""
    started, told = time.monotonic(), False
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            lock.seek(0)
            owner = f"process {lock.read() or 'unknown'}"
        except OSError as error:  # some network file systems have no locks
            report(f"{name}: {lock.name} cannot be locked ({error.strerror}); let only one process install it")
            break
        if time.monotonic() - started > within_s:
            raise RunError(f"{owner} has been installing {name} for too long; end it, or run: ebrl clean")
        if not told:
            report(f"{name}: waiting for {owner}, which is installing it")
            told = True
        time.sleep(0.2)
    lock.truncate(0)
    lock.write(str(os.getpid()))
    lock.flush()


def _check_machine(simulator: Simulator, place: Path) -> None:
    """Refuse before anything is fetched what cannot work."""
    for library in simulator.system:
        if library.required and not library.is_there():
            raise RunError(f"{simulator.name} needs the system library {library.name}; {library.advice}")
    free_mb, needed_mb = shutil.disk_usage(place).free / 1e6, _ROOM * simulator.disk_mb
    if free_mb < needed_mb:
        raise RunError(
            f"{simulator.name} needs {needed_mb:,.0f} MB in {place} while it is installed, and {free_mb:,.0f} MB are "
            "free; free some, or set XDG_CACHE_HOME to a directory on another disk"
        )


def _base(simulator: Simulator, python: str | None) -> tuple[str, str]:
    """The interpreter to make the environment from, and its version."""
    names = [python] if python else [sys.executable, *(f"python{a}.{b}" for a, b in simulator.pythons)]
    tried = []
    for name in names:
        found = shutil.which(os.path.expanduser(name))
        version = _version(found) if found else ""
        if found and version and tuple(map(int, version.split(".")[:2])) in simulator.pythons:
            return os.path.abspath(found), version
        tried.append(f"{name} is {f'Python {version}' if version else 'none that runs'}")
    wanted = " or ".join(f"{a}.{b}" for a, b in simulator.pythons)
    raise UsageError(f"{simulator.name} wants Python {wanted}: {'; '.join(tried)}; name another with --python")


def _version(python: str) -> str:
    code = "import platform; print(platform.python_version())"
    try:
        result = subprocess.run(
            [python, "-c", code],
            capture_output=True,
            text=True,
            timeout=PROBE_S,
            stdin=subprocess.DEVNULL,
            env=environment(python),
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return result.stdout.strip() if re.fullmatch(r"\d+\.\d+\.\S+\s*", result.stdout) else ""


def _aside(path: Path) -> Path:
    return path.with_name(path.name + ".old")


def _tidy(path: Path) -> None:
    """Remove what a killed installation left, and put back what it was to replace."""
    if (path / COMPLETE).exists():
        _remove(_aside(path))  # the successor is whole, so what it replaced may go
    elif _aside(path).exists():
        _remove(path)
        _aside(path).rename(path)
    if not (path / COMPLETE).exists():
        _remove(path)


@contextlib.contextmanager
def _replacing(path: Path) -> Iterator[None]:
    """Keep what is at ``path`` aside, and put it back if its successor fails."""
    if path.exists():
        path.rename(_aside(path))
    try:
        yield
    except BaseException:
        _remove(path)
        _tidy(path)
        raise
    _remove(_aside(path))


def _remove(path: Path) -> None:
    (path / COMPLETE).unlink(missing_ok=True)  # first, so that half of it is never taken for the whole
    shutil.rmtree(path, ignore_errors=True)


def _megabytes(path: Path) -> float:
    total = 0
    for place, _, names in os.walk(path):
        for name in names:
            with contextlib.suppress(OSError):  # pip removes files all the time
                total += os.lstat(os.path.join(place, name)).st_blocks * 512
    return total / 1e6


class _Installation:
    """One attempt."""

    def __init__(self, simulator: Simulator, path: Path, lock: TextIO, report: Callable[[str], None]) -> None:
        self.simulator = simulator
        self.path = path
        self.log = path.parent / f"{simulator.name}.log"
        self._lock = lock
        self._report = report
        self._said = ""
        """What the last program printed."""

    def run(self, base: str, version: str, within_s: float) -> Installed:
        """Make the environment, fill it, try it, declare it complete."""
        simulator, started = self.simulator, time.monotonic()
        deadline = started + within_s
        self.log.unlink(missing_ok=True)
        self._run(f"making a virtual environment with Python {version}", [base, "-m", "venv", str(self.path)], deadline)
        temporary = self.path / "tmp"
        temporary.mkdir()
        rest = list(simulator.packages)
        for package, index in simulator.indexes:
            requirement = next(one for one in rest if one.startswith(f"{package}=="))
            rest.remove(requirement)
            self._pip_from(requirement, index, deadline)
        sources = [part for package in simulator.from_source for part in ("--no-binary", package)]
        self._pip(f"fetching {len(rest)} packages", [*sources, *rest], deadline)
        self._run(_TRYING, [self._python, "-c", simulator.smoke], time.monotonic() + SMOKE_S)
        shutil.rmtree(temporary)
        self.log.rename(self.path / "install.log")
        found = Installed(
            simulator=simulator.name,
            path=str(self.path),
            python=self._python,
            version=version,
            megabytes=round(_megabytes(self.path)),
            seconds=round(time.monotonic() - started, 1),
            notes=tuple(
                f"cameras need {library.name}; {library.advice}"
                for library in simulator.system
                if not library.is_there()
            ),
        )
        write_complete(found)
        return found

    @property
    def _python(self) -> str:
        return str(self.path / "bin" / "python")

    def _pip_from(self, requirement: str, index: str, deadline: float) -> None:
        """A package that another registry has if the usual one does not."""
        try:
            self._pip(f"fetching {requirement}", [requirement], deadline)
        except RunError:
            if "No matching distribution" not in self._said:
                raise
            self._pip(f"fetching {requirement} from {index}", ["--extra-index-url", index, requirement], deadline)

    def _pip(self, phase: str, arguments: Sequence[str], deadline: float) -> None:
        self._run(phase, [self._python, *_PIP, *arguments], deadline)

    def _run(self, phase: str, command: Sequence[str], deadline: float) -> None:
        """Run a program to its end, its output in the log; it holds the lock for as long as it lives."""
        self._report(f"{self.simulator.name}: {phase}")
        own = {OWNER_VARIABLE: str(os.getpid()), "TMPDIR": str(self.path / "tmp"), "PIP_USER": "0"}
        begun = self.log.stat().st_size if self.log.exists() else 0
        with self.log.open("ab") as output:
            process = subprocess.Popen(
                [sys.executable, "-I", "-c", _WITH_PARENT, str(os.getpid()), *command],
                cwd=self.path.parent,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=environment(command[0]) | own | {"PIP_DISABLE_PIP_VERSION_CHECK": "1"},
                start_new_session=True,
                pass_fds=[self._lock.fileno()],
            )
        late = False
        try:
            late = not self._wait(process, deadline)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # also what it has started
            process.wait()
        self._said = self.log.read_bytes()[begun:].decode(errors="replace")
        if shutil.disk_usage(self.log).free < _FULL:  # then the log may be cut short too
            self._said += "\nNo space left on device"
        if late or process.returncode:
            raise self._failure(phase, late, process.returncode)

    def _wait(self, process: subprocess.Popen[bytes], deadline: float) -> bool:
        """Whether the program ended in time; meanwhile says how far it is."""
        started = time.monotonic()
        next_report = started + REPORT_EVERY_S
        while (now := time.monotonic()) < deadline:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(min(next_report, deadline) - now)
                return True
            if time.monotonic() >= next_report:
                next_report += REPORT_EVERY_S
                seconds = time.monotonic() - started
                self._report(f"{self.simulator.name}:   {seconds:.0f} s, {_megabytes(self.path):,.0f} MB on disk")
        return False

    def _failure(self, phase: str, late: bool, code: int) -> RunError:
        lines = [line for line in self._said.splitlines() if line.strip()]
        meaning, advice = (lines[-1] if lines else f"exit code {code}"), ""
        if late:
            meaning, advice = (
                "it was not done in time",
                "" if phase == _TRYING else "a slow network wants more --deadline-minutes",
            )
        for pattern, text, todo in _CAUSES if not late else ():
            found = re.search(pattern, self._said)
            if found:
                meaning = text.format(*found.groups())
                advice = todo
                break
        parts = [f"{self.simulator.name} is not installed: {phase}: {meaning}", advice, f"the log is {self.log}"]
        return RunError("; ".join(part for part in parts if part))
