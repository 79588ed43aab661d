"""Proximal policy optimisation on action chunks, plain or decoupled: formulas A.1 and A.3.

Axes: B trajectories, K chunks of a trajectory, N executed chunks of a training batch, M of a minibatch.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Literal

import torch
from torch import Tensor, nn

from ebrl.algorithms.advantages import chunk_gae
from ebrl.algorithms.base import TrainingBatch
from ebrl.algorithms.chunks import Chunks, ExecutedChunks
from ebrl.algorithms.surrogate import SurrogateAlgorithm, SurrogateConfig, Tally, finite
from ebrl.policies.base import Policy


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PpoConfig(SurrogateConfig):
    """Hyperparameters of ``Ppo``."""

    gamma: float = 0.99
    """Discount per env step."""

    gae_lambda: float = 0.95
    """Per chunk."""

    normalize_advantage: bool = True

    value_clip: float | None = None
    """How far a value may move from its old one before its loss stops falling. The old one is the
    anchor's where ``correction`` is ``decoupled``, the behaviour policy's where it is ``none``."""

    value_loss: Literal["huber", "squared"] = "huber"
    """``squared`` is half the squared error; ``huber`` is the same up to an error of 1, then linear."""

    critic_lr: float = 1e-3
    critic_warmup_updates: int = 3
    """First updates, which train the critic alone."""

    def __post_init__(self) -> None:
        # Not super(): a dataclass with slots is another class than the one whose body this is.
        SurrogateConfig.__post_init__(self)
        self._want("0 to 1", lambda x: 0.0 <= x <= 1.0, "gamma", "gae_lambda")
        self._want("more than 0", lambda x: x > 0.0, "critic_lr")
        self._want("a finite number", math.isfinite, "critic_lr")
        self._want("more than 0", lambda x: x is None or x > 0.0, "value_clip")
        self._want("0 or more", lambda x: x >= 0, "critic_warmup_updates")


@dataclasses.dataclass(frozen=True, slots=True)
class Targets:
    """What the critic is trained towards."""

    return_N: Tensor
    old_value_N: Tensor
    """What ``value_clip`` is measured from."""

    def select(self, index_M: Tensor) -> Targets:
        """The targets of one minibatch."""
        return Targets(self.return_N.index_select(0, index_M), self.old_value_N.index_select(0, index_M))

    def part(self, rows: slice) -> Targets:
        """The targets of one micro-batch."""
        return Targets(self.return_N[rows], self.old_value_N[rows])


def value_loss(value_N: Tensor, targets: Targets, config: PpoConfig) -> Tensor:
    """Mean loss of the critic; with ``value_clip`` the larger of the clipped and the plain one."""

    def loss_N(x: Tensor) -> Tensor:
        if config.value_loss == "huber":
            return nn.functional.huber_loss(x, targets.return_N, reduction="none")
        return 0.5 * (x - targets.return_N) ** 2

    if config.value_clip is None:
        return loss_N(value_N).mean()
    clipped_N = targets.old_value_N + (value_N - targets.old_value_N).clamp(-config.value_clip, config.value_clip)
    return torch.maximum(loss_N(value_N), loss_N(clipped_N)).mean()


class Ppo(SurrogateAlgorithm):
    """PPO with chunk GAE and two optimizers; the same inputs give the same bits."""

    Config = PpoConfig
    TALLIED = (*SurrogateAlgorithm.TALLIED, "value_loss", "critic_grad_norm")

    config: PpoConfig

    def __init__(self, config: PpoConfig, policy: Policy) -> None:
        super().__init__(config, policy, critic_lr=config.critic_lr)

    def update(self, batch: TrainingBatch, *, learner_version: int, rng: torch.Generator) -> dict[str, float]:
        """Take one update in place and return its metrics.

        Metric ``skipped`` is 1.0 if a loss or gradient was not finite; then weights and optimizer
        state are as before the call. They are too, without being skipped, where ``executed_chunks`` is 0:
        every episode of the batch was over before it (``simulation.finished_episodes = "run_to_horizon"``).
        """
        executed = {"executed_chunks": float((batch.num_executed > 0).sum())}
        if not executed["executed_chunks"]:
            return executed | self._nothing_to_learn()
        chunks, targets, metrics = self._prepare(batch, learner_version)
        return executed | metrics | self._attempt(lambda tally: self._train(chunks, targets, tally, rng), batch)

    @torch.no_grad()
    def _prepare(self, batch: TrainingBatch, learner_version: int) -> tuple[Chunks, Targets, dict[str, float]]:
        """Anchor, advantages and weights of the whole batch, and the metrics that precede training."""
        config = self.config
        executed = ExecutedChunks(batch)
        anchor = self._anchor(executed)
        # Both sides of a temporal difference must come from one critic: V(s') is always today's.
        advantage_BK, return_BK = chunk_gae(
            batch.reward,
            batch.num_executed,
            batch.terminated,
            batch.truncated,
            executed.grid(anchor.value),
            self._next_values(batch, executed.grid(anchor.value)),
            gamma=config.gamma,
            gae_lambda=config.gae_lambda,
        )
        advantage_N, return_N = executed.rows(advantage_BK), executed.rows(return_BK)
        metrics = {
            "value_mean": anchor.value.mean().item(),
            "return_mean": return_N.mean().item(),
            "advantage_std": advantage_N.std(correction=0).item(),
            "explained_variance": explained_variance(anchor.value, return_N),
        }
        if config.normalize_advantage:
            advantage_N = (advantage_N - advantage_N.mean()) / (advantage_N.std(correction=0) + 1e-8)
        chunks, judged = self._judge(batch, executed, anchor, advantage_N, learner_version)
        old_value_N = anchor.value if config.correction == "decoupled" else executed.rows(batch.value)
        return chunks, Targets(return_N, old_value_N), finite(metrics | judged)

    def _next_values(self, batch: TrainingBatch, value_BK: Tensor) -> Tensor:
        """Today's value of what followed each chunk, ``[B, K]``; 0 behind a terminated or unexecuted one.

        Where the episode went on in the trajectory, that is the value of its next chunk, which is known. The others'
        observations are evaluated a minibatch or micro-batch at a time.
        """
        wanted_BK = (batch.num_executed > 0) & ~batch.terminated
        known_BK = wanted_BK & ~batch.truncated
        known_BK[:, -1] = False
        known_BK[:, :-1] &= batch.num_executed[:, 1:] > 0
        next_BK = value_BK.roll(-1, dims=1).where(known_BK, 0.0)
        index_N = (wanted_BK & ~known_BK).flatten().nonzero()[:, 0]
        if len(index_N):
            obs = {name: x.flatten(0, 1).index_select(0, index_N) for name, x in batch.final_obs.items()}
            slices = self._slices(len(index_N), micro=True)
            value_N = torch.cat([self.policy.value({name: x[rows] for name, x in obs.items()}) for rows in slices])
            next_BK.view(-1).index_copy_(0, index_N, value_N.to(next_BK.dtype))
        return next_BK

    def _train(self, chunks: Chunks, targets: Targets, tally: Tally, rng: torch.Generator) -> None:
        """All epochs; the actor stops at the KL limit, the critic goes on."""
        train_actor = self.num_updates >= self.config.critic_warmup_updates
        for index_M in self._minibatches(len(targets.return_N), rng, targets.return_N.device):
            wanted = targets.select(index_M)

            def loss(value_M: Tensor, rows: slice, wanted: Targets = wanted) -> Tensor:
                return value_loss(value_M, wanted.part(rows), self.config)

            train_actor = self._learn(chunks.select(index_M), tally, actor=train_actor, value_loss=loss)


def explained_variance(value_N: Tensor, return_N: Tensor) -> float:
    """1 - Var(return - value) / Var(return); 0.0 where all returns are equal."""
    variance = return_N.var(correction=0).item()
    return 1.0 - (return_N - value_N).var(correction=0).item() / variance if variance > 0.0 else 0.0
