"""How a run comes to its end: its goal, work in flight, the last checkpoint; and a run that stands still.

    goal, or somebody asks ──▶ work in flight ends ──▶ SaveCheckpoint ──▶ CheckpointSaved ──▶ Stop

Each of the two waits has a deadline: long for a goal, short for somebody who sits and waits.
"""

from __future__ import annotations

from ebrl.ids import PolicyVersion
from ebrl.scheduling.commands import Command, ReportWaits, SaveCheckpoint, SetTimer, Stop
from ebrl.scheduling.generation import ChunkLevel
from ebrl.scheduling.plan import Counters, SchedulerPlan
from ebrl.scheduling.quotas import Quotas
from ebrl.scheduling.shards import StepLevel
from ebrl.scheduling.staleness import StalenessGate
from ebrl.scheduling.transitions import Down, Resetting, Running
from ebrl.scheduling.updates import Learner
from ebrl.scheduling.watchdog import who_waits


class Ending:
    """Whether the run is ending, and what that still waits for."""

    def __init__(
        self,
        plan: SchedulerPlan,
        step_level: StepLevel,
        chunk_level: ChunkLevel,
        gate: StalenessGate,
        learner: Learner,
        counters: Counters,
        quotas: Quotas | None,
    ) -> None:
        """The run goes on; the parts of its control plane are looked at, and only the gate is changed, at the end."""
        self.reason: str | None = None
        """Why the run is ending, once it is."""
        self.stopped = False
        self.waits_for_checkpoint = False
        """Nothing else is waited for any more."""
        self._plan = plan
        self._step_level = step_level
        self._chunk_level = chunk_level
        self._gate = gate
        self._learner = learner
        self._counters = counters
        self._quotas = quotas
        self._patience_s = plan.finish_s
        """How long the end may wait for each of its two parts."""
        self._progress = (0, 0, 0, plan.first_version)
        """What had been done when the watchdog looked last."""

    def begin(self, reason: str, patience_s: float) -> list[Command]:
        """Start to end, or end sooner than was meant."""
        if self.reason is not None and patience_s >= self._patience_s:
            return []
        self.reason = self.reason or reason
        self._patience_s = patience_s
        return [SetTimer(name="checkpoint" if self.waits_for_checkpoint else "drain", after_s=patience_s)]

    def advance(self) -> list[Command]:
        """Begin to end if the goal is reached, and go on to the checkpoint if no work is in flight any more."""
        commands: list[Command] = []
        if self.reason is None and (goal := self._goal_reached()):
            commands += self.begin(goal, self._plan.finish_s)
        if self.reason is not None and not self.waits_for_checkpoint and not self._work_in_flight():
            commands += self._finish_drain()
        return commands

    def checkpoint_saved(self, version: PolicyVersion) -> list[Command]:
        """A checkpoint is on disk; the run is over if it waits for one of these weights."""
        if not self.waits_for_checkpoint or version < self._learner.policy_version:
            return []
        return self._stop(self.reason or "", failed=False, detail="")

    def timer_fired(self, name: str) -> list[Command]:
        """A wait has lasted too long, or it is time to look for progress."""
        if name == "drain" and not self.waits_for_checkpoint:
            return self._finish_drain()
        if name == "watchdog":
            return self._look_for_progress()
        if name == "checkpoint":
            detail = f"the last checkpoint was not written within {self._patience_s} s"
            return self._stop(self.reason or "", failed=True, detail=detail)
        return []

    def watch(self) -> list[Command]:
        """Look for progress after a while."""
        after_s = self._plan.watchdog_s
        return [SetTimer(name="watchdog", after_s=after_s)] if after_s else []

    def fail(self, reason: str, detail: str) -> list[Command]:
        """The run cannot go on."""
        return self._stop(reason, failed=True, detail=detail)

    def _stop(self, reason: str, *, failed: bool, detail: str) -> list[Command]:
        self.stopped = True
        self._gate.abandon_all()  # not before: until now an update may still end, and a shard may still be lost
        return [Stop(reason=reason, failed=failed, detail=detail)]

    def _finish_drain(self) -> list[Command]:
        self.waits_for_checkpoint = True
        commands: list[Command] = [SetTimer(name="checkpoint", after_s=self._patience_s)]
        if self._learner.up:
            commands.append(SaveCheckpoint(policy_version=self._learner.policy_version))
        return commands

    def _goal_reached(self) -> str:
        if self._learner.policy_version >= self._plan.max_updates:
            return f"{self._plan.max_updates} updates"
        if self._counters.env_steps >= self._plan.max_env_steps:
            return f"{self._plan.max_env_steps} env steps"
        return ""

    def _work_in_flight(self) -> bool:
        if self._learner.batch is not None and self._learner.up:
            return True
        if any(generator.busy_with for generator in self._chunk_level.generators):
            return True
        return any(isinstance(phase, Running | Resetting) for phase in self._step_level.phases)

    def _look_for_progress(self) -> list[Command]:
        counters = self._counters
        seen = (counters.chunks, counters.generation_batches, counters.resets, self._learner.policy_version)
        stands_still, self._progress = seen == self._progress, seen
        if not stands_still:
            return self.watch()
        owing = self._quotas.owing if self._quotas is not None else ()
        lines = who_waits(self._step_level, self._chunk_level, self._gate, self._learner, owing)
        if not self._answer_is_owed():
            return self.fail("the run stands still", "\n".join(lines))
        return [ReportWaits(lines=tuple(lines)), *self.watch()]

    def _answer_is_owed(self) -> bool:
        """Whether any process was told something and has not answered; each has its deadline."""
        if self._work_in_flight() or self.waits_for_checkpoint or not self._learner.up:
            return True
        if any(isinstance(phase, Down) for phase in self._step_level.phases):
            return True
        if self._quotas is not None and self._quotas.owing:
            return True
        made = self._learner.policy_version
        return any(not g.up or g.policy_version < made for g in self._chunk_level.generators)
