"""Is every deliberate fault of the control plane found? ``make mutations``, or with names: one or a few.

    python tests/mutations.py [PART OF A NAME ...]

Each mutant of ``tests/mutants.py`` is made in a copy of the source, never in the working tree, and
the tests of the control plane run against it until the first one fails: unit tests, then properties.
Exit code 1 if a mutant survives, cannot be made, or does not even load.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from mutants import MUTANTS, Mutant

ROOT = Path(__file__).resolve().parents[1]
SUITES = ("tests/scheduling", "tests/properties")
LIMIT_S = 300

_FAILED = re.compile(r"^(?:FAILED (.+?)(?: - .*)?|ERROR (.+?) - AssertionError.*)$", re.M)
"""A situation that a module builds on import may break an invariant already; no other error there is a kill."""


def make(source: str, mutant: Mutant) -> str:
    """The source with the fault in it.

    Raises:
        ValueError: the old text is not there exactly once.
    """
    start, end = 0, len(source)
    if mutant.function:
        found = re.search(rf"^( *)def {mutant.function}\(.*?(?=^\1\S|\Z)", source, re.M | re.S)
        if found is None:
            raise ValueError(f"{mutant.file} has no function {mutant.function}")
        start, end = found.span()
    count = source.count(mutant.old, start, end)
    if count != 1:
        raise ValueError(f"{mutant.file} has the old text {count} times: {mutant.old!r}")
    return source[:start] + source[start:end].replace(mutant.old, mutant.new) + source[end:]


def copy_tree(place: Path) -> None:
    """What the tests of the control plane need."""
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "src", place / "src", ignore=ignored)
    for suite in SUITES:
        shutil.copytree(ROOT / suite, place / suite, ignore=ignored)
    shutil.copy(ROOT / "tests" / "conftest.py", place / "tests" / "conftest.py")
    shutil.copy(ROOT / "pyproject.toml", place / "pyproject.toml")


def _environment(place: Path) -> dict[str, str]:
    """Bytecode is not kept: a mutant may have the size and the second of the file that it replaces."""
    return {**os.environ, "PYTHONPATH": str(place / "src"), "PYTHONDONTWRITEBYTECODE": "1", "COLUMNS": "200"}


def first_failure(place: Path) -> str:
    """Name of the first test that fails in the copy; empty if none does."""
    options = ["-x", "-q", "--tb=no", "-p", "no:cacheprovider", "--timeout=60", "--hypothesis-profile=first"]
    result = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *SUITES],
        cwd=place,
        env=_environment(place),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    if result.returncode == 0:
        return ""
    failed = _FAILED.search(result.stdout)
    if failed is None:
        raise ValueError(f"the tests did not run:\n{result.stdout[-2000:]}{result.stderr[-2000:]}")
    return (failed[1] or failed[2]).removeprefix("tests/")


def check_copy(place: Path) -> None:
    """The copy itself is what is tested, and it passes."""
    code = "import ebrl.scheduling; print(ebrl.scheduling.__file__)"
    where = subprocess.run(
        [sys.executable, "-c", code], cwd=place, env=_environment(place), capture_output=True, text=True, check=True
    )
    if not where.stdout.startswith(str(place)):
        sys.exit(f"the tests would run against {where.stdout.strip()}, not against the copy in {place}")
    if failed := first_failure(place):
        sys.exit(f"without any mutant {failed} fails already")


def main(wanted: list[str]) -> int:
    """Try the mutants whose name contains one of the words; all without words."""
    chosen = [mutant for mutant in MUTANTS if not wanted or any(word in mutant.name for word in wanted)]
    if not chosen:
        sys.exit(f"no mutant is named like {wanted}")
    bad: list[str] = []
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="ebrl-mutants-") as name:
        place = Path(name).resolve()
        copy_tree(place)
        check_copy(place)
        for mutant in chosen:
            path = place / "src" / "ebrl" / "scheduling" / mutant.file
            source = path.read_text()
            try:
                path.write_text(make(source, mutant))
                killer = first_failure(place)
                outcome = f"killed by {killer}" if killer else "SURVIVED"
            except ValueError as error:
                killer, outcome = "", f"CANNOT BE TRIED: {error}"
            finally:
                path.write_text(source)
            bad += [] if killer else [mutant.name]
            print(f"{mutant.name}\n    {outcome}", flush=True)
    print(f"{len(chosen) - len(bad)} of {len(chosen)} mutants killed in {time.monotonic() - began:.0f} s")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
