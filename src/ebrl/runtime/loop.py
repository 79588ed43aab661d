"""The only loop: event in, commands out."""

from __future__ import annotations

from ebrl.runtime.engine import Engine, Handle, Record
from ebrl.scheduling.commands import Stop


def run(handle: Handle, engine: Engine, record: Record) -> Stop:
    """Let ``handle`` answer the engine's events until it says stop."""
    while True:
        event, now = engine.next_event()
        commands = handle(event, now)
        record(now, event, commands)
        for command in commands:
            if isinstance(command, Stop):
                return command
            engine.execute(command)
