"""The command ``ebrl`` in a process of its own, as a user would call it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ebrl.cli.main import main

TINY = """
[run]
name = "tiny"
[env]
name = "toy/reach-v1"
[policy]
name = "mlp"
chunk_len = 4
[simulation]
num_envs = 2
[training]
batch_trajectories = 4
trajectory_chunks = 4
max_updates = 3
[evaluation]
episodes = 4
[pretrain]
updates = 5
num_demos = 2
"""


@dataclass(frozen=True)
class Result:
    """How a call ended."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """Standard output, which must be one JSON document."""
        return json.loads(self.out, parse_constant=_refuse)


def call(*arguments: str | Path, cwd: Path, within_s: float = 60.0, **environment: str) -> Result:
    """Run ``ebrl`` with ``arguments`` in ``cwd``."""
    result = subprocess.run(
        [sys.executable, "-m", "ebrl", *map(str, arguments)],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=within_s,
        stdin=subprocess.DEVNULL,
        env=os.environ | environment,
    )
    return Result(result.returncode, result.stdout, result.stderr)


def call_here(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """Run ``ebrl`` with ``arguments`` in this process, for requests that start nothing."""
    monkeypatch.setattr(sys, "argv", ["ebrl", *arguments])
    with pytest.raises(SystemExit) as end:
        main()
    assert isinstance(end.value.code, int)
    return end.value.code


def _refuse(constant: str) -> float:
    raise AssertionError(f"{constant} is not JSON")
