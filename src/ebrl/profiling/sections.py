"""What of a configuration decides about costs: a profile is good for every run that agrees in it."""

from __future__ import annotations

from typing import Any

from ebrl.config.schema import RunConfig


def sections_of(config: RunConfig) -> dict[str, Any]:
    """The environment, the policy, the algorithm, and what the stages run on."""
    simulation, training, generation = config.simulation, config.training, config.generation
    return {
        "env": config.env.model_dump(),
        "policy": config.policy.model_dump(),
        "algorithm": config.algorithm.model_dump(),
        "simulation": {"envs_per_worker": simulation.envs_per_worker, "cpus_per_worker": simulation.cpus_per_worker},
        "generation": {"device": generation.device, "threads": generation.threads},
        "training": {
            "device": training.device,
            "threads": training.threads,
            "batch_trajectories": training.batch_trajectories,
            "trajectory": training.trajectory,
            "trajectory_chunks": training.trajectory_chunks,
        },
    }
