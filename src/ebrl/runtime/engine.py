"""What an engine is: it carries out commands and says what happened."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from ebrl.scheduling.commands import Command
from ebrl.scheduling.events import Event


class Engine(Protocol):
    """Local processes, a cluster, or a heap of future events: control cannot tell which."""

    def execute(self, command: Command) -> None:
        """Begin to carry out a command; never waits for it."""
        ...

    def next_event(self) -> tuple[Event, float]:
        """Wait for the next event; returns it with the time in seconds since the engine started.

        Never waits without a deadline: each command in flight has one, and what passes it comes
        back as an event too.
        """
        ...


Handle = Callable[[Event, float], list[Command]]
"""``Scheduler.handle`` or one of its kind."""

Record = Callable[[float, Event, list[Command]], None]
"""Sees every event with the commands that answer it, before they are carried out."""
