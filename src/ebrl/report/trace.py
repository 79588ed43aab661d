"""The spans of a run as a trace file for Perfetto (ui.perfetto.dev) or chrome://tracing.

Format: "Trace Event Format", complete events (``ph`` X), times in microseconds.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ebrl.report.activity import Activity
from ebrl.report.lanes import lane_name
from ebrl.report.timeline import Span

_PROCESSES = {"learner": 1, "generator": 2, "cpu": 3, "env": 4}
_NAMES = {
    "learner": "training",
    "generator": "generation",
    "cpu": "simulation: CPUs",
    "env": "simulation: env workers",
}


def write_trace(path: Path, activity: Activity, spans: list[Span]) -> Path:
    """Write every span, and each update as an instant; returns ``path``."""
    events: list[dict[str, Any]] = []
    for kind, process in _PROCESSES.items():
        events.append({"ph": "M", "name": "process_name", "pid": process, "tid": 0, "args": {"name": _NAMES[kind]}})
        events.append(
            {"ph": "M", "name": "process_sort_index", "pid": process, "tid": 0, "args": {"sort_index": process}}
        )
    lanes = sorted({(span.kind, span.number) for span in spans})
    for kind, index in lanes:
        named = {"ph": "M", "name": "thread_name", "pid": _PROCESSES[kind], "tid": index}
        events.append({**named, "args": {"name": lane_name(activity.plan, kind, index)}})
    events += [
        {
            "ph": "X",
            "name": span.what,
            "cat": span.kind,
            "pid": _PROCESSES[span.kind],
            "tid": span.number,
            "ts": round(span.start * 1e6, 3),
            "dur": round((span.end - span.start) * 1e6, 3),
        }
        for span in spans
        if span.what != "idle"
    ]
    events += [
        {
            "ph": "i",
            "s": "g",
            "name": f"update {number}",
            "pid": _PROCESSES["learner"],
            "tid": 0,
            "ts": round(when * 1e6, 3),
            "args": {"trajectories": size},
        }
        for number, (when, size) in enumerate(activity.updates, start=1)
    ]
    path.write_text(json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}))
    return path
