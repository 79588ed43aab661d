"""Costs of a workload under quotas that change, and that drift: for trying out resource management on paper."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from ebrl.engines.virtual.costs import spread
from ebrl.ids import ShardId
from ebrl.resources.allocation import Allocation, Prediction, Shape, predict
from ebrl.resources.profile import Work
from ebrl.resources.uses import Habits
from ebrl.resources.workload import Workload
from ebrl.scheduling.quotas import Stage


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """From some time on a kind of work takes longer, or episodes are shorter."""

    at_s: float
    what: Literal["simulation", "generation", "training", "episode"]
    factor: float


class WorkloadCosts:
    """Costs of each process under its own quota.

    Whether stages that share CPUs get in each other's way is not known here: each has what its quota says.
    """

    start_s = 0.0
    update_heard_s = 0.0
    loss_heard_s = 0.0

    def __init__(
        self,
        workload: Workload,
        shape: Shape,
        allocation: Allocation,
        *,
        clock: Callable[[], float],
        drifts: tuple[Drift, ...] = (),
        episode_steps: int = 1_000_000,
        env_step_sigma: float = 0.0,
        habits: Habits | None = None,
    ) -> None:
        """Begin with an allocation.

        Args:
            workload: what everything costs; with habits, as ``with_habits`` made it.
            shape: the machine.
            allocation: in use at first.
            clock: seconds that the run lasts.
            drifts: what changes when.
            episode_steps: mean length of an episode, in env steps.
            env_step_sigma: of the logarithm of the time that one environment takes for a grant.
            habits: of a simulator whose env steps, observations and resets are known apart; None takes them together
                as ``chunk_s``.
        """
        self._workload = workload
        self._shape = shape
        self._allocation = allocation
        self._clock = clock
        self._drifts = drifts
        self._episode_steps = episode_steps
        self._sigma = env_step_sigma
        simulation = workload.simulation
        self._reset_s = simulation.reset_s if habits else 0.0
        self._observe_s = simulation.observe_s if habits else 0.0
        self._every_step = habits is not None and habits.observe_every_step
        self._to_horizon = habits is not None and habits.run_to_horizon
        self._env_step_s = simulation.env_step_s if habits else simulation.chunk_s / workload.chunk_len
        self._prediction: Prediction = predict(workload, shape, allocation)

    def _drift(self, what: str) -> float:
        now, factor = self._clock(), 1.0
        for drift in self._drifts:
            if drift.what == what and drift.at_s <= now:
                factor *= drift.factor
        return factor

    def episode(self, rng: random.Random, env_steps: int) -> tuple[int, bool]:
        """See ``CostModel``."""
        spread_over = 1.0 if self._to_horizon else rng.uniform(0.8, 1.2)
        return max(1, round(self._episode_steps * self._drift("episode") * spread_over)), False

    def steps(self, shard: ShardId, env: int, num_steps: int, rng: random.Random) -> Work:
        """See ``CostModel``."""
        step_s = num_steps * spread(self._env_step_s, self._sigma, rng)
        frames = num_steps if self._every_step else num_steps / self._workload.chunk_len
        return Work((step_s + frames * self._observe_s) * self._drift("simulation"))

    def reset(self, shard: ShardId, env: int, rng: random.Random) -> Work:
        """See ``CostModel``."""
        return Work(self._reset_s * self._drift("simulation"))

    def generation(self, num_chunks: int) -> Work:
        """See ``CostModel``; all generators have the same quota, up to the moment of a move."""
        prediction = self._prediction
        seconds = prediction.generation_fixed_s + prediction.generation_item_s * num_chunks
        return Work(0.0, seconds * self._drift("generation"))

    def adoption(self) -> Work:
        """See ``CostModel``."""
        return Work(0.0)

    def update(self, rng: random.Random) -> Work:
        """See ``CostModel``; shorter episodes are fewer chunks to train on."""
        given, factor = self._workload, self._drift("episode")
        chunks, trained = given.trajectory_chunks * factor, given.trained_chunks * factor
        shorter = replace(given, trajectory_chunks=chunks, trained_chunks=trained)
        prediction = predict(shorter, self._shape, self._allocation)
        return Work(0.0, prediction.update_s * self._drift("training"))

    def checkpoint(self) -> Work:
        """See ``CostModel``."""
        return Work(0.0)

    def set_quota(self, stage: Stage, index: int, num_cpus: int, units: int) -> None:
        """See ``CostModel``; the number of learners' and generators' processes stays."""
        if stage == "training":
            self._allocation = replace(self._allocation, training_cpus=num_cpus, training_units=units)
        else:
            self._allocation = replace(self._allocation, generation_cpus=num_cpus, generation_units=units)
        self._prediction = predict(self._workload, self._shape, self._allocation)
