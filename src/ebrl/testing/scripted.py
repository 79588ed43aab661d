"""An engine whose events are written down beforehand."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from ebrl.errors import RunError
from ebrl.scheduling.commands import Command
from ebrl.scheduling.events import Event


class ScriptedEngine:
    """Hands out the events of a script, whatever it is told to do, and keeps what it was told."""

    def __init__(self, script: Iterable[tuple[Event, float]]) -> None:
        """The script is a sequence of events with their times."""
        self.executed: list[Command] = []
        """Every command so far, in order."""
        self._script = deque(script)

    def execute(self, command: Command) -> None:
        """See ``Engine``."""
        self.executed.append(command)

    def next_event(self) -> tuple[Event, float]:
        """See ``Engine``.

        Raises:
            RunError: the script is over.
        """
        if not self._script:
            raise RunError("the script is over, and the run is not")
        return self._script.popleft()
