"""``ebrl replay``."""

from __future__ import annotations

import dataclasses
import json as json_module
from pathlib import Path
from typing import Annotated

import typer

from ebrl.cli.answer import Answer
from ebrl.cli.options import Json


def replay(
    run_dir: Annotated[Path, typer.Argument(metavar="RUN_DIR", help="A run with an event log.")], json: Json = False
) -> Answer:
    """Feed a recorded run to today's control plane and show the first command that differs.

    Exit code 1 if one differs. The run may come from real processes or from the virtual engine.
    """
    from ebrl.records.replay import replay as replay_run

    done = replay_run(run_dir)
    document = {
        "run_dir": str(run_dir),
        "events": done.num_events,
        "commands": done.num_commands,
        "differing_commands": 0 if done.difference is None else 1,
        "difference": None if done.difference is None else dataclasses.asdict(done.difference),
    }
    if done.difference is None:
        return Answer(document, f"{done.num_events:,} events, {done.num_commands:,} commands: all as recorded")
    found = done.difference
    lines = [f"event #{found.number} at {found.now:.6f} s is answered otherwise: {json_module.dumps(found.event)}"]
    lines += ["what led here:", *(f"  {line}" for line in found.story)]
    lines += ["recorded:", *(f"  {json_module.dumps(command)}" for command in found.recorded)]
    lines += ["today:", *(f"  {json_module.dumps(command)}" for command in found.today)]
    return Answer(document, "\n".join(lines), exit_code=1)
