"""What inference and learning cost alone, under ebrl's policy and algorithm: CPU time per env step."""

from __future__ import annotations

import os
import time
from typing import Any

import torch

from ebrl.algorithms.base import TrainingBatch, make_algorithm
from ebrl.bench.peer_programs.run_ebrl import configure
from ebrl.bench.peer_programs.tasks import Request, read_request, say
from ebrl.data.spec import ArraySpec, EnvSpec
from ebrl.policies.base import Policy, RowStreams, make_policy
from ebrl.registry import load, make_config
from ebrl.workers.building import use_fast_products

STATES = {"metaworld": (39, 4), "gym": (17, 6)}
"""Sizes of observation and action, by suite."""


def make(request: Request) -> tuple[Policy, Any]:
    """Policy and algorithm as the run has them."""
    config = configure(request, "")
    size, actions = STATES[request.env.partition("/")[0]]
    spec = EnvSpec({"state": ArraySpec((size,), "float32")}, (-1.0,) * actions, (1.0,) * actions, 500)
    cls, _ = load("policy", config.policy.name)
    chosen = make_config(cls, config.policy.config, "policy.config")
    policy = make_policy(cls, chosen, spec, request.chunk_len, request.seed)
    cls, _ = load("algorithm", config.algorithm.name)
    return policy, make_algorithm(cls, make_config(cls, config.algorithm.config, "algorithm.config"), policy)


def batch_of(policy: Policy, request: Request) -> TrainingBatch:
    """As large as an update, of random observations."""
    size, _ = STATES[request.env.partition("/")[0]]
    rows, chunks = request.num_envs, request.rollout // request.chunk_len
    obs = {"state": torch.randn(rows * chunks, size)}
    sample = policy.sample(obs, RowStreams([(request.seed, i) for i in range(rows * chunks)]))

    def grid(x: torch.Tensor) -> torch.Tensor:
        return x.reshape(rows, chunks, *x.shape[1:])

    none = torch.zeros(rows, chunks, dtype=torch.bool)
    zero = torch.zeros(rows, chunks, dtype=torch.int64)
    return TrainingBatch(
        obs={"state": grid(obs["state"])},
        final_obs={"state": torch.randn(rows, chunks, size)},
        record={name: grid(x) for name, x in sample.record.items()},
        log_prob=grid(sample.log_prob),
        mean=grid(sample.mean),
        value=grid(sample.value),
        reward=torch.randn(rows, chunks, request.chunk_len),
        num_executed=zero + request.chunk_len,
        terminated=none,
        truncated=none,
        behavior_version=zero,
        episode=zero,
    )


def inference_s(policy: Policy, request: Request) -> float:
    """CPU time per env step of inference for the environments of one of a peer's processes at once."""
    size, _ = STATES[request.env.partition("/")[0]]
    num = request.num_envs // request.num_processes
    obs, count, used, begun = torch.randn(num, size), 0, time.process_time(), time.monotonic()
    with torch.inference_mode():
        while time.monotonic() - begun < request.window_s:
            policy.sample({"state": obs}, RowStreams([(request.seed, i, count) for i in range(num)]))
            count += 1
    return (time.process_time() - used) / (count * num * request.chunk_len)


def learning_s(policy: Policy, algorithm: Any, request: Request) -> float:
    """CPU time per env step of updates."""
    batch, rng = batch_of(policy, request), torch.Generator()
    algorithm.update(batch, learner_version=0, rng=rng)
    count, used, begun = 0, time.process_time(), time.monotonic()
    while time.monotonic() - begun < request.window_s:
        algorithm.update(batch, learner_version=0, rng=rng)
        count += 1
    return (time.process_time() - used) / (count * request.update_steps)


def main() -> None:
    """Measure both."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    request = read_request()
    policy, algorithm = make(request)
    inference = inference_s(policy, request)
    use_fast_products()  # as the learner does
    say({"inference_s": inference, "learning_s": learning_s(policy, algorithm, request)})


if __name__ == "__main__":
    main()
