"""``ebrl check``."""

from __future__ import annotations

import dataclasses
from typing import Annotated

import typer

from ebrl.cli.answer import Answer
from ebrl.cli.options import Json, plugin_section


def check_env(
    name: Annotated[str, typer.Argument(help="An installed environment, or module:Class.")],
    sets: Annotated[
        list[str] | None, typer.Option("--set", metavar="config.FIELD=VALUE", help="Change a field of its config.")
    ] = None,
    python: Annotated[
        str | None, typer.Option(metavar="PATH", help="The Python that has its simulator; else the installed one.")
    ] = None,
    json: Json = False,
) -> Answer:
    """Try every rule that an environment must keep on the real thing, under its own interpreter."""
    from ebrl.host.interpreters import is_own
    from ebrl.host.simulators import python_for
    from ebrl.registry import load
    from ebrl.runtime.plugins import check_task
    from ebrl.testing.elsewhere import check_env_under

    section = plugin_section(sets or [])
    interpreter = python_for(name, python, field="--python")
    if is_own(interpreter):
        cls, task = load("env", name)
        check_task(cls, name, task, section)
    results = check_env_under(interpreter, name, section)
    passed = all(result.ok for result in results)
    width = max(len(result.name) for result in results)
    lines = [f"{_mark(result.ok, result.severity):7}  {result.name:{width}}  {result.detail}" for result in results]
    lines.append(f"{name} {'keeps the contract' if passed else 'breaks the contract'}")
    checks = [dataclasses.asdict(result) for result in results]
    document = {"env": name, "python": interpreter, "passed": passed, "checks": checks}
    return Answer(document, "\n".join(lines), exit_code=0 if passed else 1)


def _mark(ok: bool, severity: str) -> str:
    if not ok:
        return "FAILED"
    return "ok" if severity == "check" else severity
