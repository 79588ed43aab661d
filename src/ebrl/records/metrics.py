"""What a run did, counted from its events: one row per update, and totals at the end."""

from __future__ import annotations

from collections import deque
from typing import Any

from ebrl.scheduling.events import ChunksReady, Event, ResetDone, StepsDone, UpdateDone
from ebrl.scheduling.scheduler import Scheduler

RECENT_EPISODES = 200
"""Training episodes that the running success rate looks back on."""


class RunMetrics:
    """Sees every event of a training run; times are seconds since training began.

    Chunks and trajectories are those of single environments. Busy shares of simulation are those of what can
    be granted: CPUs that are granted together count as one.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self.start: float | None = None
        self.now = 0.0
        self.simulation_busy_s = 0.0
        self._simulation_share_s = 0.0
        """Busy seconds over the number of CPU sets that simulation had then."""
        self.generation_busy_s = 0.0
        self.training_busy_s = 0.0
        self.simulation_reset_s = 0.0
        self.constant_frames = 0
        self.repeated_frames = 0
        self._first_env_step = scheduler.counters.env_steps
        self._successes: deque[bool] = deque(maxlen=RECENT_EPISODES)
        self._returns: deque[float] = deque(maxlen=RECENT_EPISODES)
        self._lengths: deque[int] = deque(maxlen=RECENT_EPISODES)
        self._before: dict[str, float] = {}
        self._staleness_before: dict[int, int] = {}

    def see(self, now: float, event: Event) -> None:
        """Count one event; called after the scheduler has handled it."""
        if self.start is None:
            self.start = now
        self.now = now - self.start
        match event:
            case StepsDone():
                self._simulate(event.step_s)
                for end in event.episode_ends:
                    self._successes.append(end.success)
                    self._returns.append(end.episode_return)
                    self._lengths.append(end.num_steps)
                    self.constant_frames += end.constant_frames
                    self.repeated_frames += end.repeated_frames
            case ChunksReady():
                self.generation_busy_s += event.generation_s
            case ResetDone():
                self._simulate(event.reset_s)
                self.simulation_reset_s += event.reset_s
            case UpdateDone():
                self.training_busy_s += event.train_s
            case _:
                pass

    def _simulate(self, seconds: float) -> None:
        level, nodes = self._scheduler.step_level, self._scheduler.plan.nodes
        self.simulation_busy_s += seconds
        self._simulation_share_s += seconds / max(1, sum(len(level.cpu_sets(node)) for node in range(len(nodes))))

    def row(self) -> dict[str, float]:
        """What happened since the row before, for the update that has just ended."""
        totals = self._totals()
        before = self._before or dict.fromkeys(totals, 0.0)
        passed_s = max(totals["seconds"] - before["seconds"], 1e-9)
        self._before = totals
        gate, learner = self._scheduler.gate, self._scheduler.learner
        staleness = self._new_staleness()
        trained = sum(staleness.values())
        return {
            "policy_version": learner.policy_version,
            "env_steps": self._scheduler.counters.env_steps,
            "seconds": totals["seconds"],
            "episodes": totals["episodes"],
            "rollout/success_rate": self.success_rate,
            "rollout/return_mean": _mean(self._returns),
            "rollout/episode_steps_mean": _mean(self._lengths),
            "simulation/env_steps_per_s": (totals["env_steps"] - before["env_steps"]) / passed_s,
            "simulation/busy_fraction": (totals["simulation"] - before["simulation"]) / passed_s,
            "simulation/constant_frames": totals["constant_frames"] - before["constant_frames"],
            "simulation/repeated_frames": totals["repeated_frames"] - before["repeated_frames"],
            "generation/busy_fraction": (totals["generation"] - before["generation"]) / passed_s,
            "generation/batch_mean": (totals["chunks"] - before["chunks"])
            / max(totals["batches"] - before["batches"], 1.0),
            "training/busy_fraction": (totals["training"] - before["training"]) / passed_s,
            "training/trajectories_per_s": (totals["trained"] - before["trained"]) / passed_s,
            "training/staleness_mean": sum(s * n for s, n in staleness.items()) / max(trained, 1),
            "training/staleness_max": max(staleness, default=0),
            "training/held_trajectories": gate.num_held * self._scheduler.plan.unit,
            **self._resources(),
            "failures/env": sum(self._scheduler.counters.env_failures.values()),
            "failures/dropped_trajectories": sum(gate.ledger.dropped.values()),
            "failures/restarts": sum(self._scheduler.counters.restarts.values()),
        }

    @property
    def success_rate(self) -> float:
        """Share of successes among the last training episodes; 0 before the first has ended."""
        return _mean(self._successes)

    def totals(self) -> dict[str, Any]:
        """The run as a whole, for its summary."""
        scheduler = self._scheduler
        gate, counters, totals = scheduler.gate, scheduler.counters, self._totals()
        seconds = max(totals["seconds"], 1e-9)
        return {
            "policy_version": scheduler.learner.policy_version,
            "env_steps": counters.env_steps,
            "episodes": counters.episodes,
            "seconds": totals["seconds"],
            "env_steps_per_s": totals["env_steps"] / seconds,
            "trajectories_per_s": totals["trained"] / seconds,
            "busy": {stage: totals[stage] / seconds for stage in ("simulation", "generation", "training")},
            "reset_fraction_of_simulation": self.simulation_reset_s / max(self.simulation_busy_s, 1e-9),
            "constant_frames": self.constant_frames,
            "repeated_frames": self.repeated_frames,
            "generation_batch_mean": totals["chunks"] / max(totals["batches"], 1.0),
            "success_rate_training": self.success_rate,
            "staleness_max": scheduler.learner.staleness_max,
            "staleness_bound": gate.bound,
            "staleness_counts": {str(s): n for s, n in sorted(scheduler.learner.staleness_counts.items())},
            "ledger": {
                "admitted": gate.ledger.admitted,
                "trained": gate.ledger.trained,
                "dropped": dict(sorted(gate.ledger.dropped.items())),
                "abandoned": gate.ledger.abandoned,
            },
            "ledger_balances": gate.ledger.balances(gate.num_held_untrained),
            "env_failures": dict(sorted(counters.env_failures.items())),
            "restarts": dict(sorted(counters.restarts.items())),
            "updates_skipped": counters.updates_skipped,
            "ignored_answers": counters.ignored_answers,
            "siblings_replaced": counters.siblings_replaced,
        }

    def _resources(self) -> dict[str, float]:
        """Of a run whose stages have CPUs of their own."""
        manager = self._scheduler.manager
        if manager is None:
            return {}
        split, counts, follower = manager.quotas.split, manager.quotas.counts, manager.follower
        return {
            "resources/simulation_cpus": len(split.simulation),
            "resources/generation_cpus": len(split.generation),
            "resources/training_cpus": len(split.training),
            "resources/generation_units": split.generation_units,
            "resources/training_units": split.training_units,
            "resources/switches": counts.switches,
            "resources/overlaps": counts.overlaps,
            "resources/mismatches": counts.mismatches,
            "resources/loans": counts.loans,
            "resources/decisions": 0 if follower is None else len(follower.decisions),
        }

    def _totals(self) -> dict[str, float]:
        counters, plan = self._scheduler.counters, self._scheduler.plan
        return {
            "seconds": self.now,
            "env_steps": counters.env_steps - self._first_env_step,
            "episodes": counters.episodes,
            "constant_frames": self.constant_frames,
            "repeated_frames": self.repeated_frames,
            "chunks": counters.chunks * plan.envs_per_shard,
            "batches": counters.generation_batches,
            "trained": self._scheduler.gate.ledger.trained,
            "simulation": self._simulation_share_s,
            "generation": self.generation_busy_s / plan.num_generators,
            "training": self.training_busy_s,
        }

    def _new_staleness(self) -> dict[int, int]:
        counts = self._scheduler.learner.staleness_counts
        new = {s: n - self._staleness_before.get(s, 0) for s, n in counts.items()}
        self._staleness_before = dict(counts)
        return {s: n for s, n in new.items() if n}


def _mean(values: deque[bool] | deque[float] | deque[int]) -> float:
    return sum(values) / len(values) if values else 0.0
