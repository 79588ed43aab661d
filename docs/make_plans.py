"""Writes the outputs in ``docs/plan.md`` anew: a block that begins with ``$ ebrl plan`` gets what the command prints.

With ``--check`` it only says whether they are up to date.
"""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path

import typer

from ebrl.cli.answer import Answer, give
from ebrl.cli.plan import plan
from ebrl.errors import EbrlError

PAGE = Path(__file__).with_name("plan.md")

_BLOCK = re.compile(r"```text\n\$ ebrl plan (?P<arguments>[^\n]*)\n.*?```", re.DOTALL)


def page(text: str) -> str:
    """The page with every output as it is now."""
    return _BLOCK.sub(lambda block: _block(block["arguments"]), text)


def _block(arguments: str) -> str:
    return f"```text\n$ ebrl plan {arguments}\n{printed(arguments.split())}```"


def printed(arguments: list[str]) -> str:
    """What ``ebrl plan`` prints, errors too."""
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command()(plan)
    out = io.StringIO()
    try:
        answer = app(arguments, standalone_mode=False)
    except EbrlError as error:
        return f"error: {error}\n"
    assert isinstance(answer, Answer)
    give(answer, out, as_json=False)
    return out.getvalue()


def main(arguments: list[str]) -> int:
    """Write the page, or compare it."""
    old = PAGE.read_text(encoding="utf-8")
    new = page(old)
    if "--check" not in arguments:
        PAGE.write_text(new, encoding="utf-8")
        return 0
    if old == new:
        return 0
    print(f"{PAGE} is not what ebrl plan prints; run: make docs", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
