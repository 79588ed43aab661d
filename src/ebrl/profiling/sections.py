"""What of a configuration decides about costs: a profile is good for every run that agrees in it."""

from __future__ import annotations

from typing import Any

from ebrl.config.schema import RunConfig


def sections_of(config: RunConfig) -> dict[str, Any]:
    """The environment, the policy, the algorithm, and what generation and training run on."""
    training, generation = config.training, config.generation
    return {
        "env": config.env.model_dump(),
        "policy": config.policy.model_dump(),
        "algorithm": config.algorithm.model_dump(),
        "generation": {"device": generation.device, "threads": generation.threads},
        "training": {
            "device": training.device,
            "threads": training.threads,
            "batch_trajectories": training.batch_trajectories,
            "trajectory_chunks": training.trajectory_chunks,
        },
    }
