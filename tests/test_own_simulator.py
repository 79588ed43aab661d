"""``docs/own_simulator.md``, followed to the letter."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).parent.parent / "docs" / "own_simulator.md"
FILES = {"python": "pendulum.py", "toml": "pendulum.toml"}


def test_the_page_can_be_followed(tmp_path: Path) -> None:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    ran = []
    for language, text in re.findall(r"```(\w+)\n(.*?)```", PAGE.read_text(), re.DOTALL):
        if language in FILES:
            (tmp_path / FILES[language]).write_text(text)
            continue
        assert language == "bash"
        done = subprocess.run(
            ["bash", "-euc", text],
            cwd=tmp_path,
            env=os.environ | {"PATH": path},
            capture_output=True,
            text=True,
            timeout=280,
        )
        assert done.returncode == 0, f"{text}\n{done.stdout}\n{done.stderr}"
        ran.append(text)
    assert len(ran) == 3
    [run_dir] = (tmp_path / "runs").glob("run-*")
    assert (run_dir / "summary.json").is_file()
