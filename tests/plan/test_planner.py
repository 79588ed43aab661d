"""Plans: what is given out is there, the answer explains itself, and what cannot be is a value."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ebrl.errors import UsageError
from ebrl.ids import CpuId
from ebrl.plan.hardware import load_hardware
from ebrl.plan.planner import DEVICE_HEADROOM, ResourcePlan, figure, lowest_limit, plan_resources
from ebrl.plan.workloads import load_workload, shipped_workloads
from ebrl.resources.hardware import BackEnd, Cpu, Gpu, Hardware, Node
from ebrl.resources.pool import Infeasible

A100S = load_hardware("8xa100")
PI = load_workload("openpi-robocasa")


def planned(name: str, hardware: Hardware) -> ResourcePlan:
    found = plan_resources(load_workload(name), hardware)
    assert isinstance(found, ResourcePlan), found
    return found


def machine(
    num_cpus: int = 32, num_gpus: int = 2, gib: int = 80, num_nodes: int = 1, sharing: tuple[BackEnd, ...] = ()
) -> Hardware:
    cpus = tuple(Cpu(id=CpuId(i), core=i) for i in range(num_cpus))
    gpus = tuple(
        Gpu(index=i, name="NVIDIA A100-SXM4-80GB", num_sms=108, sm_step=4, memory_bytes=gib * 2**30, sharing=sharing)
        for i in range(num_gpus)
    )
    node = Node(cpus=cpus, memory_bytes=2**40, gpus=gpus)
    return Hardware(name="made up", nodes=(node,) * num_nodes)


@settings(max_examples=20, deadline=None)
@given(
    name=st.sampled_from(shipped_workloads()),
    num_cpus=st.integers(1, 96),
    num_gpus=st.integers(0, 8),
    gib=st.integers(16, 141),
    num_nodes=st.integers(1, 2),
)
def test_nothing_is_given_out_that_is_not_there(
    name: str, num_cpus: int, num_gpus: int, gib: int, num_nodes: int
) -> None:
    hardware = machine(num_cpus, num_gpus, gib, num_nodes)
    found = plan_resources(load_workload(name), hardware)
    if isinstance(found, Infeasible):
        assert found.needed > found.available
        return
    given_out = [cpu for cpus in found.cpus.values() for cpu in cpus]
    assert len(given_out) == len(set(given_out)) == num_cpus
    assert set(given_out) <= {cpu.id for cpu in hardware.nodes[0].cpus}
    need, one = found.memory, found.allocation
    rollout = need.generation_device_bytes + need.rendering_device_bytes
    together = rollout + need.training_device_bytes
    fullest = max(rollout, need.training_device_bytes) if one.gpu_sharing == "whole" else together
    assert fullest <= (1 - DEVICE_HEADROOM) * found.shape.device_memory_bytes or found.workload.unit == "cpu"
    assert need.host_bytes <= found.shape.memory_bytes
    assert found.prediction.trajectories_per_s >= max((r.trajectories_per_s for r in found.rivals), default=0)
    json.dumps(found.to_json(), allow_nan=False)


def test_the_way_of_sharing_names_the_pools() -> None:
    found = planned("openpi-robocasa", A100S)
    assert list(found.cpus) == ["simulation", "generation and training"]
    assert len(found.cpus["simulation"]) == found.allocation.simulation_cpus


def test_two_cpus_are_shared_by_all() -> None:
    found = planned("mlp-metaworld", load_hardware("2-cpu-laptop"))
    assert found.cpus == {"all stages": (0, 1)}
    assert found.splitting == "no GPUs"
    assert lowest_limit(found.prediction) == "shared CPUs"


def test_every_rival_says_why_it_lost() -> None:
    found = planned("openpi-robocasa", A100S)
    assert len(found.rivals) == 5
    for rival in found.rivals:
        assert rival.limit in rival.reason
        assert "slower" in rival.reason or "as fast" in rival.reason


def test_the_value_of_more_environments_is_told_where_they_are_few() -> None:
    few = plan_resources(replace(PI, num_envs=24), A100S)
    assert isinstance(few, ResourcePlan)
    assert few.more["3 environments"] > 0.05 * few.prediction.trajectories_per_s
    assert few.more["GiB of each node"] == 0


def test_times_are_moved_to_the_gpus_that_are_there() -> None:
    found = planned("openpi-libero", load_hardware("2x8-h20"))
    assert (found.moved_from, found.workload.device) == ("A100-SXM4-80GB", "H20")
    assert planned("openpi-libero", A100S).moved_from == ""


def test_splitting_is_probed_assumed_or_impossible() -> None:
    works, fails = BackEnd(name="green", works=True), BackEnd(name="mps", works=False, reason="no daemon")
    assert planned("openpi-robocasa", machine()).splitting == "assumed"
    probed = planned("openpi-robocasa", machine(sharing=(works, fails)))
    assert (probed.splitting, probed.splitting_how) == ("probed", "green")
    never = planned("openpi-robocasa", machine(sharing=(fails,)))
    assert (never.splitting, never.splitting_how) == ("impossible", "mps: no daemon")
    assert never.allocation.gpu_sharing != "split"
    assert all(rival.allocation.gpu_sharing != "split" for rival in never.rivals)


def test_too_little_device_memory_says_what_was_kept_and_what_to_do() -> None:
    short = plan_resources(load_workload("openpi-libero"), load_hardware("rtx4090"))
    assert isinstance(short, Infeasible)
    assert short.budget.startswith("device memory")
    assert short.available == pytest.approx(0.9 * 23.98828125 * 2**30)
    assert "10% of 24.0 GiB are kept free" in short.detail
    most = int(short.detail.rpartition(" instead of 224 environments")[0].split()[-1])
    fewer = [replace(load_workload("openpi-libero"), num_envs=count) for count in (most, most + 1)]
    kinds = [type(plan_resources(one, load_hardware("rtx4090"))) for one in fewer]
    assert kinds == [ResourcePlan, Infeasible]


def test_where_not_even_one_environment_fits_the_model_is_too_large() -> None:
    short = plan_resources(load_workload("openvla-oft-libero"), load_hardware("rtx4090"))
    assert isinstance(short, Infeasible)
    assert "not even one environment would fit: train fewer parameters (LoRA" in short.detail


def test_no_gpu_is_infeasible() -> None:
    short = plan_resources(PI, load_hardware("2-cpu-laptop"))
    assert isinstance(short, Infeasible)
    assert (short.budget, short.needed, short.available) == ("GPUs", 1, 0)


def test_different_gpus_are_refused() -> None:
    node = machine().nodes[0]
    mixed = replace(node, gpus=(node.gpus[0], replace(node.gpus[1], name="NVIDIA H20")))
    with pytest.raises(UsageError, match="has NVIDIA A100-SXM4-80GB and NVIDIA H20, and a plan is for one kind"):
        plan_resources(PI, Hardware(name="mixed", nodes=(mixed,)))
    smaller = replace(node, gpus=(node.gpus[0], replace(node.gpus[1], memory_bytes=2**30)))
    with pytest.raises(UsageError, match="the GPUs of node 0 differ"):
        plan_resources(PI, Hardware(name="mixed", nodes=(smaller,)))


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0"), (3.4, "3.40"), (102.4, "102"), (12345.6, "12,346"), (0.001234, "0.00123"), (-0.5, "-0.500")],
)
def test_figures_have_three_digits(number: float, text: str) -> None:
    assert figure(number) == text
