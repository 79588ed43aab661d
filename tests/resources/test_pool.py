"""Which CPUs a stage gets, and that the books of a node balance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebrl.ids import CpuId
from ebrl.resources.hardware import Cpu, Gpu, Node
from ebrl.resources.pool import Claim, Infeasible, Pool, share_cpus

GIB = 2**30


def node(
    *, numas: int = 1, cores: int = 4, threads: int = 2, quota: float = 0.0, gpu_numas: Sequence[int] = ()
) -> Node:
    """``cores`` in each NUMA node; siblings have the next numbers."""
    cpus = [
        Cpu(id=CpuId(core * threads + thread), core=core, numa=core // cores)
        for core in range(numas * cores)
        for thread in range(threads)
    ]
    gpus = [
        Gpu(index=i, name="some", num_sms=132, sm_step=8, memory_bytes=80 * GIB, numa=numa)
        for i, numa in enumerate(gpu_numas)
    ]
    return Node(cpus=tuple(cpus), memory_bytes=64 * GIB, cpu_quota=quota, gpus=tuple(gpus))


def shared(
    on: Node, counts: Mapping[str, int], gpus: Mapping[str, Sequence[int]] | None = None
) -> dict[str, tuple[CpuId, ...]]:
    shares = share_cpus(on, counts, gpus=gpus)
    assert not isinstance(shares, Infeasible), str(shares)
    return shares


def owners_of_cores(on: Node, shares: Mapping[str, Sequence[int]]) -> dict[int, set[str]]:
    core_of = {cpu.id: cpu.core for cpu in on.cpus}
    owners: dict[int, set[str]] = {}
    for stage, cpus in shares.items():
        for cpu in cpus:
            owners.setdefault(core_of[CpuId(cpu)], set()).add(stage)
    return owners


def test_siblings_stay_with_one_stage() -> None:
    shares = shared(node(cores=4, threads=2), {"simulation": 4, "generation": 2, "training": 2})
    assert shares == {"simulation": (0, 1, 2, 3), "generation": (4, 5), "training": (6, 7)}


def test_while_there_are_cores_a_cpu_has_one_for_itself() -> None:
    shares = shared(node(cores=8, threads=2), {"simulation": 4, "training": 4})
    assert shares == {"simulation": (0, 2, 4, 6), "training": (8, 10, 12, 14)}


def test_spare_cores_go_to_the_stage_that_is_crowded_most() -> None:
    shares = shared(node(cores=6, threads=2), {"simulation": 6, "training": 2})
    assert owners_of_cores(node(cores=6), shares) == {core: {"simulation"} for core in range(4)} | {
        4: {"training"},
        5: {"training"},
    }


def test_odd_numbers_share_a_core_only_for_want_of_one() -> None:
    enough = shared(node(cores=4, threads=2), {"simulation": 3, "training": 3})
    assert enough == {"simulation": (0, 1, 2), "training": (4, 5, 6)}
    scarce = shared(node(cores=3, threads=2), {"simulation": 3, "training": 3})
    assert scarce == {"simulation": (0, 1, 4), "training": (2, 3, 5)}
    first = shared(node(cores=2, threads=2), {"simulation": 1, "generation": 1, "training": 1})
    assert first == {"simulation": (0,), "generation": (2,), "training": (3,)}


def test_a_stage_stays_in_one_numa_node_where_it_fits() -> None:
    shares = shared(node(numas=2, cores=4, threads=1), {"generation": 2, "simulation": 4, "training": 2})
    assert shares == {"generation": (4, 5), "simulation": (0, 1, 2, 3), "training": (6, 7)}


def test_a_stage_with_a_gpu_goes_where_the_gpu_is() -> None:
    machine = node(numas=2, cores=4, threads=1, gpu_numas=[0, 1])
    shares = shared(machine, {"simulation": 4, "training": 2, "generation": 2}, {"training": [1], "generation": [0]})
    assert (shares["training"], shares["generation"]) == ((4, 5), (0, 1))
    assert shares["simulation"] == (2, 3, 6, 7)


def test_stages_without_a_gpu_leave_no_gaps() -> None:
    machine = node(numas=2, cores=4, threads=1, gpu_numas=[0, 1])
    assert shared(machine, {"training": 3, "main": 1}, {"training": [1]}) == {"training": (4, 5, 6), "main": (7,)}
    wide = shared(machine, {"generation": 1, "simulation": 6}, {"generation": [0]})
    assert wide == {"generation": (0,), "simulation": (1, 2, 4, 5, 6, 7)}


def test_nobody_asks_for_a_stage_with_nothing() -> None:
    assert shared(node(), {"simulation": 1, "training": 0}) == {"simulation": (0,), "training": ()}


def test_too_many_cpus_is_a_value_that_says_why() -> None:
    assert str(share_cpus(node(cores=2, threads=1), {"simulation": 2, "training": 1})) == (
        "CPUs: 3 needed, 2 there (simulation 2 + training 1); lower the shares, or let stages share CPUs"
    )
    assert str(share_cpus(node(cores=4, quota=1.5), {"simulation": 2})) == (
        "CPUs: 2 needed, 1 there (simulation 2); a quota of 1.5 CPUs of time leaves that many of 8; lower the shares"
    )


@st.composite
def machines(draw: st.DrawFn) -> Node:
    """Cores of different width, as an affinity mask leaves them, in up to three NUMA nodes."""
    cores = draw(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 4)), min_size=1, max_size=12))
    ids = iter(draw(st.permutations(range(sum(width for _, width in cores)))))
    cpus = [
        Cpu(id=CpuId(next(ids)), core=core, numa=numa) for core, (numa, width) in enumerate(cores) for _ in range(width)
    ]
    quota = draw(st.one_of(st.just(0.0), st.floats(0.5, 40.0)))
    return Node(cpus=tuple(cpus), memory_bytes=GIB, cpu_quota=quota, gpus=node(gpu_numas=[0, 2]).gpus)


COUNTS = st.dictionaries(st.sampled_from(["simulation", "generation", "training", "main"]), st.integers(0, 12))
GPUS = st.dictionaries(st.sampled_from(["generation", "training"]), st.lists(st.integers(0, 1), max_size=2))


@given(machine=machines(), counts=COUNTS, gpus=GPUS)
def test_shares_are_disjoint_complete_and_the_nodes_own(
    machine: Node, counts: dict[str, int], gpus: dict[str, list[int]]
) -> None:
    shares = share_cpus(machine, counts, gpus=gpus)
    assert shares == share_cpus(machine, counts, gpus=gpus)
    if sum(counts.values()) > machine.num_cpus:
        assert isinstance(shares, Infeasible)
        assert (shares.needed, shares.available) == (sum(counts.values()), machine.num_cpus)
        return
    assert not isinstance(shares, Infeasible)
    assert {stage: len(cpus) for stage, cpus in shares.items()} == counts
    given_out = [cpu for cpus in shares.values() for cpu in cpus]
    assert len(set(given_out)) == len(given_out) <= machine.num_cpus
    assert set(given_out) <= {cpu.id for cpu in machine.cpus}
    splits = sum(len(owners) - 1 for owners in owners_of_cores(machine, shares).values())
    assert splits <= max(0, sum(count > 0 for count in counts.values()) - 1)


@given(
    numas=st.integers(1, 2), cores=st.integers(1, 8), threads=st.integers(1, 4), counts=COUNTS.filter(bool), gpus=GPUS
)
def test_no_core_is_shared_if_whole_ones_are_enough(
    numas: int, cores: int, threads: int, counts: dict[str, int], gpus: dict[str, list[int]]
) -> None:
    machine = node(numas=numas, cores=cores, threads=threads, gpu_numas=[0, numas - 1])
    if sum(-(-count // threads) for count in counts.values()) <= numas * cores:
        owners = owners_of_cores(machine, shared(machine, counts, gpus))
        assert all(len(stages) == 1 for stages in owners.values())
        if sum(counts.values()) <= numas * cores:
            assert len(owners) == sum(counts.values())


def test_what_does_not_fit_changes_nothing() -> None:
    pool = Pool(node(gpu_numas=[0]))
    assert pool.take("generation", cpus=[CpuId(0)], device=0, sms=40, device_memory_bytes=31 * GIB) is None
    before = pool.free()
    problem = pool.take("training", cpus=[CpuId(1)], device=0, sms=92, device_memory_bytes=int(60.2 * GIB))
    assert str(problem) == (
        "device memory of GPU 0: 91.2 GiB needed, 80.0 GiB there (generation 31.0 GiB + training 60.2 GiB); "
        "lower generation.max_batch or the training micro-batch, or use another GPU"
    )
    assert pool.free() == before
    assert pool.held("training") == ()


@pytest.mark.parametrize(
    ("claim", "text"),
    [
        (
            Claim(cpus=(CpuId(0), CpuId(99))),
            "CPUs by number: 2 needed, 0 there (CPU 99 is not this process's, CPU 0 is",
        ),
        (Claim(cpus=(CpuId(1), CpuId(2))), "CPUs: 3 needed, 2 there; a quota of 2 CPUs of time leaves that many of 8"),
        (Claim(memory_bytes=64 * GIB + 1), "memory: 64.1 GiB needed, 64.0 GiB there (training 64.0 GiB); lower simu"),
        (Claim(device=3, sms=8), "GPU 3: 1 needed, 0 there (numbers of the GPUs there: 0)"),
        (Claim(device=0, sms=133), "SMs of GPU 0: 133 needed, 132 there (training 133); lower one of the shares"),
    ],
)
def test_the_budget_that_is_too_small_is_named(claim: Claim, text: str) -> None:
    pool = Pool(node(gpu_numas=[0], quota=2.0))
    assert pool.take("generation", cpus=[CpuId(0)]) is None
    problem = pool.take(
        "training",
        cpus=claim.cpus,
        device=claim.device,
        sms=claim.sms,
        device_memory_bytes=claim.device_memory_bytes,
        memory_bytes=claim.memory_bytes,
    )
    assert str(problem).startswith(text)


STAGES = ["simulation", "generation", "training"]
CLAIMS = st.builds(
    Claim,
    cpus=st.lists(st.integers(0, 9).map(CpuId), max_size=4, unique=True).map(tuple),
    device=st.integers(0, 2),
    sms=st.integers(0, 100),
    device_memory_bytes=st.integers(0, 60 * GIB),
    memory_bytes=st.integers(0, 40 * GIB),
)


@given(asked=st.lists(st.tuples(st.sampled_from(STAGES), st.none() | CLAIMS), max_size=20))
def test_what_is_free_and_what_is_held_is_what_there_is(asked: list[tuple[str, Claim | None]]) -> None:
    machine = node(gpu_numas=[0, 0], quota=6.0)
    pool = Pool(machine)
    for stage, claim in asked:
        if claim is None:
            if pool.held(stage):
                pool.give_back(stage)
            continue
        before = pool.free(), pool.held(stage)
        problem = pool.take(
            stage,
            cpus=claim.cpus,
            device=claim.device,
            sms=claim.sms,
            device_memory_bytes=claim.device_memory_bytes,
            memory_bytes=claim.memory_bytes,
        )
        assert (pool.held(stage) == (*before[1], claim)) == (problem is None)
        if problem is not None:
            assert (pool.free(), pool.held(stage)) == before
            assert problem.needed > problem.available
        balances(machine, pool)


def balances(machine: Node, pool: Pool) -> None:
    free, held = pool.free(), [claim for stage in STAGES for claim in pool.held(stage)]
    taken = [cpu for claim in held for cpu in claim.cpus]
    assert sorted([*taken, *free.cpus]) == sorted(cpu.id for cpu in machine.cpus)
    assert len(taken) + free.num_cpus == machine.num_cpus
    assert sum(claim.memory_bytes for claim in held) + free.memory_bytes == machine.memory_bytes
    for gpu in machine.gpus:
        on = [claim for claim in held if claim.device == gpu.index]
        assert sum(claim.sms for claim in on) + free.sms[gpu.index] == gpu.num_sms
        memory_bytes = sum(claim.device_memory_bytes for claim in on) + free.device_memory_bytes[gpu.index]
        assert memory_bytes == gpu.memory_bytes
    assert min(free.num_cpus, free.memory_bytes, *free.sms.values(), *free.device_memory_bytes.values()) >= 0
