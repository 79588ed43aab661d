"""A forecast is a run: it has records that replay, figures, a picture and a trace."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ebrl.cli.forecast import forecast as forecast_command
from ebrl.cli.forecast import timeline as timeline_command
from ebrl.config.load import make_config, to_toml
from ebrl.config.schema import RunConfig
from ebrl.errors import UsageError
from ebrl.ids import CpuId
from ebrl.profiling.sections import sections_of
from ebrl.records.replay import replay
from ebrl.report.run import activity_of, show_run
from ebrl.resources.profile import BatchCost, GenerationProfile, Profile, TrainingProfile, Work
from ebrl.runtime.forecast import forecast, forecast_plan
from ebrl.scheduling.plan import SchedulerPlan
from profiles import make_profile

CONFIG = make_config(
    {
        "env": {"name": "toy/dial-v1"},
        "policy": {"name": "mlp", "chunk_len": 4},
        "simulation": {"num_envs": 4},
        "training": {"batch_trajectories": 4, "trajectory_chunks": 2},
    }
)


def profile_of(config: RunConfig) -> Profile:
    return make_profile(sections=sections_of(config))


def test_a_forecast_names_rates_shares_reasons_and_the_limit_that_binds(tmp_path: Path) -> None:
    document = forecast(CONFIG, profile_of(CONFIG), updates=20, run_dir=tmp_path)
    assert document["updates"] == 20
    assert 0 < document["trajectories_per_s"] < document["roofline"]["limits"]["host CPUs"] * 1.05
    assert set(document["busy"]) == {"simulation", "generation", "training"}
    assert sum(document["staleness_counts"].values()) == 80
    assert document["roofline"]["binding"] in {"host CPUs", "simulation", "generation", "training", "staleness"}
    assert sum(document["host_cpu_share"].values()) <= 1.0
    assert document == json.loads(json.dumps(document))


def test_stages_of_their_own_are_faster_than_shared_cpus() -> None:
    profile = profile_of(CONFIG)
    shared = forecast(CONFIG, profile, updates=20)
    exclusive = forecast(CONFIG, profile, updates=20, sharing="exclusive")
    loaded = forecast(CONFIG, profile, updates=20, background=((0.0, 3),))
    assert exclusive["trajectories_per_s"] > shared["trajectories_per_s"] > loaded["trajectories_per_s"]
    assert "host_cpu_share" not in exclusive


def test_its_records_replay_and_give_the_same_figures(tmp_path: Path) -> None:
    document = forecast(CONFIG, profile_of(CONFIG), updates=10, run_dir=tmp_path)
    assert replay(tmp_path).difference is None
    shown = show_run(tmp_path, tmp_path, title="a forecast")
    for name in ("trajectories_per_s", "env_steps", "busy", "idle"):
        assert shown[name] == document[name]
    assert (tmp_path / "timeline.png").read_bytes().startswith(b"\x89PNG")


def test_the_trace_is_in_the_format_of_trace_viewers(tmp_path: Path) -> None:
    forecast(CONFIG, profile_of(CONFIG), updates=5, run_dir=tmp_path)
    shown = show_run(tmp_path, tmp_path, title="a forecast")
    events: list[dict[str, Any]] = json.loads(Path(shown["trace"]).read_text())["traceEvents"]
    assert {event["ph"] for event in events} == {"M", "X", "i"}
    spans = [event for event in events if event["ph"] == "X"]
    assert all(event["dur"] > 0 and event["ts"] >= 0 for event in spans)
    named = {(event["pid"], event["tid"]) for event in events if event["name"] == "thread_name"}
    assert {(event["pid"], event["tid"]) for event in spans} <= named
    steps = sum(event["dur"] for event in spans if event["name"] == "env steps")
    on_cpus = sum(event["dur"] for event in spans if event["cat"] == "cpu")
    resets = sum(event["dur"] for event in spans if event["name"] == "reset")
    assert on_cpus == pytest.approx(steps + resets, rel=1e-3)


PLAN = SchedulerPlan(
    num_shards=32,
    nodes=((CpuId(0), CpuId(1)),),
    chunk_len=4,
    trajectory_chunks=4,
    batch=32,
    slack=3,
    window=96,
    max_updates=40,
)
"""Simulation binds, 32 environments on two CPUs."""

TWO_NODES = ((CpuId(0), CpuId(1)), (CpuId(0), CpuId(1)))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"num_shards": 8, "envs_per_shard": 4},
        {"num_shards": 8, "envs_per_shard": 4, "quantum": 1},
        {"nodes": ((CpuId(0),), (CpuId(0),))},
        {"nodes": TWO_NODES, "cpus_per_shard": 2},
        {"whole_episodes": True},
        {"whole_episodes": True, "siblings": 8, "slack": 1, "window": 1},
    ],
    ids=str,
)
def test_where_simulation_binds_a_forecast_is_as_fast_as_the_roofline(changes: dict[str, Any]) -> None:
    document = forecast_plan(replace(PLAN, **changes), make_profile(), sharing="exclusive")
    assert document["roofline"]["binding"] == "simulation"
    assert document["trajectories_per_s"] == pytest.approx(document["roofline"]["trajectories_per_s"], rel=0.02)
    limit = 37.0 if "whole_episodes" in changes else 60.2
    assert document["roofline"]["trajectories_per_s"] == pytest.approx(limit, abs=0.1)


def test_a_shard_of_several_environments_needs_less_control() -> None:
    one = forecast_plan(PLAN, make_profile(), sharing="shared")
    four = forecast_plan(replace(PLAN, num_shards=8, envs_per_shard=4), make_profile(), sharing="shared")
    for document in (one, four):
        assert document["trajectories_per_s"] == pytest.approx(document["roofline"]["limits"]["host CPUs"], rel=0.02)
    assert four["trajectories_per_s"] > 1.05 * one["trajectories_per_s"]
    assert four["generation_batch_mean"] >= 4


def test_shared_cpus_of_several_nodes_are_refused() -> None:
    with pytest.raises(UsageError, match=r"the plan has 2 nodes, .* forecast with --cpu-sharing exclusive"):
        forecast_plan(replace(PLAN, nodes=TWO_NODES), make_profile(), sharing="shared")


def test_a_grant_of_two_cpus_is_seen_on_both_and_every_cpu_has_a_lane_of_its_own(tmp_path: Path) -> None:
    plan = replace(PLAN, nodes=TWO_NODES, cpus_per_shard=2, num_shards=4, envs_per_shard=2, max_updates=2)
    forecast_plan(plan, make_profile(), sharing="exclusive", run_dir=tmp_path)
    shown = show_run(tmp_path, tmp_path, title="a forecast")
    events: list[dict[str, Any]] = json.loads(Path(shown["trace"]).read_text())["traceEvents"]
    named = {(event["pid"], event["tid"]): event["args"]["name"] for event in events if event["name"] == "thread_name"}
    names = set(named.values())
    assert {f"node {node} cpu {cpu}" for node in (0, 1) for cpu in (0, 1)} <= names
    assert {"envs 0–1", "envs 6–7"} <= names
    spans = [(named[event["pid"], event["tid"]], event) for event in events if event["ph"] == "X"]
    steps = sum(event["dur"] for _, event in spans if event["name"] in ("env steps", "reset"))
    assert sum(event["dur"] for _, event in spans if event["cat"] == "cpu") == pytest.approx(2 * steps, rel=1e-3)
    on_node_1 = {event["name"] for name, event in spans if name.startswith("node 1")}
    assert on_node_1 == {"envs 4–5", "envs 6–7"}


def test_a_profile_of_another_run_is_refused() -> None:
    other = CONFIG.model_copy(update={"env": CONFIG.env.model_copy(update={"config": {"step_s": 0.5}})})
    with pytest.raises(UsageError, match=r"the profile was taken with env = .*profile again"):
        forecast(other, profile_of(CONFIG), updates=1)


def test_a_directory_without_records_has_no_timeline(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"has no events\.jsonl\.zst"):
        activity_of(tmp_path)


def test_the_commands(tmp_path: Path) -> None:
    run_file, profile, out = tmp_path / "run.toml", tmp_path / "profile.json", tmp_path / "out"
    run_file.write_text(to_toml(CONFIG))
    profile.write_text(json.dumps(profile_of(CONFIG).to_json()))
    answer = forecast_command(run_file, profile=profile, updates=5, output=out, json=True)
    assert answer.document["updates"] == 5
    assert "roofline" in answer.text
    assert {path.name for path in out.iterdir()} == {
        "config.toml",
        "events.jsonl.zst",
        "forecast.json",
        "plan.json",
        "timeline.png",
        "trace.json",
    }
    shown = timeline_command(out, seconds=0.1)
    assert "ui.perfetto.dev" in shown.text
    profile.write_text("{}")
    with pytest.raises(UsageError, match=r"profile\.json is not a profile: .*take it again"):
        forecast_command(run_file, profile=profile, output=out)


def test_a_cluster_is_forecast_without_one() -> None:
    profile = make_profile(
        generation=GenerationProfile(table=(BatchCost(1, 0.0, 0.05), BatchCost(64, 0.0, 0.2)), adopt=Work(0.0, 0.05)),
        training=TrainingProfile(updates=(Work(0.0, 4.0),), checkpoint=Work(0.0, 1.0)),
    )
    plan = SchedulerPlan(
        num_shards=1024,
        nodes=(tuple(CpuId(cpu) for cpu in range(56)),) * 8,
        num_generators=16,
        chunk_len=4,
        trajectory_chunks=2,
        max_generation_batch=64,
        batch=512,
        max_updates=10,
    )
    document = forecast_plan(plan, profile, sharing="exclusive")
    assert document["updates"] == 10
    assert document["forecast_took_s"] < 60
    assert document["trajectories_per_s"] == pytest.approx(512 / 4.0, rel=0.1)
    assert document["roofline"]["binding"] == "training"
    alone = forecast_plan(replace(plan, num_shards=4, batch=4, max_updates=2), profile, sharing="exclusive")
    assert alone["updates"] == 2
