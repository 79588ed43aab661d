"""Feed a recorded run to today's control plane and find the first command that differs."""

from __future__ import annotations

import json
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ebrl.errors import UsageError
from ebrl.records.eventlog import event_file, parts, plan_file, read_events
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
    """Replay every part of the run in ``run_dir``, up to the first difference.

    Raises:
        UsageError: the run has no event log or no plan, or its log leaves out what control decided on.
    """
    num_events = num_commands = 0
    found = parts(run_dir)
    if not found:
        raise UsageError(f"{run_dir} cannot be replayed: it has no {event_file('')} (records.level = off?)")
    for part in found:
        done = _replay_part(run_dir / plan_file(part), run_dir / event_file(part))
        num_events += done.num_events
        num_commands += done.num_commands
        if done.difference is not None:
            return Replay(num_events, num_commands, done.difference)
    return Replay(num_events, num_commands, None)


def _replay_part(plan_path: Path, events_path: Path) -> Replay:
    if not plan_path.is_file():
        raise UsageError(f"{events_path.parent} cannot be replayed: it has no {plan_path.name}")
    document = json.loads(plan_path.read_text())
    if document["records_level"] == "chunks" and document["scheduler"]["quantum"] not in (
        0,
        document["scheduler"]["chunk_len"],
    ):
        raise UsageError(
            f"{events_path} cannot be replayed: grants inside chunks were left out; record with records.level = steps"
        )
    scheduler = Scheduler(plan_from_json(document["scheduler"]))
    history: deque[tuple[int, float, dict[str, Any]]] = deque(maxlen=20_000)
    number = num_commands = 0
    for number, (now, event, recorded) in enumerate(read_events(events_path), start=1):
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
