"""Who did what when, and why nobody did anything else: from a run's events and commands alone.

``Activity`` is fed one record (time, event, commands) after the other, of a real run or of a forecast,
and keeps what each env worker, CPU, generator and the learner were doing. Every second in which a
CPU of the simulation stage, a generator or the learner is idle gets a reason.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from ebrl.scheduling import commands as c
from ebrl.scheduling import events as e
from ebrl.scheduling.commands import Command
from ebrl.scheduling.events import Event
from ebrl.scheduling.plan import SchedulerPlan

STARTING, RESETTING, STEPPING, QUEUED, GENERATING, WANTS_CPU, NO_SLOT = (
    "starting",
    "reset",
    "env steps",
    "waiting for a generator",
    "waiting for actions",
    "waiting for a CPU",
    "waiting for a trajectory slot",
)
"""What an environment may be doing."""

Span = Callable[[str, int, str, float, float], None]
"""Is given lane kind, its number, what it did, from when, until when."""


@dataclass(slots=True)
class Lane:
    """One env worker, generator or learner."""

    state: str = STARTING
    since: float = 0.0
    seconds: dict[str, float] = field(default_factory=dict)
    """By state."""


class Activity:
    """See the module's docstring."""

    def __init__(self, plan: SchedulerPlan, *, span: Span | None = None) -> None:
        """Nothing has happened yet.

        Args:
            plan: of the run.
            span: is told every stretch of time in which a lane did one thing, when it is over.
        """
        self.plan = plan
        self.envs = [Lane() for _ in range(plan.num_shards)]
        self.generators = [Lane() for _ in range(plan.num_generators)]
        self.learner = Lane()
        self.idle: dict[str, dict[str, float]] = {"simulation": {}, "generation": {}, "training": {}}
        """Stage → reason → seconds, summed over the stage's CPUs, generators or learner."""
        self.updates: list[tuple[float, int]] = []
        """When each update was done, and how many trajectories it trained."""
        self.env_steps = 0
        self.chunks = 0
        self.num_batches = 0
        self.start: float | None = None
        self.now = 0.0
        self._span = span
        self._counts = {STARTING: plan.num_shards}
        self._free_slots = (plan.slack + 1) * plan.batch
        self._idle_envs: deque[int] = deque()
        self._chunk = [0] * plan.num_shards
        self._needs_slot = [True] * plan.num_shards
        self._training: list[int] = []
        self._trained: list[tuple[int, int]] = []
        """Version and size of each batch whose slots are not free yet."""
        self._live = [int(plan.first_version)] * plan.num_generators
        self._adopting = [False] * plan.num_generators
        self._cpu = [0] * plan.num_shards

    def see(self, now: float, event: Event, commands: list[Command]) -> None:
        """Take in one record."""
        if self.start is None:
            self.start = self.now = now
            for lane in (*self.envs, *self.generators, self.learner):
                lane.since = now
        self._pass_to(now)
        self._hear(event)
        for command in commands:
            self._obey(command)

    def finish(self) -> None:
        """End every stretch that is still open."""
        for kind, lanes in (("env", self.envs), ("generator", self.generators), ("learner", [self.learner])):
            for index, lane in enumerate(lanes):
                self._set(kind, index, lane, lane.state)

    # Idle seconds.

    def _pass_to(self, now: float) -> None:
        passed, self.now = now - self.now, now
        if passed <= 0.0:
            return
        counts = self._counts
        running = counts.get(STEPPING, 0) + counts.get(RESETTING, 0)
        idle = len(self.plan.cpus) - running
        if idle > 0:
            self._blame("simulation", idle * passed, self._why_no_steps())
        for index, generator in enumerate(self.generators):
            if generator.state == "idle":
                self._blame("generation", passed, self._why_no_chunks(index))
            elif generator.state == STARTING:
                self._blame("generation", passed, {"start": 1})
        if self.learner.state == "idle":
            self._blame("training", passed, {"data": 1})
        elif self.learner.state == STARTING:
            self._blame("training", passed, {"start": 1})

    def _why_no_steps(self) -> dict[str, int]:
        counts = self._counts
        waiting = counts.get(QUEUED, 0) + counts.get(GENERATING, 0)
        return {
            "actions": waiting,
            "staleness (no trajectory slot)": counts.get(NO_SLOT, 0),
            "start": counts.get(STARTING, 0),
            "a barrier": counts.get(WANTS_CPU, 0),
        }

    def _why_no_chunks(self, index: int) -> dict[str, int]:
        counts = self._counts
        if counts.get(QUEUED, 0):
            return {"weights": 1} if self._adopting[index] else {"a fuller batch": 1}
        return {
            "env steps": counts.get(STEPPING, 0) + counts.get(RESETTING, 0),
            "a CPU": counts.get(WANTS_CPU, 0),
            "staleness (no trajectory slot)": counts.get(NO_SLOT, 0),
            "another generator": counts.get(GENERATING, 0),
            "start": counts.get(STARTING, 0),
        }

    def _blame(self, stage: str, seconds: float, reasons: dict[str, int]) -> None:
        """Share the seconds among reasons by how many environments each holds up."""
        total = sum(reasons.values())
        kept = self.idle[stage]
        for reason, weight in reasons.items() if total else [("nothing to do", 1)]:
            if weight:
                kept[reason] = kept.get(reason, 0.0) + seconds * weight / (total or 1)

    # What is known of each lane.

    def _hear(self, event: Event) -> None:  # noqa: C901 (one case per event)
        match event:
            case e.EnvWorkerReady(shard=shard):
                self._env(shard, WANTS_CPU)
            case e.ResetDone(shard=shard):
                self._stands(shard)
            case e.StepsDone(shard=shard):
                self._steps_done(event)
            case e.EpisodeInvalid(shard=shard):
                self._needs_slot[shard] = True
                self._env(shard, WANTS_CPU)
            case e.EnvWorkerLost(shard=shard):
                self._needs_slot[shard] = True
                self._env(shard, STARTING)
            case e.ChunksReady(generator=generator, shards=shards):
                self.num_batches += 1
                self.chunks += len(shards)
                self._generator(generator, "idle")
                for shard in shards:
                    if self.envs[shard].state == GENERATING:
                        self._env(shard, WANTS_CPU)
            case e.GeneratorReady(generator=generator):
                self._generator(generator, "idle")
            case e.GeneratorLost(generator=generator):
                self._generator(generator, STARTING)
            case e.WeightsLive(generator=generator, policy_version=version):
                self._adopting[generator] = False
                if self.generators[generator].state == "adopting weights":
                    self._generator(generator, "idle")
                self._live[generator] = max(self._live[generator], version)
                self._release()
            case e.LearnerReady() | e.CheckpointSaved():
                self._learner("idle")
            case e.LearnerLost():
                self._learner(STARTING)
            case e.UpdateDone():
                self._update_done(event)
            case _:
                pass

    def _steps_done(self, event: e.StepsDone) -> None:
        shard = event.shard
        self.env_steps += event.num_steps
        if not event.chunk_over:
            self._env(shard, WANTS_CPU)
            return
        self._chunk[shard] += 1
        if self._chunk[shard] >= self.plan.trajectory_chunks:
            self._chunk[shard] = 0
            self._needs_slot[shard] = True
        if event.episode_end is not None:
            self._env(shard, WANTS_CPU)
        else:
            self._stands(shard)

    def _stands(self, shard: int) -> None:
        """The environment has an observation."""
        if not self._needs_slot[shard]:
            self._env(shard, QUEUED)
        else:
            self._env(shard, NO_SLOT)
            self._idle_envs.append(shard)
            self._admit()

    def _admit(self) -> None:
        while self._free_slots > 0 and self._idle_envs:
            shard = self._idle_envs.popleft()
            if self.envs[shard].state != NO_SLOT:
                continue
            self._free_slots -= 1
            self._needs_slot[shard], self._chunk[shard] = False, 0
            self._env(shard, QUEUED)

    def _update_done(self, event: e.UpdateDone) -> None:
        self._learner("idle")
        size = self._training.pop(0) if self._training else 0
        if event.skipped:
            return  # each of its trajectories is dropped by a command
        self.updates.append((self.now, size))
        self._trained.append((event.policy_version, size))

    def _release(self) -> None:
        live = min(self._live)
        while self._trained and self._trained[0][0] <= live:
            self._free_slots += self._trained.pop(0)[1]
        self._admit()

    def _obey(self, command: Command) -> None:
        match command:
            case c.ResetEnv(shard=shard, cpu=cpu):
                self._env(shard, RESETTING)
                self._cpu[shard] = cpu
            case c.StepEnv(shard=shard, cpu=cpu):
                self._env(shard, STEPPING)
                self._cpu[shard] = cpu
            case c.GenerateChunks(generator=generator, requests=requests):
                self._generator(generator, f"{len(requests)} chunks")
                for request in requests:
                    self._env(request.shard, GENERATING)
            case c.PublishWeights(generator=generator):
                self._adopting[generator] = True
                if self.generators[generator].state == "idle":
                    self._generator(generator, "adopting weights")
            case c.Train(trajectories=trajectories):
                self._training.append(len(trajectories))
                self._learner("update")
            case c.SaveCheckpoint():
                self._learner("checkpoint")
            case c.DropTrajectory():
                self._free_slots += 1
                self._admit()
            case _:
                pass

    # Changing a lane.

    def _env(self, shard: int, state: str) -> None:
        lane = self.envs[shard]
        if self._span is not None and lane.state in (STEPPING, RESETTING) and self.now > lane.since:
            self._span("cpu", self._cpu[shard], f"env {shard}", lane.since, self.now)
        self._counts[lane.state] -= 1
        self._counts[state] = self._counts.get(state, 0) + 1
        self._set("env", shard, lane, state)

    def _generator(self, index: int, state: str) -> None:
        if state == "idle" and self._adopting[index]:
            state = "adopting weights"
        self._set("generator", index, self.generators[index], state)

    def _learner(self, state: str) -> None:
        self._set("learner", 0, self.learner, state)

    def _set(self, kind: str, index: int, lane: Lane, state: str) -> None:
        passed = self.now - lane.since
        if passed > 0.0:
            lane.seconds[lane.state] = lane.seconds.get(lane.state, 0.0) + passed
            if self._span is not None:
                self._span(kind, index, lane.state, lane.since, self.now)
        lane.state, lane.since = state, self.now
