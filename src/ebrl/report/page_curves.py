"""The charts of a page: learning, speed, busy and idle time, staleness, allocation, failures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ebrl.report.charts import (
    Axis,
    Bar,
    Mark,
    Point,
    Series,
    absent,
    bar_chart,
    column_chart,
    line_chart,
    number_text,
    run_colour,
)
from ebrl.report.page_data import RunData, number_or_none
from ebrl.report.page_figures import STAGES, figures_of, staleness_of
from ebrl.report.page_markup import Markup

Runs = Sequence[RunData]
"""One run, or two that are compared."""

_STEPS = Axis(label="env steps")


def learning_charts(runs: Runs) -> list[Markup]:
    """Success and return against env steps and against wall-clock time."""
    if all(run.is_forecast for run in runs):
        return [absent("Learning curve", "A forecast says how fast a run is, not what it learns.")]
    clock, per = time_axis(runs)
    charts = []
    for x, unit, axis in (("env_steps", 1.0, _STEPS), ("seconds", per, clock)):
        against = "env steps" if x == "env_steps" else "wall-clock time"
        charts.append(
            line_chart(
                f"Success against {against}",
                _see_success(runs),
                axis,
                Axis(label="success rate (%)", low=0.0, high=1.0, percent=True),
                [*_lines(runs, "rollout/success_rate", x, unit), *_evaluations(runs, x, unit)],
            )
        )
        charts.append(
            line_chart(
                f"Return against {against}",
                "Mean return of the last 200 training episodes; it should rise, and then level off.",
                axis,
                Axis(label="return of an episode"),
                _lines(runs, "rollout/return_mean", x, unit),
            )
        )
    return charts


def speed_charts(runs: Runs) -> list[Markup]:
    """Env steps, trajectories and effective trajectories per second."""
    clock, per = time_axis(runs)
    steps = line_chart(
        "Env steps per second",
        "What simulation delivers, per update. A level line is a steady pipeline; dips are waits, restarts or stalls.",
        clock,
        Axis(label="env steps/s"),
        _lines(runs, "simulation/env_steps_per_s", "seconds", per),
    )
    suffixes = (("", "trained", False), ("effective_", "effective", True))
    series = [
        Series(name=_named(runs, run, words), points=points, colour=run_colour(index), dashed=dashed)
        for index, run in enumerate(runs)
        for kind, words, dashed in suffixes
        if (points := _scaled(run.column(f"training/{kind}trajectories_per_s"), per))
    ]
    trained = line_chart(
        "Trajectories per second",
        "What training takes in. Effective: times the effective sample share, so the gap is the price of staleness.",
        clock,
        Axis(label="trajectories/s"),
        series,
    )
    return [steps, trained]


def busy_charts(runs: Runs) -> list[Markup]:
    """Shares of time in which each stage worked, and why it did not."""
    return [_busy_bars(runs), _busy_over_time(runs)]


def _busy_bars(runs: Runs) -> Markup:
    title = "Busy and idle, by reason"
    figures = [figures_of(run) for run in runs]
    bars = []
    for stage in STAGES:
        values = [one.get(f"busy/{stage}") for one in figures]
        if all(value is None for value in values):
            continue
        bars.append(Bar(label="busy", values=values, colour=stage, heading=stage))
        start = f"idle/{stage}/"
        reasons = dict.fromkeys(key for one in figures for key in one if key.startswith(start))
        for key in reasons:
            shares = [one.get(key) for one in figures]
            if max(share or 0.0 for share in shares) >= 0.001:
                label = f"waits for {key.removeprefix(start)}" if "nothing" not in key else "has nothing to do"
                bars.append(Bar(label=label, values=shares, colour="waiting"))
    if not bars:
        return absent(title, "Neither an event log nor a summary says how busy the stages were.")
    see = "One stage is busy nearly always and limits the run; the others say what they wait for."
    if any(key.startswith("idle/") for one in figures for key in one):
        see = f"From command to answer. {see}"
    else:
        see += " As processes measured it; reasons are missing, for there is no event log."
    if any(moves_of(run) for run in runs):
        see += " CPUs of simulation are those it had at the start."
    return bar_chart(
        title, see, Axis(label="share of time (%)", low=0.0, high=1.0, percent=True), bars, [run.name for run in runs]
    )


def _busy_over_time(runs: Runs) -> Markup:
    clock, per = time_axis(runs)
    series = [
        Series(name=_named(runs, run, stage), points=points, colour=stage, dashed=bool(index))
        for index, run in enumerate(runs)
        for stage in STAGES
        if (points := _scaled(run.column(f"{stage}/busy_fraction"), per))
    ]
    title = "Busy over time"
    if not series:
        return absent(title, "Only metrics.jsonl has this, one value per update.")
    see = "Per update, as processes measured it: without messages there and back, which the bars count as busy."
    return line_chart(title, see, clock, Axis(label="share of time (%)", low=0.0, percent=True), series)


def staleness_chart(runs: Runs) -> Markup:
    """How many updates old the weights were that trained trajectories were made with."""
    counts, bounds = [], []
    for run in runs:
        staleness = staleness_of(run)
        total = sum(staleness.values())
        counts.append((run.name, {s: n / total for s, n in staleness.items()} if total else {}))
        bound = run.number("staleness_bound")
        bounds.append(None if bound is None else int(bound))
    title = "Staleness of trained trajectories"
    if not any(one for _, one in counts):
        return absent(title, "No trajectory was trained, or the run's summary is missing.")
    return column_chart(
        title,
        "No column may stand to the right of its run's bound; the more of it is at 0, the fresher the data.",
        Axis(label="updates between the oldest weights of a trajectory and its training"),
        Axis(label="share of trajectories (%)", low=0.0, percent=True),
        counts,
        bounds,
    )


def allocation_charts(run: RunData) -> list[Markup]:
    """CPUs, and units of a GPU, of each stage over time; one sentence where nobody manages them."""
    title = run.titled("CPUs of each stage")
    clock, per = time_axis([run])
    split = _split(run)
    if not split:
        return [absent(title, "Not managed: the stages share the CPUs as the kernel sees fit (no split in the plan).")]
    marks = [Mark(at=at / per, label=f"{at:.1f} s: {why}") for at, why in moves_of(run)]
    see = (
        f"{len(marks)} move{'s' * (len(marks) > 1)} (vertical lines)."
        if marks
        else "No move: the split stayed as it was planned."
    )
    charts = [
        line_chart(
            title,
            f"{see} CPUs should go to the stage that limits the run; stages may share some.",
            clock,
            Axis(label="CPUs", whole=True),
            _allocated(run, split, {stage: f"{stage}_cpus" for stage in STAGES}, per),
            marks,
        )
    ]
    units = _allocated(run, split, {stage: f"{stage}_units" for stage in STAGES[1:]}, per)
    if any(value for one in units for _, value in one.points):
        label = Axis(label="units of each GPU (SMs or %)")
        charts.append(line_chart(run.titled("GPU units of each stage"), see, clock, label, units, marks))
    return charts


def _split(run: RunData) -> dict[str, float]:
    """What each stage has at the beginning."""
    split: Any = run.plan.get("scheduler")
    split = split.get("split") if isinstance(split, dict) else None
    if not isinstance(split, dict):
        return {}
    first = {f"{stage}_cpus": float(len(split[stage])) for stage in STAGES if isinstance(split.get(stage), list)}
    units = {f"{stage}_units": number_or_none(split.get(f"{stage}_units")) for stage in STAGES[1:]}
    return first | {key: value for key, value in units.items() if value is not None}


def _allocated(run: RunData, split: dict[str, float], columns: dict[str, str], per: float) -> list[Series]:
    lines = []
    for stage, column in columns.items():
        if column in split:
            points = [(0.0, split[column]), *run.column(f"resources/{column}")]
            points.append((max(run.seconds, points[-1][0]), points[-1][1]))
            lines.append(Series(name=stage, points=_scaled(points, per), colour=stage, stepped=True))
    return lines


def moves_of(run: RunData) -> list[tuple[float, str]]:
    """When each move was asked for, in seconds since training began, and why."""
    resources = run.summary.get("resources")
    moves = resources.get("moves") if isinstance(resources, dict) else None
    found = []
    for move in moves if isinstance(moves, list) else []:
        at = number_or_none(move.get("asked_s")) if isinstance(move, dict) else None
        if at is not None:
            found.append((max(at - run.epoch_s, 0.0), str(move.get("why", ""))))
    return found


def failure_chart(runs: Runs) -> Markup:
    """Failures and restarts so far, over time."""
    clock, per = time_axis(runs)
    kinds = (("failures/env", "environments", False), ("failures/restarts", "restarts", True))
    series = [
        Series(name=_named(runs, run, words), points=points, colour=run_colour(index), dashed=dashed, stepped=True)
        for index, run in enumerate(runs)
        for kind, words, dashed in kinds
        if (points := _scaled(run.column(kind), per))
    ]
    title = "Failures and restarts over time"
    if not any(value for one in series for _, value in one.points):
        return absent(title, "None was recorded." if series else "Only metrics.jsonl has this, one value per update.")
    see = "Counted since the start. Single steps are survived; a line that keeps rising wants a look at logs/."
    return line_chart(title, see, clock, Axis(label="number so far", whole=True), series)


def time_axis(runs: Runs) -> tuple[Axis, float]:
    """The axis of wall-clock time, and how many seconds its unit has."""
    longest = max((run.seconds for run in runs), default=0.0)
    unit, per = next((one for one in (("h", 3600.0), ("min", 60.0)) if longest >= 5 * one[1]), ("s", 1.0))
    return Axis(label=f"wall-clock time of training ({unit})"), per


def _lines(runs: Runs, column: str, x: str, per: float) -> list[Series]:
    return [
        Series(
            name=run.name if len(runs) > 1 else "training",
            points=_scaled(run.column(column, x), per),
            colour=run_colour(index),
            dashed=bool(index),
        )
        for index, run in enumerate(runs)
    ]


def _evaluations(runs: Runs, x: str, per: float) -> list[Series]:
    """Dots at both ends of the run."""
    dots = []
    for index, run in enumerate(runs):
        end = (
            run.seconds if x == "seconds" else max((at for at, _ in run.column("env_steps", "env_steps")), default=0.0)
        )
        ends: list[tuple[float, float | None]] = [
            (0.0, run.number("success_before")),
            (end, run.number("success_after")),
        ]
        points = [(at / per, value) for at, value in ends if value is not None]
        dots.append(Series(name=_named(runs, run, "evaluation"), points=points, colour=run_colour(index), dots=True))
    return dots


def _see_success(runs: Runs) -> str:
    text = "Success of the last 200 training episodes; it should rise."
    for run in runs:
        before, after, episodes = (run.number(k) for k in ("success_before", "success_after", "evaluation_episodes"))
        if before is not None and after is not None:
            change = f"{number_text(before, percent=True)} before, {number_text(after, percent=True)} after"
            name = f"{run.name}: " if len(runs) > 1 else ""
            text += f" {name}{change} ({episodes or 0:.0f} evaluation episodes, dots)."
        elif not run.is_forecast:
            text += f" {run.name if len(runs) > 1 else 'This run'} was not evaluated at both ends."
    return text


def _named(runs: Runs, run: RunData, words: str) -> str:
    return f"{run.name}: {words}" if len(runs) > 1 else words


def _scaled(points: list[Point], per: float) -> list[Point]:
    return [(x / per, y) for x, y in points]
