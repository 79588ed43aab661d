"""Group-relative policy optimisation on whole episodes: formulas A.2, with the corrections of A.3.

The advantage of a trajectory is how much better it did than its siblings, which started from the
same initial state; all its executed chunks get it. So there is no critic.

Axes: B trajectories, K chunks of a trajectory, N chunks that train, M of a minibatch.
"""

from __future__ import annotations

import dataclasses
from typing import Literal

import torch
from torch import Tensor

from ebrl.algorithms.advantages import SiblingAdvantage, sibling_advantages
from ebrl.algorithms.base import TrainingBatch
from ebrl.algorithms.chunks import Chunks, ExecutedChunks
from ebrl.algorithms.surrogate import SurrogateAlgorithm, SurrogateConfig, Tally, finite
from ebrl.policies.base import Policy


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GrpoConfig(SurrogateConfig):
    """Hyperparameters of ``Grpo``; the defaults are Dr.GRPO's, without a bias by difficulty or length."""

    clip_high: float = 0.28
    """More than ``clip_low``, so that rare good actions can gain (SimpleVLA-RL)."""

    advantage: SiblingAdvantage = "centred"
    """What a return is compared with; see ``sibling_advantages``. ``centred`` (Dr.GRPO) and
    ``leave_one_out`` (RLOO) differ by a factor only. ``standardised`` (GRPO, SimpleVLA-RL) gives
    groups that nearly always or nearly never succeed the same weight as others."""

    aggregation: Literal["chunk_mean", "trajectory_mean"] = "chunk_mean"
    """Every chunk weighs the same (Dr.GRPO), or every trajectory does, whatever the number of its
    executed chunks (GRPO, SimpleVLA-RL). The second weakens what long episodes teach, so that
    failures, which are long, are unlearned more slowly than successes are learned."""


class Grpo(SurrogateAlgorithm):
    """GRPO: trajectories against their siblings, no critic; the same inputs give the same bits.

    The return of a trajectory is the undiscounted sum of its rewards. Nothing is added where an
    episode was truncated.
    """

    Config = GrpoConfig
    compares_siblings = True

    config: GrpoConfig

    def __init__(self, config: GrpoConfig, policy: Policy) -> None:
        super().__init__(config, policy)

    def update(self, batch: TrainingBatch, *, learner_version: int, rng: torch.Generator) -> dict[str, float]:
        """Take one update in place and return its metrics.

        Metric ``skipped`` is 1.0 if a loss or gradient was not finite; then weights and optimizer
        state are as before the call. They are too if ``degenerate_groups_fraction`` is 1.0: where
        all siblings of every group did equally well there is nothing to learn. That is not skipped.

        Raises:
            ValueError: trajectories are not whole episodes, or one has no sibling.
        """
        advantage_B, teaches_B, metrics = self._compare(batch)
        if not teaches_B.any():
            return metrics | self._nothing_to_learn()
        chunks, prepared = self._prepare(batch, advantage_B, teaches_B, learner_version)
        return metrics | prepared | self._attempt(lambda tally: self._train(chunks, tally, rng), batch)

    def _compare(self, batch: TrainingBatch) -> tuple[Tensor, Tensor, dict[str, float]]:
        """Advantage of each trajectory and whether its sibling group teaches anything, ``[B]``."""
        executed_BK = batch.num_executed > 0
        _want_whole_episodes(batch, executed_BK)
        # In float64 the sum of a few thousand float32 rewards is exact, so that equal returns are equal.
        return_B = batch.reward.double().sum(dim=2).where(executed_BK, 0.0).sum(dim=1)
        episode_B = batch.episode[:, 0]
        advantage_B, teaches_B = sibling_advantages(return_B, episode_B, self.config.advantage)
        num_groups, num_teaching = len(set(episode_B.tolist())), len(set(episode_B[teaches_B].tolist()))
        metrics = {
            "return_mean": return_B.mean().item(),
            "sibling_groups": float(num_groups),
            "degenerate_groups_fraction": 1.0 - num_teaching / num_groups,
        }
        return advantage_B.to(batch.reward.dtype), teaches_B, finite(metrics)

    @torch.no_grad()
    def _prepare(
        self, batch: TrainingBatch, advantage_B: Tensor, teaches_B: Tensor, learner_version: int
    ) -> tuple[Chunks, dict[str, float]]:
        """Chunks of the groups that teach, and the metrics that precede training."""
        executed = ExecutedChunks(batch, teaches_B)
        advantage_N = advantage_B[executed.trajectory_N]
        metrics = {"advantage_std": advantage_N.std(correction=0).item()}
        if self.config.aggregation == "trajectory_mean":
            length_B = (batch.num_executed > 0).sum(dim=1)
            # A surrogate scales with its advantage, so that a mean over chunks becomes one over trajectories.
            advantage_N = advantage_N * (len(executed) / teaches_B.sum() / length_B)[executed.trajectory_N]
        chunks, judged = self._judge(batch, executed, self._anchor(executed), advantage_N, learner_version)
        return chunks, finite(metrics | judged)

    def _train(self, chunks: Chunks, tally: Tally, rng: torch.Generator) -> None:
        """All epochs, or up to the KL limit."""
        for index_M in self._minibatches(len(chunks.advantage_N), rng, chunks.advantage_N.device):
            if not self._learn(chunks.select(index_M), tally):
                return


def _want_whole_episodes(batch: TrainingBatch, executed_BK: Tensor) -> None:
    """Pieces of episodes have no return to compare.

    Raises:
        ValueError: a trajectory does not end with its episode, or holds more than one.
    """
    over_BK = (batch.terminated | batch.truncated) & executed_BK
    follows_BK = torch.zeros_like(executed_BK)
    follows_BK[:, :-1] = executed_BK[:, 1:]
    whole_B = executed_BK[:, 0] & (over_BK == (executed_BK & ~follows_BK)).all(dim=1)
    if odd := (~whole_B).nonzero()[:, 0].tolist():
        raise ValueError(
            f"{len(odd)} of {len(whole_B)} trajectories of the training batch are not one whole episode, the first is "
            f'number {odd[0]}: set training.trajectory = "episode"'
        )
