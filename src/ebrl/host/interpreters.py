"""Programs of ours under another interpreter than this one, such as that of a simulator.

``ebrl`` is not installed there and need not be: the program is handed the package's own directory,
and nothing else of what is installed here. So it may use the standard library, numpy and what its
environment brings, on Python 3.10 or newer.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from ebrl.errors import ConfigError

OLDEST = (3, 10)
"""First version of Python that env workers run on."""

PROBE_S = 30.0

_PACKAGE = Path(__file__).parents[1]

_RUN = """
import sys, runpy
from importlib import util
spec = util.spec_from_file_location("ebrl", {init!r}, submodule_search_locations=[{package!r}])
sys.modules["ebrl"] = module = util.module_from_spec(spec)
spec.loader.exec_module(module)
runpy.run_module({module!r}, run_name="__main__", alter_sys=True)
"""

_PROBE = """
import sys
print(*sys.version_info[:2])
try:
    import numpy
except ImportError as error:
    print(error)
"""

_FOREIGN = ("PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "__PYVENV_LAUNCHER__", "VIRTUAL_ENV")
"""Variables that would lead another interpreter to what is installed for this one."""


def is_own(python: str) -> bool:
    """Whether ``python`` is the interpreter that runs this."""
    return python == sys.executable


def command(python: str, module: str) -> list[str]:
    """How to start ``module`` of ebrl as a program under ``python``; the program's arguments follow."""
    if is_own(python):
        return [python, "-m", module]
    return [python, "-c", _RUN.format(init=str(_PACKAGE / "__init__.py"), package=str(_PACKAGE), module=module)]


def environment(python: str) -> dict[str, str]:
    """Environment variables for a program under ``python``: ours, unless it is another interpreter."""
    if is_own(python):
        return dict(os.environ)
    kept = {name: value for name, value in os.environ.items() if name not in _FOREIGN}
    return kept | {"PYTHONNOUSERSITE": "1"}


def examined(python: str, field: str) -> str:
    """The absolute path of an interpreter that a user named, once it has shown that it can run env workers.

    Args:
        python: a path, or a command on the search path.
        field: what the user set, for messages.

    Raises:
        ConfigError: there is no such program, it does not run, is too old, or lacks numpy.
    """
    found = shutil.which(os.path.expanduser(python))
    if found is None:
        raise ConfigError(field, f"= {python!r}: want the path of a Python interpreter; there is no such program")
    found = os.path.abspath(found)  # links are kept: a virtual environment's interpreter is a link
    if is_own(found):
        return found
    try:
        result = subprocess.run(
            [found, "-c", _PROBE],
            capture_output=True,
            text=True,
            timeout=PROBE_S,
            stdin=subprocess.DEVNULL,
            env=environment(found),
        )
        version, *problems = result.stdout.splitlines()
        major, minor = map(int, version.split())
    except subprocess.TimeoutExpired:
        raise ConfigError(field, f"= {python!r}: it gave no answer within {PROBE_S:.0f} s") from None
    except (OSError, ValueError) as error:
        raise ConfigError(field, f"= {python!r}: want a Python interpreter; this did not run as one") from error
    wanted = ".".join(map(str, OLDEST))
    if (major, minor) < OLDEST:
        raise ConfigError(field, f"= {python!r}: it is Python {major}.{minor}; want {wanted} or newer")
    if problems:
        raise ConfigError(
            field, f"= {python!r}: env workers need numpy there: {problems[0]}; run: {found} -m pip install numpy"
        )
    return found
