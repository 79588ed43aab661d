"""The least that an algorithm must do."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor

from ebrl.algorithms.base import TrainingBatch
from ebrl.policies.base import Policy


class OnlySkipped:
    """Moves the critic's parameters a little and reports what every algorithm must."""

    @dataclasses.dataclass(frozen=True)
    class Config:
        """No options."""

    def __init__(self, config: Config, policy: Policy) -> None:
        self.policy = policy

    def update(self, batch: TrainingBatch, *, learner_version: int, rng: torch.Generator) -> dict[str, float]:
        with torch.no_grad():
            for parameter in self.policy.critic_parameters():
                parameter.mul_(0.99)
        return {"skipped": 0.0}

    def state_dict(self) -> dict[str, Tensor]:
        return {"none": torch.zeros(1)}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        pass


class Silent(OnlySkipped):
    """Forgets even that."""

    def update(self, batch: TrainingBatch, *, learner_version: int, rng: torch.Generator) -> dict[str, Any]:
        return {"loss": 1.0}
