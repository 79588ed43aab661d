"""``report.html``: one page about a run, or about two side by side. It needs nothing but itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ebrl.errors import UsageError
from ebrl.report.chart_lanes import lane_chart
from ebrl.report.charts import absent
from ebrl.report.page_curves import (
    allocation_charts,
    busy_charts,
    failure_chart,
    learning_charts,
    speed_charts,
    staleness_chart,
)
from ebrl.report.page_data import Part, RunData, read_run
from ebrl.report.page_figures import compare, config_differences, figures_of
from ebrl.report.page_markup import Markup, joined, tag
from ebrl.report.page_tables import (
    comparison_table,
    config_table,
    ending,
    failure_tables,
    ledger_table,
    limits_table,
    machine_facts,
    moves_table,
    tiles,
)
from ebrl.report.timeline import window

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
"""What the page may load: nothing."""


@dataclass(frozen=True, slots=True)
class Report:
    """What became of a page."""

    path: Path
    document: dict[str, Any]
    """Figures of each run, what is missing, and of two runs the comparison."""


def write_report(run_dir: Path, other: Path | None = None, output: Path | None = None) -> Report:
    """Write the page of a run, or of two runs side by side.

    Args:
        run_dir: of ``ebrl train`` or ``ebrl forecast``.
        other: what it is compared with.
        output: the file; None is ``report.html`` in ``run_dir``.

    Raises:
        UsageError: a directory is neither a run nor a forecast, or the file cannot be written.
    """
    runs = _told_apart([read_run(path) for path in (run_dir, other) if path is not None])
    path = output or run_dir / "report.html"
    text = page(runs)
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{path} cannot be written ({error.strerror}); choose another file with --output") from error
    return Report(path, _document(runs, path))


def page(runs: Sequence[RunData]) -> str:
    """The page of one run or of two."""
    title = " and ".join(run.name for run in runs)
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("title", f"{title} · EBRL"),
        tag("style", _file("page.css")),
    )
    sections = _sections(runs)
    links = (tag("a", name, href=f"#{_anchor(name)}") for name, _ in sections)
    body = tag(
        "body",
        tag("header", tag("h1", title), *(_subtitle(run, len(runs) > 1) for run in runs)),
        tag("nav", *links, aria_label="sections"),
        tag("main", *(_section(name, content) for name, content in sections)),
        tag("script", _file("page.js")),
    )
    return "<!DOCTYPE html>\n" + tag("html", head, body, lang="en") + "\n"


def _sections(runs: Sequence[RunData]) -> list[tuple[str, Sequence[Markup]]]:
    two = len(runs) > 1
    sections: list[tuple[str, Sequence[Markup]]] = [("Overview", [*map(tiles, runs), *_missing(runs)])]
    if two:
        sections.append(("Comparison", [comparison_table(runs)]))
    sections += [
        ("Learning", learning_charts(runs)),
        ("Throughput", speed_charts(runs)),
        ("Busy and idle", busy_charts(runs)),
        ("Timeline", [_timeline(run) for run in runs]),
        ("Staleness", [staleness_chart(runs), *map(ledger_table, runs)]),
        ("Allocation", [shape for run in runs for shape in (*allocation_charts(run), *moves_table(run))]),
        ("Failures", [failure_chart(runs), *(failure_tables(run) for run in runs)]),
    ]
    limits = [limits_table(run) for run in runs if isinstance(run.summary.get("roofline"), dict)]
    if limits:
        sections.append(("Limits", limits))
    sections += [
        ("How it ended", [ending(run) for run in runs]),
        ("Configuration", config_table(runs)),
        ("Machine", [machine_facts(run) for run in runs]),
    ]
    return sections


def _section(name: str, content: Sequence[Markup]) -> Markup:
    return tag("section", tag("h2", name), tag("div", *content, class_="grid"), id=_anchor(name))


def _anchor(name: str) -> str:
    return name.lower().replace(" ", "-")


def _subtitle(run: RunData, named: bool) -> Markup:
    section = {name: table if isinstance(table, dict) else {} for name, table in run.config.items()}
    kind = "forecast" if run.is_forecast else "run"
    words = [f"{kind} {run.name}" if named else kind]
    words += [run.text(name) or str(section.get(name, {}).get("name", "")) for name in ("env", "policy", "algorithm")]
    seed = run.text("seed") or str(section.get("run", {}).get("seed", ""))
    words += [f"seed {seed}"] if seed else []
    return tag("p", " · ".join(word for word in words if word), class_="subtitle")


def _missing(runs: Sequence[RunData]) -> list[Markup]:
    notes = [
        (f"{run.name}: " if len(runs) > 1 else "") + line for run in runs for line in (*run.missing, *_resumed(run))
    ]
    if not notes:
        return []
    return [
        tag("div", tag("h3", "What to know about this page"), tag("ul", *(tag("li", n) for n in notes)), class_="note")
    ]


def _resumed(run: RunData) -> list[str]:
    if len(run.parts) < 2 and not run.text("resumed_from"):
        return []
    return ["The run was resumed: totals, staleness and ledger count from then on, curves from the first start."]


def _timeline(run: RunData) -> Markup:
    title = run.titled("Who did what when")
    part = next((part for part in run.parts if part.spans.all), None)
    if part is None:
        return absent(title, "There is no event log to draw it from (records.level = off?).")
    view, end = _view(part)
    return lane_chart(title, part.spans, start=part.activity.start or 0.0, view=view, end=end)


def _view(part: Part) -> tuple[tuple[float, float], float]:
    end = max(part.activity.now, (part.activity.start or 0.0) + 1e-3)
    first, last = window(part.activity, part.spans.all, None)
    last = min(last, part.spans.until)
    return (first, max(last, first + 1e-3)), max(end, last)


def _told_apart(runs: list[RunData]) -> list[RunData]:
    """Two runs of the same name get their parent directory's too, or a number."""
    if len(runs) < 2:
        return runs
    runs = [replace(run, compared=True) for run in runs]
    if runs[0].name != runs[1].name:
        return runs
    names = [f"{run.path.resolve().parent.name}/{run.name}" for run in runs]
    if names[0] == names[1]:
        names = [f"{runs[0].name} (1)", f"{runs[1].name} (2)"]
    return [replace(run, name=name) for run, name in zip(runs, names, strict=True)]


def _document(runs: Sequence[RunData], path: Path) -> dict[str, Any]:
    figures = [figures_of(run) for run in runs]
    document: dict[str, Any] = {
        "report": str(path),
        "runs": [
            {
                "run_dir": str(run.path),
                "name": run.name,
                "kind": "forecast" if run.is_forecast else "run",
                "outcome": run.text("outcome"),
                "figures": one,
                "missing": run.missing,
            }
            for run, one in zip(runs, figures, strict=True)
        ],
    }
    if len(runs) > 1:
        lines = compare(figures[0], figures[1])
        document["comparison"] = [
            {"figure": line.figure.key, "values": [line.one, line.other], "ratio": line.ratio} for line in lines
        ]
        document["config_differences"] = [
            {"field": name, "values": [one, other]}
            for name, one, other in config_differences(runs[0].config, runs[1].config)
        ]
    return document


def _file(name: str) -> Markup:
    return joined([Markup(Path(__file__).with_name(name).read_text(encoding="utf-8"))])
