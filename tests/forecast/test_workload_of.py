"""What a profile was made with is what the workload made from it says."""

from __future__ import annotations

from dataclasses import replace
from statistics import fmean
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebrl.config.load import make_config
from ebrl.config.schema import RunConfig
from ebrl.errors import UsageError
from ebrl.profiling.sections import sections_of
from ebrl.profiling.workload import quota_of, share_of, workload_of
from ebrl.resources.allocation import Allocation, Shape, predict
from ebrl.resources.profile import BatchCost, BatchTime, Grant, Memory, PlayedEpisode, Profile, Work
from ebrl.resources.workload import BatchCosts, Workload
from profiles import make_profile

DOCUMENT: dict[str, Any] = {
    "run": {"name": "known"},
    "env": {"name": "toy/dial-v1"},
    "policy": {"name": "mlp", "chunk_len": 4},
    "simulation": {"num_envs": 6},
    "generation": {"max_batch": 5},
    "training": {"batch_trajectories": 8, "trajectory_chunks": 4, "slack": 2},
}
CONFIG = make_config(DOCUMENT)
NUM_CHUNKS = 32
EPOCHS = 3
ADOPT_S = 0.0005
GENERATION = BatchCosts(fixed_s=0.001, item_s=0.0005, serial=0.2, saturation=4.0)
TRAINING = BatchCosts(fixed_s=0.002, item_s=0.001, serial=0.4, saturation=2.0)
THREADS = (1, 2, 4, 8)


def update_s(costs: BatchCosts, size: int, threads: int) -> float:
    micro_batches = -(-NUM_CHUNKS // size)
    seconds = EPOCHS * (micro_batches * costs.fixed_s + NUM_CHUNKS * costs.item_s)
    return seconds * costs.factor(threads)


def profile_of(
    config: RunConfig = CONFIG,
    *,
    generation: BatchCosts = GENERATION,
    training: BatchCosts = TRAINING,
    sizes: tuple[int, ...] = (8, 32),
    own_size: int = 32,
) -> Profile:
    """A profile of a run with these costs, on CPUs."""
    base = make_profile()
    width, threads = config.simulation.envs_per_worker, config.training.threads
    return make_profile(
        sections=sections_of(config),
        batch_trajectories=8,
        trajectory_chunks=4,
        simulation=replace(
            base.simulation,
            tapes=((Grant(4 * width, 0.004 * width, 0.004 * width), Grant(4 * width, 0.006 * width, 0.006 * width)),),
            resets=(Work(0.004), Work(0.006)),
            episodes=(PlayedEpisode(20, True, True), PlayedEpisode(20, False, True)),
            own_bytes=50_000_001,
            corun=1.2,
        ),
        generation=replace(
            base.generation,
            table=tuple(BatchCost(b, generation.seconds(b, config.generation.threads), 0.0) for b in (1, 2, 6)),
            by_threads=tuple(BatchTime(t, b, generation.seconds(b, t), 0.0, 9) for t in THREADS for b in (1, 2, 6)),
            adopt=Work(ADOPT_S),
            memory=Memory(200, 3),
            corun=1.4,
        ),
        training=replace(
            base.training,
            updates=(Work(update_s(training, own_size, threads)),),
            by_threads=tuple(BatchTime(t, m, update_s(training, m, t), 0.0, 9) for t in THREADS for m in sizes),
            epochs=EPOCHS,
            micro_batch=own_size,
            memory=Memory(300, 4),
            corun=1.1,
        ),
    )


def changed(**sections: dict[str, Any]) -> RunConfig:
    return make_config(DOCUMENT | {name: DOCUMENT.get(name, {}) | section for name, section in sections.items()})


def predicted_update_s(workload: Workload, *, micro_batch: int, cpus: int = 1) -> float:
    allocation = Allocation(
        cpu_sharing="none",
        gpu_sharing="none",
        simulation_cpus=1,
        generation_cpus=1,
        training_cpus=cpus,
        num_generators=1,
        num_learners=1,
        generation_units=0,
        training_units=0,
        min_batch=1,
        max_batch=4,
        micro_batch=micro_batch,
    )
    return predict(workload, Shape(num_nodes=1, num_cpus=16, memory_bytes=2**34), allocation).update_s


def test_the_workload_of_a_profile_with_known_numbers_has_them_back() -> None:
    workload = workload_of(profile_of(), CONFIG)
    for found, known in ((workload.generation, GENERATION), (workload.training, TRAINING)):
        assert (found.fixed_s, found.item_s) == pytest.approx((known.fixed_s, known.item_s))
        assert (found.serial, found.saturation) == pytest.approx((known.serial, known.saturation))
    assert (workload.generation.memory_bytes, workload.generation.item_memory_bytes) == (200, 3)
    assert (workload.training.memory_bytes, workload.training.item_memory_bytes) == (300, 4)
    # Five chunks of four steps of 2.5 ms, and one reset of 5 ms in five chunks.
    assert workload.simulation.chunk_s == pytest.approx(4 * 0.0025 + 0.005 / 5)
    assert workload.simulation.chunk_sd_s == pytest.approx(4 * 0.0005)
    assert workload.simulation.memory_bytes == 50_000_001
    assert (workload.name, workload.num_envs, workload.chunk_len) == ("known", 6, 4)
    assert (workload.batch_trajectories, workload.trajectory_chunks) == (8, 4.0)
    assert (workload.slack, workload.epochs, workload.max_batch, workload.unit) == (2, 3, 5, "cpu")
    assert (workload.update_s, workload.sync_s, workload.host_cpus, workload.device) == (ADOPT_S, 0.0, 1.0, "")
    assert Workload.from_json(workload.to_json()) == workload
    assert {source.partition(":")[0] for source in workload.sources.values()} == {"measured"}
    assert all(names_a_number(workload, name) for name in workload.sources)


def names_a_number(workload: Workload, name: str) -> bool:
    value: Any = workload.to_json()
    for part in name.split("."):
        value = value[part]
    return isinstance(value, int | float)


@given(
    serial=st.floats(0.0, 0.85),
    saturation=st.sampled_from([1.0, 2.0, 4.0, 8.0]),
    fixed_s=st.floats(1e-4, 1.0),
    item_s=st.floats(1e-4, 1.0),
    sizes=st.sampled_from([(8, 32), (1, 32), (2, 8, 32), (4, 16)]),
)
def test_whatever_the_numbers(
    serial: float, saturation: float, fixed_s: float, item_s: float, sizes: tuple[int, ...]
) -> None:
    costs = BatchCosts(fixed_s=fixed_s, item_s=item_s, serial=serial, saturation=saturation)
    profile = profile_of(generation=costs, training=costs, sizes=sizes, own_size=sizes[-1])
    workload = workload_of(profile, CONFIG)
    for found in (workload.generation, workload.training):
        assert (found.fixed_s, found.item_s) == pytest.approx((fixed_s, item_s), rel=1e-4, abs=1e-9)
        assert found.saturation == saturation
        assert saturation == 1.0 or found.serial == pytest.approx(serial, abs=1e-6)
    for size in sizes:
        for threads in THREADS:
            measured_s = update_s(costs, size, threads)
            assert predicted_update_s(workload, micro_batch=size, cpus=threads) == pytest.approx(measured_s + ADOPT_S)


@given(noise=st.lists(st.floats(0.7, 1.4), min_size=3, max_size=3), own=st.sampled_from([2, 8, 32]))
def test_the_run_s_own_update_is_predicted_as_measured_however_noisy_the_table(noise: list[float], own: int) -> None:
    sizes = (2, 8, 32)
    profile = profile_of(sizes=sizes, own_size=own)
    table = tuple(BatchTime(1, m, update_s(TRAINING, m, 1) * x, 0.0, 9) for m, x in zip(sizes, noise, strict=True))
    profile = replace(profile, training=replace(profile.training, by_threads=table))
    measured_s = fmean(work.cpu_s for work in profile.training.updates)
    workload = workload_of(profile, CONFIG)
    assert predicted_update_s(workload, micro_batch=own) == pytest.approx(measured_s + ADOPT_S)


def test_costs_at_one_thread_are_known_though_the_run_has_more() -> None:
    config = changed(generation={"threads": 4}, training={"threads": 2})
    workload = workload_of(profile_of(config), config)
    for found, known in ((workload.generation, GENERATION), (workload.training, TRAINING)):
        assert (found.fixed_s, found.item_s) == pytest.approx((known.fixed_s, known.item_s))


def test_without_a_choice_of_micro_batches_all_of_an_update_goes_by_chunks() -> None:
    workload = workload_of(profile_of(sizes=(32,)), CONFIG)
    assert workload.training.fixed_s == 0.0
    assert predicted_update_s(workload, micro_batch=32) == pytest.approx(update_s(TRAINING, 32, 1) + ADOPT_S)


def test_stages_that_share_cpus_are_slower_by_their_weight() -> None:
    profile = profile_of()
    seconds = {
        1.2: workload_of(profile, CONFIG).simulation.chunk_s / 2,  # half of a grant is on the CPU
        1.4: GENERATION.seconds(2, 1) / 2,
        1.1: update_s(TRAINING, 32, 1) / NUM_CHUNKS,
    }
    wanted = sum(corun * s for corun, s in seconds.items()) / sum(seconds.values())
    assert workload_of(profile, CONFIG).shared_cpu_factor == pytest.approx(wanted)
    faster = replace(profile, simulation=replace(profile.simulation, corun=0.1))
    assert workload_of(faster, CONFIG).shared_cpu_factor == 1.0


def test_wide_env_workers_share_their_memory_and_are_counted_by_environment() -> None:
    config = changed(simulation={"envs_per_worker": 2})
    simulation = workload_of(profile_of(config), config).simulation
    assert simulation.memory_bytes == 25_000_001
    assert simulation.chunk_s == pytest.approx(4 * 0.0025 + 0.005 / 5)


def test_on_a_gpu_the_quota_is_a_share_of_it_and_its_memory_is_not_known() -> None:
    config = changed(generation={"device": "cuda"}, training={"device": "cuda"})
    workload = workload_of(profile_of(config), config)
    assert (workload.unit, workload.device) == ("gpu", "cuda")
    assert (workload.generation.serial, workload.generation.saturation) == (0.0, 1.0)
    assert (workload.training.serial, workload.training.saturation) == (0.0, 1.0)
    assert (workload.generation.memory_bytes, workload.training.memory_bytes) == (0, 0)
    assert {source.partition(":")[0] for source in workload.sources.values()} == {"measured", "assumed"}
    assert all(names_a_number(workload, name) for name in workload.sources)
    assert workload.host_cpus == 1.0  # this profile's updates are on the CPU throughout
    assert predicted_update_s(workload, micro_batch=32) == pytest.approx(update_s(TRAINING, 32, 1) + ADOPT_S)


def test_quotas() -> None:
    assert quota_of([]) == quota_of([BatchTime(1, 4, 1.0, 0.0, 9)])
    assert quota_of([BatchTime(1, 4, 1.0, 0.0, 9)]).saturation == 1.0
    slower = quota_of([BatchTime(1, 4, 1.0, 0.0, 9), BatchTime(2, 4, 1.3, 0.0, 9)])
    assert (slower.serial, slower.saturation) == (1.0, 1.0)
    other_sizes = quota_of([BatchTime(1, 4, 1.0, 0.0, 9), BatchTime(2, 8, 0.5, 0.0, 9)])
    assert other_sizes.saturation == 1.0
    costs = BatchCosts(fixed_s=1.0, item_s=0.0, serial=0.3, saturation=0.5)
    found = share_of([(share, costs.factor(share)) for share in (0.125, 0.25, 0.5, 1.0)])
    assert (found.serial, found.saturation) == pytest.approx((0.3, 0.5))


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"policy": {"chunk_len": 8}}, "was taken with policy = .* profile again"),
        ({"algorithm": {"config": {"epochs": 1}}}, "was taken with algorithm = "),
        ({"training": {"batch_trajectories": 4}}, "was taken with training = "),
    ],
)
def test_a_profile_of_another_run_is_refused(sections: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        workload_of(profile_of(), changed(**sections))


def test_other_threads_and_micro_batches_are_the_same_run() -> None:
    config = changed(
        generation={"threads": 2}, training={"threads": 2}, algorithm={"config": {"micro_batch_chunks": 4}}
    )
    assert workload_of(profile_of(), config) == workload_of(profile_of(), CONFIG)
