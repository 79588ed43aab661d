"""The matrix: every configuration fits its machine however its GPUs are shared, and says where its numbers are from."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from ebrl.bench.matrix import Configuration, configuration, configurations
from ebrl.errors import UsageError
from ebrl.plan.hardware import load_hardware
from ebrl.plan.planner import ResourcePlan, plan_resources
from ebrl.plan.workloads import KINDS, load_workload, simulated_chunk_s
from ebrl.resources.allocator import Choice, allocate

DOCS = Path(__file__).parents[2] / "docs"
MATRIX = configurations()
BY_NAME = {one.name: one for one in MATRIX}

on_each = pytest.mark.parametrize("one", MATRIX, ids=list(BY_NAME))


def numbers(document: dict[str, Any], where: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in document.items():
        found |= numbers(value, f"{where}{name}.") if isinstance(value, dict) else {where + name: value}
    return found


def test_there_are_eleven_and_they_span_what_the_papers_matrix_spans() -> None:
    assert len(BY_NAME) == len(MATRIX) == 11
    gpus = {one.shape.num_nodes * one.shape.num_gpus for one in MATRIX}
    assert (min(gpus), max(gpus)) == (1, 16)
    words = {word for one in MATRIX for word in one.workload.name.split("-")}
    assert words >= {"openpi", "gr00t", "openvla", "dreamzero", "libero", "robocasa", "maniskill", "behavior"}
    devices = {one.workload.device for one in MATRIX}
    assert devices >= {"A100-SXM4-80GB", "H100 80GB HBM3", "H20", "GeForce RTX 4090"}
    assert {one.whole_episodes for one in MATRIX} == {True, False}


@on_each
def test_it_fits_its_machine_also_on_whole_gpus(one: Configuration) -> None:
    assert isinstance(plan_resources(one.workload, load_hardware(one.machine)), ResourcePlan)
    choice = allocate(one.workload, one.shape)
    assert isinstance(choice, Choice)
    ways = {candidate.allocation.gpu_sharing for candidate in (choice.best, *choice.others)}
    assert "whole" in ways or one.shape.num_gpus == 1


@on_each
def test_a_virtual_run_of_it_is_short(one: Configuration) -> None:
    workload = one.workload
    assert workload.num_envs <= 256
    assert workload.simulation.horizon_steps <= 320
    assert workload.batch_trajectories % workload.num_envs == 0
    assert workload.batch_trajectories <= 4 * workload.num_envs


@on_each
def test_whole_episodes_come_in_sibling_groups(one: Configuration) -> None:
    simulation = one.workload.simulation
    steps = simulation.episode_steps if one.whole_episodes else simulation.horizon_steps
    assert one.workload.trajectory_chunks == pytest.approx(steps / one.workload.chunk_len)
    assert (one.siblings > 1) == one.whole_episodes
    assert one.workload.num_envs % one.siblings == 0
    assert one.workload.batch_trajectories % one.siblings == 0


@on_each
def test_habits_of_its_simulator_are_known_apart(one: Configuration) -> None:
    simulation = one.workload.simulation
    assert simulation.chunk_s == pytest.approx(simulated_chunk_s(simulation, one.workload.chunk_len))
    known = (simulation.env_step_s, simulation.env_step_sd_s, simulation.observe_s, simulation.reset_s)
    assert min(known) > 0
    assert one.workload.hand_over_s > 0


@on_each
def test_a_number_that_differs_from_the_workloads_has_a_source_of_its_own(one: Configuration) -> None:
    mine, theirs = one.workload, load_workload(one.workload.name)
    before, now = (numbers({**asdict(w), "sources": {}}) for w in (theirs, mine))
    changed = {name for name in now if now[name] != before[name]} - {"simulation.chunk_s"}
    for name in changed:
        source = name.split(".")[0] if name.startswith(("generation.", "training.")) else name
        assert mine.sources[source] != theirs.sources.get(source), name
        assert mine.sources[source].partition(":")[0] in KINDS


@on_each
def test_it_says_why_it_is_there_in_one_sentence(one: Configuration) -> None:
    assert one.about.endswith(".")
    assert ". " not in one.about
    assert len(one.about) < 140


def test_memory_of_the_gpus_that_no_plan_gives_away_is_left_out() -> None:
    assert configuration("openpi-libero-8xa100").shape.device_memory_bytes == int(0.9 * 80 * 2**30)


def test_what_follows_from_a_change_is_changed_too() -> None:
    """A quarter of the trajectories of an update takes a quarter of the optimizer steps."""
    one, workload = configuration("openpi-robocasa-8xa100").workload, load_workload("openpi-robocasa")
    assert one.sync_s == pytest.approx(workload.sync_s / 4)
    assert one.hand_over_s == pytest.approx(workload.hand_over_s, abs=5e-3)
    faster = configuration("gr00t-robocasa-8xh100").workload
    assert faster.hand_over_s == pytest.approx(load_workload("gr00t-robocasa").hand_over_s / 2, abs=5e-3)


def test_an_unknown_name_is_told_the_nearest() -> None:
    with pytest.raises(
        UsageError, match=r"no configuration 'openpi-libero-8xa10'; did you mean 'openpi-libero-8xa100'"
    ):
        configuration("openpi-libero-8xa10")


def test_the_page_is_what_the_matrix_says() -> None:
    done = subprocess.run([sys.executable, str(DOCS / "make_matrix.py"), "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    text = (DOCS / "matrix.md").read_text(encoding="utf-8")
    assert all(text.count(f"| `{name}` |") == 2 for name in BY_NAME)


def test_configurations_can_be_written_down() -> None:
    for one in MATRIX:
        json.dumps(one.workload.to_json(), allow_nan=False)
