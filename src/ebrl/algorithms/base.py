"""What an algorithm is to EBRL: one update from one training batch.

Axes: B trajectories, K chunks of a trajectory, D denoising transitions, H chunk horizon,
A action size.
"""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from ebrl.policies.base import Policy


@dataclasses.dataclass(frozen=True, slots=True)
class TrainingBatch:
    """B trajectories of up to K chunks each.

    Where trajectories are whole episodes, rows of short ones are filled up with chunks whose
    ``num_executed`` is 0. Whatever else stands in those means nothing, and they must influence
    nothing: no gradient, no metric, no normalisation.
    """

    obs: dict[str, Tensor]
    """Observation from which each chunk was made, ``[B, K, ...]`` per name."""

    final_obs: dict[str, Tensor]
    """True observation after each chunk's last executed step, before any reset, ``[B, K, ...]``.
    The value after chunk k is ``V(final_obs[:, k])``: right at truncation and at the end of the
    segment, and equal to ``V(obs[:, k + 1])`` everywhere else, where ``Ppo`` takes that."""

    record: dict[str, Tensor]
    """``[B, K, ...]`` per name, as the policy's ``record_spec``."""

    log_prob: Tensor
    """Behaviour log-densities ``[B, K, D, H, A] float32``."""

    mean: Tensor
    """Behaviour means ``[B, K, D, H, A] float32``."""

    value: Tensor
    """Behaviour values ``[B, K] float32``."""

    reward: Tensor
    """Per env step, zero where not executed, ``[B, K, H] float32``."""

    num_executed: Tensor
    """m: env steps executed of each chunk, ``[B, K] int64``: 1 ≤ m ≤ H, or 0 behind the end of a whole episode."""

    terminated: Tensor
    """``[B, K] bool``: the episode ended by its own rules in this chunk."""

    truncated: Tensor
    """``[B, K] bool``: the episode was cut short in this chunk (never with ``terminated``)."""

    behavior_version: Tensor
    """``[B, K] int64``: version of the weights that made each chunk."""

    episode: Tensor
    """``[B, K] int64``: episode of each chunk, which names its initial state. Whole episodes with equal
    numbers in chunk 0 are siblings."""


class Algorithm(Protocol):
    """Made as ``cls(config, policy)``; owns its optimizers."""

    Config: ClassVar[type]

    def update(self, batch: TrainingBatch, *, learner_version: int, rng: torch.Generator) -> dict[str, float]:
        """Take one update in place and return its metrics.

        Ends with ``policy.observe`` on the observations of the batch, unless it is skipped or the
        batch teaches nothing. All metrics are recorded under their names; these mean something to
        the runtime:

            skipped                     required. 1.0 if a loss or gradient was not finite; then weights
                                        and optimizer state are as before the call. Else 0.0.
            ratio_checked_chunks        optional, both or none. How many chunks the very weights made
            ratio_max_deviation_first   that evaluate them at the start of the update (their
                                        ``behavior_version`` is ``learner_version``), and the largest
                                        |ratio - 1| of one of them. The learner stops the run if it is
                                        not 0 but for rounding. Where they are not reported, that check
                                        is not made, which metric ``updates_without_ratio_check`` says.
            ess                         optional. Effective share of the batch, 0 to 1; 1 where it is
                                        not reported.
        """
        ...

    def state_dict(self) -> dict[str, Tensor]:
        """Optimizer state as a flat mapping of tensors, for safetensors."""
        ...

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Continue exactly where ``state_dict`` was taken."""
        ...


def make_algorithm(cls: Any, config: Any, policy: Policy) -> Algorithm:
    """An algorithm that will train ``policy``."""
    algorithm: Algorithm = cls(config, policy)
    return algorithm
