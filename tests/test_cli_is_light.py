"""What must not be imported for help: a command line that takes seconds to say hello is a bad start."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ("numpy", "torch", "matplotlib", "gymnasium", "mujoco", "PIL", "psutil")


def heavy_after(code: str) -> str:
    """Names of the heavy modules that ``code`` leaves imported."""
    probe = f"{code}\nimport sys\nsys.stderr.write(' '.join(m for m in {HEAVY} if m in sys.modules))"
    result = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, timeout=60, check=True)
    return result.stderr


@pytest.mark.parametrize("arguments", [["--help"], ["train", "--help"], ["bench", "roundtrip", "--help"]])
def test_help_imports_nothing_heavy(arguments: list[str]) -> None:
    code = (
        "import sys\nfrom ebrl.cli.main import main\n"
        f"sys.argv = ['ebrl', *{arguments!r}]\n"
        "try:\n    main()\nexcept SystemExit as end:\n    assert not end.code, end.code"
    )
    assert heavy_after(code) == ""


def test_importing_the_package_imports_nothing_heavy() -> None:
    assert heavy_after("import ebrl; ebrl.EbrlError") == ""


def test_a_mistake_on_the_command_line_imports_nothing_heavy() -> None:
    code = (
        "import sys\nfrom ebrl.cli.main import main\nsys.stderr.write = lambda text: None\n"
        "sys.argv = ['ebrl', 'train', '--no-such-option']\n"
        "try:\n    main()\nexcept SystemExit as end:\n    assert end.code == 2, end.code\ndel sys.stderr.write"
    )
    assert heavy_after(code) == ""
