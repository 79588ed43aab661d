"""``ebrl clean``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ebrl.cli.answer import Answer
from ebrl.cli.options import Json


def clean(
    runs: Annotated[Path, typer.Option(help="Where run directories are.")] = Path("runs"),
    owner: Annotated[
        int | None, typer.Option(metavar="PID", help="Only kill processes of the run whose main process had this id.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be done.")] = False,
    json: Json = False,
) -> Answer:
    """Kill worker processes whose run is gone, and remove files and simulators that were never finished.

    There is no shared memory to clean: a run's memory has no name and vanishes with its processes.
    Runs that are going on are left alone, and so are files of the last minute.
    """
    from ebrl.host.leftovers import MIN_AGE_S, find_marked, find_unfinished, kill, remove
    from ebrl.host.simulators import half_made

    marked = find_marked()
    orphans = [process for process in marked if process.orphaned and owner in (None, process.owner)]
    unfinished = find_unfinished(runs, marked) + half_made(min_age_s=MIN_AGE_S)
    if not dry_run:
        for orphan in orphans:
            kill(orphan)
        for path in unfinished:
            remove(path)
    verbs = ("would kill", "would remove") if dry_run else ("killed", "removed")
    lines = [f"{verbs[0]} process {o.pid}, whose run (process {o.owner}) is gone: {o.command}" for o in orphans]
    lines += [f"{verbs[1]} {path}" for path in unfinished]
    document = {
        "dry_run": dry_run,
        "orphans": [{"pid": o.pid, "owner": o.owner, "command": o.command} for o in orphans],
        "unfinished": [str(path) for path in unfinished],
    }
    return Answer(document, "\n".join(lines) or "nothing to clean")
