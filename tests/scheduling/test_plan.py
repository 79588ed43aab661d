from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from test_management import scheduler

from ebrl.ids import CpuId
from ebrl.scheduling.quotas import Split
from ebrl.testing.build import make_plan


def test_env_groups_are_runs_of_neighbours() -> None:
    assert make_plan(num_shards=5, env_groups=2).group_of() == (0, 0, 0, 1, 1)
    assert make_plan(num_shards=3).group_of() == (0, 0, 0)


def test_a_step_barrier_wants_env_groups() -> None:
    with pytest.raises(ValueError, match="step_barrier wants env_groups"):
        make_plan(step_barrier=True)


def test_there_are_not_more_env_groups_than_shards() -> None:
    with pytest.raises(ValueError, match=r"env_groups = 4: want at most num_shards \(3\)"):
        make_plan(num_shards=3, env_groups=4)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_cpus": 3, "cpus_per_shard": 2}, "cpus_per_shard = 2: want a divisor of each node's CPUs"),
        ({"nodes": ((CpuId(0),), ())}, "cpus_per_shard = 1: want a divisor of each node's CPUs"),
        ({"siblings": 2, "batch": 2}, "siblings = 2: want whole_episodes"),
        ({"whole_episodes": True, "envs_per_shard": 2, "batch": 2}, "whole_episodes with envs_per_shard = 2: want 1"),
        ({"envs_per_shard": 2, "batch": 3}, "batch = 3: want a multiple of 2, which train together"),
        ({"whole_episodes": True, "siblings": 4, "batch": 6}, "batch = 6: want a multiple of 4"),
    ],
)
def test_impossible_shapes_are_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make_plan(**changes)


def test_shards_are_dealt_to_nodes_in_proportion_to_their_cpus() -> None:
    plan = make_plan(num_shards=6, nodes=((CpuId(0), CpuId(1), CpuId(2), CpuId(3)), (CpuId(0), CpuId(1))))
    assert plan.node_of() == (0, 0, 0, 0, 1, 1)
    assert (plan.num_cpu_sets, plan.unit) == (6, 1)


def test_cpus_are_cut_into_sets_of_neighbours() -> None:
    plan = make_plan(num_cpus=4, cpus_per_shard=2)
    assert plan.cpu_sets == (((0, 1), (2, 3)),)
    assert plan.num_cpu_sets == 2


def test_a_split_says_what_simulation_has_on_each_node() -> None:
    split = Split(simulation=(CpuId(0),), generation=(CpuId(1),), training=(CpuId(1),))
    with pytest.raises(ValueError, match="want the CPUs of simulation on each node"):
        make_plan(nodes=((CpuId(0), CpuId(1)),), split=split)
    alone = scheduler().plan.management
    assert alone is not None
    with pytest.raises(ValueError, match="management wants a split"):
        make_plan(management=alone)
    on_each = make_plan(nodes=(split.simulation, split.simulation), split=split)
    assert on_each.num_cpu_sets == 2
    for without_sms in (None, split, replace(split, generation_units=48)):
        with pytest.raises(ValueError, match="lend wants a split of SMs"):
            make_plan(nodes=(split.simulation,), split=without_sms, lend=True)
