"""From a profile and a machine to a plan whose stages have CPUs of their own; and a run of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from drills import DIAL, MLP, PPO
from ebrl.config.load import make_config
from ebrl.config.schema import RunConfig
from ebrl.errors import ConfigError, UsageError
from ebrl.host.probe import usable_cpus
from ebrl.ids import CpuId
from ebrl.profiling.sections import sections_of
from ebrl.resources.hardware import Cpu, Hardware, Node
from ebrl.runtime.display import Silent
from ebrl.runtime.management import run_plan
from ebrl.runtime.session import evaluate, train
from profiles import make_profile


def machine(num_cpus: int, memory_bytes: int = 2**40) -> Hardware:
    cpus = tuple(Cpu(id=CpuId(cpu), core=cpu) for cpu in range(num_cpus))
    return Hardware(name="drawn", nodes=(Node(cpus=cpus, memory_bytes=memory_bytes),))


def config_of(directory: Path, **sections: Any) -> RunConfig:
    document: dict[str, Any] = {
        "run": {"directory": str(directory)},
        "env": {"name": DIAL},
        "policy": {"name": "mlp", "chunk_len": 4, "config": MLP},
        "algorithm": {"config": PPO},
        "simulation": {"num_envs": 2},
        "training": {"batch_trajectories": 4, "trajectory_chunks": 2, "max_updates": 6},
        "evaluation": {"episodes": 0},
        "resources": {"allocation": "planned", "profile": str(directory / "profile.json")},
    }
    for name, section in sections.items():
        document[name] = document.get(name, {}) | section
    return make_config(document)


@pytest.fixture
def profiled(tmp_path: Path) -> Path:
    """A directory with a profile of ``config_of``'s run."""
    profile = make_profile(sections=sections_of(config_of(tmp_path)))
    (tmp_path / "profile.json").write_text(json.dumps(profile.to_json()))
    return tmp_path


def test_by_hand_nobody_is_bound_but_env_workers(tmp_path: Path) -> None:
    plan = run_plan(config_of(tmp_path, resources={"allocation": "by_hand"}), machine(4))
    assert (plan.split, plan.management) == (None, None)
    assert plan.nodes == ((0, 1, 2, 3),)


def test_by_hand_each_stage_can_be_given_cpus(tmp_path: Path) -> None:
    config = config_of(
        tmp_path,
        resources={"allocation": "by_hand"},
        simulation={"cpus": [0, 1]},
        generation={"cpus": [2], "threads": 1},
        training={"cpus": [2, 3], "threads": 2},
    )
    split = run_plan(config, machine(4)).split
    assert split is not None
    assert (split.simulation, split.generation, split.training) == ((0, 1), (2,), (2, 3))
    assert (split.generation_threads, split.training_threads) == (1, 2)


def test_planned_two_cpus_are_shared_by_all(profiled: Path) -> None:
    plan = run_plan(config_of(profiled), machine(2))
    assert plan.split is not None
    assert plan.management is not None
    assert plan.management.allocation.cpu_sharing == "all"
    assert plan.split.simulation == plan.split.generation == plan.split.training == (0, 1)
    assert plan.nodes == ((0, 1),)


def test_planned_many_cpus_are_split(profiled: Path) -> None:
    plan = run_plan(config_of(profiled), machine(16))
    assert plan.split is not None
    parts = [set(cpus) for cpus in (plan.split.simulation, plan.split.generation, plan.split.training)]
    assert set.union(*parts) <= set(range(16))
    assert parts[0].isdisjoint(parts[2])


def test_without_rebalancing_the_split_stays(profiled: Path) -> None:
    config = config_of(profiled, resources={"rebalance": False})
    plan = run_plan(config, machine(4))
    assert plan.split is not None
    assert plan.management is None


@pytest.mark.parametrize(
    ("sections", "complaint"),
    [
        (
            {"simulation": {"cpus": [0]}},
            'simulation.cpus: = [0]: resources.allocation = "planned" wants "all"',
        ),
        (
            {"generation": {"num_generators": 2}},
            'generation.num_generators: = more than 1: resources.allocation = "planned" wants 1',
        ),
        (
            {"simulation": {"binding": "none"}},
            'simulation.binding: = "none": resources.allocation = "planned" wants "cpu"',
        ),
    ],
)
def test_what_is_planned_must_not_be_chosen_too(profiled: Path, sections: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        run_plan(config_of(profiled, **sections), machine(4))
    assert complaint in str(caught.value)


def test_a_profile_that_is_not_there_is_asked_for(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"profile.json cannot be read .*`ebrl profile RUN.toml` takes one"):
        run_plan(config_of(tmp_path), machine(2))


def test_a_profile_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "profile.json").write_text('{"format": 99}')
    with pytest.raises(UsageError, match="profile has format 99"):
        run_plan(config_of(tmp_path), machine(2))


def test_too_little_memory_is_named(profiled: Path) -> None:
    with pytest.raises(ConfigError, match=r"memory of each node: .* needed"):
        run_plan(config_of(profiled), machine(2, memory_bytes=2**20))


@pytest.mark.skipif(len(usable_cpus()) < 2, reason="needs two CPUs")
def test_a_planned_run_says_what_became_of_its_resources(profiled: Path) -> None:
    config = config_of(profiled, resources={"sample_s": 0.05}, training={"max_updates": 40})
    summary = train(config, Silent(), validate=True)
    assert summary["outcome"] == "finished"
    assert summary["ledger_balances"]
    assert summary["restarts"] == {}
    resources = summary["resources"]
    assert resources["split"]["simulation"] == resources["split"]["training"]
    assert resources["switches"]["mismatches"] == 0
    last = json.loads((Path(summary["run_dir"]) / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["resources/simulation_cpus"] == last["resources/training_cpus"] == len(usable_cpus())
    (profiled / "profile.json").unlink()  # an evaluation plans nothing
    assert evaluate(Path(summary["run_dir"]), episodes=2)["outcome"] == "finished"
