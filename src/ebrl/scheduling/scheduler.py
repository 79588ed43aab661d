"""The control plane of a run: ``Scheduler.handle`` is its only entrance.

Each event changes what is known, then everything that has become possible is started, always in
the same order: trajectories, CPUs, generation, training. Whatever waits is started by the very
event that makes it possible, so nothing needs to be polled.

    a shard waits for      until
    a trajectory           a slot is free: weights trained on an older one are live
    a chunk                a generator is free and its batch is large enough
    a CPU                  another shard's grant or reset ends
    a batch waits for      its B members; the learner
"""

from __future__ import annotations

from typing import assert_never

from ebrl.ids import Epoch, GeneratorId, PolicyVersion, ShardId, SlotId
from ebrl.scheduling.commands import (
    ChunkRequest,
    Command,
    DropTrajectory,
    GenerateChunks,
    PublishWeights,
    ReportWaits,
    SaveCheckpoint,
    SetTimer,
    StartEnvWorker,
    StartGenerator,
    StartLearner,
    Stop,
    Train,
)
from ebrl.scheduling.events import (
    CheckpointSaved,
    ChunksReady,
    EnvWorkerLost,
    EnvWorkerReady,
    EpisodeInvalid,
    Event,
    GeneratorLost,
    GeneratorReady,
    LearnerLost,
    LearnerReady,
    ResetDone,
    RunStarted,
    StepsDone,
    StopRequested,
    TimerFired,
    UpdateDone,
    WeightsLive,
)
from ebrl.scheduling.generation import ChunkLevel
from ebrl.scheduling.plan import Counters, SchedulerPlan
from ebrl.scheduling.shards import StepLevel
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
from ebrl.scheduling.watchdog import who_waits

REFUSED_DATA = "the learner refused the data"
"""Why a run ends whose learner was lost for good."""

MAX_RESTARTS = 3
"""Times in a row that a generator or the learner may be lost without finishing anything."""

MAX_SKIPPED_UPDATES = 3
"""Updates in a row that may end with a loss or gradient that is not finite."""


class Scheduler:
    """Decides; knows nothing of processes, arrays or time, except what it is told."""

    def __init__(self, plan: SchedulerPlan) -> None:
        self.plan = plan
        group_of = plan.group_of()
        self.step_level = StepLevel(
            group_of=group_of,
            cpus=plan.cpus,
            chunk_len=plan.chunk_len,
            quantum=plan.quantum,
            step_barrier=plan.step_barrier,
            first_episode=plan.first_episode,
        )
        self.chunk_level = ChunkLevel(
            group_of=group_of,
            num_generators=plan.num_generators,
            min_batch=None if plan.env_groups else plan.min_generation_batch,
            max_batch=plan.max_generation_batch,
            buckets=plan.generation_buckets,
            round_robin=plan.round_robin,
        )
        self.gate = StalenessGate(batch=plan.batch, slack=plan.slack, window=plan.window)
        self.gate.live_version = plan.first_version
        self.learner = Learner(policy_version=plan.first_version)
        self.counters = Counters(env_steps=plan.first_env_step)
        self.stopping: str | None = None
        """Why the run is ending, once it is."""
        self._patience_s = plan.finish_s
        """How long the end may wait for each of its two parts."""
        self.stopped = False
        self.serials = [plan.first_serial] * plan.num_shards
        self._oldest: list[PolicyVersion | None] = [None] * plan.num_shards
        self._epochs = [Epoch(0)] * plan.num_shards
        self._failures = [0] * plan.num_shards
        self._waiting_for_checkpoint = False
        self._progress = (0, 0, 0, plan.first_version)
        """What had been done when the watchdog looked last."""
        self._written: dict[GeneratorId, list[SlotId]] = {}
        """Slots of dropped trajectories that a generator may still write to."""

    def handle(self, event: Event, now: float) -> list[Command]:
        """Take one event in and say everything that is to be done about it, in order."""
        if self.stopped:
            return []
        commands = self._learn(event, now)
        if not self.stopped:
            self._start_what_can_start(commands, now)
        return commands

    # What an event changes.

    def _learn(self, event: Event, now: float) -> list[Command]:  # noqa: C901 (one case per event)
        match event:
            case RunStarted():
                return self._watch()
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
                return self._begin_stop(reason, self.plan.finish_s if patient else self.plan.drain_s)
            case TimerFired(name=name):
                return self._timer_fired(name)
            case _:
                assert_never(event)

    def _steps_done(self, event: StepsDone, now: float) -> list[Command]:
        shard = event.shard
        if self._is_stale(event.epoch, self._epochs[shard]):
            return []
        phase = self.step_level.phases[shard]
        assert isinstance(phase, Running), f"shard {shard} answered steps in {phase}"
        self.counters.env_steps += event.num_steps
        self.step_level.estimates.add_steps(shard, event.num_steps, event.step_s)
        if not event.chunk_over:
            self.step_level.set_phase(shard, Ready(phase.place, phase.first_step + event.num_steps), now)
            return []
        self.counters.chunks += 1
        place = self._next_place(shard, phase.place)
        if place is None or event.episode_end is not None:
            self._failures[shard] = 0
        if event.episode_end is not None:
            self.counters.episodes += 1
            self.step_level.set_phase(shard, NeedsReset(place), now)
        else:
            self._stand(shard, place, now)
        return []

    def _next_place(self, shard: ShardId, place: Place) -> Place | None:
        """Where the chunk after this one goes; None once the trajectory is complete."""
        if place.chunk + 1 < self.plan.trajectory_chunks:
            return Place(place.trajectory, place.slot, place.chunk + 1)
        oldest = self._oldest[shard]
        assert oldest is not None, f"shard {shard} finished a trajectory that no generator began"
        self._oldest[shard] = None
        self.gate.complete(place.trajectory, oldest)
        return None

    def _stand(self, shard: ShardId, place: Place | None, now: float) -> None:
        """The shard has an observation: it waits for a chunk, or for a trajectory."""
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
        self.gate.release(self._written.pop(generator, ()))
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
            self.step_level.set_phase(event.shard, NeedsReset(None), now)
        return []

    def _episode_invalid(self, event: EpisodeInvalid, now: float) -> list[Command]:
        shard = event.shard
        if self._is_stale(event.epoch, self._epochs[shard]):
            return []
        commands = self._drop_trajectory(shard, "invalid")
        failed = self._count_failure(shard, "invalid", f"{event.field} was not finite")
        self.step_level.set_phase(shard, NeedsReset(None), now)
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
        slot = self.gate.drop(place.trajectory, reason, in_use=isinstance(phase, Generating))
        if isinstance(phase, Generating):
            self._written.setdefault(phase.generator, []).append(slot)
        return [DropTrajectory(trajectory=place.trajectory, slot=slot, reason=reason)]

    def _count_failure(self, shard: ShardId, reason: str, detail: str) -> list[Command]:
        self.counters.env_failures[reason] = self.counters.env_failures.get(reason, 0) + 1
        self._failures[shard] += 1
        if self._failures[shard] <= self.plan.max_env_failures:
            return []
        times = self._failures[shard]
        return self._fail(f"environment {shard} failed {times} times in a row ({reason})", detail)

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
            return self._fail(f"generator {event.generator} was lost {generator.losses} times in a row", event.detail)
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
        if self.stopping is not None:
            learner.batch = None  # what it was lost with is not trained again, so nobody waits for it
        if self._waiting_for_checkpoint:
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
            return self._fail(REFUSED_DATA, event.detail)
        if learner.losses > MAX_RESTARTS:
            return self._fail(f"the learner was lost {learner.losses} times in a row", event.detail)
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
        learner.count_staleness(batch)
        learner.skipped_in_a_row = 0
        version = learner.policy_version = event.policy_version
        self.gate.trained(version)
        commands: list[Command] = [
            PublishWeights(generator=GeneratorId(index), policy_version=version)
            for index, generator in enumerate(self.chunk_level.generators)
            if generator.up
        ]
        every = self.plan.checkpoint_every
        if every and version % every == 0 and self.stopping is None:
            commands.append(SaveCheckpoint(policy_version=version))
        self.gate.live(self._live_version())
        return commands

    def _update_skipped(self) -> list[Command]:
        learner = self.learner
        learner.skipped_in_a_row += 1
        self.counters.updates_skipped += 1
        commands: list[Command] = [
            DropTrajectory(trajectory=trajectory, slot=slot, reason="update_skipped")
            for trajectory, slot in self.gate.refuse_training("update_skipped")
        ]
        if learner.skipped_in_a_row >= MAX_SKIPPED_UPDATES:
            times = learner.skipped_in_a_row
            commands += self._fail(f"loss or gradient not finite in {times} updates in a row", "")
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

    # How a run ends.

    def _begin_stop(self, reason: str, patience_s: float) -> list[Command]:
        """Start to end, or end sooner than was meant."""
        if self.stopping is not None and patience_s >= self._patience_s:
            return []
        self.stopping = self.stopping or reason
        self._patience_s = patience_s
        return [SetTimer(name="checkpoint" if self._waiting_for_checkpoint else "drain", after_s=patience_s)]

    def _finish_drain(self) -> list[Command]:
        self._waiting_for_checkpoint = True
        commands: list[Command] = [SetTimer(name="checkpoint", after_s=self._patience_s)]
        if self.learner.up:
            commands.append(SaveCheckpoint(policy_version=self.learner.policy_version))
        return commands

    def _checkpoint_saved(self, event: CheckpointSaved) -> list[Command]:
        if self._is_stale(event.epoch, self.learner.epoch) or not self._waiting_for_checkpoint:
            return []
        if event.policy_version < self.learner.policy_version:
            return []
        return self._stop(self.stopping or "", failed=False, detail="")

    def _timer_fired(self, name: str) -> list[Command]:
        if name == "drain" and not self._waiting_for_checkpoint:
            return self._finish_drain()
        if name == "watchdog":
            return self._look_for_progress()
        if name == "checkpoint":
            detail = f"the last checkpoint was not written within {self._patience_s} s"
            return self._stop(self.stopping or "", failed=True, detail=detail)
        return []

    def _watch(self) -> list[Command]:
        after_s = self.plan.watchdog_s
        return [SetTimer(name="watchdog", after_s=after_s)] if after_s else []

    def _look_for_progress(self) -> list[Command]:
        counters = self.counters
        seen = (counters.chunks, counters.generation_batches, counters.resets, self.learner.policy_version)
        stands_still, self._progress = seen == self._progress, seen
        if not stands_still:
            return self._watch()
        lines = who_waits(self.step_level, self.chunk_level, self.gate, self.learner)
        if not self._answer_is_owed():
            return self._fail("the run stands still", "\n".join(lines))
        return [ReportWaits(lines=tuple(lines)), *self._watch()]

    def _answer_is_owed(self) -> bool:
        """Whether any process was told something and has not answered; each has its deadline."""
        if self._work_in_flight() or self._waiting_for_checkpoint or not self.learner.up:
            return True
        if any(isinstance(phase, Down) for phase in self.step_level.phases):
            return True
        made = self.learner.policy_version
        return any(not g.up or g.policy_version < made for g in self.chunk_level.generators)

    def _fail(self, reason: str, detail: str) -> list[Command]:
        return self._stop(reason, failed=True, detail=detail)

    def _stop(self, reason: str, *, failed: bool, detail: str) -> list[Command]:
        self.stopped = True
        self.gate.abandon_all()  # not before: until now an update may still end, and a shard may still be lost
        return [Stop(reason=reason, failed=failed, detail=detail)]

    # What has become possible.

    def _start_what_can_start(self, commands: list[Command], now: float) -> None:
        if self.stopping is None and (goal := self._goal_reached()):
            commands += self._begin_stop(goal, self.plan.finish_s)
        if self.stopping is not None:
            if not self._waiting_for_checkpoint and not self._work_in_flight():
                commands += self._finish_drain()
            return
        self._admit(now)
        commands += self.step_level.bind(now)
        self._generate(commands, now)
        self._train(commands)

    def _goal_reached(self) -> str:
        if self.learner.policy_version >= self.plan.max_updates:
            return f"{self.plan.max_updates} updates"
        if self.counters.env_steps >= self.plan.max_env_steps:
            return f"{self.plan.max_env_steps} env steps"
        return ""

    def _work_in_flight(self) -> bool:
        if self.learner.batch is not None and self.learner.up:
            return True
        if any(generator.busy_with for generator in self.chunk_level.generators):
            return True
        return any(isinstance(phase, Running | Resetting) for phase in self.step_level.phases)

    def _admit(self, now: float) -> None:
        while self.gate.may_admit and (shard := self.step_level.longest_idle()) is not None:
            trajectory, slot = self.gate.admit()
            self._stand(shard, Place(trajectory, slot, 0), now)

    def others_may_join(self) -> list[bool]:
        """By env group: whether a shard that is not waiting will wait later without anybody's help."""
        level, may_admit = self.step_level, self.gate.may_admit
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
        if self.learner.up and self.learner.batch is None:
            self.learner.batch = self.gate.take_batch()
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
