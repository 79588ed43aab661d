"""What an allocation needs and what a run makes of it, on numbers worked out by hand; and what never gets worse."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebrl.bench.allocator import random_pair
from ebrl.ids import CpuId
from ebrl.resources.allocation import Allocation, Memory, Shape, memory_of, predict, shape_of, shortage
from ebrl.resources.allocator import Choice, allocate
from ebrl.resources.hardware import BackEnd, Cpu, Gpu, Hardware, Node
from ebrl.resources.workload import BatchCosts, SimulationCosts, Workload

GIB = 2**30

ON_CPUS = Workload(
    name="by hand",
    num_envs=16,
    chunk_len=8,
    trajectory_chunks=4,
    batch_trajectories=8,
    slack=8,
    epochs=1,
    unit="cpu",
    simulation=SimulationCosts(chunk_s=0.2, memory_bytes=GIB // 2),
    generation=BatchCosts(fixed_s=0.02, item_s=0.005, memory_bytes=2 * GIB, item_memory_bytes=GIB // 4),
    training=BatchCosts(fixed_s=0.1, item_s=0.01, memory_bytes=3 * GIB, item_memory_bytes=GIB // 8),
)
"""16 environments of 0.2 s for a chunk; 8 trajectories of 4 chunks for an update."""

EIGHT_CPUS = Shape(num_nodes=1, num_cpus=8, memory_bytes=64 * GIB)

APART = Allocation(
    cpu_sharing="none",
    gpu_sharing="none",
    simulation_cpus=6,
    generation_cpus=1,
    training_cpus=1,
    num_generators=1,
    num_learners=1,
    generation_units=0,
    training_units=0,
    min_batch=1,
    max_batch=16,
    micro_batch=32,
)

ON_GPUS = replace(ON_CPUS, unit="gpu", corun=1.2, host_cpus=1.0)
TWO_GPUS = Shape(
    num_nodes=1,
    num_cpus=8,
    memory_bytes=64 * GIB,
    num_gpus=2,
    num_sms=132,
    sm_step=8,
    device_memory_bytes=16 * GIB,
)
SPLIT = replace(
    APART,
    cpu_sharing="compute",
    gpu_sharing="split",
    simulation_cpus=6,
    generation_cpus=2,
    training_cpus=2,
    num_generators=2,
    num_learners=2,
    generation_units=33,
    training_units=99,
    max_batch=8,
    micro_batch=16,
)


# Times at a quota.


def test_a_quota_shortens_what_is_not_serial_until_it_is_saturated() -> None:
    costs = BatchCosts(fixed_s=0.3, item_s=0.1, serial=0.2, saturation=4.0)
    assert [costs.factor(cpus) for cpus in (1, 2, 4, 9)] == pytest.approx([1.0, 0.6, 0.4, 0.4])
    assert costs.seconds(7, 2) == pytest.approx(0.6)
    half = BatchCosts(fixed_s=0.3, item_s=0.1, serial=0.2, saturation=0.5)
    assert [half.factor(share) for share in (0.25, 0.5, 1.0)] == pytest.approx([1.8, 1.0, 1.0])


# Rates.


def test_simulation_limits_a_run_whose_other_stages_are_fast() -> None:
    found = predict(ON_CPUS, EIGHT_CPUS, APART)
    assert found.update_s == pytest.approx(0.1 + 32 * 0.01)
    assert found.limits["simulation"] == pytest.approx(6 / 0.2 / 4)
    assert found.limits["generation"] == pytest.approx(16 / (0.02 + 16 * 0.005) / 4)
    assert found.limits["training"] == pytest.approx(8 / 0.42)
    assert found.binding == "simulation"
    assert found.trajectories_per_s == pytest.approx(7.5)


def test_micro_batches_pay_the_fixed_time_each() -> None:
    found = predict(replace(ON_CPUS, epochs=2, update_s=0.05), EIGHT_CPUS, replace(APART, micro_batch=10))
    assert found.update_s == pytest.approx(2 * (4 * 0.1 + 32 * 0.01) + 0.05)


def test_cpus_that_all_share_are_a_limit_of_their_own() -> None:
    workload = replace(ON_CPUS, shared_cpu_factor=1.25)
    shared = replace(APART, cpu_sharing="all", simulation_cpus=2, generation_cpus=2, training_cpus=2, min_batch=8)
    found = predict(workload, replace(EIGHT_CPUS, num_cpus=2), shared)
    simulation_s, generation_s, training_s = 0.25, (0.02 / 8 + 0.005) * 1.25, 0.42 * 1.25 / 32
    assert found.limits["shared CPUs"] == pytest.approx(2 / (simulation_s + generation_s + training_s) / 4)
    assert found.binding == "shared CPUs"


def test_a_split_gpu_stretches_both_stages() -> None:
    costs = replace(ON_GPUS.generation, saturation=0.5)
    found = predict(replace(ON_GPUS, generation=costs), TWO_GPUS, SPLIT)
    assert found.generation_fixed_s == pytest.approx(0.02 * 2 * 1.2)  # a quarter of the GPU, where half is enough
    assert found.generation_item_s == pytest.approx(0.005 * 2 * 1.2)
    assert found.update_s == pytest.approx((0.1 + 16 * 0.01) * 4 / 3 * 1.2)  # half of the chunks, three quarters
    turns = replace(SPLIT, gpu_sharing="turns", generation_units=25, training_units=75)
    found = predict(replace(ON_GPUS, generation=costs), TWO_GPUS, turns)
    assert found.generation_fixed_s == pytest.approx(0.02 * 4)
    assert found.update_s == pytest.approx((0.1 + 16 * 0.01) * 4 / 3)


def test_learners_that_must_agree_take_longer() -> None:
    whole = replace(SPLIT, gpu_sharing="whole", generation_units=132, training_units=132)
    workload = replace(ON_GPUS, sync_s=0.5)
    assert predict(workload, TWO_GPUS, replace(whole, num_learners=1)).update_s == pytest.approx(2 * 0.1 + 0.32)
    assert predict(workload, TWO_GPUS, replace(whole, num_learners=2)).update_s == pytest.approx(0.26 + 0.5)


# Memory.


def test_memory_on_cpus_is_that_of_the_node() -> None:
    need = memory_of(ON_CPUS, EIGHT_CPUS, APART)
    assert need == Memory(
        generation_device_bytes=0,
        training_device_bytes=0,
        rendering_device_bytes=0,
        host_bytes=(16 // 2 + (2 + 4) + (3 + 4)) * GIB,
    )
    assert shortage(ON_CPUS, replace(EIGHT_CPUS, memory_bytes=21 * GIB), APART) is None
    short = shortage(ON_CPUS, replace(EIGHT_CPUS, memory_bytes=20 * GIB), APART)
    assert short is not None
    assert (short.budget, short.needed, short.available) == ("memory of each node", 21 * GIB, 20 * GIB)
    assert "simulation 8.0 GiB" in short.detail


def test_memory_on_gpus_is_that_of_each_gpu() -> None:
    workload = replace(ON_GPUS, simulation=replace(ON_GPUS.simulation, device_memory_bytes=GIB // 2))
    need = memory_of(workload, TWO_GPUS, SPLIT)
    assert (need.generation_device_bytes, need.training_device_bytes) == (4 * GIB, 5 * GIB)
    assert (need.rendering_device_bytes, need.host_bytes) == (4 * GIB, 8 * GIB)
    assert shortage(workload, replace(TWO_GPUS, device_memory_bytes=13 * GIB), SPLIT) is None
    short = shortage(workload, replace(TWO_GPUS, device_memory_bytes=12 * GIB), SPLIT)
    assert short is not None
    assert (short.budget, short.needed, short.available) == ("device memory of each GPU", 13 * GIB, 12 * GIB)
    whole = replace(SPLIT, gpu_sharing="whole")
    assert shortage(workload, replace(TWO_GPUS, device_memory_bytes=8 * GIB), whole) is None
    short = shortage(workload, replace(TWO_GPUS, device_memory_bytes=8 * GIB - 1), whole)
    assert short is not None
    assert "training" not in short.detail


def test_sharded_memory_is_shared_out() -> None:
    workload = replace(ON_GPUS, sharded_bytes=6 * GIB)
    assert memory_of(workload, TWO_GPUS, SPLIT).training_device_bytes == (5 + 3) * GIB


# The machine.


def machine(**gpu: object) -> Hardware:
    nodes = [
        Node(
            cpus=tuple(Cpu(id=CpuId(number), core=number) for number in range(4)),
            memory_bytes=8 * GIB,
            gpus=(Gpu(index=0, name="card", num_sms=132, sm_step=8, memory_bytes=80 * GIB),),
        )
        for _ in range(2)
    ]
    first = replace(nodes[0], gpus=(replace(nodes[0].gpus[0], **gpu),))  # type: ignore[arg-type]
    return Hardware(name="two nodes", nodes=(first, nodes[1]))


def test_the_machine_as_the_allocator_sees_it() -> None:
    assert shape_of(machine()) == Shape(
        num_nodes=2,
        num_cpus=4,
        memory_bytes=8 * GIB,
        num_gpus=1,
        num_sms=132,
        sm_step=8,
        device_memory_bytes=80 * GIB,
        can_split=True,
    )


def test_a_gpu_is_split_only_where_something_splits_it() -> None:
    one = replace(machine(), nodes=machine().nodes[:1])

    def can_split(*sharing: BackEnd) -> bool:
        gpu = replace(one.nodes[0].gpus[0], sharing=sharing)
        return shape_of(replace(one, nodes=(replace(one.nodes[0], gpus=(gpu,)),))).can_split

    assert can_split(BackEnd(name="green", works=True))
    assert not can_split(BackEnd(name="green", works=False), BackEnd(name="time_slice", works=True))


def test_nodes_and_gpus_that_differ_are_refused() -> None:
    with pytest.raises(ValueError, match="two nodes: its nodes differ"):
        shape_of(machine(num_sms=78))
    mixed = replace(machine().nodes[0].gpus[0], index=1, num_sms=78)
    node = replace(machine().nodes[0], gpus=(machine().nodes[0].gpus[0], mixed))
    with pytest.raises(ValueError, match="the GPUs of node 0 differ"):
        shape_of(Hardware(name="mixed", nodes=(node,)))


# What never makes a run slower.

SEEDS = st.integers(0, 2**32)


def drawn(seed: int) -> tuple[Workload, Shape]:
    return random_pair(random.Random(seed))


def best(workload: Workload, shape: Shape) -> float:
    found = allocate(workload, shape)
    return found.best.prediction.trajectories_per_s if isinstance(found, Choice) else 0.0


@given(seed=SEEDS, more=st.integers(1, 5))
def test_more_cpus_and_memory_never_make_the_best_slower(seed: int, more: int) -> None:
    workload, shape = drawn(seed)
    now = best(workload, shape) * (1 - 3e-3)  # of which a little may be given away for a smaller micro-batch
    assert best(workload, replace(shape, num_cpus=shape.num_cpus + more)) >= now
    assert best(workload, replace(shape, memory_bytes=shape.memory_bytes + more * GIB)) >= now
    assert best(workload, replace(shape, device_memory_bytes=shape.device_memory_bytes + more * GIB)) >= now


@given(seed=SEEDS)
def test_more_places_to_split_a_gpu_never_make_the_best_slower(seed: int) -> None:
    workload, shape = drawn(seed)
    coarse = replace(shape, num_sms=64, sm_step=8)
    assert best(workload, replace(coarse, sm_step=4)) >= best(workload, coarse) * (1 - 3e-3)


@given(seed=SEEDS, cap=st.integers(1, 300))
def test_larger_batches_are_never_slower(seed: int, cap: int) -> None:
    workload, shape = drawn(seed)
    found = allocate(workload, shape)
    if not isinstance(found, Choice):
        return
    one = found.best.allocation
    small, large = (replace(one, max_batch=size, min_batch=min(size, one.min_batch)) for size in (cap, cap + 1))
    allowed = 1 - 1e-9
    assert (
        predict(workload, shape, large).trajectories_per_s
        >= predict(workload, shape, small).trajectories_per_s * allowed
    )
    small, large = replace(one, micro_batch=cap), replace(one, micro_batch=cap + 1)
    assert predict(workload, shape, large).update_s <= predict(workload, shape, small).update_s / allowed
