"""Sample Factory: APPO with two rollout workers, each of which steps one half of its environments while the other
half waits for actions (its documented double buffering).

Its processes are started afresh and import this module, so what is changed in it here is changed in all of them.
"""

# mypy: disable-error-code="import-not-found, misc, no-untyped-call"

from __future__ import annotations

import json
import os
import sys
import tempfile
from typing import Any

from sample_factory.algo.learning import learner
from sample_factory.algo.learning.learner import Learner
from sample_factory.algo.runners.runner import AlgoObserver
from sample_factory.cfg.arguments import parse_full_cfg, parse_sf_args
from sample_factory.envs.env_utils import register_env
from sample_factory.train import make_runner

from ebrl.bench.peer_programs.tasks import Request, Window, answer, die_with_program, make_env, read_request

_REQUEST = "EBRL_BENCH_REQUEST"
"""Variable that hands the request to the processes that Sample Factory starts."""


def _make(full_env_name: str, cfg: Any, env_config: Any, render_mode: str | None = None) -> Any:
    request = _inherited()
    index = env_config.env_id if env_config is not None else 0
    return make_env(request, request.seed + index)


def _inherited() -> Request:
    document = json.loads(os.environ[_REQUEST])
    return Request(**{**document, "hidden": tuple(document["hidden"])})


def _no_training(self: Any, *args: Any, **kwargs: Any) -> None:
    """In the place of ``Learner._train``: the batch is counted and given back."""


def prepare(request: Request) -> None:
    """Change what Sample Factory's learner does in this process."""
    if not request.learn:
        Learner._train = _no_training
    # It leaves out the remaining epochs of an update whose loss has stopped moving, and here no weights move. The
    # module calls this function for that comparison alone.
    learner.abs = lambda difference: 1.0


if _REQUEST in os.environ:
    die_with_program()
    prepare(_inherited())


class Clock(AlgoObserver):
    """Marks the end of each of the learner's iterations, each of one update's env steps."""

    def __init__(self, request: Request) -> None:
        self._window = Window(request)
        self._update_steps = request.update_steps

    def on_training_step(self, runner: Any, training_iteration_since_resume: int) -> None:
        """See Sample Factory."""
        if self._window.update_ended(training_iteration_since_resume * self._update_steps):
            answer(self._window)
            os._exit(0)


def arguments(request: Request, directory: str) -> list[str]:
    """Sample Factory's own command line."""
    batches = request.update_steps // request.minibatch_steps
    options: dict[str, Any] = {
        "env": "bench",
        "algo": "APPO",
        "experiment": "bench",
        "train_dir": directory,
        "restart_behavior": "overwrite",
        "device": "cpu",
        "seed": request.seed,
        "num_workers": request.num_processes,
        "num_envs_per_worker": request.num_envs // request.num_processes,
        "worker_num_splits": 2,
        "rollout": request.rollout,
        "batch_size": request.minibatch_steps,
        "num_batches_per_epoch": batches,
        "num_epochs": request.epochs,
        "use_rnn": False,
        "recurrence": 1,
        "actor_critic_share_weights": False,
        "adaptive_stddev": False,
        "initial_stddev": request.initial_std,
        "learning_rate": request.learning_rate,
        "nonlinearity": "tanh",
        "train_for_env_steps": 10**10,
        "save_every_sec": 10**6,
        "experiment_summaries_interval": 10**6,
        "with_wandb": False,
        "log_to_file": False,
    }
    layers = ["--encoder_mlp_layers", *map(str, request.hidden)]
    return [f"--{name}={value}" for name, value in options.items()] + layers


def main() -> None:
    """Measure once."""
    request = read_request()
    os.environ[_REQUEST] = sys.argv[1]
    prepare(request)
    register_env("bench", _make)
    with tempfile.TemporaryDirectory(prefix="ebrl-bench-peers-") as directory:
        argv = arguments(request, directory)
        parser, _ = parse_sf_args(argv)
        _, runner = make_runner(parse_full_cfg(parser, argv))
        runner.register_observer(Clock(request))
        runner.init()
        runner.run()
    raise SystemExit("Sample Factory ended before the window was over")


if __name__ == "__main__":
    main()
else:
    register_env("bench", _make)
