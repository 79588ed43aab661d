"""Feed a recorded run to today's control plane and find the first command that differs."""

from __future__ import annotations

import json
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ebrl.errors import UsageError
from ebrl.records.eventlog import FILE_NAME, read_events
from ebrl.records.schema import plan_from_json, to_json
from ebrl.scheduling.scheduler import Scheduler

_STORY_LINES = 12
"""Earlier events about the same shard that are told with a difference."""


@dataclass(frozen=True, slots=True)
class Difference:
    """The first event that today's control plane answers otherwise."""

    number: int
    """Of the event, counted from 1."""
    now: float
    event: dict[str, Any]
    recorded: list[dict[str, Any]]
    today: list[dict[str, Any]]
    story: list[str]
    """What led here: recent events that concern the same shard, oldest first."""


@dataclass(frozen=True, slots=True)
class Replay:
    """Outcome of a replay."""

    num_events: int
    num_commands: int
    difference: Difference | None


def replay(run_dir: Path) -> Replay:
    """Replay the run in ``run_dir`` up to the first difference.

    Raises:
        UsageError: the run has no plan or no event log.
    """
    for name in ("plan.json", FILE_NAME):
        if not (run_dir / name).is_file():
            raise UsageError(f"{run_dir} cannot be replayed: it has no {name}")
    scheduler = Scheduler(plan_from_json(json.loads((run_dir / "plan.json").read_text())))
    history: deque[tuple[int, float, dict[str, Any]]] = deque(maxlen=20_000)
    number = num_commands = 0
    for number, (now, event, recorded) in enumerate(read_events(run_dir / FILE_NAME), start=1):
        told = to_json(event)
        today = [to_json(command) for command in scheduler.handle(event, now)]
        num_commands += len(recorded)
        if today != recorded:
            story = _story(history, told)
            return Replay(number, num_commands, Difference(number, now, told, recorded, today, story))
        history.append((number, now, told))
    return Replay(number, num_commands, None)


def _story(history: deque[tuple[int, float, dict[str, Any]]], event: dict[str, Any]) -> list[str]:
    shard = event.get("shard")
    lines = [
        f"#{number} at {now:.6f} s: {told}"
        for number, now, told in history
        if shard is None or told.get("shard") == shard or shard in told.get("shards", ())
    ]
    return lines[-_STORY_LINES:]
