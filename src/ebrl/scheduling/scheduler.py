"""The control plane of a run: ``Scheduler.handle`` is its only entrance.

Each event changes what is known, then everything that has become possible is started, always in
the same order: trajectories, CPUs, generation, training. Whatever waits is started by the very
event that makes it possible, so nothing needs to be polled.

    a shard waits for      until
    a trajectory           a slot is free: weights trained on an older one are live, or a sibling group lacks one
    a chunk                a generator is free and its batch is large enough
    a CPU                  another shard's grant or reset ends
    a batch waits for      its B members; the learner
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import assert_never

from ebrl.ids import EpisodeId, Epoch, GeneratorId, PolicyVersion, ShardId, SlotId
from ebrl.scheduling.commands import (
    ChunkRequest,
    Command,
    DropTrajectory,
    EpisodeStart,
    GenerateChunks,
    PublishWeights,
    SaveCheckpoint,
    SetTimer,
    StartEnvWorker,
    StartGenerator,
    StartLearner,
    Train,
)
from ebrl.scheduling.ending import Ending
from ebrl.scheduling.episodes import Episodes
from ebrl.scheduling.events import (
    CheckpointSaved,
    ChunksReady,
    CpusChanged,
    EnvWorkerLost,
    EnvWorkerReady,
    EpisodeInvalid,
    Event,
    GeneratorLost,
    GeneratorReady,
    LearnerLost,
    LearnerReady,
    QuotaApplied,
    ResetDone,
    RunStarted,
    SplitRequested,
    StepsDone,
    StopRequested,
    TimerFired,
    UpdateDone,
    WeightsLive,
)
from ebrl.scheduling.generation import ChunkLevel
from ebrl.scheduling.management import Manager
from ebrl.scheduling.plan import Counters, SchedulerPlan
from ebrl.scheduling.shards import StepLevel
from ebrl.scheduling.siblings import SiblingGroups
from ebrl.scheduling.staleness import StalenessGate
from ebrl.scheduling.transitions import (
    Down,
    Generating,
    Idle,
    NeedsReset,
    Place,
    Ready,
    Resetting,
    Running,
    Waiting,
)
from ebrl.scheduling.updates import Learner, live_version

REFUSED_DATA = "the learner refused the data"
"""Why a run ends whose learner was lost for good."""

_GROUP = "group "
"""Name of a sibling group's timer, before its number."""

MAX_RESTARTS = 3
"""Times in a row that a generator or the learner may be lost without finishing anything."""

MAX_SKIPPED_UPDATES = 3
"""Updates in a row that may end with a loss or gradient that is not finite."""


class Scheduler:
    """Decides; knows nothing of processes, arrays or time, except what it is told."""

    def __init__(self, plan: SchedulerPlan) -> None:
        self.plan = plan
        group_of = plan.group_of()
        self._episodes = Episodes(
            num_shards=plan.num_shards, envs_per_shard=plan.envs_per_shard, first=plan.first_episode
        )
        self.chunk_level = ChunkLevel(
            group_of=group_of,
            num_generators=plan.num_generators,
            min_batch=None if plan.env_groups else plan.min_generation_batch,
            max_batch=plan.max_generation_batch,
            buckets=plan.generation_buckets,
            round_robin=plan.round_robin,
        )
        self.gate = StalenessGate(batch=plan.batch // plan.unit, slack=plan.slack, window=plan.window, unit=plan.unit)
        self.gate.live_version = plan.first_version
        self.groups = SiblingGroups(self.gate, size=plan.siblings)
        self.step_level = StepLevel(
            group_of=group_of,
            cpu_sets=plan.cpu_sets,
            node_of=plan.node_of(),
            chunk_len=plan.chunk_len,
            quantum=plan.quantum,
            step_barrier=plan.step_barrier,
            rank_of=self._rank_of,
        )
        self.learner = Learner(policy_version=plan.first_version)
        self.counters = Counters(env_steps=plan.first_env_step)
        self.manager = None if plan.split is None else Manager(plan, self.step_level, self.chunk_level)
        """Of resources; None where every process runs where it likes."""
        quotas = None if self.manager is None else self.manager.quotas
        self.ending = Ending(plan, self.step_level, self.chunk_level, self.gate, self.learner, self.counters, quotas)
        self.serials = [plan.first_serial] * plan.num_shards
        self._oldest: list[PolicyVersion | None] = [None] * plan.num_shards
        self._epochs = [Epoch(0)] * plan.num_shards
        self._failures = [0] * plan.num_shards
        self._written: dict[GeneratorId, list[SlotId]] = {}
        """Slots of dropped trajectories that a generator may still write to."""
        self._over: list[list[int]] = [[] for _ in range(plan.num_shards)]
        """Environments of each shard whose episode ended in the chunk that it executes."""

    @property
    def stopping(self) -> str | None:
        """Why the run is ending, once it is."""
        return self.ending.reason

    @property
    def stopped(self) -> bool:
        """Whether it has ended."""
        return self.ending.stopped

    @property
    def episodes_begun(self) -> int:
        """What a run that resumes this one must have as its plan's ``first_episode``."""
        if self.plan.whole_episodes:
            return self.plan.first_episode + self.groups.num_begun
        return self._episodes.most_begun

    def handle(self, event: Event, now: float) -> list[Command]:
        """Take one event in and say everything that is to be done about it, in order."""
        if self.ending.stopped:
            return []
        commands = self._learn(event, now)
        if self.manager is not None and self.ending.reason is None:
            commands = self.manager.handle(event, now) + commands  # whoever has started has its quota before it works
        if not self.ending.stopped:
            self._start_what_can_start(commands, now)
        return commands

    # What an event changes.

    def _learn(self, event: Event, now: float) -> list[Command]:  # noqa: C901 (one case per event)
        match event:
            case RunStarted():
                return self.ending.watch()
            case StepsDone():
                return self._steps_done(event, now)
            case ChunksReady():
                return self._chunks_ready(event, now)
            case ResetDone():
                return self._reset_done(event, now)
            case EnvWorkerReady():
                return self._env_worker_ready(event, now)
            case EpisodeInvalid():
                return self._episode_invalid(event, now)
            case EnvWorkerLost():
                return self._env_worker_lost(event, now)
            case GeneratorReady():
                return self._generator_ready(event)
            case GeneratorLost():
                return self._generator_lost(event, now)
            case LearnerReady():
                return self._learner_ready(event)
            case LearnerLost():
                return self._learner_lost(event)
            case UpdateDone():
                return self._update_done(event)
            case WeightsLive():
                return self._weights_live(event)
            case CheckpointSaved():
                return self._checkpoint_saved(event)
            case StopRequested(reason=reason, patient=patient):
                return self.ending.begin(reason, self.plan.finish_s if patient else self.plan.drain_s)
            case TimerFired(name=name):
                return self._timer_fired(name, now)
            case QuotaApplied() | SplitRequested() | CpusChanged():
                return []  # the manager's
            case _:
                assert_never(event)

    def _steps_done(self, event: StepsDone, now: float) -> list[Command]:
        shard = event.shard
        if self._is_stale(event.epoch, self._epochs[shard]):
            return []
        phase = self.step_level.phases[shard]
        assert isinstance(phase, Running), f"shard {shard} answered steps in {phase}"
        self.counters.env_steps += event.env_steps
        self.counters.episodes += len(event.episode_ends)
        self.step_level.estimates.add_steps(shard, event.num_steps, event.step_s)
        over = self._over[shard]
        over += [end.env for end in event.episode_ends]
        if not event.chunk_over:
            self.step_level.set_phase(shard, Ready(phase.place, phase.first_step + event.num_steps), now)
            return []
        self.counters.chunks += 1
        place = self._next_place(shard, phase.place, episode_over=bool(over))
        if place is None or over:
            self._failures[shard] = 0
        if over and not self.plan.whole_episodes:
            self._reset(shard, place, over, now)
        else:
            self._stand(shard, place, now)
        return []

    def _next_place(self, shard: ShardId, place: Place, *, episode_over: bool) -> Place | None:
        """Where the chunk after this one goes; None once the trajectory is complete."""
        complete = episode_over if self.plan.whole_episodes else place.chunk + 1 == self.plan.trajectory_chunks
        if not complete:
            return Place(place.trajectory, place.slot, place.chunk + 1)
        oldest = self._oldest[shard]
        assert oldest is not None, f"shard {shard} finished a trajectory that no generator began"
        self._oldest[shard] = None
        self.groups.complete(place.trajectory, place.slot, oldest)
        return None

    def _rank_of(self, place: Place | None) -> int:
        return self.groups.rank_of(None if place is None else place.trajectory)

    def _reset(self, shard: ShardId, place: Place | None, envs: Iterable[int], now: float) -> None:
        """The next episodes of these environments begin as soon as there is a CPU."""
        self.step_level.set_phase(shard, NeedsReset(place, self._episodes.begin(shard, envs)), now)

    def _begin_anew(self, shard: ShardId, now: float) -> None:
        """Nothing of the shard's episodes is of use any more."""
        self._over[shard] = []
        if self.plan.whole_episodes:
            self.step_level.set_phase(shard, Idle(), now)
        else:
            self._reset(shard, None, range(self.plan.envs_per_shard), now)

    def _stand(self, shard: ShardId, place: Place | None, now: float) -> None:
        """The shard has an observation: it waits for a chunk, or for a trajectory."""
        self._over[shard] = []
        if place is not None and self.groups.is_dropped(place.trajectory):
            self._oldest[shard] = None
            self.groups.leave(place.trajectory)
            place = None
        if place is None:
            self.step_level.set_phase(shard, Idle(), now)
        else:
            self.step_level.set_phase(shard, Waiting(place), now)
            self.chunk_level.add(shard)

    def _chunks_ready(self, event: ChunksReady, now: float) -> list[Command]:
        generator = self.chunk_level.generators[event.generator]
        if self._is_stale(event.epoch, generator.epoch):
            return []
        generator.losses = 0
        self.counters.generation_batches += 1
        for shard in self._finish_batch(event.generator):
            phase = self.step_level.phases[shard]
            if not isinstance(phase, Generating):
                continue  # its env worker was lost meanwhile
            assert phase.generator == event.generator, f"shard {shard} is served twice: {phase}"
            oldest = self._oldest[shard]
            self._oldest[shard] = event.policy_version if oldest is None else min(oldest, event.policy_version)
            self.serials[shard] += 1
            self.step_level.set_phase(shard, Ready(phase.place, 0), now)
        return []

    def _finish_batch(self, generator: GeneratorId) -> tuple[ShardId, ...]:
        self.groups.release(self._written.pop(generator, ()))
        return self.chunk_level.finish(generator)

    def _reset_done(self, event: ResetDone, now: float) -> list[Command]:
        if self._is_stale(event.epoch, self._epochs[event.shard]):
            return []
        phase = self.step_level.phases[event.shard]
        assert isinstance(phase, Resetting), f"shard {event.shard} answered a reset in {phase}"
        self.counters.resets += 1
        self.step_level.estimates.add_reset(event.shard, event.reset_s)
        self._stand(event.shard, phase.place, now)
        return []

    def _env_worker_ready(self, event: EnvWorkerReady, now: float) -> list[Command]:
        if not self._is_stale(event.epoch, self._epochs[event.shard]):
            self._begin_anew(event.shard, now)
        return []

    def _episode_invalid(self, event: EpisodeInvalid, now: float) -> list[Command]:
        shard = event.shard
        if self._is_stale(event.epoch, self._epochs[shard]):
            return []
        commands = self._drop_trajectory(shard, "invalid")
        failed = self._count_failure(shard, "invalid", f"{event.field} was not finite")
        self._begin_anew(shard, now)
        return commands + failed

    def _env_worker_lost(self, event: EnvWorkerLost, now: float) -> list[Command]:
        shard = event.shard
        if self._is_stale(event.epoch, self._epochs[shard]):
            return []
        commands = self._drop_trajectory(shard, event.reason)
        phase = self.step_level.phases[shard]
        if isinstance(phase, Waiting):
            self.chunk_level.remove(shard)
        if not isinstance(phase, Down):
            self.step_level.set_phase(shard, Down(), now)
        failed = self._count_failure(shard, event.reason, event.detail)
        if failed:
            return commands + failed
        self._epochs[shard] = Epoch(event.epoch + 1)
        self._count_restart("env_worker")
        return [*commands, StartEnvWorker(shard=shard, epoch=self._epochs[shard])]

    def _drop_trajectory(self, shard: ShardId, reason: str) -> list[Command]:
        phase = self.step_level.phases[shard]
        place = getattr(phase, "place", None)
        if place is None:
            return []
        self._oldest[shard] = None
        if isinstance(phase, Generating):
            self._written.setdefault(phase.generator, []).append(place.slot)
        if not self.groups.drop(place.trajectory, place.slot, reason, in_use=isinstance(phase, Generating)):
            return []
        self.counters.siblings_replaced += self.plan.siblings > 1
        return [DropTrajectory(trajectory=place.trajectory, slot=place.slot, reason=reason)]

    def _count_failure(self, shard: ShardId, reason: str, detail: str) -> list[Command]:
        self.counters.env_failures[reason] = self.counters.env_failures.get(reason, 0) + 1
        self._failures[shard] += 1
        if self._failures[shard] <= self.plan.max_env_failures:
            return []
        times = self._failures[shard]
        return self.ending.fail(f"environment {shard} failed {times} times in a row ({reason})", detail)

    def _generator_ready(self, event: GeneratorReady) -> list[Command]:
        generator = self.chunk_level.generators[event.generator]
        if self._is_stale(event.epoch, generator.epoch):
            return []
        generator.up = True
        generator.policy_version = min(event.policy_version, self.learner.policy_version)
        self.gate.live(self._live_version())
        if event.policy_version < self.learner.policy_version:
            return [PublishWeights(generator=event.generator, policy_version=self.learner.policy_version)]
        return []

    def _generator_lost(self, event: GeneratorLost, now: float) -> list[Command]:
        generator = self.chunk_level.generators[event.generator]
        if self._is_stale(event.epoch, generator.epoch):
            return []
        for shard in self._finish_batch(event.generator):
            phase = self.step_level.phases[shard]
            if isinstance(phase, Generating):
                self._stand(shard, phase.place, now)
        generator.up = False
        generator.losses += 1
        if generator.losses > MAX_RESTARTS:
            return self.ending.fail(
                f"generator {event.generator} was lost {generator.losses} times in a row", event.detail
            )
        generator.epoch = Epoch(event.epoch + 1)
        self._count_restart("generator")
        self.gate.live(self._live_version())
        return [StartGenerator(generator=event.generator, epoch=generator.epoch)]

    def _learner_ready(self, event: LearnerReady) -> list[Command]:
        learner = self.learner
        if self._is_stale(event.epoch, learner.epoch):
            return []
        learner.up = True
        assert event.policy_version == learner.policy_version, (
            f"the learner starts at version {event.policy_version}, control expects {learner.policy_version}"
        )
        if self.ending.reason is not None:
            learner.batch = None  # what it was lost with is not trained again, so nobody waits for it
        if self.ending.waits_for_checkpoint:
            learner.saves = True
            return [SaveCheckpoint(policy_version=learner.policy_version)]
        if learner.batch is not None:
            return [self._train_command()]
        return []

    def _learner_lost(self, event: LearnerLost) -> list[Command]:
        learner = self.learner
        if self._is_stale(event.epoch, learner.epoch):
            return []
        learner.up = False
        learner.losses += 1
        if event.fatal:
            return self.ending.fail(REFUSED_DATA, event.detail)
        if learner.saves:
            learner.saves, learner.saves_lost = False, learner.saves_lost + 1
        if learner.saves_lost > MAX_RESTARTS:
            times = learner.saves_lost
            return self.ending.fail(
                f"the learner was lost {times} times in a row while it wrote a checkpoint", event.detail
            )
        if learner.losses > MAX_RESTARTS:
            return self.ending.fail(f"the learner was lost {learner.losses} times in a row", event.detail)
        learner.epoch = Epoch(event.epoch + 1)
        self._count_restart("learner")
        return [StartLearner(epoch=learner.epoch)]

    def _update_done(self, event: UpdateDone) -> list[Command]:
        learner, batch = self.learner, self.learner.batch
        if self._is_stale(event.epoch, learner.epoch):
            return []
        assert batch is not None, f"an update to version {event.policy_version} that nobody asked for"
        learner.batch, learner.losses = None, 0
        if event.skipped:
            return self._update_skipped()
        learner.count_staleness(batch, weight=self.plan.envs_per_shard)
        learner.skipped_in_a_row = 0
        version = learner.policy_version = event.policy_version
        self.groups.trained(version)
        commands: list[Command] = [
            PublishWeights(generator=GeneratorId(index), policy_version=version)
            for index, generator in enumerate(self.chunk_level.generators)
            if generator.up
        ]
        every = self.plan.checkpoint_every
        if every and version % every == 0 and self.ending.reason is None:
            learner.saves = True
            commands.append(SaveCheckpoint(policy_version=version))
        self.gate.live(self._live_version())
        return commands

    def _update_skipped(self) -> list[Command]:
        learner = self.learner
        learner.skipped_in_a_row += 1
        self.counters.updates_skipped += 1
        commands: list[Command] = [
            DropTrajectory(trajectory=trajectory, slot=slot, reason="update_skipped")
            for trajectory, slot in self.groups.refuse_training("update_skipped")
        ]
        if learner.skipped_in_a_row >= MAX_SKIPPED_UPDATES:
            times = learner.skipped_in_a_row
            commands += self.ending.fail(f"loss or gradient not finite in {times} updates in a row", "")
        return commands

    def _weights_live(self, event: WeightsLive) -> list[Command]:
        generator = self.chunk_level.generators[event.generator]
        if not self._is_stale(event.epoch, generator.epoch):
            # A generator may hold weights whose UpdateDone has not been heard yet; believe what is known.
            heard = min(event.policy_version, self.learner.policy_version)
            generator.policy_version = max(generator.policy_version, heard)
            self.gate.live(self._live_version())
        return []

    def _live_version(self) -> PolicyVersion:
        return max(self.gate.live_version, live_version(self.chunk_level.generators, self.gate.live_version))

    def _checkpoint_saved(self, event: CheckpointSaved) -> list[Command]:
        if self._is_stale(event.epoch, self.learner.epoch):
            return []
        self.learner.saves, self.learner.saves_lost = False, 0
        return self.ending.checkpoint_saved(event.policy_version)

    def _timer_fired(self, name: str, now: float) -> list[Command]:
        if name.startswith(_GROUP):
            return self._drop_group(int(name.removeprefix(_GROUP)), now)
        return self.ending.timer_fired(name)

    def _drop_group(self, group: int, now: float) -> list[Command]:
        """Its time is over; who waits for a chunk leaves at once, everybody else when a process has answered."""
        reason = "group_deadline"
        gone = self.groups.expire(group, reason)
        trajectories = {trajectory for trajectory, _ in gone}
        for shard, phase in enumerate(self.step_level.phases):
            if isinstance(phase, Waiting) and phase.place.trajectory in trajectories:
                self.chunk_level.remove(ShardId(shard))
                self._stand(ShardId(shard), phase.place, now)
        return [DropTrajectory(trajectory=trajectory, slot=slot, reason=reason) for trajectory, slot in gone]

    # What has become possible.

    def _start_what_can_start(self, commands: list[Command], now: float) -> None:
        commands += self.ending.advance()
        if self.ending.reason is not None:
            return
        self._admit(commands, now)
        if self.manager is not None:
            commands += self.manager.advance(now)
            learner_idle = self.learner.up and self.learner.batch is None
            commands += self.manager.lend_or_call_back(
                learner_idle=learner_idle, batch_ready=self.groups.gate.has_batch
            )
        commands += self.step_level.bind(now)
        self._generate(commands, now)
        self._train(commands)

    def _admit(self, commands: list[Command], now: float) -> None:
        while self.groups.may_begin and (shard := self.step_level.longest_idle()) is not None:
            begun = self.groups.begin()
            place = Place(begun.trajectory, begun.slot, 0)
            if not self.plan.whole_episodes:
                self._stand(shard, place, now)
                continue
            start = EpisodeStart(0, EpisodeId(self.plan.first_episode + begun.group))
            self.step_level.set_phase(shard, NeedsReset(place, (start,)), now)
            if begun.opens_group and self.plan.group_deadline_s:
                commands.append(SetTimer(name=f"{_GROUP}{begun.group}", after_s=self.plan.group_deadline_s))

    def others_may_join(self) -> list[bool]:
        """By env group: whether a shard that is not waiting will wait later without anybody's help."""
        level, may_admit = self.step_level, self.groups.may_begin
        return [
            moving > 0 or (preparing > 0 and may_admit)
            for moving, preparing in zip(level.num_moving, level.num_preparing, strict=True)
        ]

    def _generate(self, commands: list[Command], now: float) -> None:
        while True:
            batch = self.chunk_level.next_batch(
                others_may_join=self.others_may_join(), live_version=self.gate.live_version
            )
            if batch is None:
                return
            generator, shards = batch
            commands.append(
                GenerateChunks(generator=generator, requests=tuple(self._request(s, generator, now) for s in shards))
            )

    def _request(self, shard: ShardId, generator: GeneratorId, now: float) -> ChunkRequest:
        phase = self.step_level.phases[shard]
        assert isinstance(phase, Waiting), f"shard {shard} is served in {phase}"
        place = phase.place
        self.step_level.set_phase(shard, Generating(place, generator), now)
        return ChunkRequest(shard=shard, slot=place.slot, chunk=place.chunk, serial=self.serials[shard])

    def _train(self, commands: list[Command]) -> None:
        if self.learner.up and self.learner.batch is None and (self.manager is None or self.manager.may_train):
            self.learner.batch = self.groups.take_batch()
            if self.learner.batch is not None:
                commands.append(self._train_command())

    def _train_command(self) -> Train:
        batch, version = self.learner.batch, self.learner.policy_version
        assert batch is not None
        stale = version - min(batch.oldest_versions)
        assert stale <= self.gate.bound, f"staleness {stale} above the bound {self.gate.bound}: {batch}"
        return Train(trajectories=batch.trajectories, slots=batch.slots, learner_version=version)

    # Answers and counts.

    def _is_stale(self, answered: Epoch, current: Epoch) -> bool:
        """Whether an answer comes from a process that was replaced since."""
        if answered == current:
            return False
        self.counters.ignored_answers += 1
        return True

    def _count_restart(self, kind: str) -> None:
        self.counters.restarts[kind] = self.counters.restarts.get(kind, 0) + 1
