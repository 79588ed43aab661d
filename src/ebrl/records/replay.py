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
from ebrl.scheduling.events import Event
from ebrl.scheduling.plan import SchedulerPlan
from ebrl.scheduling.scheduler import Scheduler

_STORY_LINES = 12
"""Earlier events that are told with a difference."""


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
    """What led here: recent events about the shards of this event and of the commands that differ, oldest first."""


@dataclass(frozen=True, slots=True)
class Replay:
    """Outcome of a replay."""

    num_events: int
    num_commands: int
    difference: Difference | None


def replay(run_dir: Path) -> Replay:
    """Replay every part of the run in ``run_dir``, up to the first difference.

    Raises:
        UsageError: the run has no event log or no plan, its log leaves out what control decided on, or
            it was recorded by a version of this program that had other events or plans.
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
    try:
        document = json.loads(plan_path.read_text())
        plan = plan_from_json(document["scheduler"])
        if document["records_level"] == "chunks" and _cuts_chunks(plan):
            raise UsageError(
                f"{events_path} cannot be replayed: grants inside chunks were left out;"
                " record with records.level = steps"
            )
        return _feed(Scheduler(plan), events_path)
    except (ValueError, KeyError) as error:
        raise UsageError(f"{events_path} cannot be replayed by this version of ebrl: {error}") from error


def _cuts_chunks(plan: SchedulerPlan) -> bool:
    """Whether grants end inside chunks."""
    return plan.step_barrier or 0 < plan.quantum < plan.chunk_len


def _feed(scheduler: Scheduler, events_path: Path) -> Replay:
    history: deque[tuple[int, float, dict[str, Any]]] = deque(maxlen=20_000)
    number = num_commands = 0
    for number, (now, event, recorded) in enumerate(read_events(events_path), start=1):
        told = to_json(event)
        today = _answer(scheduler, event, now)
        num_commands += len(recorded)
        if today != recorded:
            differing = [command for command in (*recorded, *today) if (command in recorded) != (command in today)]
            story = _story(history, told, *differing)
            return Replay(number, num_commands, Difference(number, now, told, recorded, today, story))
        history.append((number, now, told))
    return Replay(number, num_commands, None)


def _answer(scheduler: Scheduler, event: Event, now: float) -> list[dict[str, Any]]:
    """Today's commands; a broken invariant is an answer too, and differs from all that can be recorded."""
    try:
        return [to_json(command) for command in scheduler.handle(event, now)]
    except (AssertionError, LookupError) as error:
        return [{"is": type(error).__name__, "says": str(error)}]


def _story(history: deque[tuple[int, float, dict[str, Any]]], *messages: dict[str, Any]) -> list[str]:
    """Recent events about any shard of these messages; about all shards if they name none."""
    subjects = set().union(*map(_shards, messages))
    lines = [
        f"#{number} at {now:.6f} s: {told}" for number, now, told in history if not subjects or subjects & _shards(told)
    ]
    return lines[-_STORY_LINES:]


def _shards(message: dict[str, Any]) -> set[int]:
    """Shards that an event or command names."""
    named = {message["shard"]} if "shard" in message else set()
    return named.union(message.get("shards", ()), *map(_shards, message.get("requests", ())))
