"""The command ``ebrl``: one module per subcommand, each of which imports what it needs when it runs."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import TextIO

import typer

from ebrl.cli import (
    bench,
    bench_allocator,
    bench_convergence,
    bench_modes,
    bench_peers,
    check,
    clean,
    doctor,
    evaluate,
    forecast,
    hardware,
    install,
    listing,
    plan,
    pretrain,
    profile,
    replay,
    report,
    train,
)
from ebrl.cli.answer import Answer, claimed_stdout, give, give_error, lasting_stderr

_COMMANDS: dict[str, Callable[..., Answer]] = {
    "train": train.train,
    "pretrain": pretrain.pretrain,
    "eval": evaluate.evaluate,
    "profile": profile.profile,
    "plan": plan.plan,
    "forecast": forecast.forecast,
    "timeline": forecast.timeline,
    "replay": replay.replay,
    "report": report.report,
    "hardware": hardware.hardware,
    "list": listing.list_plugins,
    "install": install.install,
    "doctor": doctor.doctor,
    "clean": clean.clean,
}

_GROUPS: dict[str, tuple[str, dict[str, Callable[..., Answer]]]] = {
    "check": ("Check a plug-in against its contract.", {"env": check.check_env}),
    "bench": (
        "Measure this machine.",
        {
            "roundtrip": bench.roundtrip,
            "control": bench.control,
            "forecast": bench.forecast,
            "split": bench.split,
            "allocator": bench_allocator.allocator,
            "modes": bench_modes.modes,
            "convergence": bench_convergence.convergence,
            "peers": bench_peers.peers,
            "ablation": bench_modes.ablation,
            "scaling": bench_modes.scaling,
            "staleness": bench_modes.staleness,
            "simulators": bench.simulators,
        },
    ),
}


def make_app() -> typer.Typer:
    """All commands."""
    app = typer.Typer(
        help="Asynchronous reinforcement learning of robot policies in simulators.",
        epilog="Exit codes: 0 success, 1 the run failed, 2 the request was wrong.",
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
    app.callback()(_no_command)
    for name, command in _COMMANDS.items():
        app.command(name)(command)
    for name, (text, commands) in _GROUPS.items():
        group = typer.Typer(help=text, rich_markup_mode=None)
        group.callback()(_no_command)
        for subname, command in commands.items():
            group.command(subname)(command)
        app.add_typer(group, name=name, help=text)
    return app


def _no_command() -> None:
    pass


def main() -> None:
    """Run the command that the arguments name, and exit."""
    arguments = sys.argv[1:] or ["--help"]
    as_json = "--json" in arguments
    try:
        with lasting_stderr(), claimed_stdout(as_json) as out:
            code = _run(arguments, out, as_json=as_json)
    except BrokenPipeError:  # whoever read the answer has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        code = 1
    sys.exit(code)


def _run(arguments: list[str], out: TextIO, *, as_json: bool) -> int:
    try:
        answer = make_app()(arguments, standalone_mode=False, prog_name="ebrl")
    except (Exception, KeyboardInterrupt) as error:
        return give_error(error, out, as_json=as_json)
    if isinstance(answer, Answer):
        return give(answer, out, as_json=as_json)
    return int(answer or 0)
