"""The workloads that come with the package: every number has a source, and they are what the literature says."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ebrl.errors import ConfigError, UsageError
from ebrl.plan.devices import DEVICES
from ebrl.plan.workloads import (
    KINDS,
    hand_over_s,
    kinds_of_sources,
    load_workload,
    read_document,
    read_workload,
    shipped_workloads,
    simulated_chunk_s,
)

ON_GPUS = [name for name in shipped_workloads() if load_workload(name).unit == "gpu"]


def leaves(document: dict[str, Any], where: str = "") -> Iterator[str]:
    for name, value in document.items():
        if isinstance(value, dict):
            yield from leaves(value, f"{where}{name}.")
        else:
            yield where + name


@pytest.mark.parametrize("name", shipped_workloads())
def test_every_number_has_a_source(name: str) -> None:
    document = load_workload(name).to_json()
    sources = document.pop("sources")
    assert document.pop("trained_chunks") == 0  # that is a run's, and follows from its habits
    assert sorted(sources) == sorted(set(leaves(document)) - {"format", "kind", "name"})
    assert {source.partition(":")[0] for source in sources.values()} <= set(KINDS)
    assert min(len(source) for source in sources.values()) > 12


@pytest.mark.parametrize("name", shipped_workloads())
def test_a_file_is_named_after_its_workload_and_its_gpu_is_known(name: str) -> None:
    workload = load_workload(name)
    assert workload.name == name
    assert workload.device in DEVICES if workload.unit == "gpu" else workload.device == ""


@pytest.mark.parametrize("name", ON_GPUS)
def test_generation_needs_no_more_operations_than_its_share_of_the_sms_has(name: str) -> None:
    """Time × saturation × peak is what those SMs can do; the FLOP that the file derives its times from must fit in."""
    workload = load_workload(name)
    source = workload.sources["generation.item_s"]
    if "TFLOP at" not in source:
        return
    tflop = float(source.rpartition(" TFLOP at")[0].split()[-1])
    peak = DEVICES[workload.device].tflops * workload.generation.saturation
    assert tflop / workload.generation.item_s < peak


@pytest.mark.parametrize("name", shipped_workloads())
def test_a_chunk_takes_what_its_parts_take(name: str) -> None:
    workload = load_workload(name)
    assert workload.simulation.chunk_s == pytest.approx(
        simulated_chunk_s(workload.simulation, workload.chunk_len), rel=2e-3
    )


@pytest.mark.parametrize("name", ON_GPUS)
def test_steps_of_a_chunk_are_long_or_short_together(name: str) -> None:
    workload = load_workload(name)
    simulation = workload.simulation
    assert simulation.chunk_sd_s == pytest.approx(workload.chunk_len * simulation.env_step_sd_s)


@pytest.mark.parametrize("name", ON_GPUS)
def test_episodes_are_as_long_as_between_the_start_and_convergence(name: str) -> None:
    simulation = load_workload(name).simulation
    assert simulation.episode_steps == pytest.approx((1 + (1 - 0.31)) / 2 * simulation.horizon_steps, abs=0.5)


@pytest.mark.parametrize("name", ON_GPUS)
def test_a_hand_over_moves_all_but_the_contexts(name: str) -> None:
    workload = load_workload(name)
    expected = hand_over_s(workload, num_learners=8, bytes_per_s=25e9)
    assert workload.hand_over_s == pytest.approx(expected, abs=5e-3)
    assert f"{expected * 25:.1f} GB over PCIe" in workload.sources["hand_over_s"]


def test_a_hand_over_by_hand() -> None:
    workload = load_workload("dreamzero-behavior")
    of_training = (3.5 - 1) + 80 / 16
    assert hand_over_s(workload, num_learners=16, bytes_per_s=10e9) == pytest.approx((12.4 - 1 + of_training) / 10)


@pytest.mark.parametrize("name", ["openpi-robocasa", "gr00t-robocasa"])
def test_robocasa_has_the_step_times_of_the_paper(name: str) -> None:
    simulation = load_workload(name).simulation
    assert simulation.env_step_s + simulation.observe_s == pytest.approx(0.040)
    assert simulation.env_step_sd_s == pytest.approx((0.060 - 0.040) / 2.33, rel=0.01)


def test_behavior_has_the_step_times_of_the_study() -> None:
    """One observation in 32 env steps, and one in each."""
    simulation = load_workload("dreamzero-behavior").simulation
    assert simulation.env_step_s + simulation.observe_s / 32 == pytest.approx(0.0132, rel=0.01)
    assert simulation.env_step_s + simulation.observe_s == pytest.approx(3.3 * 0.0132, rel=0.01)


def test_kinds_are_counted_firmest_first() -> None:
    kinds = kinds_of_sources(load_workload("mlp-metaworld"))
    assert list(kinds) == ["measured", "derived"]
    assert sum(kinds.values()) == len(load_workload("mlp-metaworld").sources)


def test_an_unknown_name_is_told_the_nearest() -> None:
    with pytest.raises(UsageError, match=r"no workload or file 'openpi-robocassa'; did you mean 'openpi-robocasa'\?"):
        load_workload("openpi-robocassa")


def test_a_file_of_ones_own_is_read_and_a_wrong_one_is_named(tmp_path: Path) -> None:
    workload = load_workload("openpi-libero")
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(workload.to_json()))
    assert read_workload(read_document(path), path) == workload
    path.write_text(json.dumps(workload.to_json() | {"num_envs": 0}))
    with pytest.raises(ConfigError, match=r"mine.json: .*num_envs.*want 1 or more"):
        read_workload(read_document(path), path)
    path.write_text("[1]")
    with pytest.raises(ConfigError, match="want a JSON object"):
        read_document(path)


def test_a_workload_may_be_named_like_its_file() -> None:
    assert load_workload("openpi-robocasa.json") == load_workload("openpi-robocasa")
