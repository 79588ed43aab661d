"""``ebrl eval``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ebrl.cli.answer import Answer
from ebrl.cli.options import Json, RunDir
from ebrl.errors import UsageError, nearest


def evaluate(
    run_dir: RunDir,
    episodes: Annotated[int, typer.Option(min=1, help="Episodes, from initial states never trained on.")] = 128,
    checkpoint: Annotated[
        str | None, typer.Option(metavar="NAME", help="Which checkpoint, e.g. update-000120; the newest by default.")
    ] = None,
    video: Annotated[
        bool, typer.Option("--video", help="Also show the first and the newest checkpoint in before_after.gif.")
    ] = False,
    video_episodes: Annotated[int, typer.Option(min=1, max=20, help="Episodes in the video.")] = 3,
    json: Json = False,
) -> Answer:
    """Measure the success of a checkpoint."""
    from ebrl.cli.progress import open_display
    from ebrl.cli.summary import evaluation_text
    from ebrl.runtime.rundir import open_run_dir
    from ebrl.runtime.session import evaluate as run_evaluation

    run_dir = run_dir.resolve()
    config = open_run_dir(run_dir)
    chosen = None if checkpoint is None else _checkpoint(run_dir, checkpoint)
    with open_display(quiet=json) as display:
        if video:
            from ebrl.runtime.playback import check_pictures

            check_pictures(config)
        result: dict[str, Any] = run_evaluation(run_dir, display, episodes=episodes, checkpoint=chosen)
        if video and result["outcome"] == "finished":
            from ebrl.runtime.playback import record_before_after

            result["video"] = record_before_after(run_dir, config, display, episodes=video_episodes)
    return Answer(result, evaluation_text(result))


def _checkpoint(run_dir: Path, name: str) -> Path:
    from ebrl.data.checkpoint import list_checkpoints

    known = [path.name for path in list_checkpoints(run_dir / "checkpoints")]
    if name not in known:
        hint = nearest(name, known) or f"known: {', '.join(known) or 'none'}"
        raise UsageError(f"--checkpoint = {name!r}: {run_dir} has no such checkpoint; {hint}")
    return run_dir / "checkpoints" / name
