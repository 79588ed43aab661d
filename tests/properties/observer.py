"""A second opinion: what a run may do, kept from its events and commands alone.

Knows nothing of the scheduler's own books. Where both keep the same number, tests compare them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ebrl.ids import CpuId, Epoch, PolicyVersion, ShardId, SlotId, TrajectoryId
from ebrl.scheduling import commands as c
from ebrl.scheduling import events as e
from ebrl.scheduling.plan import SchedulerPlan


@dataclass
class Shard:
    epoch: Epoch = Epoch(0)
    up: bool = False
    owes: bool = False
    """An answer to a reset or a grant."""
    cpu: CpuId | None = None
    wants_cpu: bool = False
    grant: int = 0
    steps_done: int = 0
    """Of the chunk it has."""
    made: tuple[SlotId, int] | None = None
    """Slot and number of the chunk it has."""
    serial: int = -1
    episode: int = -1


@dataclass
class Generating:
    epoch: Epoch = Epoch(0)
    up: bool = False
    version: PolicyVersion = PolicyVersion(0)
    requests: tuple[c.ChunkRequest, ...] = ()


@dataclass
class Occupant:
    """A trajectory as seen from its slot."""

    shard: ShardId
    versions: list[PolicyVersion] = field(default_factory=list)
    chunks_run: int = 0


@dataclass
class Observer:
    """Raises as soon as a run does what no run may."""

    plan: SchedulerPlan
    shards: list[Shard] = field(init=False)
    generators: list[Generating] = field(init=False)
    occupants: dict[SlotId, Occupant] = field(default_factory=dict)
    freed_by: dict[SlotId, PolicyVersion] = field(default_factory=dict)
    """Slot → version that must be live before the slot is used again."""
    fate: dict[TrajectoryId, str] = field(default_factory=dict)
    """``trained`` or the reason of the drop."""
    training: c.Train | None = None
    learner_epoch: Epoch = Epoch(0)
    learner_up: bool = False
    learner_version: PolicyVersion = PolicyVersion(0)
    live: PolicyVersion = PolicyVersion(0)
    staleness: list[int] = field(default_factory=list)
    spreads: list[int] = field(default_factory=list)
    """Of each trained trajectory: newest minus oldest version in it."""
    draining: bool = False
    saved: bool = False
    stop: c.Stop | None = None
    stale_answers: int = 0

    def __post_init__(self) -> None:
        self.shards = [Shard() for _ in range(self.plan.num_shards)]
        self.generators = [Generating() for _ in range(self.plan.num_generators)]

    def see(self, event: e.Event, commands: list[c.Command]) -> None:
        assert self.stop is None, f"{event} after the end"
        self._hear(event)
        for command in commands:
            assert self.stop is None, f"{command} after Stop"
            self._obey(command)
        if not self.draining and self.stop is None:
            busy = [shard.cpu for shard in self.shards if shard.cpu is not None]
            wanting = [index for index, shard in enumerate(self.shards) if shard.wants_cpu and not self._held(index)]
            assert not wanting or len(busy) == len(self.plan.cpus), f"shards {wanting} want a CPU; busy are {busy}"

    def _held(self, index: int) -> bool:
        """Whether a barrier keeps the shard from its next env step: a mate has not ended the one before."""
        if not self.plan.step_barrier or self.shards[index].made is None:
            return False
        group_of = self.plan.group_of()
        mates = [shard for number, shard in enumerate(self.shards) if group_of[number] == group_of[index]]
        steps_done = self.shards[index].steps_done
        return any(mate.up and mate.made is not None and mate.steps_done < steps_done for mate in mates)

    # Events.

    def _hear(self, event: e.Event) -> None:
        match event:
            case e.EnvWorkerReady() | e.ResetDone() | e.StepsDone() | e.EpisodeInvalid() | e.EnvWorkerLost():
                if self._believed(event.epoch, self.shards[event.shard].epoch):
                    self._hear_env(event, self.shards[event.shard])
            case e.ChunksReady() | e.GeneratorReady() | e.GeneratorLost() | e.WeightsLive():
                if self._believed(event.epoch, self.generators[event.generator].epoch):
                    self._hear_generator(event, self.generators[event.generator])
            case e.LearnerReady() | e.LearnerLost() | e.UpdateDone() | e.CheckpointSaved():
                if self._believed(event.epoch, self.learner_epoch):
                    self._hear_learner(event)
            case e.StopRequested():
                self.draining = True
            case e.RunStarted() | e.TimerFired():
                pass

    def _believed(self, answered: Epoch, current: Epoch) -> bool:
        assert answered <= current, f"an answer of epoch {answered}, but epoch {current} was started last"
        self.stale_answers += answered != current
        return answered == current

    def _hear_env(
        self, event: e.EnvWorkerReady | e.ResetDone | e.StepsDone | e.EpisodeInvalid | e.EnvWorkerLost, shard: Shard
    ) -> None:
        shard.owes, shard.cpu = False, None
        match event:
            case e.EnvWorkerReady():
                shard.up, shard.wants_cpu = True, True
            case e.ResetDone():
                shard.wants_cpu = False
            case e.StepsDone():
                self._steps_done(event, shard)
            case e.EpisodeInvalid():
                shard.wants_cpu, shard.made = True, None
            case e.EnvWorkerLost():
                shard.up, shard.wants_cpu, shard.made = False, False, None

    def _steps_done(self, event: e.StepsDone, shard: Shard) -> None:
        assert event.num_steps == shard.grant or event.episode_end
        assert shard.made is not None
        shard.steps_done += event.num_steps
        shard.wants_cpu = not event.chunk_over or event.episode_end is not None
        if event.chunk_over:
            self.occupants[shard.made[0]].chunks_run += 1
            shard.made = None

    def _hear_generator(
        self, event: e.ChunksReady | e.GeneratorReady | e.GeneratorLost | e.WeightsLive, generator: Generating
    ) -> None:
        match event:
            case e.ChunksReady():
                assert event.shards == tuple(request.shard for request in generator.requests)
                self._chunks_ready(event, generator.requests)
                generator.requests = ()
            case e.GeneratorReady():
                generator.up, generator.version = True, event.policy_version
            case e.GeneratorLost():
                generator.up, generator.requests = False, ()
            case e.WeightsLive():
                generator.version = event.policy_version
        versions = [generator.version for generator in self.generators if generator.up]
        self.live = max(self.live, min(versions, default=self.live))

    def _chunks_ready(self, event: e.ChunksReady, requests: tuple[c.ChunkRequest, ...]) -> None:
        for request in requests:
            occupant = self.occupants.get(request.slot)
            if occupant is None or occupant.shard != request.shard or len(occupant.versions) != request.chunk:
                continue  # its trajectory was dropped meanwhile
            shard = self.shards[request.shard]
            assert shard.serial < request.serial, f"the random numbers of {request} were used before"
            shard.serial = request.serial
            shard.made, shard.steps_done, shard.wants_cpu = (request.slot, request.chunk), 0, True
            occupant.versions.append(event.policy_version)

    def _hear_learner(self, event: e.LearnerReady | e.LearnerLost | e.UpdateDone | e.CheckpointSaved) -> None:
        match event:
            case e.LearnerReady():
                self.learner_up = True
            case e.LearnerLost():
                self.learner_up = False
            case e.CheckpointSaved():
                self.saved = event.policy_version == self.learner_version
            case e.UpdateDone():
                assert self.training is not None
                if not event.skipped:
                    self._trained(self.training, event.policy_version)
                self.training = None

    def _trained(self, train: c.Train, version: PolicyVersion) -> None:
        assert version == train.learner_version + 1
        self.learner_version = version
        for trajectory, slot in zip(train.trajectories, train.slots, strict=True):
            self._end(trajectory, "trained")
            versions = self.occupants.pop(slot).versions
            self.freed_by[slot] = version
            self.staleness.append(train.learner_version - min(versions))
            self.spreads.append(max(versions) - min(versions))

    def _end(self, trajectory: TrajectoryId, how: str) -> None:
        assert trajectory not in self.fate, f"{trajectory} was {self.fate[trajectory]} and is {how}"
        self.fate[trajectory] = how

    # Commands.

    def _obey(self, command: c.Command) -> None:
        match command:
            case c.ResetEnv() | c.StepEnv():
                self._use_cpu(command, self.shards[command.shard])
            case c.GenerateChunks():
                self._generate(command, self.generators[command.generator])
            case c.PublishWeights():
                assert self.generators[command.generator].up
                assert command.policy_version == self.learner_version
            case c.Train():
                self._train(command)
            case c.DropTrajectory():
                self._end(command.trajectory, command.reason)
                self.occupants.pop(command.slot, None)
                self.freed_by.pop(command.slot, None)
            case c.StartEnvWorker() | c.StartGenerator() | c.StartLearner():
                self._start(command)
            case c.SaveCheckpoint():
                assert self.learner_up
                assert command.policy_version == self.learner_version
            case c.SetTimer():
                self.draining = True
            case c.Stop():
                assert command.failed or self.saved, "a good end without a checkpoint"
                self.stop = command

    def _start(self, command: c.StartEnvWorker | c.StartGenerator | c.StartLearner) -> None:
        match command:
            case c.StartEnvWorker():
                shard = self.shards[command.shard]
                assert not shard.up
                assert command.epoch == shard.epoch + 1
                shard.epoch = command.epoch
            case c.StartGenerator():
                generator = self.generators[command.generator]
                assert not generator.up
                assert command.epoch == generator.epoch + 1
                generator.epoch = command.epoch
            case c.StartLearner():
                assert not self.learner_up
                assert command.epoch == self.learner_epoch + 1
                self.learner_epoch = command.epoch

    def _use_cpu(self, command: c.ResetEnv | c.StepEnv, shard: Shard) -> None:
        assert not self.draining, f"{command} in a run that ends"
        allowed = (shard.up, shard.owes, shard.wants_cpu)
        assert allowed == (True, False, True), f"{command} to {shard}"
        assert command.cpu in self.plan.cpus
        assert command.cpu not in [other.cpu for other in self.shards], f"{command}: its CPU is busy"
        shard.owes, shard.cpu, shard.wants_cpu = True, command.cpu, False
        if isinstance(command, c.ResetEnv):
            assert command.episode > shard.episode
            assert command.episode % self.plan.num_shards == command.shard
            shard.episode = command.episode
            return
        assert (command.slot, command.chunk) == shard.made, f"{command} with {shard}"
        assert command.first_step == shard.steps_done
        left = self.plan.chunk_len - shard.steps_done
        if self.plan.step_barrier:
            self._is_at_the_barrier(command)
            left = min(left, 1)
        assert command.num_steps == min(self.plan.quantum or left, left)
        shard.grant = command.num_steps

    def _is_at_the_barrier(self, command: c.StepEnv) -> None:
        """Nobody of the env group that is inside the chunk may be an env step behind."""
        group_of = self.plan.group_of()
        mates = [s for number, s in enumerate(self.shards) if group_of[number] == group_of[command.shard]]
        behind = [s for s in mates if s.up and s.made is not None and s.steps_done < command.first_step]
        assert not behind, f"{command} overtakes {behind}"

    def _generate(self, command: c.GenerateChunks, generator: Generating) -> None:
        assert not self.draining, f"{command} in a run that ends"
        assert (generator.up, generator.requests) == (True, ()), f"{command} to {generator}"
        assert 1 <= len(command.requests) <= self.plan.max_generation_batch
        served = [request for other in self.generators for request in other.requests]
        assert not {r.shard for r in served} & {r.shard for r in command.requests}, f"{command} beside {served}"
        assert not {r.slot for r in served} & {r.slot for r in command.requests}, f"{command} beside {served}"
        self._is_a_batch(command)
        generator.requests = command.requests
        for request in command.requests:
            shard = self.shards[request.shard]
            state = (shard.up, shard.owes, shard.wants_cpu, shard.made)
            assert state == (True, False, False, None), f"{request} of {shard}"
            occupant = self.occupants.get(request.slot)
            if occupant is None:
                self._begin(request, generator)
            else:
                assert (occupant.shard, len(occupant.versions)) == (request.shard, request.chunk)

    def _is_a_batch(self, command: c.GenerateChunks) -> None:
        group_of = self.plan.group_of()
        groups = {group_of[request.shard] for request in command.requests}
        assert len(groups) == 1, f"{command} mixes env groups {groups}"
        if self.plan.env_groups:
            [group] = groups
            members = {shard for shard, its in enumerate(group_of) if its == group}
            left = [self.shards[s] for s in members - {r.shard for r in command.requests}]
            busy = [shard for shard in left if shard.up and (shard.made is not None or shard.owes)]
            assert not [shard for shard in busy if shard.made is not None], f"{command} before {busy} wait"

    def _begin(self, request: c.ChunkRequest, generator: Generating) -> None:
        assert request.chunk == 0
        assert 0 <= request.slot < (self.plan.slack + 1) * self.plan.batch
        version = self.freed_by.pop(request.slot, PolicyVersion(0))
        assert version <= self.live, f"{request}: its slot waits for version {version}, live is {self.live}"
        assert version <= generator.version, f"{request} of weights older than {version}"
        self.occupants[request.slot] = Occupant(request.shard)

    def _train(self, command: c.Train) -> None:
        again = self.training is not None and not self.draining
        assert not again or command == self.training, f"{command} while {self.training} is in training"
        assert self.learner_up
        assert not self.draining
        assert command.learner_version == self.learner_version
        assert len(command.trajectories) == self.plan.batch
        assert list(command.trajectories) == sorted(command.trajectories)
        for trajectory, slot in zip(command.trajectories, command.slots, strict=True):
            assert trajectory not in self.fate
            occupant = self.occupants[slot]
            assert occupant.chunks_run == len(occupant.versions) == self.plan.trajectory_chunks
        self.training = command
