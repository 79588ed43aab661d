"""Plug-ins by name: entry points, or ``module:Class`` for a class of the user's own.

Standard library only: env workers import this under interpreters that have nothing else.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.metadata
import math
import re
import sys
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ebrl.errors import ConfigError, UnknownPlugin, UsageError, nearest


def entry_points(kind: str) -> dict[str, importlib.metadata.EntryPoint]:
    """Every installed plug-in of one kind (``env``, ``policy`` or ``algorithm``), by name."""
    return {point.name: point for point in importlib.metadata.entry_points(group=f"ebrl.{kind}")}


def names(kind: str) -> list[str]:
    """Sorted names of the installed plug-ins of one kind; ``ns/*`` stands for a whole family."""
    return sorted(entry_points(kind))


def load(kind: str, name: str) -> tuple[Any, str]:
    """The class of plug-in ``name`` and the part of the name that the class itself reads.

    A plug-in registered as ``metaworld/*`` answers for every ``metaworld/<task>`` and is given
    ``<task>``; one registered under its exact name is given ``""``. ``module:Class`` and
    ``module:Class/<task>`` are imported as they stand, with the current directory on the path.

    Raises:
        UnknownPlugin: nothing of that name is installed.
        UsageError: the named module or class cannot be imported.
    """
    reference, _, task = name.partition("/")
    if ":" in reference:
        return _import(kind, reference), task
    point, task = _find(kind, name)
    return _resolve(kind, name, point), task


def portable(kind: str, name: str) -> str:
    """``name`` as ``module:Class/<task>``, which also loads under an interpreter that has no entry points of ours.

    Raises:
        UnknownPlugin: nothing of that name is installed.
    """
    if ":" in name.partition("/")[0]:
        return name
    point, task = _find(kind, name)
    return f"{point.value}/{task}" if task else point.value


def _find(kind: str, name: str) -> tuple[importlib.metadata.EntryPoint, str]:
    points = entry_points(kind)
    if name in points:
        return points[name], ""
    namespace, slash, task = name.partition("/")
    family = f"{namespace}/*"
    if slash and family in points:
        return points[family], task
    raise UnknownPlugin(kind, name, points)


def _resolve(kind: str, name: str, point: importlib.metadata.EntryPoint) -> Any:
    try:
        return point.load()
    except ImportError as error:
        raise UsageError(f"{kind} {name!r} cannot be imported: {error}") from error


def _import(kind: str, name: str) -> Any:
    module_name, _, attribute = name.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise UsageError(f"{kind} {name!r}: cannot import module {module_name!r}: {error}") from error
    try:
        return getattr(module, attribute)
    except AttributeError:
        near = nearest(attribute, vars(module))
        raise UsageError(f"{kind} {name!r}: module {module_name!r} has no {attribute!r}; {near}".rstrip("; ")) from None


def make_config(cls: Any, section: Mapping[str, Any], where: str) -> Any:
    """The plug-in's ``Config`` (a frozen dataclass) from a plain mapping.

    Raises:
        ConfigError: a key is unknown, a value has the wrong type or is not a number where one is
            wanted, or ``__post_init__`` of the config refuses it (it raises ``ValueError`` with a
            message ``<field> = <value>: <what was wanted>``).
    """
    config_cls = cls.Config
    hints = typing.get_type_hints(config_cls)
    known = {field.name: hints[field.name] for field in dataclasses.fields(config_cls)}
    values: dict[str, Any] = {}
    for key, value in section.items():
        if key not in known:
            hint = nearest(key, known) or f"known: {', '.join(sorted(known)) or 'none'}"
            raise ConfigError(f"{where}.{key}", f"unknown field; {hint}")
        values[key] = _coerce(known[key], value, f"{where}.{key}")
    try:
        return config_cls(**values)
    except (ValueError, TypeError) as error:
        field = re.match(r"(\w+)(?= = )", str(error))
        if field is None or field[1] not in known:
            raise ConfigError(where, str(error)) from error
        raise ConfigError(f"{where}.{field[1]}", str(error)[field.end() + 1 :]) from error


def _coerce(hint: Any, value: Any, where: str) -> Any:
    """``value`` as ``hint``: exact types, int accepted as float, lists accepted as tuples."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return value
    if origin is typing.Literal:
        return _one_of(args, value, where)
    if origin in (typing.Union, types.UnionType):
        return _any_of(hint, args, value, where)
    if origin is tuple:
        return _tuple_of(args[0], value, where)
    if hint is float and isinstance(value, int | float) and not isinstance(value, bool):
        return _number(value, where)
    if not isinstance(value, hint) or (isinstance(value, bool) and hint is not bool):
        raise ConfigError(where, f"= {value!r}: want {hint.__name__}, got {type(value).__name__}")
    return value


def _number(value: float, where: str) -> float:
    try:
        number = float(value)
    except OverflowError:
        raise ConfigError(where, "is too large for a float") from None
    if math.isnan(number):
        raise ConfigError(where, "= nan: want a number")
    return number


def _one_of(options: tuple[Any, ...], value: Any, where: str) -> Any:
    if value not in options:
        raise ConfigError(where, f"= {value!r}: want one of {', '.join(map(repr, options))}")
    return value


def _any_of(hint: Any, options: tuple[Any, ...], value: Any, where: str) -> Any:
    for option in options:
        try:
            return _coerce(option, value, where)
        except ConfigError:
            continue
    raise ConfigError(where, f"= {value!r}: want {hint}")


def _tuple_of(item: Any, value: Any, where: str) -> tuple[Any, ...]:
    if not isinstance(value, list | tuple):
        raise ConfigError(where, f"= {value!r}: want a list")
    return tuple(_coerce(item, element, f"{where}[{index}]") for index, element in enumerate(value))
