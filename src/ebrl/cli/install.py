"""``ebrl install``."""

from __future__ import annotations

import dataclasses
import sys
from typing import Annotated, Any

import typer

from ebrl.cli.answer import Answer
from ebrl.cli.options import Json
from ebrl.errors import UsageError


def install(
    name: Annotated[str | None, typer.Argument(help="A simulator, e.g. libero.")] = None,
    show: Annotated[bool, typer.Option("--list", help="Only show what can be installed, and what is.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Install it anew though it is there.")] = False,
    python: Annotated[
        str | None, typer.Option(metavar="PATH", help="The Python to make its environment from; else one that fits.")
    ] = None,
    deadline_minutes: Annotated[float, typer.Option(min=0.1, help="To fetch the packages in.")] = 60.0,
    json: Json = False,
) -> Answer:
    """Install a simulator, with tried versions, in an environment of its own.

    Environments find it there by themselves. It needs no root, and changes nothing elsewhere.
    """
    from ebrl.host.installing import install as make
    from ebrl.host.simulators import simulator_named, simulators
    from ebrl.runtime.interrupts import Interrupts

    if show:
        return _list()
    if name is None:
        raise UsageError(f"nothing to install: name one of {', '.join(simulators())}")
    simulator = simulator_named(name)
    with Interrupts(lambda: None):
        found, new = make(
            simulator,
            python=python,
            force=force,
            within_s=60 * deadline_minutes,
            report=lambda text: print(text, file=sys.stderr, flush=True),
        )
    verb = f"installed in {found.seconds:.0f} s" if new else "is there already"
    lines = [f"{name} {verb}: {found.megabytes:,} MB in {found.path}, Python {found.version}", *_notes(found.notes)]
    return Answer(dataclasses.asdict(found) | {"new": new, "licence": simulator.licence}, "\n".join(lines))


def _list() -> Answer:
    from ebrl.host.simulators import directory, installed, simulators

    entries: list[dict[str, Any]] = []
    lines = []
    for simulator in simulators().values():
        found = installed(simulator)
        facts = {"environments": list(simulator.covers), "licence": simulator.licence, "disk_mb": simulator.disk_mb}
        entries.append({"name": simulator.name, **facts, "installed": found and dataclasses.asdict(found)})
        where = f"{found.megabytes:,} MB in {found.path}" if found else f"not installed; {simulator.disk_mb:,} MB"
        lines.append(f"{simulator.name:18}  {where}")
        lines.append(f"{'':18}  {', '.join(simulator.covers)}; licence {simulator.licence}")
        lines += _notes(found.notes if found else ())
    return Answer({"directory": str(directory()), "simulators": entries}, "\n".join(lines))


def _notes(notes: tuple[str, ...]) -> list[str]:
    return [f"note: {note}" for note in notes]
