"""Events and commands as JSON, and back again, exactly.

A message is its fields plus ``"is"``, the name of its class. Floats survive unchanged (JSON text of a
Python float is exact), so a recorded run can be fed to the control plane bit for bit.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping
from typing import Any

from ebrl.resources.decoding import decode
from ebrl.scheduling.commands import ChunkRequest, Command, EpisodeStart
from ebrl.scheduling.events import EpisodeEnd, Event
from ebrl.scheduling.plan import SchedulerPlan
from ebrl.scheduling.quotas import Split

_CLASSES: dict[str, type[Any]] = {
    cls.__name__: cls
    for cls in (*typing.get_args(Event), *typing.get_args(Command), EpisodeEnd, EpisodeStart, ChunkRequest, Split)
}


def to_json(message: Event | Command) -> dict[str, Any]:
    """One event or command as a JSON document."""
    document: dict[str, Any] = _encode(message)
    return document


def event_from_json(document: Mapping[str, Any]) -> Event:
    """The event that ``to_json`` wrote.

    Raises:
        ValueError: the document is not an event of this version of the program.
    """
    message = _decode(document)
    if not isinstance(message, typing.get_args(Event)):
        raise ValueError(f"{document.get('is')!r} is not an event")
    return typing.cast("Event", message)


def command_from_json(document: Mapping[str, Any]) -> Command:
    """The command that ``to_json`` wrote.

    Raises:
        ValueError: the document is not a command of this version of the program.
    """
    message = _decode(document)
    if not isinstance(message, typing.get_args(Command)):
        raise ValueError(f"{document.get('is')!r} is not a command")
    return typing.cast("Command", message)


def plan_to_json(plan: SchedulerPlan) -> dict[str, Any]:
    """A plan for ``plan.json``."""
    return dataclasses.asdict(plan)


def plan_from_json(document: Mapping[str, Any]) -> SchedulerPlan:
    """The plan that ``plan_to_json`` wrote.

    Raises:
        ValueError: it has fields that plans of this version of the program do not have, or impossible ones.
    """
    plan: SchedulerPlan = decode(SchedulerPlan, document, "plan")
    return plan


def _encode(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        fields = {field.name: _encode(getattr(value, field.name)) for field in dataclasses.fields(value)}
        return {"is": type(value).__name__, **fields}
    if isinstance(value, tuple):
        return [_encode(item) for item in value]
    return value


def _decode(value: Any) -> Any:
    if isinstance(value, Mapping):
        cls = _CLASSES.get(value["is"])
        if cls is None:
            raise ValueError(f"no event or command is named {value['is']!r}")
        fields = {name: _decode(item) for name, item in value.items() if name != "is"}
        try:
            return cls(**fields)
        except TypeError as error:
            raise ValueError(f"{value['is']} has other fields now: {error}") from error
    if isinstance(value, list):
        return tuple(_decode(item) for item in value)
    return value
