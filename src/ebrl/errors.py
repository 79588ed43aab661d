"""What can go wrong, as types a caller can tell apart.

    EbrlError
    ├── UsageError              the request was wrong (exit code 2)
    │   ├── ConfigError         a field has a wrong value, or does not exist
    │   ├── UnknownPlugin       no environment, policy or algorithm of that name
    │   └── MissingExtra        a library is needed that is not installed
    └── RunError                the request was right, but the run failed (exit code 1)
        ├── EnvFailure          an environment failed more often than the run tolerates
        ├── WorkerFailure       a generator or the learner failed more often than the run tolerates
        ├── RatioMismatch       the learner does not see what the generator saw
        └── CheckpointError     a checkpoint cannot be read or written

A broken invariant of our own is an ``AssertionError`` with the values, never one of these.
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterable

__all__ = [
    "CheckpointError",
    "ConfigError",
    "EbrlError",
    "EnvFailure",
    "MissingExtra",
    "RatioMismatch",
    "RunError",
    "UnknownPlugin",
    "UsageError",
    "WorkerFailure",
    "nearest",
]


class EbrlError(Exception):
    """Any error that is meant to be read by a user."""

    exit_code = 1


class UsageError(EbrlError):
    """The request was wrong; nothing was started."""

    exit_code = 2


class ConfigError(UsageError):
    """A field of the configuration is unknown or has an impossible value."""

    def __init__(self, field: str, problem: str) -> None:
        self.field = field
        self.problem = problem
        super().__init__(f"{field}: {problem}" if field else problem)


class UnknownPlugin(UsageError):
    """No plug-in of that name; suggests the nearest one."""

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        names = sorted(known)
        hint = nearest(name, names) or f"known: {', '.join(names) or 'none'}"
        super().__init__(f"no {kind} named {name!r}; {hint}")


class MissingExtra(UsageError):
    """A plug-in needs a library that its interpreter does not have."""

    def __init__(self, what: str, module: str, run: str) -> None:
        super().__init__(f"{what} needs the module {module!r}, which {sys.executable} does not have; run: {run}")


class RunError(EbrlError):
    """The run started and could not go on."""


class EnvFailure(RunError):
    """One environment failed too often in a row; carries the child's traceback."""


class WorkerFailure(RunError):
    """A generator or the learner failed too often; carries the child's traceback."""


class RatioMismatch(RunError):
    """The learner's log-probabilities of fresh samples differ from the generator's."""


class CheckpointError(RunError):
    """A checkpoint is missing, incomplete, or does not fit the run."""


def nearest(name: str, known: Iterable[str]) -> str:
    """``"did you mean 'x'?"`` for the closest known name, or an empty string."""
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"did you mean {near[0]!r}?" if near else ""
