"""Policies that are wrong in one way."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from torch import Tensor

from ebrl.policies.base import Evaluation
from ebrl.policies.mlp import MlpPolicy


class Forgetful(MlpPolicy):
    """Evaluates a chunk as if its mean had moved since it was made."""

    def evaluate(self, obs: Mapping[str, Tensor], record: Mapping[str, Tensor]) -> Evaluation:
        evaluation = super().evaluate(obs, record)
        return dataclasses.replace(evaluation, log_prob=evaluation.log_prob + 0.01)
