"""Modes on the virtual engine: shape and sense, no verdict on speed."""

from __future__ import annotations

from dataclasses import replace
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebrl.bench import mode_studies, modes
from ebrl.bench.matrix import Configuration, configuration
from ebrl.bench.playing import Played, Switches, has_segments, play, switches_of, workload_of
from ebrl.bench.statistics import geomean_interval, geometric_mean, ratio_interval
from ebrl.cli.bench_tables import ablation_text, modes_text, scaling_text, staleness_text
from ebrl.config.modes import BASELINES, NAMES, Mode
from ebrl.errors import UsageError
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
    assert played.idle_s.keys() == played.idle.keys()
    assert played.drop_share == 0.0
    assert 0.0 <= played.staleness_mean <= played.staleness_max <= switches_of(mode).slack  # type: ignore[arg-type]
    again = play(small(), switches_of(mode), seed=0)  # type: ignore[arg-type]
    assert again == played


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        ("gr00t-libero-4xa100", "colocated"),
        ("gr00t-libero-4xa100", "hybrid"),
        ("gr00t-libero-4xa100", "paper"),
        ("dreamzero-behavior-16xl40s", "paper"),  # groups have fewer environments than there are generators
    ],
)
def test_env_groups_on_several_generators_are_predicted(name: str, mode: Mode) -> None:
    found = play(configuration(name), switches_of(mode), seed=0)
    assert isinstance(found, Played)
    assert found.predicted == pytest.approx(found.trajectories_per_s, rel=0.06)


@pytest.mark.parametrize("one", [small(), small("openvla-oft-libero-8xh100")], ids=["ppo", "grpo"])
def test_only_an_algorithm_that_compares_episodes_needs_whole_ones(one: Configuration) -> None:
    asked = Switches(whole_episodes=True)
    assert not has_segments(one, asked)
    assert has_segments(one, Switches()) == (one.siblings == 1)
    whole, found = workload_of(one, asked), workload_of(one, Switches())
    if one.siblings > 1:
        assert found == whole
    else:
        assert found.trajectory_chunks == round(whole.trajectory_chunks)
    assert found.trajectory_chunks / found.trained_chunks == pytest.approx(
        whole.trajectory_chunks / whole.trained_chunks
    )


def test_segments_are_as_long_as_episodes_where_those_go_on_to_the_horizon() -> None:
    one, async_ = small(), switches_of("async")
    assert workload_of(one, async_) == workload_of(one, replace(async_, whole_episodes=True))
    segments, episodes = (play(one, replace(async_, whole_episodes=whole), seed=0) for whole in (False, True))
    assert isinstance(segments, Played)
    assert isinstance(episodes, Played)
    assert segments.trajectories_per_s == pytest.approx(episodes.trajectories_per_s, rel=0.05)
    assert segments.predicted == episodes.predicted


def test_a_rate_counts_episodes_whatever_trajectories_are() -> None:
    """GPUs limit, slack is plenty: then work is all that counts, and it is the same in both."""
    one = configuration("openpi-libero-8xa100")
    segments, episodes = (play(one, Switches(slack=4, whole_episodes=whole), seed=0) for whole in (False, True))
    assert isinstance(segments, Played)
    assert isinstance(episodes, Played)
    assert segments.binding == episodes.binding == "training"
    assert segments.trajectories_per_s == pytest.approx(episodes.trajectories_per_s, rel=0.02)


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
    text = "\n".join(modes_text(document))
    assert "geomean_over_best" in text
    ebrl = next(row for row in document["rows"] if row["mode"] == "ebrl")
    for stage, reasons in ebrl["idle"].items():
        assert reasons.keys() == ebrl["idle_s"][stage].keys()
    reason, share = next(iter(ebrl["idle"]["simulation"].items()))
    assert f"  {reason} {share:.0%}" in text.partition("waits most for")[2].splitlines()[1]


def test_the_parts_of_the_ablation_lead_from_async_to_ebrl() -> None:
    switches = switches_of("async")
    for part in mode_studies.PARTS.values():
        switches = replace(switches, **part)
    assert switches == switches_of("ebrl")


def test_the_ablation_says_what_each_part_brings_where_what_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = (small(), small("openpi-libero-1xa100"))
    monkeypatch.setattr(modes, "configurations", lambda: pair)
    monkeypatch.setattr(modes, "_smaller", lambda one: one)
    document = mode_studies.measure_ablation(quick=True)
    rates = {(row["config"], row["mode"]): median(row["trajectories_per_s"] or [0.0]) for row in document["rows"]}
    limits = {row["config"]: row["binding"] for row in document["rows"] if row["mode"] == "ebrl"}
    assert {name: found["ebrl"] for name, found in document["binding"].items()} == limits
    assert set(document["parts"]) == set(mode_studies.PARTS)
    for part, found in document["parts"].items():
        gain = found["removed_from_ebrl"]
        for name, ratio in gain["by_config"].items():
            whole = f"ebrl without {mode_studies.LENDING}" if part == mode_studies.SHARING else "ebrl"
            assert ratio == pytest.approx(rates[name, whole] / rates[name, f"ebrl without {part}"])
        assert gain["range"] == [min(gain["by_config"].values()), max(gain["by_config"].values())]
        assert sum(one["configs"] for one in gain["by_binding"].values()) == len(gain["by_config"])
        for stage, one in gain["by_binding"].items():
            mine = [ratio for name, ratio in gain["by_config"].items() if limits[name] == stage]
            assert one["geomean"] == pytest.approx(geometric_mean(mine))
        if part in (mode_studies.LENDING, mode_studies.SEGMENTS):
            assert found["added_to_async"] is None  # which has whole GPUs, and segments as long as episodes
        else:
            assert list(found["added_to_async"]["by_config"]) == [pair[0].name]  # one GPU cannot run async
    overlap = document["parts"][mode_studies.OVERLAP]["added_to_async"]
    without = rates[pair[0].name, f"async without {mode_studies.OVERLAP}"]
    assert overlap["geomean"] == pytest.approx(rates[pair[0].name, "async"] / without)
    text = "\n".join(ablation_text(document))
    for name, stage in limits.items():
        assert name in next(line for line in text.splitlines() if line.startswith(f"ebrl is limited by {stage}"))


def test_scaling_has_a_line_for_each_size_and_an_efficiency(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mode_studies, "configurations", lambda: (small(),))
    document = mode_studies.measure_scaling(quick=True)
    ebrl = {row["num_gpus"]: row for row in document["rows"] if row["mode"] == "ebrl" and row["over"] == "GPUs"}
    assert {gpus: row["num_envs"] for gpus, row in ebrl.items()} == {1: 2, 4: 8}
    one, four = (median(ebrl[gpus]["trajectories_per_s"]) for gpus in (1, 4))
    assert document["efficiency"] == {"1": 1.0, "4": pytest.approx(four / one / 4)}
    assert [row["num_envs"] for row in document["rows"] if row["over"] == "environments"] == [32, 128]
    lines = scaling_text(document)
    assert lines[1].split()[:5] == ["GPUs", "colocated", "async", "paper", "ebrl"]
    assert [line.split()[0] for line in lines[2:4]] == ["1", "4"]
    assert lines[3].split()[-1] == f"{document['efficiency']['4']:.2f}"


def test_a_size_that_cannot_be_run_is_no_efficiency() -> None:
    row = {"over": "GPUs", "mode": "ebrl"}
    rows = [row | {"num_gpus": gpus, "trajectories_per_s": rates} for gpus, rates in ((1, []), (2, [4.0]), (4, [6.0]))]
    assert mode_studies.efficiency(rows) == {"2": 1.0, "4": 0.75}


def learned(slack: int, final: float, **more: float) -> dict[str, object]:
    """A row of convergence."""
    return {"mode": "ebrl", "slack": slack, "seed": 0, "final_success": final} | more


def test_staleness_says_how_old_data_is_and_takes_success_from_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(modes, "configurations", lambda: (small(),))
    monkeypatch.setattr(modes, "_smaller", lambda one: one)
    document = mode_studies.measure_staleness(quick=True)
    assert [row["slack"] for row in document["rows"]] == [0, 1, 4]
    for row in document["rows"]:
        assert 0.0 <= row["staleness_mean"] <= row["staleness_max"] <= row["slack"]
        assert row["drop_share"] == 0.0
    assert "--success FILE.json" in staleness_text(document)[-1]
    rows = [learned(1, 0.5), learned(1, 0.9), learned(4, 0.4), {"mode": "async", "slack": 1, "final_success": 0.1}]
    both = mode_studies.with_success(document, {"rows": rows, "task": "reach-v3"})
    assert both["success"]["1"] == {"median": 0.7, "low": 0.5, "high": 0.9, "repeats": 2}
    assert both["rows"] == document["rows"]
    assert "  slack 4  0.400 (0.400–0.400), 1 seeds" in staleness_text(both)


def test_effective_rates_need_a_sample_size_of_every_run() -> None:
    row = {"config": "a", "mode": "slack 1", "slack": 1, "trajectories_per_s": [2.0, 4.0]}
    document = {"kind": "virtual", "rows": [row], "repeats": 2}
    with_all = mode_studies.with_success(document, {"rows": [learned(1, 0.5, ess_mean=0.8)]})
    assert with_all["rows"][0]["effective_per_s"] == pytest.approx(2.4)
    assert any(line.startswith("effective") for line in staleness_text(with_all))
    some = mode_studies.with_success(document, {"rows": [learned(1, 0.5, ess_mean=0.8), learned(1, 0.5)]})
    assert some["rows"] == [row]
    with pytest.raises(UsageError, match="no run of ebrl"):
        mode_studies.with_success(document, {"rows": [{"mode": "async", "slack": 1, "final_success": 1.0}]})


@given(RATES, RATES)
def test_an_interval_holds_the_ratio_of_equal_repeats(above: list[float], below: list[float]) -> None:
    low, high = ratio_interval(above, below)
    assert min(above) / max(below) <= low <= high <= max(above) / min(below)
    assert ratio_interval([above[0]], [below[0]]) == pytest.approx((above[0] / below[0],) * 2)


def test_means_of_ratios_are_geometric() -> None:
    assert geometric_mean([2.0, 0.5]) == pytest.approx(1.0)
    assert geomean_interval([([2.0], [1.0]), ([1.0], [2.0])]) == pytest.approx((1.0, 1.0))


def test_configurations_are_asked_for_by_name_and_an_unknown_one_is_answered() -> None:
    name = "openpi-libero-8xa100"
    assert [one.name for one in modes.chosen(False, [name, name])] == [name]
    with pytest.raises(UsageError, match="openpi-libero-8xa100"):
        modes.chosen(False, ["openpi-liberty-8xa100"])
