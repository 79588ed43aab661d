"""Writes down what it is given to train on."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import torch
from minimal_algorithm import OnlySkipped

from ebrl.algorithms.base import TrainingBatch
from ebrl.policies.base import Policy


class Records(OnlySkipped):
    """One file per update: the batch without what the policy says."""

    @dataclasses.dataclass(frozen=True)
    class Config:
        """Where to."""

        directory: str = ""

    def __init__(self, config: Config, policy: Policy) -> None:
        super().__init__(OnlySkipped.Config(), policy)
        self.directory = Path(config.directory)

    def update(self, batch: TrainingBatch, *, learner_version: int, rng: torch.Generator) -> dict[str, float]:
        names = ("reward", "num_executed", "terminated", "truncated", "episode", "behavior_version")
        arrays = {name: getattr(batch, name).numpy() for name in names}
        arrays |= {f"final_{name}": x.numpy() for name, x in batch.final_obs.items()}
        arrays |= {name: x.numpy() for name, x in batch.obs.items()}
        np.savez(self.directory / f"{learner_version}.npz", **arrays)
        return super().update(batch, learner_version=learner_version, rng=rng)
