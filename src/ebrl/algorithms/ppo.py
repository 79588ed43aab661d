"""Proximal policy optimisation on action chunks, plain or decoupled.

Decoupled: ratios are clipped around an *anchor*, the learner's policy at the start of the update,
recomputed on the whole batch; a capped weight anchor/behaviour corrects for staleness. Sources:
AReaL (decoupled objective), DPPO (one ratio per denoising transition), formulas A.1 and A.3.

Axes: N chunks of a training batch (B trajectories times K chunks), M of a minibatch, U ratio units
of a chunk, D denoising transitions, H chunk horizon, A action size.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ebrl.algorithms.advantages import chunk_gae
from ebrl.algorithms.base import TrainingBatch
from ebrl.algorithms.corrections import (
    CapMode,
    LogprobLevel,
    behavior_weight,
    effective_sample_size,
    executed_mask,
    gaussian_kl,
    ratio,
    ratio_units,
    unit_mask,
)
from ebrl.algorithms.optimizers import NamedAdam, NotFinite, Snapshot
from ebrl.policies.base import Evaluation, Policy

MAX_REPORTED_DEVIATION = 1e9


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PpoConfig:
    """Hyperparameters of ``Ppo``."""

    gamma: float = 0.99
    """Discount per env step."""

    gae_lambda: float = 0.95
    """Per chunk."""

    clip_low: float = 0.2
    clip_high: float = 0.2
    dual_clip: float | None = None
    """Limit of the loss in units of -advantage where the advantage is negative; more than 1."""

    value_clip: float | None = None
    """How far a value may move from its old one before its loss stops falling. The old one is the
    anchor's where ``correction`` is ``decoupled``, the behaviour policy's where it is ``none``."""

    value_loss: Literal["huber", "squared"] = "huber"
    """``squared`` is half the squared error; ``huber`` is the same up to an error of 1, then linear."""

    logprob_level: LogprobLevel = "denoise"
    correction: Literal["none", "decoupled"] = "decoupled"
    behavior_cap: float = 2.0
    behavior_cap_mode: CapMode = "mask"
    epochs: int = 8
    minibatch_chunks: int = 128
    actor_lr: float = 2e-4
    critic_lr: float = 1e-3
    max_grad_norm: float = 1.0
    """Separately for actor and critic."""

    entropy_coef: float = 0.0
    normalize_advantage: bool = True
    kl_limit: float = 1.0
    """Nats per chunk from the anchor, at which the actor stops for this update. From the anchor in
    either correction: of the behaviour policy the means are recorded, but not the deviations."""

    critic_warmup_updates: int = 3
    """First updates, which train the critic alone."""

    def __post_init__(self) -> None:
        positive = "clip_high", "behavior_cap", "actor_lr", "critic_lr", "max_grad_norm", "kl_limit"
        self._want("0 to 1", lambda x: 0.0 <= x <= 1.0, "gamma", "gae_lambda")
        self._want("more than 0", lambda x: x > 0.0, *positive)
        self._want("a finite number", math.isfinite, "actor_lr", "critic_lr", "entropy_coef")
        self._want("more than 0 and less than 1", lambda x: 0.0 < x < 1.0, "clip_low")
        self._want("more than 1", lambda x: x is None or x > 1.0, "dual_clip")
        self._want("more than 0", lambda x: x is None or x > 0.0, "value_clip")
        self._want("1 or more", lambda x: x >= 1, "epochs", "minibatch_chunks")
        self._want("0 or more", lambda x: x >= 0, "critic_warmup_updates")

    def _want(self, what: str, holds: Callable[[Any], bool], *fields: str) -> None:
        for field in fields:
            if not holds(getattr(self, field)):
                raise ValueError(f"{field} = {getattr(self, field)!r}: want {what}")


@dataclasses.dataclass(frozen=True, slots=True)
class Chunks:
    """What minibatches are drawn from: the training batch as N chunks, with everything fixed for the update."""

    obs: dict[str, Tensor]
    record: dict[str, Tensor]
    executed_NH: Tensor | None
    """None where every chunk is judged by the density of its whole path."""
    old_NU: Tensor
    """Log-densities that ratios are taken against: anchor's or behaviour policy's."""
    weight_NU: Tensor
    mask_NU: Tensor
    anchor_mean: Tensor
    anchor_std: Tensor
    """``[N, ...]``, broadcastable to ``anchor_mean``."""
    advantage_N: Tensor
    return_N: Tensor
    old_value_N: Tensor
    """What ``value_clip`` is measured from."""

    def select(self, index_M: Tensor) -> Chunks:
        """The chunks of one minibatch."""

        def rows(x: Tensor) -> Tensor:
            return x.index_select(0, index_M)

        return Chunks(
            obs={name: rows(x) for name, x in self.obs.items()},
            record={name: rows(x) for name, x in self.record.items()},
            executed_NH=None if self.executed_NH is None else rows(self.executed_NH),
            old_NU=rows(self.old_NU),
            weight_NU=rows(self.weight_NU),
            mask_NU=rows(self.mask_NU),
            anchor_mean=rows(self.anchor_mean),
            anchor_std=rows(self.anchor_std),
            advantage_N=rows(self.advantage_N),
            return_N=rows(self.return_N),
            old_value_N=rows(self.old_value_N),
        )


def policy_loss(ratio_NU: Tensor, advantage_N: Tensor, weight_NU: Tensor, mask_NU: Tensor, config: PpoConfig) -> Tensor:
    """Clipped surrogate loss, a mean over the units in ``mask_NU``."""
    advantage_N1 = advantage_N[:, None]
    clipped_NU = ratio_NU.clamp(1.0 - config.clip_low, 1.0 + config.clip_high)
    loss_NU = -torch.minimum(ratio_NU * advantage_N1, clipped_NU * advantage_N1)
    if config.dual_clip is not None:
        limited_NU = torch.minimum(loss_NU, -config.dual_clip * advantage_N1)
        loss_NU = torch.where(advantage_N1 < 0.0, limited_NU, loss_NU)
    return (loss_NU * weight_NU * mask_NU).sum() / mask_NU.sum().clamp(min=1.0)


def value_loss(value_N: Tensor, return_N: Tensor, old_value_N: Tensor, config: PpoConfig) -> Tensor:
    """Mean loss of the critic; with ``value_clip`` the larger of the clipped and the plain one."""

    def loss_N(x: Tensor) -> Tensor:
        if config.value_loss == "huber":
            return nn.functional.huber_loss(x, return_N, reduction="none")
        return 0.5 * (x - return_N) ** 2

    if config.value_clip is None:
        return loss_N(value_N).mean()
    clipped_N = old_value_N + (value_N - old_value_N).clamp(-config.value_clip, config.value_clip)
    return torch.maximum(loss_N(value_N), loss_N(clipped_N)).mean()


class Ppo:
    """PPO with chunk GAE and two optimizers; the same inputs give the same bits."""

    Config = PpoConfig

    def __init__(self, config: PpoConfig, policy: Policy) -> None:
        self.config = config
        self.policy = policy
        names = {id(p): name for name, p in policy.named_parameters()}
        self.actor = NamedAdam({names[id(p)]: p for p in policy.actor_parameters()}, lr=config.actor_lr)
        self.critic = NamedAdam({names[id(p)]: p for p in policy.critic_parameters()}, lr=config.critic_lr)
        self.num_updates = 0

    def state_dict(self) -> dict[str, Tensor]:
        """Copies of both optimizers' state and the number of updates taken."""
        state = {f"actor/{name}": x.clone() for name, x in self.actor.state().items()}
        state |= {f"critic/{name}": x.clone() for name, x in self.critic.state().items()}
        return state | {"num_updates": torch.tensor(self.num_updates)}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Go on from ``state_dict()`` of the same kind of policy.

        Raises:
            ValueError: names or shapes do not fit this policy.
        """
        mine = {f"actor/{name}": x for name, x in self.actor.state().items()}
        mine |= {f"critic/{name}": x for name, x in self.critic.state().items()}
        if odd := sorted(set(state) ^ (set(mine) | {"num_updates"})):
            raise ValueError(f"optimizer state does not fit the policy: {', '.join(odd[:3])} in only one of them")
        for name, x in mine.items():
            if x.shape != state[name].shape:
                raise ValueError(f"{name} = {list(state[name].shape)}: want {list(x.shape)}")
        for name, x in mine.items():
            x.copy_(state[name])
        self.num_updates = int(state["num_updates"])

    def update(self, batch: TrainingBatch, *, learner_version: int, rng: torch.Generator) -> dict[str, float]:
        """Take one update in place and return its metrics.

        Metric ``skipped`` is 1.0 if a loss or gradient was not finite; then weights and optimizer
        state are as before the call.
        """
        snapshot = Snapshot([*self.policy.parameters(), *self.actor.state().values(), *self.critic.state().values()])
        chunks, metrics = self._prepare(batch, learner_version)
        tally = Tally()
        try:
            self._train(chunks, tally, rng)
        except NotFinite:
            snapshot.restore()
            return metrics | Tally().metrics() | {"skipped": 1.0}
        self.policy.observe(chunks.obs)
        self.num_updates += 1
        return metrics | tally.metrics() | {"skipped": 0.0}

    @torch.no_grad()
    def _prepare(self, batch: TrainingBatch, learner_version: int) -> tuple[Chunks, dict[str, float]]:
        """Anchor, advantages and weights of the whole batch, and the metrics that precede training."""
        config, level = self.config, self.config.logprob_level
        obs = {name: x.flatten(0, 1) for name, x in batch.obs.items()}
        record = {name: x.flatten(0, 1) for name, x in batch.record.items()}
        final_obs = {name: x.flatten(0, 1) for name, x in batch.final_obs.items()}
        anchor, next_value_N = self._anchor(obs, record, final_obs)
        executed_NH = executed_mask(batch.num_executed.flatten(), batch.reward.shape[2])
        mask_NU = torch.ones_like(ratio_units(anchor.log_prob, level))
        used_NH = executed_NH if self.policy.independent_actions else None
        if used_NH is not None:
            mask_NU = unit_mask(anchor.log_prob.shape, level, used_NH)
        anchor_NU = ratio_units(anchor.log_prob, level, used_NH)
        behavior_NU = ratio_units(batch.log_prob.flatten(0, 1), level, used_NH)
        stale_NU = ratio(anchor_NU, behavior_NU)
        decoupled = config.correction == "decoupled"
        weight_NU, over_NU = behavior_weight(stale_NU, config.behavior_cap_mode, config.behavior_cap)
        # Both sides of a temporal difference must come from one critic: V(s') is always today's.
        advantage_BK, return_BK = chunk_gae(
            batch.reward,
            batch.num_executed,
            batch.terminated,
            batch.truncated,
            anchor.value.view_as(batch.value),
            next_value_N.view_as(batch.value),
            gamma=config.gamma,
            gae_lambda=config.gae_lambda,
        )
        advantage_N, return_N = advantage_BK.flatten(), return_BK.flatten()
        metrics = {
            "value_mean": anchor.value.mean().item(),
            "return_mean": return_N.mean().item(),
            "advantage_std": advantage_N.std(correction=0).item(),
            "explained_variance": explained_variance(anchor.value, return_N),
            "entropy": anchor.entropy.mean().item(),
            "ess": effective_sample_size(stale_NU, mask_NU).item(),
            "behavior_kl": gaussian_kl(batch.mean.flatten(0, 1), anchor.std, anchor.mean, anchor.std).mean().item(),
            "behavior_masked_fraction": ((over_NU * mask_NU).sum() / mask_NU.sum()).item() if decoupled else 0.0,
            **ratio_check(stale_NU, batch.behavior_version.flatten() == learner_version),
        }
        if config.normalize_advantage:
            advantage_N = (advantage_N - advantage_N.mean()) / (advantage_N.std(correction=0) + 1e-8)
        chunks = Chunks(
            obs=obs,
            record=record,
            executed_NH=used_NH,
            old_NU=anchor_NU if decoupled else behavior_NU,
            weight_NU=weight_NU if decoupled else torch.ones_like(weight_NU),
            mask_NU=mask_NU,
            anchor_mean=anchor.mean,
            anchor_std=anchor.std,
            advantage_N=advantage_N,
            return_N=return_N,
            old_value_N=anchor.value if decoupled else batch.value.flatten(),
        )
        return chunks, {name: x if math.isfinite(x) else 0.0 for name, x in metrics.items()}

    def _anchor(
        self, obs: dict[str, Tensor], record: dict[str, Tensor], final_obs: dict[str, Tensor]
    ) -> tuple[Evaluation, Tensor]:
        """The batch under today's weights and the value after each chunk, a minibatch at a time."""
        size = self.config.minibatch_chunks
        num_chunks = len(next(iter(record.values())))
        parts, next_values = [], []
        for start in range(0, num_chunks, size):
            rows = slice(start, start + size)
            part = self.policy.evaluate(
                {name: x[rows] for name, x in obs.items()}, {name: x[rows] for name, x in record.items()}
            )
            std = part.std[(None,) * (4 - part.std.dim())]
            parts.append(dataclasses.replace(part, std=std.expand(len(part.mean), *std.shape[1:])))
            next_values.append(self.policy.value({name: x[rows] for name, x in final_obs.items()}))
        anchor = Evaluation(
            log_prob=torch.cat([p.log_prob for p in parts]),
            mean=torch.cat([p.mean for p in parts]),
            std=torch.cat([p.std for p in parts]),
            entropy=torch.cat([p.entropy for p in parts]),
            value=torch.cat([p.value for p in parts]),
        )
        return anchor, torch.cat(next_values)

    def _train(self, chunks: Chunks, tally: Tally, rng: torch.Generator) -> None:
        """All epochs; the actor stops at the KL limit, the critic goes on."""
        train_actor = self.num_updates >= self.config.critic_warmup_updates
        for index_M in self._minibatches(len(chunks.return_N), rng, chunks.return_N.device):
            minibatch = chunks.select(index_M)
            evaluation = None
            if train_actor:
                evaluation = self.policy.evaluate(minibatch.obs, minibatch.record)
                kl = gaussian_kl(minibatch.anchor_mean, minibatch.anchor_std, evaluation.mean, evaluation.std).mean()
                # Not a number counts as within the limit, so that the loss below reports it.
                train_actor = not kl.item() > self.config.kl_limit
                tally.add(kl=kl.detach())
            if evaluation is None or not train_actor:
                self._step(self._value_loss(minibatch, self.policy.value(minibatch.obs), tally), tally)
                continue
            actor_loss = self._actor_loss(minibatch, evaluation, tally)
            self._step(actor_loss + self._value_loss(minibatch, evaluation.value, tally), tally, actor=True)

    def _minibatches(self, num_chunks: int, rng: torch.Generator, device: torch.device) -> Iterator[Tensor]:
        for _ in range(self.config.epochs):
            order = torch.randperm(num_chunks, generator=rng, device=rng.device).to(device)
            for start in range(0, num_chunks, self.config.minibatch_chunks):
                yield order[start : start + self.config.minibatch_chunks]

    def _actor_loss(self, minibatch: Chunks, evaluation: Evaluation, tally: Tally) -> Tensor:
        config = self.config
        new_NU = ratio_units(evaluation.log_prob, config.logprob_level, minibatch.executed_NH)
        ratio_NU = ratio(new_NU, minibatch.old_NU)
        loss = policy_loss(ratio_NU, minibatch.advantage_N, minibatch.weight_NU, minibatch.mask_NU, config)
        with torch.no_grad():
            outside_NU = (ratio_NU < 1.0 - config.clip_low) | (ratio_NU > 1.0 + config.clip_high)
            clipped = (outside_NU * minibatch.mask_NU).sum() / minibatch.mask_NU.sum().clamp(min=1.0)
            tally.add(policy_loss=loss, clip_fraction=clipped)
        return loss - config.entropy_coef * evaluation.entropy.mean() if config.entropy_coef else loss

    def _value_loss(self, minibatch: Chunks, value_N: Tensor, tally: Tally) -> Tensor:
        loss = value_loss(value_N, minibatch.return_N, minibatch.old_value_N, self.config)
        tally.add(value_loss=loss.detach())
        return loss

    def _step(self, loss: Tensor, tally: Tally, *, actor: bool = False) -> None:
        """One optimizer step of the critic, and of the actor if it still trains.

        Raises:
            NotFinite: the loss or a gradient is not finite; nothing has been changed by this step.
        """
        optimizers = [self.critic, self.actor] if actor else [self.critic]
        for optimizer in optimizers:
            optimizer.clear_gradients()
        loss.backward()  # type: ignore[no-untyped-call]
        norms = [optimizer.clip_gradients(self.config.max_grad_norm) for optimizer in optimizers]
        if not torch.stack([loss.detach(), *norms]).isfinite().all().item():
            raise NotFinite
        for optimizer in optimizers:
            optimizer.step()
        tally.add(critic_grad_norm=norms[0])
        if actor:
            tally.add(grad_norm=norms[1])


class Tally:
    """Means of what minibatches report, summed without waiting for the device."""

    NAMES = ("policy_loss", "value_loss", "kl", "clip_fraction", "grad_norm", "critic_grad_norm")

    def __init__(self) -> None:
        self._values: dict[str, list[Tensor]] = {name: [] for name in self.NAMES}

    def add(self, **values: Tensor) -> None:
        """Count one value for each name given."""
        for name, value in values.items():
            self._values[name].append(value.detach())

    def metrics(self) -> dict[str, float]:
        """Means (0.0 where nothing was counted), and how many minibatches trained actor and critic."""
        means = {name: torch.stack(x).mean().item() if x else 0.0 for name, x in self._values.items()}
        return means | {
            "actor_minibatches": float(len(self._values["grad_norm"])),
            "critic_minibatches": float(len(self._values["critic_grad_norm"])),
        }


def explained_variance(value_N: Tensor, return_N: Tensor) -> float:
    """1 - Var(return - value) / Var(return); 0.0 where all returns are equal."""
    variance = return_N.var(correction=0).item()
    return 1.0 - (return_N - value_N).var(correction=0).item() / variance if variance > 0.0 else 0.0


def ratio_check(ratio_NU: Tensor, own_version_N: Tensor) -> dict[str, float]:
    """How far from 1 the ratio is for chunks made by the very weights that now evaluate them."""
    num_checked = int(own_version_N.sum())
    deviation = (ratio_NU[own_version_N] - 1.0).abs().nan_to_num(nan=MAX_REPORTED_DEVIATION)
    return {
        "ratio_max_deviation_first": deviation.max().item() if num_checked else 0.0,
        "ratio_checked_chunks": float(num_checked),
    }
