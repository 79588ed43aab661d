"""``ebrl report``: one HTML page about a run, or about two."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ebrl.cli.answer import Answer
from ebrl.cli.options import Json, RunDir

if TYPE_CHECKING:
    from ebrl.report.page import Report


def report(
    run_dir: RunDir,
    other: Annotated[Path | None, typer.Argument(metavar="OTHER", help="A run or forecast to compare it with.")] = None,
    output: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The page; report.html in RUN_DIR by default.")
    ] = None,
    json: Json = False,
) -> Answer:
    """Write one page about a run or forecast: curves, waits, timeline, staleness, failures, ledger, configuration.

    The page needs no network. With OTHER it shows both side by side, with ratios and what differs in their
    configurations.
    """
    from ebrl.report.page import write_report

    written = write_report(run_dir, other, output)
    return Answer(written.document, _text(written))


def _text(written: Report) -> str:
    size = written.path.stat().st_size
    lines = [f"report   {written.path} ({size / 1e3:,.0f} kB); open it in a browser"]
    runs = written.document["runs"]
    for run in runs:
        name = f"{run['name']}: " if len(runs) > 1 else ""
        lines += [f"missing  {name}{line}" for line in run["missing"]]
    return "\n".join(lines)
