"""When to share resources out again: measured against predicted stage times.

Each sample compares every stage's mean time with what was predicted under the allocation in use. When one of them
is off by more than ``TOLERANCE`` for ``PATIENCE`` samples in a row, what is believed of the run's costs is scaled
to what was measured, and the allocator is asked again. Its answer is taken if it gains ``MIN_GAIN`` or more over
``HORIZON_S`` seconds, the cost of the move included; otherwise the allocation stays, but the belief does not, so
that a slow drift is not forgotten.

CPUs that come or go are a fact, not a measurement: the answer to them is immediate.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace

from ebrl.resources.allocation import Allocation, Prediction, Shape, predict
from ebrl.resources.allocator import allocate
from ebrl.resources.pool import Infeasible
from ebrl.resources.workload import BatchCosts, Workload

TOLERANCE = 0.15
"""Relative difference between measured and predicted times that is noise."""
PATIENCE = 20
"""Samples in a row."""
MIN_NEW = 3
"""Samples of them that must have brought news of the stage that is off: some stages report rarely."""
MIN_GAIN = 0.05
HORIZON_S = 600.0
"""Seconds over which a move must pay."""
COOLDOWN = 20
"""Samples after a move in which nothing is decided."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratios:
    """Measured over predicted, of one sample; None where nothing was measured."""

    chunk: float | None = None
    """Seconds of simulating a chunk."""
    generation: float | None = None
    """Seconds of a generation batch of its size."""
    update: float | None = None
    """Seconds of an update."""
    trajectory: float | None = None
    """Chunks of a trajectory."""

    @property
    def is_empty(self) -> bool:
        """Whether nothing was measured."""
        return all(getattr(self, stage.name) is None for stage in fields(self))


STAGES = tuple(stage.name for stage in fields(Ratios))


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What was decided, and why."""

    sample: int
    """How many samples had been taken."""
    accepted: bool
    reason: str
    gain: float
    """Predicted rate of the best allocation over that of the one in use, minus 1, the cost of the move included."""
    allocation: Allocation
    """In use from now on."""


@dataclass(slots=True)
class _Streak:
    """Samples in a row in which a stage was off."""

    length: int = 0
    ratios: list[float] = field(default_factory=list)
    """News of them."""
    last: float = 1.0


class Rebalancer:
    """What is believed of a run's costs, and the allocation that follows from it."""

    def __init__(self, workload: Workload, shape: Shape, allocation: Allocation, *, switch_s: float = 0.0) -> None:
        """Begin with what the allocation was made from.

        Args:
            workload: costs as they were profiled.
            shape: the machine.
            allocation: in use.
            switch_s: seconds of throughput that a move costs.
        """
        self.workload = workload
        """As it is believed now."""
        self.shape = shape
        self.allocation = allocation
        self.prediction: Prediction = predict(workload, shape, allocation)
        """Of the allocation in use, under what is believed."""
        self.num_samples = 0
        self._switch_s = switch_s
        self._quiet_until = 0
        self._streaks = {stage: _Streak() for stage in STAGES}

    def sample(self, ratios: Ratios) -> Decision | None:
        """Take one sample in; a decision if one is due."""
        self.num_samples += 1
        for stage, streak in self._streaks.items():
            self._count(streak, getattr(ratios, stage))
        if self.num_samples < self._quiet_until:
            return None
        off = [stage for stage, streak in self._streaks.items() if self._is_off(streak)]
        if not off:
            return None
        factors = {stage: self._estimate(stage) for stage in STAGES}
        lagging = "trajectory" in off and "update" not in off
        self.workload = _scaled(self.workload, factors, lagging=lagging)
        named = ", ".join(f"{stage} × {factors[stage]:.2f}" for stage in off)
        return self._decide(f"measured over predicted: {named}")

    def set_num_cpus(self, num_cpus: int) -> Decision:
        """The machine has so many CPUs now."""
        before = self.shape.num_cpus
        self.shape = replace(self.shape, num_cpus=num_cpus)
        self.allocation = _on_fewer(self.allocation, before, num_cpus)
        return self._decide(f"{num_cpus} CPUs instead of {before}", must=True)

    def _count(self, streak: _Streak, ratio: float | None) -> None:
        if ratio is not None:
            streak.last = ratio
        if abs(streak.last - 1.0) <= TOLERANCE:
            streak.length = 0
            streak.ratios.clear()
            return
        streak.length += 1
        if ratio is not None:
            streak.ratios.append(ratio)

    def _is_off(self, streak: _Streak) -> bool:
        return streak.length >= PATIENCE and len(streak.ratios) >= MIN_NEW

    def _estimate(self, stage: str) -> float:
        """Mean of what was measured while the stage was off; what was measured last, while it was not off for long."""
        ratios = self._streaks[stage].ratios
        return sum(ratios) / len(ratios) if ratios else self._streaks[stage].last

    def _decide(self, why: str, *, must: bool = False) -> Decision:
        """Ask the allocator under today's belief."""
        for streak in self._streaks.values():
            streak.length, streak.last = 0, 1.0
            streak.ratios.clear()
        now = predict(self.workload, self.shape, self.allocation)
        found = allocate(self.workload, self.shape, self.allocation)
        if isinstance(found, Infeasible):
            self.prediction = now
            return self._decision(False, f"{why}; nothing fits: {found.budget}", 0.0)
        best = found.best
        time_left = max(0.0, 1.0 - self._switch_s / HORIZON_S)
        gain = best.prediction.trajectories_per_s * time_left / now.trajectories_per_s - 1.0
        if best.allocation == self.allocation and not must:
            self.prediction = now
            return self._decision(False, f"{why}; the allocation is still the best", 0.0)
        if gain < MIN_GAIN and not must:
            self.prediction = now
            return self._decision(False, f"{why}; a move would gain {gain:.1%}, want {MIN_GAIN:.0%}", gain)
        self.allocation, self.prediction = best.allocation, best.prediction
        self._quiet_until = self.num_samples + COOLDOWN
        return self._decision(True, f"{why}; a move gains {gain:.1%}", gain)

    def _decision(self, accepted: bool, reason: str, gain: float) -> Decision:
        return Decision(
            sample=self.num_samples, accepted=accepted, reason=reason, gain=gain, allocation=self.allocation
        )


def _scaled(workload: Workload, factors: dict[str, float], *, lagging: bool) -> Workload:
    """The costs that were measured.

    Args:
        workload: as it was believed.
        factors: measured over predicted, by stage.
        lagging: updates still train on trajectories of the length that was believed, so they say nothing of what
            training on those of today costs; that is left as it was until they do.
    """
    update = 1.0 if lagging else factors["update"]
    training = 1.0 if lagging else update / factors["trajectory"]

    def stretched(costs: BatchCosts, factor: float) -> BatchCosts:
        return replace(costs, fixed_s=costs.fixed_s * factor, item_s=costs.item_s * factor)

    simulation = workload.simulation
    return replace(
        workload,
        trajectory_chunks=workload.trajectory_chunks * factors["trajectory"],
        trained_chunks=workload.trained_chunks * factors["trajectory"],
        simulation=replace(simulation, chunk_s=simulation.chunk_s * factors["chunk"]),
        generation=stretched(workload.generation, factors["generation"]),
        training=stretched(workload.training, training),
        update_s=workload.update_s * update,
        sync_s=workload.sync_s * update,
    )


def _on_fewer(allocation: Allocation, before: int, now: int) -> Allocation:
    """The same on another number of CPUs, so that it can be compared: those who share all share what there is."""
    change = now - before
    shared = {"all": "all", "rollout": "rollout"}.get(allocation.cpu_sharing)
    simulation = max(1, allocation.simulation_cpus + change)
    if shared == "all":
        return replace(allocation, simulation_cpus=now, generation_cpus=now, training_cpus=now)
    if shared == "rollout":
        return replace(allocation, simulation_cpus=simulation, generation_cpus=simulation)
    return replace(allocation, simulation_cpus=simulation)
