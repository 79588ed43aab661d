"""Algorithms that let the learner fail at a chosen moment."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import torch

from ebrl.algorithms.base import TrainingBatch
from ebrl.algorithms.ppo import Ppo, PpoConfig
from ebrl.policies.base import Policy


class Unspeakable:
    """No message can hold it."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class OnceConfig(PpoConfig):
    """What happens once happens while there is no file ``mark``."""

    mark: str = ""
    epochs: int = 1


class _Once(Ppo):
    Config = OnceConfig
    config: OnceConfig

    def __init__(self, config: OnceConfig, policy: Policy) -> None:
        super().__init__(config, policy)

    def _first_time(self) -> bool:
        mark = Path(self.config.mark)
        if mark.exists():
            return False
        mark.touch()
        return True


class DiesAfterItsUpdate(_Once):
    """The learner fails between writing new weights and saying so."""

    def update(self, batch: TrainingBatch, *, learner_version: int, rng: torch.Generator) -> dict[str, Any]:
        metrics: dict[str, Any] = super().update(batch, learner_version=learner_version, rng=rng)
        return metrics | {"kl": Unspeakable()} if self._first_time() else metrics


class NotFiniteOnce(_Once):
    """The loss of one update is not a number."""

    def update(self, batch: TrainingBatch, *, learner_version: int, rng: torch.Generator) -> dict[str, float]:
        if self._first_time():
            batch.reward.fill_(math.nan)
        return super().update(batch, learner_version=learner_version, rng=rng)
