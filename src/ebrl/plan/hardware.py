"""Hardware files: those that come with the package, and those that users write or probe."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ebrl.errors import ConfigError, UsageError, nearest
from ebrl.resources.hardware import Hardware

_MACHINES = Path(__file__).with_name("machines")


def shipped_hardware() -> tuple[str, ...]:
    """Names of the machines that come with the package."""
    return tuple(sorted(path.stem for path in _MACHINES.glob("*.json")))


def load_hardware(name_or_path: str) -> Hardware:
    """The hardware in a file.

    Args:
        name_or_path: of a machine that comes with the package, with or without ``.json``, or a file's path.
            A file that exists comes first; one without a dot in its name has to be written with a slash.

    Raises:
        UsageError: there is no such machine and no such file.
        ConfigError: the file cannot be read, or is no hardware file.
    """
    path, known = Path(name_or_path), shipped_hardware()
    if ("." in path.name or "/" in name_or_path) and path.is_file():
        return _read(path)
    name = name_or_path.removesuffix(".json")
    if name in known:
        return _read(_MACHINES / f"{name}.json")
    hint = nearest(name, known)
    raise UsageError(
        f"no hardware file {name_or_path!r}; {hint + ' ' if hint else ''}machines that come with ebrl: "
        f"{', '.join(known)}; to describe this one: ebrl hardware --output FILE"
    )


def hardware_text(hardware: Hardware) -> str:
    """What belongs into a hardware file, with one line for each CPU, for those who want to change it by hand."""
    return _lines(hardware.to_json(), "") + "\n"


def _read(path: Path) -> Hardware:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(document, dict):
            raise ValueError("want a JSON object")
        return Hardware.from_json(document)
    except (OSError, ValueError) as error:
        raise ConfigError(str(path), str(error)) from error


def _lines(value: Any, indent: str) -> str:
    """JSON; what has no further parts stays on one line."""
    if not isinstance(value, dict | list | tuple) or not value:
        return json.dumps(value, ensure_ascii=False)
    parts = list(value.values()) if isinstance(value, dict) else list(value)
    if indent and not any(isinstance(part, dict | list | tuple) and part for part in parts):
        return json.dumps(value, ensure_ascii=False)
    inner = indent + "  "
    texts = [_lines(part, inner) for part in parts]
    if isinstance(value, dict):
        texts = [f"{json.dumps(key)}: {text}" for key, text in zip(value, texts, strict=True)]
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    return f"{opening}\n" + ",\n".join(inner + text for text in texts) + f"\n{indent}{closing}"
