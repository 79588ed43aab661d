"""The allocator's benchmark, in small: what its document says, and that the oracle can be trusted."""

from __future__ import annotations

import json
import math
import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebrl.bench import allocator, oracle, virtual_allocations
from ebrl.resources.allocation import Shape
from ebrl.resources.workload import BatchCosts, SimulationCosts, Workload

GIB = 2**30

WORKLOAD = Workload(
    name="by hand",
    num_envs=8,
    chunk_len=8,
    trajectory_chunks=2,
    batch_trajectories=8,
    slack=20,
    epochs=1,
    unit="cpu",
    simulation=SimulationCosts(chunk_s=1.0),
    generation=BatchCosts(fixed_s=0.001, item_s=0.0),
    training=BatchCosts(fixed_s=0.001, item_s=0.0),
    shared_cpu_factor=2.0,
)


def test_the_document_of_a_quick_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allocator, "QUICK", 12)
    monkeypatch.setattr(allocator, "_EVERY", 6)
    monkeypatch.setattr(virtual_allocations, "QUICK", 2)
    monkeypatch.setattr(virtual_allocations, "_CHUNKS", 200)
    heard: list[str] = []
    document = allocator.measure(quick=True, say=heard.append)
    json.dumps(document)
    assert (document["pairs"], document["virtual"]["settings"]) == (12, 2)
    assert heard[:2] == ["6 of 12 pairs", "12 of 12 pairs"]
    assert set(document["met"]) == set(document["targets"]) == set(allocator.TARGETS)
    assert document["worst_ratio_to_exhaustive"] <= document["highest_ratio_to_exhaustive"] <= 1.001
    assert document["only_one_infeasible"] == 0
    assert len(document["worst"]) == 10
    assert {"ratio", "workload", "shape", "chosen", "exhaustive"} <= set(document["worst"][0])
    for clock in ("cpu", "wall"):
        times = document["times"]["all pairs"][clock]
        assert 0 <= times["p50_ms"] <= times["p95_ms"] <= times["max_ms"]
    for row in document["virtual"]["worst"]:
        assert 0 < row["ratio"] <= 1
        assert row["fastest"]["trajectories_per_s"] >= row["chosen"]["trajectories_per_s"]


def test_the_same_seed_draws_the_same_pairs() -> None:
    assert allocator.random_pair(random.Random("7")) == allocator.random_pair(random.Random("7"))


def test_the_oracle_on_numbers_by_hand() -> None:
    found = oracle.best(WORKLOAD, Shape(num_nodes=1, num_cpus=6, memory_bytes=GIB))
    assert found is not None
    assert (found.simulation_cpus, found.generation_cpus, found.training_cpus) == (5, 1, 1)
    assert found.way.cpu_sharing == "compute"
    assert found.trajectories_per_s == pytest.approx(5 / 1.0 / 2)


@given(
    members=st.floats(0.5, 500.0),
    chunk_s=st.floats(0.01, 5.0),
    alpha_s=st.floats(0.0, 2.0),
    beta_s=st.floats(1e-6, 1.0),
)
def test_the_oracle_keeps_littles_law(members: float, chunk_s: float, alpha_s: float, beta_s: float) -> None:
    alpha, beta, cap = np.array([alpha_s]), np.array([beta_s]), np.array([1e9])
    rate = float(oracle.batch_server(members, chunk_s, alpha, beta, cap)[0])
    low, high = 0.0, min(members / chunk_s, 1 / beta_s)
    for _ in range(200):
        middle = (low + high) / 2
        waiting = 1.5 * middle * alpha_s / (1 - middle * beta_s) if middle * beta_s < 1 else math.inf
        low, high = (middle, high) if middle * chunk_s + waiting < members else (low, middle)
    assert rate == pytest.approx(low, rel=1e-6)
    assert oracle.batch_server(members, chunk_s, alpha, beta, np.array([1.0]))[0] <= 1 / (alpha_s + beta_s)


def test_the_oracle_knows_when_nothing_fits() -> None:
    heavy = replace(WORKLOAD, simulation=replace(WORKLOAD.simulation, memory_bytes=GIB))
    assert oracle.best(heavy, Shape(num_nodes=1, num_cpus=6, memory_bytes=7 * GIB)) is None
    assert oracle.best(heavy, Shape(num_nodes=1, num_cpus=6, memory_bytes=8 * GIB)) is not None
    assert oracle.best(replace(WORKLOAD, unit="gpu"), Shape(num_nodes=1, num_cpus=6, memory_bytes=GIB)) is None


@pytest.mark.parametrize(
    ("slack", "expected"),
    [(9, 2.0), (0, 1 / (1 / 2.0 + 3.0 / 8))],
)
def test_the_virtual_engine_runs_a_point(slack: int, expected: float) -> None:
    point = virtual_allocations.Point(
        simulation_cpus=4,
        num_generators=1,
        max_batch=8,
        alpha_s=1e-4,
        beta_s=0.0,
        update_s=3.0,
        name="by hand",
    )
    workload = replace(WORKLOAD, slack=slack)
    assert virtual_allocations.limit(workload, point) == pytest.approx(expected, rel=0.01)
    measured = virtual_allocations.rate(workload, point, seed=0)
    assert 0.85 * expected < measured < virtual_allocations.limit(workload, point) * 1.02


def test_two_updates_do_not_wait_for_the_same_cpus() -> None:
    """Where simulation limits and every environment has a slot, CPUs are never without work for long."""
    rng = random.Random("0 virtual 4")
    workload, shape = virtual_allocations.random_gpus(rng)
    assert (workload.num_envs, workload.batch_trajectories, workload.slack) == (58, 29, 1)
    (point,) = [one for one in virtual_allocations._grid(workload, shape) if one.name == "1 of 2 GPUs for generation"]
    found = virtual_allocations.rate(workload, point, seed=0)
    assert 0.97 * virtual_allocations.limit(workload, point) <= found <= virtual_allocations.limit(workload, point)
