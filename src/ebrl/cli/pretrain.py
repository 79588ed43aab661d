"""``ebrl pretrain``."""

from __future__ import annotations

from ebrl.cli.answer import Answer
from ebrl.cli.options import Json, RunFile, Sets


def pretrain(run_file: RunFile, sets: Sets = None, json: Json = False) -> Answer:
    """Clone the environment's scripted expert, and only that; makes a run directory.

    ``ebrl train`` does the same before training where ``pretrain.enabled`` is set.
    """
    from ebrl.cli.progress import open_display
    from ebrl.config.load import load_config
    from ebrl.registry import load
    from ebrl.runtime.plugins import check_expert, check_plugins
    from ebrl.runtime.pretrain import pretrain as run_pretraining
    from ebrl.runtime.rundir import make_run_dir

    config = load_config(run_file, sets or ())
    check_plugins(config)
    check_expert(load("env", config.env.name)[0], config.env.name)
    run_dir = make_run_dir(config)
    with open_display(quiet=json) as display:
        checkpoint, facts = run_pretraining(config, run_dir, display)
    document = {"run_dir": str(run_dir), "checkpoint": str(checkpoint), **facts}
    text = "\n".join(
        [
            f"cloned {facts['windows']} windows of {facts['demonstrations']} demonstrations, "
            f"loss {facts['clone_loss']:.4f} at the end",
            f"checkpoint  {checkpoint}",
        ]
    )
    return Answer(document, text)
