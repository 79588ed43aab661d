"""``ebrl doctor``."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated

import typer

from ebrl.cli.answer import Answer
from ebrl.cli.options import Json


def doctor(
    runs: Annotated[Path, typer.Option(help="Where run directories are made.")] = Path("runs"), json: Json = False
) -> Answer:
    """Say what this machine has and lacks, and what to do about it.

    Exits 1 if something is missing that every run needs.
    """
    from ebrl.host.doctor import examine

    findings = examine(runs)
    width = max(len(finding.name) for finding in findings)
    lines = []
    for finding in findings:
        lines.append(f"{finding.status:7}  {finding.name:{width}}  {finding.text}")
        if finding.advice:
            lines.append(f"{'':7}  {'':{width}}  → {finding.advice}")
    broken = any(finding.status == "missing" and finding.required for finding in findings)
    document = {"findings": [dataclasses.asdict(finding) for finding in findings], "usable": not broken}
    return Answer(document, "\n".join(lines), exit_code=1 if broken else 0)
