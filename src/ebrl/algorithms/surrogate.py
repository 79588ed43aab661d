"""What algorithms share that move an actor by a clipped surrogate of its advantages.

Decoupled: ratios are clipped around an *anchor*, the learner's policy at the start of the update,
recomputed on the whole batch; a capped weight anchor/behaviour corrects for staleness. Sources:
AReaL (decoupled objective), DPPO (one ratio per denoising transition), formulas A.1 and A.3.

Axes: N chunks that train, M of a minibatch, U ratio units of a chunk, D denoising transitions,
H chunk horizon, A action size.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ebrl.algorithms.base import TrainingBatch
from ebrl.algorithms.chunks import Chunks, ExecutedChunks, MicroBatch
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

ValueLoss = Callable[[Tensor, slice], Tensor]
"""Mean loss of the critic, from its values of some chunks of a minibatch, and which rows of it they are."""

GRADIENT_NORMS = {"actor": "grad_norm", "critic": "critic_grad_norm"}
"""Name of the metric, by optimizer."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SurrogateConfig:
    """Hyperparameters of the actor's update."""

    clip_low: float = 0.2
    clip_high: float = 0.2
    dual_clip: float | None = None
    """Limit of the loss in units of -advantage where the advantage is negative; more than 1."""

    logprob_level: LogprobLevel = "denoise"
    correction: Literal["none", "decoupled"] = "decoupled"
    behavior_cap: float = 2.0
    behavior_cap_mode: CapMode = "mask"
    epochs: int = 8
    minibatch_chunks: int = 128
    micro_batch_chunks: int = 0
    """Most chunks of a minibatch that are evaluated at once, to save memory; their gradients add up, so that the
    step is the same but for rounding. 0 takes the minibatch whole."""

    actor_lr: float = 2e-4
    max_grad_norm: float = 1.0
    """Separately for actor and critic."""

    entropy_coef: float = 0.0
    kl_limit: float = 1.0
    """Nats per chunk from the anchor, at which the actor stops for this update. From the anchor in
    either correction: of the behaviour policy the means are recorded, but not the deviations."""

    def __post_init__(self) -> None:
        positive = "clip_high", "behavior_cap", "actor_lr", "max_grad_norm", "kl_limit"
        self._want("more than 0", lambda x: x > 0.0, *positive)
        self._want("a finite number", math.isfinite, "actor_lr", "entropy_coef")
        self._want("more than 0 and less than 1", lambda x: 0.0 < x < 1.0, "clip_low")
        self._want("more than 1", lambda x: x is None or x > 1.0, "dual_clip")
        self._want("1 or more", lambda x: x >= 1, "epochs", "minibatch_chunks")
        self._want("0 or more", lambda x: x >= 0, "micro_batch_chunks")

    def _want(self, what: str, holds: Callable[[Any], bool], *fields: str) -> None:
        for field in fields:
            if not holds(getattr(self, field)):
                raise ValueError(f"{field} = {getattr(self, field)!r}: want {what}")


def policy_loss(
    ratio_NU: Tensor, advantage_N: Tensor, weight_NU: Tensor, mask_NU: Tensor, config: SurrogateConfig
) -> Tensor:
    """Clipped surrogate loss, a mean over the units in ``mask_NU``."""
    advantage_N1 = advantage_N[:, None]
    clipped_NU = ratio_NU.clamp(1.0 - config.clip_low, 1.0 + config.clip_high)
    loss_NU = -torch.minimum(ratio_NU * advantage_N1, clipped_NU * advantage_N1)
    if config.dual_clip is not None:
        limited_NU = torch.minimum(loss_NU, -config.dual_clip * advantage_N1)
        loss_NU = torch.where(advantage_N1 < 0.0, limited_NU, loss_NU)
    return (loss_NU * weight_NU * mask_NU).sum() / mask_NU.sum().clamp(min=1.0)


class SurrogateAlgorithm:
    """Anchor, ratios, minibatches, optimizers and their state; the same inputs give the same bits."""

    TALLIED: tuple[str, ...] = ("policy_loss", "kl", "clip_fraction", "grad_norm")
    """What minibatches report."""

    config: SurrogateConfig

    def __init__(self, config: SurrogateConfig, policy: Policy, *, critic_lr: float | None = None) -> None:
        """An optimizer for the actor and, given its learning rate, one for the critic."""
        self.config = config
        self.policy = policy
        names = {id(p): name for name, p in policy.named_parameters()}

        def adam(parameters: list[nn.Parameter], lr: float) -> NamedAdam:
            return NamedAdam({names[id(p)]: p for p in parameters}, lr=lr)

        self._optimizers = {"actor": adam(policy.actor_parameters(), config.actor_lr)}
        if critic_lr is not None:
            self._optimizers["critic"] = adam(policy.critic_parameters(), critic_lr)
        self.num_updates = 0

    def _optimizer_state(self) -> dict[str, Tensor]:
        """The live tensors of all optimizers."""
        return {
            f"{name}/{part}": x for name, optimizer in self._optimizers.items() for part, x in optimizer.state().items()
        }

    def state_dict(self) -> dict[str, Tensor]:
        """Copies of the optimizers' state and the number of updates taken."""
        state = {name: x.clone() for name, x in self._optimizer_state().items()}
        return state | {"num_updates": torch.tensor(self.num_updates)}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Go on from ``state_dict()`` of the same kind of policy.

        Raises:
            ValueError: names or shapes do not fit this policy.
        """
        mine = self._optimizer_state()
        if odd := sorted(set(state) ^ (set(mine) | {"num_updates"})):
            raise ValueError(f"optimizer state does not fit the policy: {', '.join(odd[:3])} in only one of them")
        for name, x in mine.items():
            if x.shape != state[name].shape:
                raise ValueError(f"{name} = {list(state[name].shape)}: want {list(x.shape)}")
        for name, x in mine.items():
            x.copy_(state[name])
        self.num_updates = int(state["num_updates"])

    def _attempt(self, train: Callable[[Tally], None], batch: TrainingBatch) -> dict[str, float]:
        """Run ``train``, then let the policy observe the batch; what minibatches reported, and ``skipped``.

        If a loss or gradient was not finite, weights and optimizer state are as before the call.
        """
        snapshot = Snapshot([*self.policy.parameters(), *self._optimizer_state().values()])
        tally = Tally(self.TALLIED)
        try:
            train(tally)
        except NotFinite:
            snapshot.restore()
            return self._report(Tally(self.TALLIED)) | {"skipped": 1.0}
        self.policy.observe(ExecutedChunks(batch).obs)
        self.num_updates += 1
        return self._report(tally) | {"skipped": 0.0}

    def _report(self, tally: Tally) -> dict[str, float]:
        """Means of what was tallied, and how many minibatches trained actor and critic."""
        counts = {f"{name}_minibatches": float(tally.count(GRADIENT_NORMS[name])) for name in self._optimizers}
        return tally.means() | counts

    def _nothing_to_learn(self) -> dict[str, float]:
        """Metrics of an update that leaves everything as it was, though nothing went wrong."""
        none = {"ratio_checked_chunks": 0.0, "ratio_max_deviation_first": 0.0, "skipped": 0.0}
        return self._report(Tally(self.TALLIED)) | none

    def _anchor(self, executed: ExecutedChunks) -> Evaluation:
        """The chunks under today's weights, a minibatch or micro-batch at a time."""
        parts = []
        for rows in self._slices(len(executed), micro=True):
            part = self.policy.evaluate(
                {name: x[rows] for name, x in executed.obs.items()},
                {name: x[rows] for name, x in executed.record.items()},
            )
            std = part.std[(None,) * (4 - part.std.dim())]
            parts.append(dataclasses.replace(part, std=std.expand(len(part.mean), *std.shape[1:])))
        return Evaluation(
            log_prob=torch.cat([p.log_prob for p in parts]),
            mean=torch.cat([p.mean for p in parts]),
            std=torch.cat([p.std for p in parts]),
            entropy=torch.cat([p.entropy for p in parts]),
            value=torch.cat([p.value for p in parts]),
        )

    def _slices(self, num_chunks: int, *, micro: bool = False) -> list[slice]:
        """As few as the size allows, and of equal size but for one chunk: each is a whole step of the optimizer."""
        size = self.config.minibatch_chunks
        if micro and self.config.micro_batch_chunks:
            size = min(size, self.config.micro_batch_chunks)
        count = -(-num_chunks // size)
        return [slice(part * num_chunks // count, (part + 1) * num_chunks // count) for part in range(count)]

    def _judge(
        self,
        batch: TrainingBatch,
        executed: ExecutedChunks,
        anchor: Evaluation,
        advantage_N: Tensor,
        learner_version: int,
    ) -> tuple[Chunks, dict[str, float]]:
        """Chunks with what their ratios are taken against, and how far the anchor is from their makers."""
        config, level = self.config, self.config.logprob_level
        executed_NH = executed_mask(executed.rows(batch.num_executed), batch.reward.shape[2])
        mask_NU = torch.ones_like(ratio_units(anchor.log_prob, level))
        used_NH = executed_NH if self.policy.independent_actions else None
        if used_NH is not None:
            mask_NU = unit_mask(anchor.log_prob.shape, level, used_NH)
        behavior_NDHA = executed.rows(batch.log_prob)
        stale_NU = ratio(anchor.log_prob, behavior_NDHA, level, used_NH)
        decoupled = config.correction == "decoupled"
        weight_NU, over_NU = behavior_weight(stale_NU, config.behavior_cap_mode, config.behavior_cap)
        metrics = {
            "entropy": anchor.entropy.mean().item(),
            "ess": effective_sample_size(stale_NU, mask_NU).item(),
            "behavior_kl": gaussian_kl(executed.rows(batch.mean), anchor.std, anchor.mean, anchor.std).mean().item(),
            "behavior_masked_fraction": ((over_NU * mask_NU).sum() / mask_NU.sum()).item() if decoupled else 0.0,
            **ratio_check(stale_NU, executed.rows(batch.behavior_version) == learner_version),
        }
        chunks = Chunks(
            obs=executed.obs,
            record=executed.record,
            executed_NH=used_NH,
            old_NDHA=anchor.log_prob if decoupled else behavior_NDHA,
            weight_NU=weight_NU if decoupled else torch.ones_like(weight_NU),
            mask_NU=mask_NU,
            anchor_mean=anchor.mean,
            anchor_std=anchor.std,
            advantage_N=advantage_N,
        )
        return chunks, metrics

    def _minibatches(self, num_chunks: int, rng: torch.Generator, device: torch.device) -> Iterator[Tensor]:
        for _ in range(self.config.epochs):
            order = torch.randperm(num_chunks, generator=rng, device=rng.device).to(device)
            for rows in self._slices(num_chunks):
                yield order[rows]

    def _learn(
        self, minibatch: Chunks, tally: Tally, *, actor: bool = True, value_loss: ValueLoss | None = None
    ) -> bool:
        """One step on a minibatch, a micro-batch at a time; whether the actor took part in it.

        It does not where ``actor`` is False, or the minibatch is beyond the KL limit.

        Args:
            minibatch: what to learn from.
            tally: is told the means over the whole minibatch.
            actor: whether the actor is to be trained.
            value_loss: the critic's, if it is to be trained.

        Raises:
            NotFinite: a loss or a gradient is not finite; nothing has been changed by this step.
        """
        asked, sums = actor, Sums()
        for optimizer in self._optimizers.values():
            optimizer.clear_gradients()
        for part in minibatch.micro_batches(self.config.micro_batch_chunks):
            evaluation = self._evaluate(part, sums, gradients=actor) if asked else None
            # KL is never below 0: more micro-batches will not bring it back below the limit. Not a number counts
            # as within, so that the loss reports it.
            actor = actor and not sums["kl"].item() > self.config.kl_limit
            losses = []
            if actor and evaluation is not None:
                losses.append(self._actor_loss(part, evaluation, sums))
            if value_loss is not None:
                fresh = evaluation if actor else None
                value_M = self.policy.value(part.chunks.obs) if fresh is None else fresh.value
                losses.append(value_loss(value_M, part.rows) * part.chunk_share)
                sums.add(value_loss=losses[-1])
            if losses:
                sum(losses[1:], losses[0]).backward()  # type: ignore[no-untyped-call]
        names = [name for name, trains in (("actor", actor), ("critic", value_loss is not None)) if trains]
        sums.report(tally, actor=actor)
        if names:
            self._step(sums.loss(actor=actor), tally, *names)
        return actor

    def _evaluate(self, part: MicroBatch, sums: Sums, *, gradients: bool) -> Evaluation:
        """A micro-batch under today's weights, and how far they are from the anchor."""
        chunks = part.chunks
        with torch.set_grad_enabled(gradients):
            evaluation = self.policy.evaluate(chunks.obs, chunks.record)
        kl = gaussian_kl(chunks.anchor_mean, chunks.anchor_std, evaluation.mean, evaluation.std).mean()
        sums.add(kl=kl * part.chunk_share)
        return evaluation

    def _actor_loss(self, part: MicroBatch, evaluation: Evaluation, sums: Sums) -> Tensor:
        config, chunks = self.config, part.chunks
        ratio_NU = ratio(evaluation.log_prob, chunks.old_NDHA, config.logprob_level, chunks.executed_NH)
        loss = policy_loss(ratio_NU, chunks.advantage_N, chunks.weight_NU, chunks.mask_NU, config) * part.unit_share
        with torch.no_grad():
            outside_NU = (ratio_NU < 1.0 - config.clip_low) | (ratio_NU > 1.0 + config.clip_high)
            clipped = (outside_NU * chunks.mask_NU).sum() / chunks.mask_NU.sum().clamp(min=1.0)
            sums.add(policy_loss=loss, clip_fraction=clipped * part.unit_share)
        if config.entropy_coef:
            loss = loss - config.entropy_coef * (evaluation.entropy.mean() * part.chunk_share)
        sums.add(actor_loss=loss)
        return loss

    def _step(self, loss: Tensor, tally: Tally, *names: str) -> None:
        """One step of each optimizer named, with the gradients that there are."""
        optimizers = [self._optimizers[name] for name in names]
        norms = [optimizer.clip_gradients(self.config.max_grad_norm) for optimizer in optimizers]
        if not torch.stack([loss, *norms]).isfinite().all().item():
            raise NotFinite
        for optimizer in optimizers:
            optimizer.step()
        for name, norm in zip(names, norms, strict=True):
            tally.add(**{GRADIENT_NORMS[name]: norm})


class Sums:
    """What the micro-batches of one minibatch report, each times its share: means over the minibatch in the end."""

    def __init__(self) -> None:
        self._values: dict[str, Tensor] = {}

    def __getitem__(self, name: str) -> Tensor:
        return self._values[name]

    def add(self, **values: Tensor) -> None:
        """Add one micro-batch's part."""
        for name, value in values.items():
            before = self._values.get(name)
            self._values[name] = value.detach() if before is None else before + value.detach()

    def report(self, tally: Tally, *, actor: bool) -> None:
        """Tell the tally; of an actor beyond the KL limit only by how much it is."""
        names = ("kl", "policy_loss", "clip_fraction", "value_loss") if actor else ("kl", "value_loss")
        tally.add(**{name: self._values[name] for name in names if name in self._values})

    def loss(self, *, actor: bool) -> Tensor:
        """Of those that step."""
        names = ("actor_loss", "value_loss") if actor else ("value_loss",)
        return torch.stack([self._values[name] for name in names if name in self._values]).sum()


class Tally:
    """Means of what minibatches report, summed without waiting for the device."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self._values: dict[str, list[Tensor]] = {name: [] for name in names}

    def add(self, **values: Tensor) -> None:
        """Count one value for each name given."""
        for name, value in values.items():
            self._values[name].append(value.detach())

    def count(self, name: str) -> int:
        """How many values were counted."""
        return len(self._values[name])

    def means(self) -> dict[str, float]:
        """By name; 0.0 where nothing was counted."""
        return {name: torch.stack(x).mean().item() if x else 0.0 for name, x in self._values.items()}


def ratio_check(ratio_NU: Tensor, own_version_N: Tensor) -> dict[str, float]:
    """How far from 1 the ratio is for chunks made by the very weights that now evaluate them."""
    num_checked = int(own_version_N.sum())
    deviation = (ratio_NU[own_version_N] - 1.0).abs().nan_to_num(nan=MAX_REPORTED_DEVIATION)
    return {
        "ratio_max_deviation_first": deviation.max().item() if num_checked else 0.0,
        "ratio_checked_chunks": float(num_checked),
    }


def finite(metrics: dict[str, float]) -> dict[str, float]:
    """The metrics, with 0.0 for what is infinite or not a number."""
    return {name: x if math.isfinite(x) else 0.0 for name, x in metrics.items()}
