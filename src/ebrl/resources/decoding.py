"""From JSON documents to frozen dataclasses, by their annotations."""

from __future__ import annotations

import dataclasses
import math
import typing
from collections.abc import Mapping
from typing import Any, Literal

_NAMES = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}


def decode(kind: Any, value: Any, where: str) -> Any:
    """``value`` of a JSON document as the type that an annotation names.

    Args:
        kind: a frozen dataclass, a named tuple, a tuple of such, a mapping, or a plain type.
        value: what ``json.loads`` made of it.
        where: how errors name the value, e.g. ``profile``.

    Raises:
        ValueError: a field is missing, unknown or not of its kind.
    """
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if type(None) in arguments:
        kind = next(inner for inner in arguments if inner is not type(None))
        return None if value is None else decode(kind, value, where)
    if origin is Literal and value not in arguments:
        raise ValueError(f"{where}: {value!r}, want {' or '.join(map(repr, arguments))}")
    if origin is tuple:
        if not isinstance(value, list | tuple):
            raise ValueError(f"{where}: {value!r}, want a list")
        kinds = [arguments[0]] * len(value) if arguments[1:] == (...,) else arguments
        return tuple(decode(inner, item, where) for inner, item in zip(kinds, value, strict=True))
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        if not isinstance(value, Mapping):
            raise ValueError(f"{where}: {value!r}, want an object with fields")
        hints = typing.get_type_hints(kind)
        unknown = sorted(set(value) - set(hints))
        if unknown:
            raise ValueError(f"{where}: unknown field {unknown[0]!r}")
        fields = {name: decode(hints[name], item, f"{where}.{name}") for name, item in value.items()}
        try:
            return kind(**fields)
        except TypeError as error:
            raise ValueError(f"{where}: {error}") from error
    if isinstance(kind, type) and issubclass(kind, tuple):
        return kind(*value)
    return _plain(kind, value, where)


def _plain(kind: Any, value: Any, where: str) -> Any:
    while hasattr(kind, "__supertype__"):
        kind = kind.__supertype__
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if kind in (bool, int, float, str) and type(value) is not kind:
        raise ValueError(f"{where}: {value!r}, want {_NAMES[kind]}")
    if kind is float and not math.isfinite(value):
        raise ValueError(f"{where}: {value!r}, want a finite number")
    return value
