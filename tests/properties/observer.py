"""A second opinion: what a run may do, kept from its events and commands alone.

Knows nothing of the scheduler's own books. Where both keep the same number, tests compare them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ebrl.ids import CpuSet, EpisodeId, Epoch, PolicyVersion, ShardId, SlotId, TrajectoryId
from ebrl.scheduling import commands as c
from ebrl.scheduling import events as e
from ebrl.scheduling.plan import SchedulerPlan


@dataclass
class Shard:
    epoch: Epoch = Epoch(0)
    up: bool = False
    owes: bool = False
    """An answer to a reset or a grant."""
    cpus: CpuSet | None = None
    wants_cpu: bool = False
    idle: bool = False
    """It may be reset when it gets a trajectory; only where trajectories are whole episodes."""
    over: set[int] = field(default_factory=set)
    """Environments that are in no episode."""
    grant: int = 0
    steps_done: int = 0
    """Of the chunk it has."""
    made: tuple[SlotId, int] | None = None
    """Slot and number of the chunk it has."""
    serial: int = -1
    episodes: dict[int, EpisodeId] = field(default_factory=dict)
    """Last episode of each environment."""


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
    episode: EpisodeId | None = None
    """Of the trajectory's beginning."""
    ended: bool = False
    """An episode ended in the chunk that ran last."""


@dataclass
class Observer:
    """Raises as soon as a run does what no run may."""

    plan: SchedulerPlan
    shards: list[Shard] = field(init=False)
    generators: list[Generating] = field(init=False)
    occupants: dict[SlotId, Occupant] = field(default_factory=dict)
    dying: dict[SlotId, Occupant] = field(default_factory=dict)
    """Trajectories that were dropped with their group, and whose shard goes on to its next chunk boundary."""
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
        width = self.plan.envs_per_shard
        self.shards = [Shard(over=set(range(width))) for _ in range(self.plan.num_shards)]
        self.node_of = self.plan.node_of()
        self.generators = [Generating() for _ in range(self.plan.num_generators)]

    def see(self, event: e.Event, commands: list[c.Command]) -> None:
        assert self.stop is None, f"{event} after the end"
        self._hear(event)
        for command in commands:
            assert self.stop is None, f"{command} after Stop"
            self._obey(command)
        if not self.draining and self.stop is None:
            for node, cpu_sets in enumerate(self.plan.cpu_sets):
                here = [index for index, its in enumerate(self.node_of) if its == node]
                busy = [self.shards[index].cpus for index in here if self.shards[index].cpus is not None]
                wanting = [index for index in here if self.shards[index].wants_cpu and not self._held(index)]
                assert not wanting or len(busy) == len(cpu_sets), f"shards {wanting} want a CPU; busy are {busy}"

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
        shard.owes, shard.cpus = False, None
        match event:
            case e.EnvWorkerReady():
                shard.up = True
                self._begins_anew(shard)
            case e.ResetDone():
                shard.wants_cpu = False
                assert self.plan.whole_episodes or not shard.over
            case e.StepsDone():
                self._steps_done(event, shard)
            case e.EpisodeInvalid():
                self._begins_anew(shard)
            case e.EnvWorkerLost():
                self._begins_anew(shard)
                shard.up, shard.wants_cpu, shard.idle = False, False, False

    def _begins_anew(self, shard: Shard) -> None:
        shard.over, shard.made = set(range(self.plan.envs_per_shard)), None
        shard.idle = self.plan.whole_episodes
        shard.wants_cpu = not shard.idle
        self._leaves(shard)
        if self.plan.group_deadline_s:  # what it played may have been dropped before
            self.occupants = {
                slot: its for slot, its in self.occupants.items() if its.ended or self.shards[its.shard] is not shard
            }

    def _leaves(self, shard: Shard) -> None:
        self.dying = {slot: its for slot, its in self.dying.items() if self.shards[its.shard] is not shard}

    def _steps_done(self, event: e.StepsDone, shard: Shard) -> None:
        assert shard.made is not None
        ended = {end.env for end in event.episode_ends}
        assert len(ended) == len(event.episode_ends)
        assert not ended & shard.over
        stepping = self.plan.envs_per_shard - len(shard.over)
        assert event.num_steps <= event.env_steps <= event.num_steps * stepping
        shard.over |= ended
        everybody = len(shard.over) == self.plan.envs_per_shard
        assert event.num_steps == shard.grant or everybody
        shard.steps_done += event.num_steps
        assert event.chunk_over == (shard.steps_done == self.plan.chunk_len or everybody)
        shard.wants_cpu = not event.chunk_over or (bool(shard.over) and not self.plan.whole_episodes)
        if event.chunk_over:
            slot, _ = shard.made
            occupant = self.occupants.get(slot)
            if occupant is not None and self.shards[occupant.shard] is shard:
                occupant.chunks_run += 1
                occupant.ended = bool(shard.over)
            shard.idle = self.plan.whole_episodes and (everybody or slot in self.dying)
            shard.made = None
            self._leaves(shard)

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
                for request in generator.requests:
                    self._leaves(self.shards[request.shard])
                generator.up, generator.requests = False, ()
            case e.WeightsLive():
                generator.version = event.policy_version
        versions = [generator.version for generator in self.generators if generator.up]
        self.live = max(self.live, min(versions, default=self.live))

    def _chunks_ready(self, event: e.ChunksReady, requests: tuple[c.ChunkRequest, ...]) -> None:
        for request in requests:
            occupant = self.occupants.get(request.slot)
            occupant = occupant or self.dying.get(request.slot)
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
                self._drop(command)
            case c.StartEnvWorker() | c.StartGenerator() | c.StartLearner():
                self._start(command)
            case c.SaveCheckpoint():
                assert self.learner_up
                assert command.policy_version == self.learner_version
            case c.SetTimer(name=name):
                self.draining = self.draining or name in ("drain", "checkpoint")
            case c.Stop():
                assert command.failed or self.saved, "a good end without a checkpoint"
                self.stop = command

    def _drop(self, command: c.DropTrajectory) -> None:
        self._end(command.trajectory, command.reason)
        occupant = self.occupants.pop(command.slot, None)
        if occupant is not None and not occupant.ended and command.reason == "group_deadline":
            shard = self.shards[occupant.shard]
            served = [request.slot for generator in self.generators for request in generator.requests]
            if shard.made is not None or command.slot in served:
                self.dying[command.slot] = occupant
        self.freed_by.pop(command.slot, None)

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
        # A trajectory that was dropped with its group before its first chunk names no shard.
        idle = shard.idle or (bool(self.plan.group_deadline_s) and shard.made is None)
        wants = shard.wants_cpu or (idle and isinstance(command, c.ResetEnv))
        assert (shard.up, shard.owes, wants) == (True, False, True), f"{command} to {shard}"
        node = self.node_of[command.shard]
        assert command.cpus in self.plan.cpu_sets[node]
        mates = [other for other, its in zip(self.shards, self.node_of, strict=True) if its == node]
        assert command.cpus not in [other.cpus for other in mates], f"{command}: its CPUs are busy"
        shard.owes, shard.cpus, shard.wants_cpu, shard.idle = True, command.cpus, False, False
        if isinstance(command, c.ResetEnv):
            self._reset(command, shard)
            return
        assert (command.slot, command.chunk) == shard.made, f"{command} with {shard}"
        assert command.first_step == shard.steps_done
        left = self.plan.chunk_len - shard.steps_done
        if self.plan.step_barrier:
            self._is_at_the_barrier(command)
            left = min(left, 1)
        assert command.num_steps == min(self.plan.quantum or left, left)
        shard.grant = command.num_steps

    def _reset(self, command: c.ResetEnv, shard: Shard) -> None:
        width = self.plan.envs_per_shard
        envs = [start.env for start in command.starts]
        assert sorted(envs) == (sorted(shard.over) or (self.plan.group_deadline_s and [0])), f"{command} to {shard}"
        for start in command.starts:
            assert self.plan.siblings > 1 or start.episode > shard.episodes.get(start.env, -1)
            if not self.plan.whole_episodes:
                assert start.episode % (self.plan.num_shards * width) == command.shard * width + start.env
            shard.episodes[start.env] = start.episode
        shard.over = set()

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
            occupant = self.occupants.get(request.slot) or self.dying.get(request.slot)
            left = occupant is not None and occupant.shard != request.shard
            if occupant is None or (left and self.plan.group_deadline_s):
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
        users = [shard for shard in self.shards if shard.made is not None and shard.made[0] == request.slot]
        assert not users, f"{request}: {users} still write to its slot"
        assert request.slot not in self.dying
        assert 0 <= request.slot < (self.plan.slack + 1) * self.plan.batch // self.plan.envs_per_shard
        version = self.freed_by.pop(request.slot, PolicyVersion(0))
        assert version <= self.live, f"{request}: its slot waits for version {version}, live is {self.live}"
        assert version <= generator.version, f"{request} of weights older than {version}"
        episode = self.shards[request.shard].episodes[0]
        self.occupants[request.slot] = Occupant(request.shard, episode=episode)

    def _train(self, command: c.Train) -> None:
        again = self.training is not None and not self.draining
        assert not again or command == self.training, f"{command} while {self.training} is in training"
        assert self.learner_up
        assert not self.draining
        assert command.learner_version == self.learner_version
        assert len(command.trajectories) == self.plan.batch // self.plan.envs_per_shard
        size = self.plan.siblings
        assert size > 1 or list(command.trajectories) == sorted(command.trajectories)
        for trajectory, slot in zip(command.trajectories, command.slots, strict=True):
            assert trajectory not in self.fate
            occupant = self.occupants[slot]
            assert occupant.chunks_run == len(occupant.versions)
            assert occupant.ended if self.plan.whole_episodes else occupant.chunks_run == self.plan.trajectory_chunks
        for first in range(0, len(command.slots), size):
            slots = command.slots[first : first + size]
            assert slots == tuple(range(slots[0], slots[0] + size))
            assert len({self.occupants[slot].episode for slot in slots}) == 1, f"{command}: not siblings"
        self.training = command
