"""Runs to write pages about, and a strict reader of pages."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path

from ebrl.engines.virtual.costs import Costs
from ebrl.engines.virtual.engine import VirtualEngine
from ebrl.records.eventlog import EventLog, event_file, plan_file
from ebrl.records.metrics import RunMetrics
from ebrl.records.schema import plan_to_json
from ebrl.records.writer import write_json
from ebrl.runtime.loop import run
from ebrl.runtime.management import summary_of
from ebrl.scheduling.commands import Command
from ebrl.scheduling.events import Event, UpdateDone
from ebrl.scheduling.plan import SchedulerPlan
from ebrl.scheduling.scheduler import Scheduler

_VOID = {"meta"}
_LOADS = {"src", "href", "data", "action", "srcset", "poster", "xlink:href", "formaction"}


def record_virtual_run(
    run_dir: Path, plan: SchedulerPlan, *, costs: Costs, happens: Sequence[tuple[float, Event]] = (), config: str = ""
) -> Path:
    """A run on the virtual engine with all the files of a real one; returns ``run_dir``."""
    run_dir.mkdir(parents=True)
    (run_dir / "config.toml").write_text(config, encoding="utf-8")
    write_json(run_dir / plan_file(""), {"scheduler": plan_to_json(plan), "records_level": "steps"})
    log = EventLog(run_dir / event_file(""), level="steps")
    scheduler = Scheduler(plan)
    metrics = RunMetrics(scheduler)
    engine = VirtualEngine(
        num_shards=plan.num_shards,
        chunk_len=plan.chunk_len,
        envs_per_shard=plan.envs_per_shard,
        num_generators=plan.num_generators,
        costs=costs,
    )
    for at, event in happens:
        engine.happen(event, at=at)
    rows: list[str] = []

    def record(now: float, event: Event, commands: list[Command]) -> None:
        log.write(now, event, commands)
        metrics.see(now, event)
        if isinstance(event, UpdateDone):
            rows.append(json.dumps(metrics.row()) + "\n")

    stop = run(scheduler.handle, engine, record)
    log.close()
    (run_dir / "metrics.jsonl").write_text("".join(rows))
    summary = {"env": "virtual", "outcome": "finished", "reason": stop.reason, **metrics.totals()}
    if scheduler.manager is not None:
        summary["resources"] = summary_of(scheduler.manager)
    write_json(run_dir / "summary.json", summary)
    return run_dir


@dataclass
class Drawing:
    """An outermost SVG of a page."""

    classes: set[str] = field(default_factory=set)
    title: str = ""
    labels: list[str] = field(default_factory=list)
    """Of its axes."""
    num_shapes: int = 0


@dataclass
class Figure:
    """A chart of a page: its title, its sentence, its drawing."""

    title: str = ""
    see: str = ""
    classes: set[str] = field(default_factory=set)
    drawings: list[Drawing] = field(default_factory=list)


class Page(HTMLParser):
    """Reads a page; an element that is not closed where it should be, or that loads anything, is a failure."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.figures: list[Figure] = []
        self.sections: list[str] = []
        self.tables: list[list[list[str]]] = []
        self.ids: set[str] = set()
        self.links: set[str] = set()
        self.words = ""
        """All text but scripts and styles."""
        self._open: list[tuple[str, set[str]]] = []
        self.feed(text)
        self.close()
        assert self._open == [], f"never closed: {self._open}"
        assert text.startswith("<!DOCTYPE html>")

    def figure(self, title: str) -> Figure:
        """The chart of that title."""
        return next(one for one in self.figures if one.title == title)

    def table(self, head: str) -> dict[str, list[str]]:
        """Rows of the table whose first column has that head, by their first cell."""
        rows = next(rows for rows in self.tables if rows[0][0] == head)
        return {row[0]: row[1:] for row in rows}

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in _VOID:
            self.handle_endtag(tag)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = [name for name, _ in attrs]
        assert len(names) == len(set(names)), f"<{tag}> has an attribute twice: {names}"
        assert not [name for name in names if name.startswith("on")], f"<{tag}> has a handler: {names}"
        self._must_load_nothing(tag, attrs)
        if tag in _VOID:
            return
        given = {name: value or "" for name, value in attrs}
        classes = set(given.get("class", "").split())
        self.ids |= {given["id"]} if "id" in given else set()
        self._begin(tag, classes)
        self._open.append((tag, classes))

    def handle_endtag(self, tag: str) -> None:
        assert self._open, f"</{tag}> closes nothing"
        assert self._open[-1][0] == tag, f"</{tag}> closes <{self._open[-1][0]}>"
        self._open.pop()

    def handle_data(self, data: str) -> None:
        inside = [tag for tag, _ in self._open]
        if not inside or inside[-1] in ("script", "style"):
            if inside:
                assert "@import" not in data
                assert "url(" not in data
                assert "://" not in data
            return
        self.words += data
        tag, classes = self._open[-1]
        if tag == "h2":
            self.sections.append(data)
        elif tag in ("td", "th"):
            self.tables[-1][-1][-1] += data
        if "figure" in inside:
            self._hear_figure(tag, classes, data, inside)

    def _begin(self, tag: str, classes: set[str]) -> None:
        match tag:
            case "figure":
                self.figures.append(Figure(classes=classes))
            case "svg" if "plot" in classes:
                self.figures[-1].drawings.append(Drawing(classes=classes))
            case "table":
                self.tables.append([])
            case "tr":
                self.tables[-1].append([])
            case "td" | "th":
                self.tables[-1][-1].append("")
            case "path" | "rect" | "circle" if self._is_in_plot():
                self.figures[-1].drawings[-1].num_shapes += 1
            case _:
                pass

    def _is_in_plot(self) -> bool:
        return any("plot" in classes for _, classes in self._open)

    def _hear_figure(self, tag: str, classes: set[str], data: str, inside: list[str]) -> None:
        figure = self.figures[-1]
        if tag == "h3":
            figure.title += data
        elif tag == "p":
            figure.see += data
        elif tag == "title" and inside[-2:] == ["svg", "title"]:
            figure.drawings[-1].title += data
        elif "axis-label" in classes:
            figure.drawings[-1].labels.append(data)

    def _must_load_nothing(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag not in ("link", "iframe", "object", "embed", "base", "img", "form"), f"<{tag}>"
        for name, value in attrs:
            if name in _LOADS:
                assert name == "href", f"<{tag} {name}>"
                assert (value or "").startswith("#"), f"<{tag} href={value}>"
                self.links.add((value or "").removeprefix("#"))


def read_page(path: Path) -> Page:
    """A page that must be well-formed, load nothing, and have a title, a sentence and axes for every chart."""
    page = Page(path.read_text(encoding="utf-8"))
    assert page.links <= page.ids
    assert len(page.links) == len(page.sections)
    for figure in page.figures:
        assert figure.title
        assert figure.see, f"{figure.title} says not what one should see"
        assert bool(figure.drawings) != ("absent" in figure.classes), figure.title
        for drawing in figure.drawings:
            assert drawing.title == figure.title
            assert drawing.num_shapes, figure.title
            assert len(drawing.labels) == (1 if is_one_way(figure) else 2), f"{figure.title}: {drawing.labels}"
            assert all(drawing.labels)
    return page


def is_one_way(figure: Figure) -> bool:
    """Whether its other direction has names instead of numbers: bars and lanes."""
    return figure.title.startswith(("Busy and idle, by reason", "Who did what when"))
