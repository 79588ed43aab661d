"""``check_env`` in a process of its own, under the interpreter that an environment needs: it may crash or hang.

As a program this is the other end: it checks, and prints one JSON document. That end uses the standard
library, numpy and the environment's own adapter only.
"""

from __future__ import annotations

import dataclasses
import faulthandler
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from ebrl.cli.answer import claimed_stdout
from ebrl.errors import RunError, UsageError
from ebrl.host.interpreters import command, environment
from ebrl.registry import portable
from ebrl.testing.check_env import CheckResult, check_env

__all__ = ["check_env_under"]

WITHIN_S = 1800.0
"""How long all checks of an environment may take."""

_LAST_WORDS_S = 5.0
"""For a process that hangs to show its stack before it is killed."""


def check_env_under(python: str, name: str, section: Mapping[str, Any] | None = None) -> list[CheckResult]:
    """``check_env``, in a process of its own.

    Raises:
        UsageError: the name, the config or the installation is wrong, so there is nothing to check.
        RunError: the process crashed or hung; its last words and its stack are on standard error.
    """
    arguments = [portable("env", name), json.dumps(dict(section or {})), str(WITHIN_S)]
    try:
        result = subprocess.run(
            [*command(python, __name__), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            env=environment(python),
            timeout=WITHIN_S + _LAST_WORDS_S,
        )
    except subprocess.TimeoutExpired:
        raise RunError(f"env {name!r} could not be checked: it hung for {WITHIN_S:.0f} s under {python}") from None
    if result.returncode:
        how = f"it ended with exit code {result.returncode} under {python}; the reason is above"
        raise RunError(f"env {name!r} could not be checked: {how}")
    document = json.loads(result.stdout)
    if "error" in document:
        raise UsageError(document["error"])
    return [CheckResult(**one) for one in document["checks"]]


def _main(name: str, section: str, within_s: str) -> None:
    faulthandler.enable()
    faulthandler.dump_traceback_later(float(within_s))
    with claimed_stdout(True) as out:
        document: dict[str, Any]
        try:
            document = {"checks": [dataclasses.asdict(one) for one in check_env(name, json.loads(section))]}
        except UsageError as error:
            document = {"error": str(error)}
        print(json.dumps(document), file=out, flush=True)
    os._exit(0)  # native libraries may hang or abort in their finalizers


if __name__ == "__main__":
    _main(*sys.argv[1:])
