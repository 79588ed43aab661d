"""With ``run.deterministic`` the whole system equals a loop that fits on a page, bit for bit.

The loop below is a second implementation: one process, no engine, no scheduler, no shared memory.
It knows the environment, the policy, the algorithm and the rules of the documentation, nothing else.

Axes: N environments (and trajectories), K chunks, H chunk horizon.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from drills import FLOW, MLP, REACH
from ebrl.algorithms.base import TrainingBatch
from ebrl.algorithms.ppo import Ppo
from ebrl.config.load import make_config
from ebrl.config.schema import RunConfig
from ebrl.data.checkpoint import list_checkpoints
from ebrl.envs.base import episode_seed
from ebrl.envs.toy import Reach
from ebrl.policies.base import RowStreams, make_policy
from ebrl.registry import load
from ebrl.registry import make_config as make_plugin_config
from ebrl.runtime.display import Silent
from ebrl.runtime.session import train
from ebrl.workers.building import use_fast_products

SEED = 11
NUM_ENVS = 3
CHUNK_LEN = 4
NUM_CHUNKS = 6
NUM_UPDATES = 5
ENV: dict[str, Any] = {"max_episode_steps": 14, "radius": 0.4, "speed": 0.3, "reward": "dense"}
PPO = {"epochs": 2, "minibatch_chunks": 7, "critic_warmup_updates": 1, "actor_lr": 1e-3}


def config_of(directory: Path, policy: str, policy_config: dict[str, Any], **training: Any) -> RunConfig:
    return make_config(
        {
            "run": {"directory": str(directory), "seed": SEED, "deterministic": True},
            "env": {"name": REACH, "config": ENV},
            "policy": {"name": policy, "chunk_len": CHUNK_LEN, "config": policy_config},
            "algorithm": {"config": PPO},
            "simulation": {"num_envs": NUM_ENVS},
            "generation": {"min_batch": NUM_ENVS},
            "training": {
                "batch_trajectories": NUM_ENVS,
                "trajectory_chunks": NUM_CHUNKS,
                "slack": 0,
                "max_updates": NUM_UPDATES,
                **training,
            },
            "evaluation": {"episodes": 0},
            "checkpoint": {"every_updates": 2, "keep": 10},
        }
    )


class Reference:
    """Plain synchronous training."""

    def __init__(self, policy: str, policy_config: dict[str, Any]) -> None:
        self.envs = [Reach("", Reach.Config(**ENV)) for _ in range(NUM_ENVS)]
        self.spec = self.envs[0].spec
        cls, _ = load("policy", policy)
        config = make_plugin_config(cls, policy_config, "policy.config")
        self.policy = make_policy(cls, config, self.spec, CHUNK_LEN, SEED)
        self.algorithm = Ppo(make_plugin_config(Ppo, PPO, "algorithm.config"), self.policy)
        self.num_episodes = [0] * NUM_ENVS
        self.num_steps = [0] * NUM_ENVS
        self.num_chunks = 0
        self.standing: list[dict[str, np.ndarray]] = [{}] * NUM_ENVS
        self.early_ends = self.limit_ends = 0
        for index in range(NUM_ENVS):
            self.reset(index)

    def reset(self, index: int) -> None:
        episode = self.num_episodes[index] * NUM_ENVS + index
        self.num_episodes[index] += 1
        self.num_steps[index] = 0
        obs, _ = self.envs[index].reset(episode_seed(SEED, episode, evaluation=False))
        self.standing[index] = {name: np.array(value) for name, value in obs.items()}

    def execute(self, index: int, actions: np.ndarray) -> dict[str, Any]:
        """One chunk in one environment, up to the end of the episode if that comes first."""
        rewards = np.zeros(CHUNK_LEN, np.float32)
        for step, action in enumerate(np.clip(actions, -1.0, 1.0)):
            obs, rewards[step], terminated, _, _ = self.envs[index].step(action, need_obs=True)
            self.num_steps[index] += 1
            truncated = not terminated and self.num_steps[index] == ENV["max_episode_steps"]
            if terminated or truncated:
                self.early_ends += step + 1 < CHUNK_LEN
                self.limit_ends += truncated
                break
        # The learner multiplies the value after a terminated episode by zero, so what stands there
        # changes no bit of the result.
        assert obs is not None
        after = {name: np.array(value) for name, value in obs.items()}
        end = {"reward": rewards, "num_executed": step + 1, "terminated": terminated, "truncated": truncated}
        if terminated or truncated:
            self.reset(index)
        else:
            self.standing[index] = after
        return end | {"final_obs": after}

    def update(self, version: int) -> None:
        """N segments of K chunks, then one update."""
        made: list[dict[str, Any]] = []
        for _ in range(NUM_CHUNKS):
            obs = {name: np.stack([here[name] for here in self.standing]) for name in self.spec.observation}
            keys = [(SEED, index, self.num_chunks) for index in range(NUM_ENVS)]
            with torch.inference_mode():
                sample = self.policy.sample({name: torch.from_numpy(x) for name, x in obs.items()}, RowStreams(keys))
            self.num_chunks += 1
            ends = [self.execute(index, sample.actions[index].numpy()) for index in range(NUM_ENVS)]
            final = {name: np.stack([end["final_obs"][name] for end in ends]) for name in obs}
            made.append(
                {
                    "obs": obs,
                    "final_obs": final,
                    "record": {name: x.numpy() for name, x in sample.record.items()},
                    **{name: getattr(sample, name).numpy() for name in ("log_prob", "mean", "value")},
                    **{
                        name: np.stack([end[name] for end in ends])
                        for name in ("reward", "num_executed", "terminated", "truncated")
                    },
                }
            )

        def stack(name: str) -> Tensor:
            return torch.from_numpy(np.stack([chunk[name] for chunk in made], axis=1))

        def stack_each(name: str) -> dict[str, Tensor]:
            return {
                key: torch.from_numpy(np.stack([chunk[name][key] for chunk in made], axis=1)) for key in made[0][name]
            }

        batch = TrainingBatch(
            obs=stack_each("obs"),
            final_obs=stack_each("final_obs"),
            record=stack_each("record"),
            log_prob=stack("log_prob"),
            mean=stack("mean"),
            value=stack("value"),
            reward=stack("reward"),
            num_executed=stack("num_executed"),
            terminated=stack("terminated"),
            truncated=stack("truncated"),
            behavior_version=torch.full((NUM_ENVS, NUM_CHUNKS), version),
            episode=torch.zeros(NUM_ENVS, NUM_CHUNKS, dtype=torch.int64),
        )
        rng = torch.Generator().manual_seed(SEED * 1_000_003 + version)
        before = torch.get_float32_matmul_precision()
        use_fast_products()  # as the learner, and it alone
        metrics = self.algorithm.update(batch, learner_version=version, rng=rng)
        torch.set_float32_matmul_precision(before)
        assert metrics["skipped"] == 0.0


def final_state(run_dir: Path) -> dict[str, Tensor]:
    path = list_checkpoints(run_dir / "checkpoints")[-1]
    assert path.name == f"update-{NUM_UPDATES:06d}"
    tensors = load_file(path / "policy.safetensors")
    return tensors | {f"optimizer/{name}": x for name, x in load_file(path / "algorithm.safetensors").items()}


def differing(a: dict[str, Tensor], b: dict[str, Tensor]) -> list[str]:
    """Names of tensors that are not the same, bit for bit."""
    assert a.keys() == b.keys()
    return [name for name in a if _bits(a[name]) != _bits(b[name])]


def _bits(x: Tensor) -> tuple[torch.dtype, torch.Size, bytes]:
    return x.dtype, x.shape, x.contiguous().numpy().tobytes()


def run_once(config: RunConfig, resume: Path | None = None) -> Path:
    summary = train(config, Silent(), resume=resume, validate=True)
    assert summary["outcome"] == "finished"
    assert summary["staleness_max"] == 0
    assert summary["ledger_balances"]
    return Path(summary["run_dir"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("policy", "policy_config"), [("flow", FLOW | {"sampler": "flow_noise"}), ("mlp", MLP)], ids=["flow", "mlp"]
)
def test_the_system_equals_a_plain_loop_bit_for_bit(tmp_path: Path, policy: str, policy_config: dict[str, Any]) -> None:
    torch.set_num_threads(1)
    reference = Reference(policy, policy_config)
    initial = {name: x.clone() for name, x in reference.policy.state_dict().items()}
    for version in range(NUM_UPDATES):
        reference.update(version)
    want: dict[str, Tensor] = dict(reference.policy.state_dict())
    assert reference.early_ends
    assert reference.limit_ends
    assert differing(initial, want), "nothing was learned, so nothing was compared"
    want = reference_state(reference)
    run_dir = run_once(config_of(tmp_path, policy, policy_config))
    assert differing(final_state(run_dir), want) == []
    rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    assert [row["policy_version"] for row in rows] == list(range(1, NUM_UPDATES + 1))
    if policy == "mlp":
        return
    # The same again: other timing, same weights.
    again = run_once(config_of(tmp_path, policy, policy_config))
    assert again != run_dir
    assert differing(final_state(again), want) == []


@pytest.mark.slow
def test_another_seed_gives_other_weights(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    reference = Reference("mlp", MLP)
    for version in range(NUM_UPDATES):
        reference.update(version)
    document = config_of(tmp_path, "mlp", MLP).model_dump()
    document["run"]["seed"] = SEED + 1
    run_dir = run_once(make_config(document))
    assert "head.0.weight" in differing(final_state(run_dir), reference_state(reference))


def reference_state(reference: Reference) -> dict[str, Tensor]:
    return dict(reference.policy.state_dict()) | {
        f"optimizer/{name}": x for name, x in reference.algorithm.state_dict().items()
    }
