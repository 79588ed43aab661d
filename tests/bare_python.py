"""An interpreter that has the standard library and numpy, and nothing else that is installed for this one."""

from __future__ import annotations

import sys
import venv
from pathlib import Path

import numpy as np


def bare_python(directory: Path, *, with_numpy: bool = True) -> str:
    """Make a virtual environment in ``directory``; the path of its interpreter."""
    venv.create(directory, symlinks=True)
    if with_numpy:
        home = Path(np.__file__).parents[1]
        version = "python{}.{}".format(*sys.version_info)
        for name in ("numpy", "numpy.libs"):
            if (home / name).exists():
                (directory / "lib" / version / "site-packages" / name).symlink_to(home / name)
    return str(directory / "bin" / "python")
