"""Ticks, thinning, lanes and managed resources, from runs on the virtual engine."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from report_reading import Page, read_page, record_virtual_run

from ebrl.cli.report import report as report_command
from ebrl.engines.virtual.costs import Costs
from ebrl.ids import CpuId
from ebrl.report import chart_lanes
from ebrl.report.charts import (
    MOST_POINTS,
    Axis,
    Series,
    line_chart,
    nice_ticks,
    number_text,
    thinned,
)
from ebrl.report.page import write_report
from ebrl.report.page_figures import config_differences, mean_rate
from ebrl.report.page_markup import Markup, tag
from ebrl.scheduling.events import SplitRequested
from ebrl.scheduling.quotas import Split
from ebrl.testing.build import make_plan

ZERO, ONE = (CpuId(0),), (CpuId(1),)

APART = Split(simulation=ZERO, generation=ONE, training=ONE)
TOGETHER = Split(simulation=ZERO + ONE, generation=ZERO + ONE, training=ONE, generation_units=40)
MANAGED = make_plan(num_shards=3, nodes=(ZERO,), split=APART, chunk_len=3, trajectory_chunks=1, batch=3, max_updates=12)
COSTS = Costs(env_step_s=0.1, training_s=0.2)

finite = st.floats(-1e12, 1e12, allow_nan=False)


@given(low=finite, size=st.floats(1e-6, 1e12), most=st.integers(2, 12))
def test_ticks_are_few_round_and_inside(low: float, size: float, most: int) -> None:
    high = low + size
    if (high - low) < 1e-9 * max(abs(low), abs(high)):
        return
    ticks = nice_ticks(low, high, most=most)
    assert len(ticks) <= most
    steps = {float(f"{b - a:.3g}") for a, b in pairwise(ticks)}
    if size > 1e-6 * abs(low):
        assert len(steps) <= 1
        assert all(f"{step:.0e}"[0] in "125" for step in steps)
    room = 1e-6 * max(size, abs(low))
    assert all(low - room <= tick <= high + room for tick in ticks)


@given(st.lists(st.tuples(finite, st.floats(-1e3, 1e3)), max_size=2000), st.booleans())
def test_thinning_keeps_few_points_within_the_range(points: list[tuple[float, float]], stepped: bool) -> None:
    kept = thinned(points, stepped=stepped)
    assert len(kept) <= MOST_POINTS
    assert bool(kept) == bool(points)
    if points:
        values = [y for _, y in points]
        assert all(min(values) - 1e-6 <= y <= max(values) + 1e-6 for _, y in kept)
    if len(points) <= MOST_POINTS and not stepped:
        assert kept == points


@given(st.lists(st.tuples(finite, st.floats(allow_nan=True, allow_infinity=True)), min_size=1, max_size=30))
def test_a_chart_of_any_numbers_is_well_formed(points: list[tuple[float, float]]) -> None:
    axis = Axis(label="x")
    chart = line_chart("title", "see", axis, Axis(label="y"), [Series(name="a", points=points, colour="first")])
    page = Page(f"<!DOCTYPE html><html><body>{chart}</body></html>")
    assert page.figures[0].title == "title"
    assert "nan" not in chart
    assert "inf" not in chart


@given(st.text())
def test_text_comes_back_as_it_was(text: str) -> None:
    page = Page("<!DOCTYPE html>" + tag("p", text, title=text))
    assert page.words == text.replace("\r\n", "\n").replace("\r", "\n") or "\r" in text or "\x00" in text


def test_markup_is_not_escaped_twice() -> None:
    assert tag("b", Markup("<i/>"), "<", class_="x", data_do='"') == '<b class="x" data-do="&quot;"><i/>&lt;</b>'


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0"), (0.123456, "0.123"), (999.4, "999"), (1234.5, "1,234"), (12345.0, "12.35k"), (2.5e6, "2.5M")],
)
def test_numbers_are_short(value: float, text: str) -> None:
    assert number_text(value) == text


def test_a_rate_is_weighted_by_time_and_leaves_the_beginning_out() -> None:
    rows = [{"seconds": 10.0, "r": 99.0}, {"seconds": 11.0, "r": 4.0}, {"seconds": 14.0, "r": 8.0}]
    assert mean_rate(rows, "r") == pytest.approx(7.0)
    assert mean_rate(rows[:1], "r") == 99.0
    assert mean_rate([], "r") is None


def test_fields_of_one_run_only_differ_too() -> None:
    one: dict[str, Any] = {"a": {"b": 1, "c": None}}
    assert config_differences(one, {"a": {"b": 1}, "d": "x"}) == [("a.c", "None", "–"), ("d", "–", "'x'")]


def test_a_managed_run_shows_who_had_what_when(tmp_path: Path) -> None:
    run_dir = record_virtual_run(
        tmp_path / "managed", MANAGED, costs=COSTS, happens=[(2.05, SplitRequested(split=TOGETHER))]
    )
    page = read_page(write_report(run_dir).path)
    cpus = page.figure("CPUs of each stage")
    assert "1 move (vertical lines)" in cpus.see
    assert "had at the start" in page.figure("Busy and idle, by reason").see
    assert cpus.drawings[0].num_shapes == 3
    assert page.figure("GPU units of each stage").drawings[0].num_shapes == 2
    assert page.table("asked for at (s)")
    text = (run_dir / "report.html").read_text()
    assert len(re.findall(r'class="mark"', text)) == 2  # the move, in both charts


def test_a_long_run_is_thinned_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = make_plan(num_shards=20, num_cpus=18, num_generators=2, batch=20, max_updates=40)
    run_dir = record_virtual_run(tmp_path / "long", plan, costs=Costs(env_step_s=0.01))
    whole = read_page(write_report(run_dir, output=tmp_path / "whole.html").path).figure("Who did what when")
    assert "Thinned" not in whole.see
    assert "Shown are 16 of 18 CPUs, 12 of 20 env workers." in whole.see
    monkeypatch.setattr(chart_lanes, "MOST_SPANS", 300)
    thin = read_page(write_report(run_dir, output=tmp_path / "thin.html").path).figure("Who did what when")
    assert "Thinned: only the first" in thin.see
    text = (tmp_path / "thin.html").read_text()
    held = re.search(r'data-end="([\d.]+)"', text)
    assert held is not None
    starts = [float(at) for at in re.findall(r"M([\d.]+) 0h", text)]
    assert 300 <= len(starts) <= 300 + 20 + 18 + 3
    assert max(starts) <= float(held[1])


def test_a_page_stays_small_however_many_spans_there_are() -> None:
    """The worst that the lanes can hold: twenty-two characters a stretch."""
    assert chart_lanes.MOST_SPANS * 22 < 1_000_000


def test_the_command_says_where_the_page_is_and_what_is_missing(tmp_path: Path) -> None:
    run_dir = record_virtual_run(tmp_path / "run", MANAGED, costs=COSTS, config="[env]\nname = 'a'\n")
    (run_dir / "events.jsonl.zst").unlink()
    answer = report_command(run_dir, None, tmp_path / "page.html")
    assert answer.exit_code == 0
    assert str(tmp_path / "page.html") in answer.text
    assert "missing  There is no event log" in answer.text
    assert answer.document["report"] == str(tmp_path / "page.html")
    both = report_command(run_dir, run_dir, tmp_path / "page.html")
    assert f"missing  {run_dir.name} (1): There is no event log" in both.text
