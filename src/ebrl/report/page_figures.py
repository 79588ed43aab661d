"""The figures of a page: one flat table for each run, so that two can be laid side by side."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from ebrl.report.charts import number_text
from ebrl.report.page_data import Row, RunData, merged

STAGES = ("simulation", "generation", "training")


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of the comparison."""

    key: str
    label: str
    percent: bool = False


FIGURES = (
    Figure("success_before", "success before training", percent=True),
    Figure("success_after", "success after training", percent=True),
    Figure("success_training", "success of the last training episodes", percent=True),
    Figure("updates", "updates"),
    Figure("env_steps", "env steps"),
    Figure("seconds", "wall-clock seconds of training"),
    Figure("env_steps_per_s", "env steps/s"),
    Figure("trajectories_per_s", "trajectories/s, first update to last"),
    Figure("effective_trajectories_per_s", "effective trajectories/s (times the effective sample share)"),
    Figure("generation_batch_mean", "chunks per generation batch"),
    *(Figure(f"busy/{stage}", f"{stage} busy", percent=True) for stage in STAGES),
    Figure("staleness_mean", "mean staleness (updates)"),
    Figure("staleness_max", "largest staleness (updates)"),
    Figure("staleness_bound", "staleness bound (updates)"),
    Figure("env_failures", "failures of environments"),
    Figure("restarts", "processes restarted"),
    Figure("updates_skipped", "updates skipped"),
    Figure("dropped", "trajectories dropped"),
)
"""What is compared, in this order."""


@dataclass(frozen=True, slots=True)
class Compared:
    """A figure of two runs."""

    figure: Figure
    one: float | None
    other: float | None

    @property
    def ratio(self) -> float | None:
        """The other over the one."""
        return self.other / self.one if self.one and self.other is not None else None


def figures_of(run: RunData) -> dict[str, Any]:
    """What is known of a run: the keys of ``FIGURES`` and, with an event log, ``idle/STAGE/REASON``."""
    events = merged(run.parts)
    last: Row = run.rows[-1] if run.rows else {}
    staleness = staleness_of(run)
    trained = sum(staleness.values())
    known: dict[str, float | None] = {
        "success_before": run.number("success_before"),
        "success_after": run.number("success_after"),
        "success_training": _first(run.number("success_rate_training"), last.get("rollout/success_rate")),
        "updates": _first(run.number("policy_version"), last.get("policy_version"), events.get("updates")),
        "env_steps": _first(run.number("env_steps"), last.get("env_steps"), events.get("env_steps")),
        "seconds": _first(run.number("seconds"), last.get("seconds"), events.get("seconds")),
        "env_steps_per_s": _first(events.get("env_steps_per_s"), run.number("env_steps_per_s")),
        "trajectories_per_s": _first(
            mean_rate(run.rows, "training/trajectories_per_s"), run.number("trajectories_per_s")
        ),
        "effective_trajectories_per_s": mean_rate(run.rows, "training/effective_trajectories_per_s"),
        "generation_batch_mean": _first(events.get("generation_batch_mean"), run.number("generation_batch_mean")),
        "staleness_mean": sum(s * n for s, n in staleness.items()) / trained if trained else None,
        "staleness_max": max((s for s, n in staleness.items() if n), default=None),
        "staleness_bound": run.number("staleness_bound"),
        "updates_skipped": run.number("updates_skipped"),
        **{f"busy/{stage}": _first(events.get("busy", {}).get(stage), run.number("busy", stage)) for stage in STAGES},
    }
    for key, where in (
        ("env_failures", ("env_failures",)),
        ("restarts", ("restarts",)),
        ("dropped", ("ledger", "dropped")),
    ):
        known[key] = sum(run.counts(*where).values()) if where[0] in run.summary else None
    for stage, reasons in events.get("idle", {}).items():
        known |= {f"idle/{stage}/{reason}": share for reason, share in reasons.items()}
    return {key: value for key, value in known.items() if value is not None}


def staleness_of(run: RunData) -> dict[int, float]:
    """Trajectories trained, by staleness."""
    return {int(key): n for key, n in run.counts("staleness_counts").items() if key.isdecimal()}


def mean_rate(rows: list[Row], name: str) -> float | None:
    """Mean of a rate from the first update to the last; of a single one since the start."""
    points = [(row["seconds"], row[name]) for row in rows if "seconds" in row and name in row]
    if len(points) < 2:
        return points[0][1] if points else None
    passed = points[-1][0] - points[0][0]
    amount = sum(rate * (at - before) for (before, _), (at, rate) in pairwise(points))
    return amount / passed if passed > 0.0 else None


def compare(one: dict[str, Any], other: dict[str, Any]) -> list[Compared]:
    """All figures that either has."""
    return [
        Compared(figure, one.get(figure.key), other.get(figure.key))
        for figure in FIGURES
        if figure.key in one or figure.key in other
    ]


def value_text(figure: Figure, value: float | None) -> str:
    """A figure for people."""
    if value is None:
        return "–"
    if not figure.percent and value == int(value):
        return f"{int(value):,}"
    return number_text(value, percent=figure.percent)


def config_differences(one: dict[str, Any], other: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Field, its value in one run and in the other, for every field that differs."""
    before, after = _flat(one), _flat(other)
    return [
        (name, _said(before, name), _said(after, name))
        for name in sorted(before.keys() | after.keys())
        if before.get(name, _flat) != after.get(name, _flat)
    ]


def _said(fields: dict[str, Any], name: str) -> str:
    return repr(fields[name]) if name in fields else "–"


def _flat(document: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for name, value in document.items():
        if isinstance(value, dict):
            fields |= _flat(value, f"{prefix}{name}.")
        else:
            fields[f"{prefix}{name}"] = value
    return fields


def _first(*values: float | None) -> float | None:
    """The first that is known."""
    return next((value for value in values if value is not None), None)
