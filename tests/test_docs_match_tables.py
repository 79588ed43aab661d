"""``docs/states.md`` says what the control plane does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from ebrl.scheduling.transitions import SHARD_TRANSITIONS

DOCS = Path(__file__).parents[1] / "docs"


def test_the_page_of_states_is_up_to_date() -> None:
    command = [sys.executable, str(DOCS / "make_states.py"), "--check"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr


def test_every_transition_is_drawn() -> None:
    text = (DOCS / "states.md").read_text()
    for phase, others in SHARD_TRANSITIONS.items():
        assert f"| `{phase.__name__}` |" in text
        for after in others:
            assert after.__name__ == "Down" or f"{phase.__name__} --> {after.__name__}\n" in text
