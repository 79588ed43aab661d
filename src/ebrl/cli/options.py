"""Options that several commands share."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Annotated, Any

import typer

from ebrl.errors import ConfigError

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document, and nothing else on standard output.")]

Sets = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="SECTION.FIELD=VALUE", help="Change one field of the configuration; repeatable."),
]

RunFile = Annotated[Path, typer.Argument(metavar="RUN.toml", help="The run, e.g. examples/reach.toml.")]

RunDir = Annotated[Path, typer.Argument(metavar="RUN_DIR", help="A run directory, e.g. runs/latest.")]


def plugin_section(sets: list[str]) -> dict[str, Any]:
    """The plug-in's section from ``config.x=y`` texts.

    Raises:
        ConfigError: a text has another form.
    """
    section: dict[str, Any] = {}
    for text in sets:
        path, equals, value = text.partition("=")
        where, dot, field = path.strip().partition(".")
        if not (equals and dot and field) or where != "config":
            raise ConfigError("--set", f"{text!r}: want config.FIELD=VALUE")
        try:
            section[field] = tomllib.loads(f"value = {value}")["value"]
        except tomllib.TOMLDecodeError:
            section[field] = value
    return section
