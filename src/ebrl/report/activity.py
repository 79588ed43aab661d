"""Who did what when, and why nobody did anything else: from a run's events and commands alone.

``Activity`` is fed one record (time, event, commands) after the other, of a real run or of a forecast,
and keeps what each env worker, CPU, generator and the learner were doing. Every second in which a
CPU of the simulation stage (CPUs that are granted together are one), a generator or the learner is idle
gets a reason. All environments of an env worker count as doing what it does.

All of it is exact but for one thing: the slots of a sibling group that is dropped because of its deadline are
free when nobody writes to any of them, and records do not say who would. They count as free at once, so for
that long a shard that waits for a slot may be taken for one that waits for a CPU, or the other way round.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from ebrl.report.epochs import Epochs
from ebrl.report.lanes import cpu_lane, env_name
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
"""What an env worker may be doing."""

NO_EPISODE = -1

Span = Callable[[str, int, str, float, float], None]
"""Is given lane kind, its number, what it did, from when, until when."""


@dataclass(slots=True)
class Lane:
    """One env worker, generator or learner."""

    state: str = STARTING
    since: float = 0.0
    seconds: dict[str, float] = field(default_factory=dict)
    """By state."""


@dataclass(slots=True)
class _Node:
    num_cpu_sets: int
    first_lane: int
    """Of CPU 0."""
    counts: dict[str, int]
    """Env workers in each state."""


@dataclass(slots=True)
class _Shard:
    """What an env worker has, and what it wants before its next chunk."""

    needs_slot: bool = True
    needs_reset: bool = True
    chunk: int = 0
    """Of its trajectory."""
    episode: int = NO_EPISODE
    """That it began last in one of its environments; siblings have the same."""
    cpus: tuple[int, ...] = ()


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
        """Of single environments."""
        self.num_batches = 0
        self.start: float | None = None
        self.now = 0.0
        self._span = span
        self._node_of = plan.node_of()
        self._nodes = [
            _Node(len(cpu_sets), cpu_lane(plan, node, 0), {STARTING: self._node_of.count(node)})
            for node, cpu_sets in enumerate(plan.cpu_sets)
        ]
        self._free_slots = (plan.slack + 1) * plan.batch // plan.envs_per_shard
        """Slots of sibling groups that are begun, but not played by anybody yet, are free."""
        self._served: list[tuple[c.ChunkRequest, ...]] = [()] * plan.num_generators
        """What each generator is making."""
        self._in_use = [0] * plan.num_generators
        """Slots of dropped trajectories that it still writes to."""
        self._idle_envs: dict[int, None] = {}
        """Who waits for a slot, longest first."""
        self._dropped: set[int] = set()
        """Episodes of sibling groups that were dropped."""
        self._shards = [_Shard() for _ in range(plan.num_shards)]
        self._training = 0
        """Slots of the batch in training."""
        self._trained: list[tuple[int, int]] = []
        """Version and slots of each batch whose slots are not free yet."""
        self._version = self._live_version = int(plan.first_version)
        self._answers_with: list[int | None] = [None] * plan.num_generators
        """Policy version of each generator that is up."""
        self._adopting = [False] * plan.num_generators
        self._epochs = Epochs()

    def see(self, now: float, event: Event, commands: list[Command]) -> None:
        """Take in one record."""
        if self.start is None:
            self.start = self.now = now
            for lane in (*self.envs, *self.generators, self.learner):
                lane.since = now
        self._pass_to(now)
        if not self._epochs.is_late(event):
            self._hear(event)
        if isinstance(event, e.TimerFired) and any(isinstance(command, c.DropTrajectory) for command in commands):
            self._drop_group(self.plan.first_episode + int(event.name.rpartition(" ")[2]))
        for command in commands:
            self._epochs.obey(command)
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
        for node in self._nodes:
            idle = node.num_cpu_sets - node.counts.get(STEPPING, 0) - node.counts.get(RESETTING, 0)
            if idle > 0:
                self._blame("simulation", idle * passed, _why_no_steps(node.counts))
        states = [generator.state for generator in self.generators]
        if num_idle := states.count("idle"):
            self._blame("generation", num_idle * passed, self._why_no_chunks())
        if num_starting := states.count(STARTING):
            self._blame("generation", num_starting * passed, {"start": 1})
        if self.learner.state == "idle":
            self._blame("training", passed, {"data": 1})
        elif self.learner.state == STARTING:
            self._blame("training", passed, {"start": 1})

    def _why_no_chunks(self) -> dict[str, int]:
        """The same for every idle generator; one that adopts weights is not idle."""
        if self._count(QUEUED):
            return {"a fuller batch": 1}
        return {
            "env steps": self._count(STEPPING) + self._count(RESETTING),
            "a CPU": self._count(WANTS_CPU),
            "staleness (no trajectory slot)": self._count(NO_SLOT),
            "another generator": self._count(GENERATING),
            "start": self._count(STARTING),
        }

    def _count(self, state: str) -> int:
        return sum(node.counts.get(state, 0) for node in self._nodes)

    def _blame(self, stage: str, seconds: float, reasons: dict[str, int]) -> None:
        """Share the seconds among reasons by how many env workers each holds up."""
        total = sum(reasons.values())
        kept = self.idle[stage]
        for reason, weight in reasons.items() if total else [("nothing to do", 1)]:
            if weight:
                kept[reason] = kept.get(reason, 0.0) + seconds * weight / (total or 1)

    # What is known of each lane.

    def _hear(self, event: Event) -> None:  # noqa: C901 (one case per event)
        match event:
            case e.EnvWorkerReady(shard=shard) | e.EpisodeInvalid(shard=shard):
                self._begin_anew(shard)
                self._go_on(shard)
            case e.ResetDone(shard=shard):
                self._go_on(shard)
            case e.StepsDone():
                self._steps_done(event)
            case e.EnvWorkerLost(shard=shard):
                self._begin_anew(shard)
                self._env(shard, STARTING)
            case e.ChunksReady(generator=generator, shards=shards):
                self.num_batches += 1
                self.chunks += len(shards) * self.plan.envs_per_shard
                self._generator(generator, "idle")
                for shard in shards:
                    if self.envs[shard].state == GENERATING:
                        self._env(shard, WANTS_CPU)
                self._end_batch(generator)
            case e.GeneratorReady(generator=generator, policy_version=version):
                self._generator(generator, "idle")
                self._answers(generator, version)
            case e.GeneratorLost(generator=generator):
                self._generator_lost(generator)
            case e.WeightsLive(generator=generator, policy_version=version):
                self._adopting[generator] = False
                if self.generators[generator].state == "adopting weights":
                    self._generator(generator, "idle")
                self._answers(generator, version)
            case e.LearnerReady() | e.CheckpointSaved():
                self._learner("idle")
            case e.LearnerLost():
                self._learner(STARTING)
            case e.UpdateDone():
                self._update_done(event)
            case _:
                pass

    def _generator_lost(self, generator: int) -> None:
        self._answers_with[generator] = None
        self._adopting[generator] = False
        self._generator(generator, STARTING)
        for request in self._served[generator]:
            if self.envs[request.shard].state == GENERATING:
                self._go_on(request.shard)
        self._end_batch(generator)

    def _steps_done(self, event: e.StepsDone) -> None:
        shard = self._shards[event.shard]
        self.env_steps += event.env_steps
        shard.needs_reset |= bool(event.episode_ends)
        if not event.chunk_over:
            self._env(event.shard, WANTS_CPU)
            return
        shard.chunk += 1
        if self.plan.whole_episodes:
            shard.needs_slot |= shard.needs_reset
        else:
            shard.needs_slot |= shard.chunk >= self.plan.trajectory_chunks
        self._go_on(event.shard)

    def _begin_anew(self, index: int) -> None:
        """Nothing that the shard played is of use any more."""
        shard = self._shards[index]
        shard.needs_slot = shard.needs_reset = True
        self._idle_envs.pop(index, None)

    def _go_on(self, index: int) -> None:
        """The shard stands between two chunks, or has none yet."""
        shard = self._shards[index]
        if shard.episode in self._dropped:
            shard.needs_slot = shard.needs_reset = True
        if shard.needs_slot and (self.plan.whole_episodes or not shard.needs_reset):
            self._env(index, NO_SLOT)
            self._idle_envs[index] = None
            self._admit()
        else:
            self._env(index, WANTS_CPU if shard.needs_reset else QUEUED)

    def _admit(self) -> None:
        while self._free_slots > 0 and self._idle_envs:
            self._begin(next(iter(self._idle_envs)))

    def _begin(self, index: int) -> None:
        """A shard gets a trajectory, even if no slot was thought to be free."""
        del self._idle_envs[index]
        self._free_slots = max(0, self._free_slots - 1)
        shard = self._shards[index]
        shard.needs_slot, shard.chunk, shard.episode = False, 0, NO_EPISODE
        self._go_on(index)

    def _reset(self, command: c.ResetEnv) -> None:
        if command.shard in self._idle_envs:
            self._begin(command.shard)
        shard = self._shards[command.shard]
        shard.needs_reset, shard.episode, shard.cpus = False, command.starts[0].episode, command.cpus
        self._env(command.shard, RESETTING)

    def _end_batch(self, generator: int) -> None:
        self._served[generator] = ()
        self._free_slots += self._in_use[generator]
        self._in_use[generator] = 0
        self._admit()

    def _update_done(self, event: e.UpdateDone) -> None:
        self._learner("idle")
        if event.skipped:
            return  # each of its trajectories is dropped by a command
        self.updates.append((self.now, self._training * self.plan.envs_per_shard))
        self._trained.append((event.policy_version, self._training))
        self._version = event.policy_version
        self._release()

    def _answers(self, generator: int, version: int) -> None:
        """Control believes in no version whose update it has not heard of."""
        self._answers_with[generator] = min(version, self._version)
        self._release()

    def _release(self) -> None:
        up = [version for version in self._answers_with if version is not None]
        self._live_version = max(self._live_version, min(up, default=self._live_version))
        while self._trained and self._trained[0][0] <= self._live_version:
            self._free_slots += self._trained.pop(0)[1]
        self._admit()

    def _obey(self, command: Command) -> None:
        match command:
            case c.ResetEnv():
                self._reset(command)
            case c.StepEnv(shard=shard, cpus=cpus):
                self._env(shard, STEPPING)
                self._shards[shard].cpus = cpus
            case c.GenerateChunks(generator=generator, requests=requests):
                self._generator(generator, f"{len(requests) * self.plan.envs_per_shard} chunks")
                self._served[generator] = requests
                for request in requests:
                    self._env(request.shard, GENERATING)
            case c.PublishWeights(generator=generator):
                self._adopting[generator] = True
                if self.generators[generator].state == "idle":
                    self._generator(generator, "adopting weights")
            case c.Train(trajectories=trajectories):
                self._training = len(trajectories)
                self._learner("update")
            case c.SaveCheckpoint():
                self._learner("checkpoint")
            case c.DropTrajectory(slot=slot):
                self._drop(slot)
            case _:
                pass

    def _drop_group(self, episode: int) -> None:
        """Who waits for a generator leaves the sibling group at once, everybody else when his process answers."""
        self._dropped.add(episode)
        for index, shard in enumerate(self._shards):
            if shard.episode == episode and self.envs[index].state == QUEUED:
                self._go_on(index)

    def _drop(self, slot: int) -> None:
        for generator, requests in enumerate(self._served):
            if any(request.slot == slot for request in requests):
                self._in_use[generator] += 1
                return
        self._free_slots += 1
        self._admit()

    # Changing a lane.

    def _env(self, shard: int, state: str) -> None:
        lane = self.envs[shard]
        node = self._nodes[self._node_of[shard]]
        if self._span is not None and lane.state in (STEPPING, RESETTING) and self.now > lane.since:
            for cpu in self._shards[shard].cpus:
                self._span("cpu", node.first_lane + cpu, env_name(self.plan, shard), lane.since, self.now)
        node.counts[lane.state] -= 1
        node.counts[state] = node.counts.get(state, 0) + 1
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


def _why_no_steps(counts: dict[str, int]) -> dict[str, int]:
    """Of one node."""
    return {
        "actions": counts.get(QUEUED, 0) + counts.get(GENERATING, 0),
        "staleness (no trajectory slot)": counts.get(NO_SLOT, 0),
        "start": counts.get(STARTING, 0),
        "a barrier": counts.get(WANTS_CPU, 0),
    }
