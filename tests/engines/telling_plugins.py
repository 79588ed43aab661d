"""Write down how their process multiplies matrices, one file per process."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import torch
from minimal_algorithm import OnlySkipped

from ebrl.algorithms.base import TrainingBatch
from ebrl.policies.base import RowStreams, Sample
from ebrl.policies.mlp import MlpPolicy

DIRECTORY = "EBRL_TEST_PRECISION"


def tell(who: str) -> None:
    (Path(os.environ[DIRECTORY]) / who).write_text(torch.get_float32_matmul_precision())


class Policy(MlpPolicy):
    """Samples in the generator only."""

    def sample(self, obs: Mapping[str, torch.Tensor], streams: RowStreams) -> Sample:
        tell("generator")
        return super().sample(obs, streams)


class Algorithm(OnlySkipped):
    """Updates in the learner only."""

    def update(self, batch: TrainingBatch, *, learner_version: int, rng: torch.Generator) -> dict[str, float]:
        tell("learner")
        return super().update(batch, learner_version=learner_version, rng=rng)
