"""The records of a run, read again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ebrl.errors import UsageError
from ebrl.records.eventlog import event_file, parts, plan_file, read_events
from ebrl.records.schema import command_from_json, plan_from_json
from ebrl.report.activity import Activity, Span
from ebrl.report.forecast import figures
from ebrl.report.timeline import Spans, draw_timeline, window
from ebrl.report.trace import write_trace
from ebrl.scheduling.commands import Command
from ebrl.scheduling.events import Event
from ebrl.scheduling.plan import SchedulerPlan


def open_records(run_dir: Path) -> tuple[SchedulerPlan, Iterator[tuple[float, Event, list[Command]]]]:
    """Plan and records of the first part of a run, real or forecast.

    Raises:
        UsageError: the run has no event log or no plan.
    """
    found = parts(run_dir)
    if not found or not (run_dir / plan_file(found[0])).is_file():
        raise UsageError(f"{run_dir} has no {event_file('')} with a {plan_file('')} (records.level = off?)")
    plan = plan_from_json(json.loads((run_dir / plan_file(found[0])).read_text())["scheduler"])
    return plan, _records(run_dir / event_file(found[0]))


def _records(path: Path) -> Iterator[tuple[float, Event, list[Command]]]:
    for now, event, commands in read_events(path):
        yield now, event, [command_from_json(command) for command in commands]


def activity_of(run_dir: Path, *, span: Span | None = None) -> Activity:
    """What everybody did in a run; see ``Activity``."""
    plan, records = open_records(run_dir)
    activity = Activity(plan, span=span)
    for now, event, commands in records:
        activity.see(now, event, commands)
    activity.finish()
    return activity


def show_run(run_dir: Path, out_dir: Path, *, title: str, seconds: float | None = None) -> dict[str, Any]:
    """Draw ``timeline.png`` and write ``trace.json``; returns the run's figures and both paths.

    Args:
        run_dir: a run with an event log, real or forecast.
        out_dir: where both files go.
        title: of the picture.
        seconds: that the picture shows; None chooses.
    """
    spans = Spans()
    activity = activity_of(run_dir, span=spans)
    start, end = window(activity, spans.all, seconds)
    timeline = draw_timeline(out_dir / "timeline.png", activity.plan, spans.all, start=start, end=end, title=title)
    trace = write_trace(out_dir / "trace.json", activity, spans.all)
    return {**figures(activity), "timeline": str(timeline), "trace": str(trace)}
