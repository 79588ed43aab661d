"""Writes ``docs/states.md`` from the tables of the control plane; ``--check`` only says whether it is up to date."""

from __future__ import annotations

import dataclasses
import inspect
import sys
from pathlib import Path

from ebrl.scheduling import scheduler, transitions, updates
from ebrl.scheduling.transitions import SHARD_TRANSITIONS, Down, Phase, Place

PAGE = Path(__file__).with_name("states.md")

_HEAD = """# States

Written by `make docs` from `scheduling/transitions.py` and the docstrings of the control plane; change those,
not this page.
"""


def page() -> str:
    """The whole page."""
    parts = [
        _HEAD,
        "## Who waits for what\n",
        _text(scheduler),
        "## A shard\n",
        _text(transitions),
        _table(),
        f"`Place` ({', '.join(f'`{name}`' for name in _fields(Place))}): {_lower(_first(Place))}\n",
        f"The way from every phase to `{Down.__name__}` is left out of table and picture.\n",
        _diagram(),
        "## An update\n",
        _text(updates),
    ]
    return "\n".join(parts)


def _text(module: object) -> str:
    """A module's docstring, whose indented blocks are code blocks in Markdown too."""
    return (inspect.getdoc(module) or "").replace("``", "`") + "\n"


def _first(cls: type) -> str:
    return (inspect.getdoc(cls) or "").splitlines()[0]


def _lower(sentence: str) -> str:
    return sentence[0].lower() + sentence[1:]


def _fields(cls: type) -> list[str]:
    return [field.name for field in dataclasses.fields(cls)]


def _others(phase: type[Phase]) -> list[str]:
    """Names of the phases that may follow, in the order of the table; being lost is not repeated."""
    return [after.__name__ for after in SHARD_TRANSITIONS if after in SHARD_TRANSITIONS[phase] and after is not Down]


def _table() -> str:
    rows = ["| phase | means | carries | may become |", "|---|---|---|---|"]
    for phase in SHARD_TRANSITIONS:
        meaning = _lower(_first(phase)).rstrip(".")
        carries, after = (", ".join(f"`{name}`" for name in names) for names in (_fields(phase), _others(phase)))
        rows.append(f"| `{phase.__name__}` | {meaning} | {carries or '–'} | {after} |")
    return "\n".join(rows) + "\n"


def _diagram() -> str:
    edges = [f"    {phase.__name__} --> {after}" for phase in SHARD_TRANSITIONS for after in _others(phase)]
    return "\n".join(["```mermaid", "stateDiagram-v2", f"    [*] --> {Down.__name__}", *edges, "```\n"])


def main(arguments: list[str]) -> int:
    """Write the page, or compare it."""
    if "--check" not in arguments:
        PAGE.write_text(page())
        return 0
    if PAGE.exists() and PAGE.read_text() == page():
        return 0
    print(f"{PAGE} is not what the tables say; run: make docs", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
