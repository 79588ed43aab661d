"""``ebrl train``."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Annotated

import typer

from ebrl.cli.answer import Answer
from ebrl.cli.options import Json, Sets
from ebrl.errors import UsageError


class ModeName(enum.StrEnum):
    """``ebrl.config.modes``, as the command line has it."""

    COLOCATED = "colocated"
    DISAGGREGATED = "disaggregated"
    HYBRID = "hybrid"
    ASYNC = "async"
    PAPER = "paper"
    EBRL = "ebrl"


def train(
    run_file: Annotated[Path | None, typer.Argument(metavar="RUN.toml", help="The run to train.")] = None,
    sets: Sets = None,
    resume: Annotated[
        Path | None,
        typer.Option(
            metavar="RUN_DIR",
            help="Go on with this run, in place, from its newest checkpoint; RUN.toml may be left out.",
        ),
    ] = None,
    mode: Annotated[
        ModeName | None,
        typer.Option(help="Take the switches of an execution mode, for comparisons; --set goes on top of it."),
    ] = None,
    validate: Annotated[
        bool, typer.Option("--validate", help="Check every invariant of the control plane after every event; slower.")
    ] = False,
    json: Json = False,
) -> Answer:
    """Train a policy: evaluation, training, evaluation; makes a run directory.

    Ctrl-C ends the run well, with a checkpoint; a second one ends it at once.
    """
    from ebrl.cli.progress import open_display
    from ebrl.cli.summary import training_text
    from ebrl.config.load import load_config
    from ebrl.runtime.rundir import open_run_dir
    from ebrl.runtime.session import train as run_training

    if resume is not None:
        resume = resume.resolve()
        open_run_dir(resume)
        source = run_file or resume / "config.toml"
    elif run_file is None:
        raise UsageError("nothing to train: name a RUN.toml, or a run to go on with by --resume RUN_DIR")
    else:
        source = run_file
    config = load_config(source, sets or (), mode=mode.value if mode else None)
    with open_display(quiet=json) as display:
        summary = run_training(config, display, resume=resume, validate=validate)
    return Answer(summary, training_text(summary))
