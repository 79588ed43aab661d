"""What a command answers, and how answers and errors leave the process.

With ``--json`` standard output carries exactly one JSON document. Libraries and child processes
that print would break that promise, so file descriptor 1 is turned to standard error until then.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import sys
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TextIO

from ebrl.errors import EbrlError


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of a command, for programs and for people."""

    document: Any
    text: str
    exit_code: int = 0


@contextlib.contextmanager
def claimed_stdout(claim: bool) -> Iterator[TextIO]:
    """The real standard output; while it is claimed, whatever else is printed goes to standard error."""
    if not claim:
        yield sys.stdout
        return
    sys.stdout.flush()
    real = os.dup(1)
    os.dup2(2, 1)
    try:
        with os.fdopen(real, "w", closefd=False) as out:
            yield out
    finally:
        sys.stdout.flush()
        os.dup2(real, 1)
        os.close(real)


class _LastingStream(io.TextIOBase):
    """A stream that goes on as the null device when nobody can be told any more."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """All of ``text``, or none of it to nobody."""
        with self._lasting():
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """What was written so far."""
        with self._lasting():
            self._stream.flush()

    def fileno(self) -> int:
        """Of the stream."""
        return self._stream.fileno()

    def isatty(self) -> bool:
        """Whether the stream is a terminal."""
        return self._stream.isatty()

    @property
    def encoding(self) -> str:  # type: ignore[override]  # typeshed has a field there
        """Of the stream."""
        return self._stream.encoding

    @contextlib.contextmanager
    def _lasting(self) -> Iterator[None]:
        try:
            yield
        except OSError:  # its reader is gone, or its disk is full
            os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())


@contextlib.contextmanager
def lasting_stderr() -> Iterator[None]:
    """Standard error may break without breaking the run: progress is worth less than a checkpoint."""
    given = sys.stderr
    sys.stderr = _LastingStream(given)
    try:
        yield
    finally:
        sys.stderr = given


def give(answer: Answer, out: TextIO, *, as_json: bool) -> int:
    """Print an answer; returns the exit code."""
    text = json.dumps(_finite(answer.document), indent=2) if as_json else answer.text
    if text:
        print(text, file=out, flush=True)
    return answer.exit_code


def give_error(error: BaseException, out: TextIO, *, as_json: bool) -> int:
    """Print an error: a sentence if it is meant for users, else a traceback; returns the exit code."""
    if isinstance(error, EbrlError):
        code, kind, message = error.exit_code, type(error).__name__, str(error)
        print(f"error: {message}", file=sys.stderr)
    elif isinstance(error, KeyboardInterrupt):
        code, kind, message = 130, "Interrupted", "interrupted"
        print("interrupted", file=sys.stderr)
    elif hasattr(error, "format_message"):  # the command line itself was wrong; typer's own classes
        code, kind, message = 2, "UsageError", str(error.format_message())
        print(f"error: {message}\nsee: ebrl --help, ebrl COMMAND --help", file=sys.stderr)
    else:
        code, kind, message = 1, type(error).__name__, str(error)
        traceback.print_exception(error)
    if as_json:
        print(json.dumps({"error": {"type": kind, "message": message}}, indent=2), file=out, flush=True)
    return code


def _finite(value: Any) -> Any:
    """``value`` with null for what JSON has no number for."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
