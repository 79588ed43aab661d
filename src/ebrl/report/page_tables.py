"""The tables of a page: key figures, comparison, ledger, failures, moves, limits, ending, configuration, machine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ebrl.report.charts import number_text
from ebrl.report.page_curves import moves_of
from ebrl.report.page_data import RunData, number_or_none
from ebrl.report.page_figures import compare, config_differences, figures_of, value_text
from ebrl.report.page_markup import Markup, facts, tag
from ebrl.report.page_markup import table as make_table

_MOST_MOVES = 30


def card(title: str, *content: Markup) -> Markup:
    """A box with a title."""
    return tag("div", tag("h3", title), *content, class_="card")


def tiles(run: RunData) -> Markup:
    """The few figures that one looks for first."""
    figures = figures_of(run)
    shown = [("outcome", _outcome(run))]
    before, after = figures.get("success_before"), figures.get("success_after")
    if before is not None or after is not None:
        shown.append(("success", f"{_percent(before)} → {_percent(after)}"))
    elif "success_training" in figures:
        shown.append(("success in training", _percent(figures["success_training"])))
    for key, label in (
        ("updates", "updates"),
        ("env_steps", "env steps"),
        ("env_steps_per_s", "env steps/s"),
        ("trajectories_per_s", "trajectories/s"),
    ):
        if key in figures:
            shown.append((label, number_text(figures[key]) if key.endswith("_s") else _whole(figures[key])))
    if "seconds" in figures:
        shown.append(("training took", duration(figures["seconds"])))
    if "staleness_max" in figures and "staleness_bound" in figures:
        shown.append(("staleness", f"{figures['staleness_max']:.0f} of at most {figures['staleness_bound']:.0f}"))
    boxes = (tag("div", tag("dt", name), tag("dd", value)) for name, value in shown)
    return tag("div", tag("h3", run.titled("Key figures")), tag("dl", *boxes), class_="tiles")


def comparison_table(runs: Sequence[RunData]) -> Markup:
    """Figures of two runs with their ratio, and what differs between their configurations."""
    one, other = runs
    rows = [
        (line.figure.label, value_text(line.figure, line.one), value_text(line.figure, line.other), _ratio(line.ratio))
        for line in compare(figures_of(one), figures_of(other))
    ]
    text = tag("p", f"The ratio is {other.name} over {one.name}.", class_="see")
    return card("Figures", text, make_table(("figure", one.name, other.name, "ratio"), rows, class_="numbers"))


def ledger_table(run: RunData) -> Markup:
    """What became of every trajectory that was admitted."""
    ledger = run.summary.get("ledger")
    if not isinstance(ledger, dict):
        return card(run.titled("Ledger"), tag("p", _no_totals(run, "What became of each trajectory")))
    rows = [(name, _whole(ledger.get(name))) for name in ("admitted", "trained")]
    rows += [(f"dropped: {reason}", _whole(n)) for reason, n in run.counts("ledger", "dropped").items()]
    rows.append(("unfinished at the end", _whole(ledger.get("abandoned"))))
    balances = run.summary.get("ledger_balances")
    verdict = (
        "It balances: admitted is the sum of the rest." if balances else "IT DOES NOT BALANCE: please report this."
    )
    if balances is None:
        verdict = "Whether it balances was not recorded."
    return card(run.titled("Ledger"), tag("p", verdict), make_table(("trajectories", "number"), rows, class_="numbers"))


def failure_tables(run: RunData) -> Markup:
    """Failures and restarts by reason."""
    if "env_failures" not in run.summary:
        return card(run.titled("By reason"), tag("p", _no_totals(run, "Reasons of failures")))
    rows = [(f"environment: {reason}", _whole(n)) for reason, n in run.counts("env_failures").items()]
    rows += [(f"restarted: {kind}", _whole(n)) for kind, n in run.counts("restarts").items()]
    rows += [(f"recycled: {kind}", _whole(n)) for kind, n in run.counts("recycled").items() if n]
    for key, label in (
        ("updates_skipped", "updates skipped (loss or gradient not finite)"),
        ("ignored_answers", "late answers of replaced processes, ignored"),
        ("siblings_replaced", "siblings played again"),
        ("evaluation_episodes_failed", "evaluation episodes failed"),
        ("evaluation_episodes_retried", "evaluation episodes played again after a failure"),
    ):
        if run.number(key):
            rows.append((label, _whole(run.number(key))))
    if not rows:
        return card(run.titled("By reason"), tag("p", "Nothing failed, nothing was restarted."))
    return card(run.titled("By reason"), make_table(("what", "number"), rows, class_="numbers"))


def moves_table(run: RunData) -> list[Markup]:
    """Every move between stages with its reason; nothing where there was none."""
    moves = moves_of(run)
    if not moves:
        return []
    rows = [(f"{at:.1f}", why) for at, why in moves[:_MOST_MOVES]]
    rows += [("…", f"and {len(moves) - _MOST_MOVES} more, see summary.json")] if len(moves) > _MOST_MOVES else []
    return [card(run.titled("Moves"), make_table(("asked for at (s)", "why"), rows))]


def limits_table(run: RunData) -> Markup:
    """A forecast's upper limits."""
    roofline: dict[str, Any] = run.summary["roofline"]
    rows = [(name, number_text(value)) for name, value in sorted(run.counts("roofline", "limits").items(), key=_second)]
    text = f"{roofline.get('binding', 'nothing')} binds: no run can be faster than the least of these."
    head = ("limit by", "trajectories/s")
    return card(run.titled("Limits"), tag("p", text, class_="see"), make_table(head, rows, class_="numbers"))


def ending(run: RunData) -> Markup:
    """Outcome, reason, error, and how long everything took."""
    pairs = [("outcome", _outcome(run))]
    pairs += [(name, run.text(name)) for name in ("reason", "resumed_from") if run.text(name)]
    for key, label in (
        ("start_seconds", "start of all processes"),
        ("wall_seconds", "all of it, evaluations included"),
    ):
        value = run.number(key)
        if value is not None:
            pairs.append((label, duration(value)))
    if run.number("parameters"):
        pairs.append(("parameters of the policy", _whole(run.number("parameters"))))
    content = [facts(pairs)]
    if run.text("error"):
        content.append(tag("pre", run.text("error"), class_="error"))
    return card(run.titled("Outcome"), *content)


def config_table(runs: Sequence[RunData]) -> list[Markup]:
    """Each configuration word for word; before it, of two, what differs."""
    cards = []
    if len(runs) > 1:
        rows = config_differences(runs[0].config, runs[1].config)
        same = tag("p", "No field differs.")
        table = make_table(("field", runs[0].name, runs[1].name), rows) if rows else same
        cards.append(card("Differences", table))
    for run in runs:
        text = tag("pre", run.config_text) if run.config_text else tag("p", "There is no config.toml.")
        whole = tag("details", tag("summary", "config.toml"), text, open=None if len(runs) > 1 else "")
        cards.append(card(run.titled("As it was run"), whole))
    return cards


def machine_facts(run: RunData) -> Markup:
    """The machine of a run, as the summary or the plan has it."""
    machine = run.summary.get("machine") or run.plan.get("machine")
    if not isinstance(machine, dict):
        return card(run.titled("Where it ran"), tag("p", "The machine was not recorded."))
    pairs = []
    for name, value in machine.items():
        size = number_or_none(value) if name.endswith("_bytes") else None
        words = f"{size / 2**30:.1f} GiB" if size is not None else str(value)
        pairs.append((name.removesuffix("_bytes").replace("_", " "), words))
    return card(run.titled("Where it ran"), facts(pairs))


def duration(seconds: float) -> str:
    """Seconds for people."""
    if seconds < 60:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def _outcome(run: RunData) -> str:
    if run.is_forecast:
        return "forecast"
    return run.text("outcome") or "no summary yet"


def _no_totals(run: RunData, what: str) -> str:
    if run.is_forecast:
        return f"{what} is not part of a forecast."
    return f"{what} is written to summary.json at the end of training; this run has not got there."


def _percent(value: float | None) -> str:
    return "not measured" if value is None else number_text(value, percent=True)


def _whole(value: object) -> str:
    number = number_or_none(value)
    return "–" if number is None else f"{number:,.0f}"


def _ratio(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f} ×"


def _second(item: tuple[str, float]) -> float:
    return item[1]
