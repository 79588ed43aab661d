"""What a run directory says, read for a page: whatever is not there or cannot be read is named, never an error."""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from ebrl.errors import UsageError
from ebrl.records.eventlog import event_file, parts, plan_file, read_events
from ebrl.records.schema import command_from_json, plan_from_json
from ebrl.records.writer import read_metrics
from ebrl.report.activity import Activity
from ebrl.report.chart_lanes import LaneSpans
from ebrl.report.forecast import figures

Row = dict[str, float]

_MARKS = ("config.toml", "summary.json", "metrics.jsonl", "forecast.json", "plan.json", "events.jsonl.zst")
"""A directory that has none of them is no run."""


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a run, from its event log: a run that is resumed has several."""

    activity: Activity
    spans: LaneSpans
    rows: list[Row]
    """One per update, with the columns of ``metrics.jsonl`` that follow from events."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunData:
    """A run or a forecast, as far as it was recorded."""

    path: Path
    name: str
    is_forecast: bool
    config_text: str = ""
    config: dict[str, Any] = field(default_factory=dict)
    summary: dict[str, Any] = field(default_factory=dict)
    """Of a forecast: its forecast.json."""
    plan: dict[str, Any] = field(default_factory=dict)
    """plan.json: the control plane's plan, the machine."""
    rows: list[Row] = field(default_factory=list)
    """One per update."""
    parts: list[Part] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    """Sentences."""
    compared: bool = False
    """There is another run on the page."""

    def titled(self, words: str) -> str:
        """A title that says which run it is about, if there are two."""
        return f"{words}: {self.name}" if self.compared else words

    def text(self, *keys: str) -> str:
        """What the summary says there, in words; empty if nothing."""
        value: Any = self.summary
        for key in keys:
            value = value.get(key) if isinstance(value, dict) else None
        return "" if value is None else str(value)

    def number(self, *keys: str) -> float | None:
        """A number of the summary, if there is one."""
        value: Any = self.summary
        for key in keys:
            value = value.get(key) if isinstance(value, dict) else None
        return number_or_none(value)

    def counts(self, *keys: str) -> dict[str, float]:
        """Numbers by name of the summary."""
        value: Any = self.summary
        for key in keys:
            value = value.get(key) if isinstance(value, dict) else None
        numbers = {str(k): number_or_none(v) for k, v in value.items()} if isinstance(value, dict) else {}
        return {key: number for key, number in numbers.items() if number is not None}

    def column(self, name: str, x: str = "seconds") -> list[tuple[float, float]]:
        """A column of the rows over another; rows that lack either are left out."""
        return [(float(row[x]), float(row[name])) for row in self.rows if x in row and name in row]

    @property
    def seconds(self) -> float:
        """Of training, as far as it is known."""
        known = [self.number("seconds") or 0.0, *(at for at, _ in self.column("seconds"))]
        return max(known)

    @property
    def epoch_s(self) -> float:
        """The engine's clock when training began."""
        return (self.parts[0].activity.start or 0.0) if self.parts else 0.0


def number_or_none(value: object) -> float | None:
    """A finite number, and nothing else."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def read_run(path: Path) -> RunData:
    """Everything that is in a directory of ``ebrl train`` or ``ebrl forecast``.

    Raises:
        UsageError: it is neither.
    """
    if not path.is_dir():
        raise UsageError(f"{path} is not a directory; want one that ebrl train or ebrl forecast has made")
    if not any((path / name).is_file() for name in _MARKS):
        raise UsageError(f"{path} is neither a run nor a forecast: it has none of {', '.join(_MARKS)}")
    missing: list[str] = []
    is_forecast = (path / "forecast.json").is_file() and not (path / "metrics.jsonl").exists()
    found = [part for name in parts(path) if (part := _part(path, name, missing)) is not None]
    rows = _rows(path, found, missing, is_forecast=is_forecast)
    if not found and not any("events" in line for line in missing):
        missing.append(
            "There is no event log (records.level = off?), so there is no timeline and no reason for idle time, and "
            "busy shares are those that processes measured themselves."
        )
    text = _config_text(path, missing)
    return RunData(
        path=path,
        name=path.resolve().name,
        is_forecast=is_forecast,
        config_text=text,
        config=_parsed(text, missing),
        summary=_summary(path, missing, is_forecast=is_forecast),
        plan=_document(path / plan_file(""), []),
        rows=rows,
        parts=found,
        missing=missing,
    )


def _summary(path: Path, missing: list[str], *, is_forecast: bool) -> dict[str, Any]:
    if is_forecast:
        return _document(path / "forecast.json", missing)
    if not (path / "summary.json").exists():
        missing.append(
            "There is no summary.json: the run is still going on, or it was killed. Totals, ledger and staleness are "
            "written at its end (ebrl train --resume goes on from the newest checkpoint)."
        )
        return {}
    return _document(path / "summary.json", missing)


def _rows(path: Path, found: list[Part], missing: list[str], *, is_forecast: bool) -> list[Row]:
    try:
        rows = [_numbers(row) for row in read_metrics(path) if isinstance(row, dict)]
    except (OSError, UnicodeDecodeError) as error:
        missing.append(f"metrics.jsonl cannot be read ({error}).")
        rows = []
    if rows:
        return rows
    rows = _one_after_another(found)
    if not is_forecast:
        missing.append(
            "metrics.jsonl has no row: "
            + ("rates are those of the event log." if rows else "no update was finished, so there are no curves.")
        )
    return rows


def _numbers(row: dict[str, Any]) -> Row:
    return {key: number for key, value in row.items() if (number := number_or_none(value)) is not None}


def _one_after_another(found: list[Part]) -> list[Row]:
    """Rows of all parts; seconds and env steps go on."""
    rows: list[Row] = []
    seconds = steps = 0.0
    for part in found:
        rows += [
            {**row, "seconds": row["seconds"] + seconds, "env_steps": row["env_steps"] + steps} for row in part.rows
        ]
        seconds += part.activity.now - (part.activity.start or 0.0)
        steps += part.activity.env_steps
    return rows


def _config_text(path: Path, missing: list[str]) -> str:
    try:
        return (path / "config.toml").read_text(encoding="utf-8")
    except FileNotFoundError:
        missing.append("There is no config.toml.")
    except (OSError, UnicodeDecodeError) as error:
        missing.append(f"config.toml cannot be read ({error}).")
    return ""


def _parsed(text: str, missing: list[str]) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        missing.append(f"config.toml is not TOML ({error}).")
        return {}


def _document(path: Path, missing: list[str]) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        missing.append(f"{path.name} cannot be read ({error}).")
        return {}
    if not isinstance(document, dict):
        missing.append(f"{path.name} is not a JSON object.")
        return {}
    return cast("dict[str, Any]", document)


def _part(path: Path, name: str, missing: list[str]) -> Part | None:
    """One event log, up to the first line that cannot be understood."""
    try:
        plan = plan_from_json(json.loads((path / plan_file(name)).read_text())["scheduler"])
    except (OSError, ValueError, LookupError, TypeError) as error:
        missing.append(
            f"{event_file(name)} is of no use without {plan_file(name)}, which cannot be read "
            f"({type(error).__name__}: {error})."
        )
        return None
    spans = LaneSpans(plan)
    activity = Activity(plan, span=spans)
    rows = _RowMaker(activity)
    try:
        _see_all(path / event_file(name), activity, rows)
    except (OSError, ValueError, LookupError, TypeError) as error:
        missing.append(
            f"{event_file(name)} is used up to {activity.now:.1f} s only: what follows is damaged, or of another "
            f"version of this program ({type(error).__name__}: {error})."
        )
    if activity.start is None:
        missing.append(f"{event_file(name)} holds no whole event yet (it is written a few hundred at a time).")
        return None
    activity.finish()
    return Part(activity, spans, rows.rows)


def _see_all(path: Path, activity: Activity, then: Callable[[], None]) -> None:
    for now, event, commands in read_events(path):
        activity.see(now, event, [command_from_json(command) for command in commands])
        then()


class _RowMaker:
    """Adds a row at each update that it finds in an activity."""

    def __init__(self, activity: Activity) -> None:
        self.rows: list[Row] = []
        self._activity = activity
        self._before = (0.0, 0)
        """Seconds and env steps at the update before."""

    def __call__(self) -> None:
        activity = self._activity
        if len(activity.updates) == len(self.rows):
            return
        seconds, steps = activity.now - (activity.start or 0.0), activity.env_steps
        passed = max(seconds - self._before[0], 1e-9)
        self.rows.append(
            {
                "policy_version": int(activity.plan.first_version) + len(activity.updates),
                "seconds": seconds,
                "env_steps": steps,
                "simulation/env_steps_per_s": (steps - self._before[1]) / passed,
                "training/trajectories_per_s": activity.updates[-1][1] / passed,
            }
        )
        self._before = (seconds, steps)


def merged(found: list[Part]) -> dict[str, Any]:
    """Figures of all parts of a run together: shares weighted by seconds; empty without an event log."""
    if not found:
        return {}
    each = [figures(part.activity) for part in found]
    seconds = sum(one["seconds"] for one in each)
    weights = [one["seconds"] / seconds for one in each]
    idle = {stage: _weighted(weights, [one["idle"][stage] for one in each]) for stage in each[0]["idle"]}
    steps = sum(one["env_steps"] for one in each)
    return {
        "seconds": seconds,
        "updates": sum(one["updates"] for one in each),
        "env_steps": steps,
        "env_steps_per_s": steps / seconds,
        "generation_batch_mean": sum(part.activity.chunks for part in found)
        / max(sum(part.activity.num_batches for part in found), 1),
        "busy": _weighted(weights, [one["busy"] for one in each]),
        "idle": {stage: dict(sorted(one.items(), key=lambda item: -item[1])) for stage, one in idle.items()},
    }


def _weighted(weights: list[float], shares: list[dict[str, float]]) -> dict[str, float]:
    total: dict[str, float] = {}
    for weight, one in zip(weights, shares, strict=True):
        for name, share in one.items():
            total[name] = total.get(name, 0.0) + weight * share
    return total
