"""The whole system learns, notices when it cannot, and reports numbers that move."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from drills import MLP, REACH
from ebrl.algorithms.base import make_algorithm
from ebrl.algorithms.ppo import Ppo
from ebrl.config.load import make_config
from ebrl.config.schema import RunConfig
from ebrl.data.shared import SharedArrays
from ebrl.data.spec import ArraySpec
from ebrl.data.trajectory import crc, store_layout
from ebrl.data.weights import Weights, weights_layout
from ebrl.envs.toy import Reach
from ebrl.errors import RatioMismatch
from ebrl.policies.base import Policy, RowStreams, make_policy
from ebrl.policies.mlp import MlpPolicy
from ebrl.records.writer import read_metrics
from ebrl.runtime.display import Silent
from ebrl.runtime.session import train
from ebrl.workers.learner import Learning


def config_of(directory: Path, **sections: Any) -> RunConfig:
    document: dict[str, Any] = {
        "run": {"directory": str(directory), "seed": 1},
        "env": {"name": REACH},
        "policy": {"name": "mlp", "chunk_len": 4, "config": MLP},
        "algorithm": {"config": {"epochs": 1, "minibatch_chunks": 16, "critic_warmup_updates": 0}},
        "simulation": {"num_envs": 2},
        "training": {"batch_trajectories": 2, "trajectory_chunks": 2, "max_updates": 10},
        "evaluation": {"episodes": 0},
    }
    for name, section in sections.items():
        document[name] = document.get(name, {}) | section
    return make_config(document)


@pytest.mark.slow
def test_reach_is_learned(tmp_path: Path) -> None:
    config = config_of(
        tmp_path,
        env={"config": {"max_episode_steps": 24, "radius": 0.25, "speed": 0.25, "reward": "dense"}},
        policy={"config": {"hidden": [64], "critic_hidden": [64]}},
        algorithm={
            "config": {"epochs": 6, "minibatch_chunks": 128, "actor_lr": 2e-3, "critic_lr": 3e-3, "gamma": 0.95}
        },
        simulation={"num_envs": 8},
        training={"batch_trajectories": 32, "trajectory_chunks": 12, "max_updates": 40, "slack": 1},
        evaluation={"episodes": 64},
    )
    summary = train(config, Silent())
    before, after = summary["success_before"], summary["success_after"]
    print(f"success {before:.2f} -> {after:.2f} in {summary['seconds']:.1f} s, {summary['env_steps']} env steps")
    assert after >= 0.8
    assert after > before + 0.3
    rows = read_metrics(Path(summary["run_dir"]))
    assert rows[-1]["rollout/success_rate"] > 0.7
    assert rows[-1]["rollout/return_mean"] > rows[0]["rollout/return_mean"]
    assert (Path(summary["run_dir"]) / "learning_curve.png").stat().st_size > 10_000


def test_metrics_move_when_there_is_something_to_measure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One run with slack, failing environments, and one update that teaches nothing."""
    faulty = str(Path(__file__).parent.parent / "engines")
    monkeypatch.setenv("PYTHONPATH", faulty, prepend=os.pathsep)
    monkeypatch.syspath_prepend(faulty)
    config = config_of(
        tmp_path,
        env={
            "name": "toy/dial-v1",
            "config": {
                "raise_probability": 0.01,
                "nan_reward_probability": 0.01,
                "step_s": 0.001,
                "min_episode_steps": 5,
                "image_size": 8,
                "renderer": "black",
            },
        },
        algorithm={
            "name": "faulty_algorithms:NotFiniteOnce",
            "config": {
                "mark": str(tmp_path / "mark"),
                "epochs": 2,
                "minibatch_chunks": 4,
                "actor_lr": 0.03,
                "kl_limit": 1e9,
            },
        },
        simulation={"num_envs": 4},
        training={"batch_trajectories": 4, "max_updates": 40},
        failures={"max_env_failures": 50, "worker_resets": 3},
        generation={"min_batch": 2},
    )
    summary = train(config, Silent(), validate=True)
    rows = read_metrics(Path(summary["run_dir"]))
    assert summary["outcome"] == "finished"
    assert summary["updates_skipped"] == 1
    assert summary["env_failures"].keys() == {"raised", "invalid"}
    assert summary["restarts"] == {"env_worker": summary["env_failures"]["raised"]}
    assert summary["ledger"]["dropped"]["update_skipped"] == 4
    assert summary["ledger_balances"]
    assert summary["staleness_max"] == summary["staleness_bound"] == 1
    assert sum(summary["staleness_counts"].values()) == summary["ledger"]["trained"] == 4 * 40
    for stage, busy in summary["busy"].items():
        assert 0 < busy <= 1.05, stage
    moving = {name for name in rows[0] if len({row[name] for row in rows}) > 1}
    still = set(rows[0]) - moving
    assert still <= {
        "training/ratio_max_deviation_first",
        "training/behavior_masked_fraction",
        "training/executed_chunks",  # all of a segment's, where every environment has a worker of its own
    }, sorted(still)
    assert [row["training/skipped"] for row in rows].count(1.0) == 1
    last = rows[-1]
    assert summary["recycled"]["resets"] >= last["failures/recycled_workers"] > 0
    assert summary["constant_frames"] >= summary["repeated_frames"] > 0
    for name in ("failures/env", "failures/dropped_trajectories", "failures/restarts"):
        assert last[name] > 0, name
    assert any(row["training/staleness_mean"] > 0 for row in rows)
    for stage in ("simulation", "generation", "training"):
        assert all(row[f"{stage}/busy_fraction"] >= 0 for row in rows)
    assert last["training/ess"] > 0
    assert last["generation/batch_mean"] >= 1


def test_a_learner_that_disagrees_with_the_generator_stops_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)
    config = config_of(tmp_path, policy={"name": "broken_policies:Forgetful"})
    with pytest.raises(RatioMismatch) as caught:
        train(config, Silent())
    text = str(caught.value)
    assert "RatioMismatch: first update: the probability ratio of fresh chunks is off by" in text
    assert "want at most 0.0001; the observations agree byte for byte" in text


class Bench:
    """A learner and its store, filled as a generator and an env worker would."""

    def __init__(self) -> None:
        self.env = Reach()
        spec = self.env.spec
        self.policy: Policy = make_policy(
            MlpPolicy, MlpPolicy.Config(hidden=(16,), critic_hidden=(16,)), spec, 4, seed=0
        )
        record: dict[str, ArraySpec] = self.policy.record_spec()
        layout = store_layout(spec, record, num_slots=3, trajectory_chunks=2, num_transitions=1, chunk_len=4)
        self.store = SharedArrays.create("store", layout)
        self.weights = Weights(SharedArrays.create("weights", weights_layout(self.policy.state_dict())))
        algorithm = make_algorithm(Ppo, Ppo.Config(epochs=1, critic_warmup_updates=0), self.policy)
        self.learning = Learning(
            {"version": 0, "seed": 0, "device": "cpu", "envs_per_worker": 1},
            self.policy,
            algorithm,
            self.store,
            self.weights,
        )
        for slot in range(3):
            for chunk in range(2):
                self.fill(slot, chunk)

    def fill(self, slot: int, chunk: int) -> None:
        obs, _ = self.env.reset(slot * 2 + chunk)
        with torch.no_grad():
            sample = self.policy.sample(
                {name: torch.from_numpy(x)[None] for name, x in obs.items()}, RowStreams([(slot, chunk)])
            )
        where = (slot, chunk)
        for name, value in obs.items():
            self.store[f"obs/{name}"][where] = value
            self.store[f"final_obs/{name}"][where] = value
        self.store["record/path"][where] = sample.record["path"][0].numpy()
        for name in ("log_prob", "mean", "value"):
            self.store[name][where] = getattr(sample, name)[0].numpy()
        self.store["obs_crc"][where] = [crc(np.asarray(value)) for value in obs.values()]
        self.store["num_executed"][where] = 4
        self.store["reward"][where] = chunk


def test_an_update_writes_the_next_version() -> None:
    bench = Bench()
    metrics = bench.learning.train(np.array([0, 2]))
    assert metrics["ratio_max_deviation_first"] < 1e-5
    assert (bench.learning.version, bench.weights.newest) == (1, 1)


@pytest.mark.parametrize("slot", [0, 2])
def test_an_observation_that_changed_on_its_way_is_named(slot: int) -> None:
    bench = Bench()
    bench.store["obs/state"][slot, 1, 2] += 0.5
    with pytest.raises(RatioMismatch, match="reads other values of observation 'state' than the generator saw"):
        bench.learning.train(np.array([0, 2]))
    assert (bench.learning.version, bench.weights.newest) == (0, 0)


@pytest.mark.parametrize("slot", [0, 2])
def test_observations_are_compared_whatever_the_algorithm_reports(slot: int, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    monkeypatch.setattr(bench.learning.algorithm, "update", lambda *_, **__: {"skipped": 0.0})
    assert bench.learning.train(np.array([1])) == {"skipped": 0.0, "updates_without_ratio_check": 1.0}
    bench = Bench()
    monkeypatch.setattr(bench.learning.algorithm, "update", lambda *_, **__: {"skipped": 0.0})
    bench.store["obs/state"][slot, 1, 2] += 0.5
    with pytest.raises(RatioMismatch, match=r"reads other values of observation 'state' than the generator saw$"):
        bench.learning.train(np.array([0, 2]))


def test_what_changed_outside_the_batch_does_no_harm() -> None:
    bench = Bench()
    bench.store["obs/state"][1] += 0.5
    assert bench.learning.train(np.array([0, 2]))["skipped"] == 0.0


def test_the_check_waits_for_chunks_of_the_learners_own_version() -> None:
    bench = Bench()
    bench.store["behavior_version"][:] = -1
    bench.store["obs/state"][0] += 0.5
    bench.learning.train(np.array([0, 1]))
    bench.store["behavior_version"][:] = 1
    with pytest.raises(RatioMismatch):
        bench.learning.train(np.array([0, 1]))


def test_a_skipped_update_keeps_version_and_weights() -> None:
    bench = Bench()
    before = {name: x.clone() for name, x in bench.policy.state_dict().items()}
    bench.store["reward"][0, 0, 0] = np.nan
    assert bench.learning.train(np.array([0, 1]))["skipped"] == 1.0
    assert bench.learning.version == 0
    assert all(torch.equal(x, before[name]) for name, x in bench.policy.state_dict().items())
