"""Modes on the virtual engine: shape and sense, no verdict on speed."""

from __future__ import annotations

from dataclasses import replace
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebrl.bench import modes
from ebrl.bench.matrix import Configuration, configuration
from ebrl.bench.playing import Played, play, switches_of
from ebrl.bench.statistics import geomean_interval, geometric_mean, ratio_interval
from ebrl.cli.bench_modes import modes_text
from ebrl.config.modes import BASELINES, NAMES
from ebrl.resources.pool import Infeasible

RATES = st.lists(st.floats(0.1, 10.0), min_size=1, max_size=6)


def small(name: str = "openpi-robocasa-8xa100") -> Configuration:
    """A configuration of the matrix with few environments and short episodes."""
    found = configuration(name)
    simulation = replace(found.workload.simulation, episode_steps=30.0, horizon_steps=40)
    workload = replace(found.workload, num_envs=16, batch_trajectories=16, simulation=simulation)
    return replace(found, workload=workload)


@pytest.mark.parametrize("mode", NAMES)
def test_every_mode_is_played(mode: str) -> None:
    played = play(small(), switches_of(mode), seed=0)  # type: ignore[arg-type]
    assert isinstance(played, Played), played
    assert played.trajectories_per_s > 0
    assert all(0 <= share <= 1.001 for share in played.busy.values())
    again = play(small(), switches_of(mode), seed=0)  # type: ignore[arg-type]
    assert again == played


def test_a_mode_that_a_machine_cannot_run_says_why() -> None:
    found = play(small("openpi-libero-1xa100"), switches_of("async"), seed=0)
    assert isinstance(found, Infeasible)
    assert found.budget == "GPUs"


def test_the_table_compares_with_the_fastest_of_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        modes, "configurations", lambda: (small(), small("openpi-libero-1xa100"), small("openpi-maniskill-4xrtx4090"))
    )
    monkeypatch.setattr(modes, "_smaller", lambda one: one)
    document = modes.measure_modes(quick=True)
    assert document["kind"] == "virtual"
    assert len(document["rows"]) == 3 * len(NAMES)
    rates = {(row["config"], row["mode"]): row["trajectories_per_s"] for row in document["rows"]}
    for ratio in document["ratios"]:
        able = {mode: median(rates[ratio["config"], mode]) for mode in BASELINES if rates[ratio["config"], mode]}
        assert able[ratio["best"]] == max(able.values())
        assert ratio["ebrl_over_best"] == pytest.approx(median(rates[ratio["config"], "ebrl"]) / max(able.values()))
        low, high = ratio["ci95"]
        assert low <= high
    assert set(document["ratios"][1]["not_possible"]) == {"disaggregated", "async"}
    assert set(document["ratios"][2]["not_possible"]) == {"paper"}
    assert document["ratios"][2]["ebrl_over_paper"] is None
    assert set(document["met"]) == set(modes.TARGETS)
    assert "geomean_over_best" in "\n".join(modes_text(document))


def test_the_parts_of_the_ablation_lead_from_async_to_ebrl() -> None:
    switches = switches_of("async")
    for part in modes.PARTS.values():
        switches = replace(switches, **part)
    assert switches == switches_of("ebrl")


@given(RATES, RATES)
def test_an_interval_holds_the_ratio_of_equal_repeats(above: list[float], below: list[float]) -> None:
    low, high = ratio_interval(above, below)
    assert min(above) / max(below) <= low <= high <= max(above) / min(below)
    assert ratio_interval([above[0]], [below[0]]) == pytest.approx((above[0] / below[0],) * 2)


def test_means_of_ratios_are_geometric() -> None:
    assert geometric_mean([2.0, 0.5]) == pytest.approx(1.0)
    assert geomean_interval([([2.0], [1.0]), ([1.0], [2.0])]) == pytest.approx((1.0, 1.0))
