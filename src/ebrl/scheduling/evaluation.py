"""Control of an evaluation: a fixed number of episodes under weights that do not change.

Environment n of N plays the episodes n, n + N, n + 2N, …, so which initial states are seen depends on
nothing but their number. There are no trajectories: each shard's chunks go to a slot of its own. A shard
whose env worker is lost plays its episodes again; an episode that keeps failing is counted as such. An
environment without a further episode stands still until all of its shard have none. One that was in an episode of
training and is given none plays that on, and its end counts for nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ebrl.ids import EpisodeId, Epoch, GeneratorId, PolicyVersion, ShardId, SlotId, TrajectoryId
from ebrl.scheduling.commands import (
    ChunkRequest,
    Command,
    EpisodeStart,
    GenerateChunks,
    StartEnvWorker,
    StartGenerator,
    Stop,
)
from ebrl.scheduling.events import (
    ChunksReady,
    EnvWorkerLost,
    EnvWorkerReady,
    EpisodeEnd,
    EpisodeInvalid,
    Event,
    GeneratorLost,
    GeneratorReady,
    ResetDone,
    StepsDone,
    StopRequested,
)
from ebrl.scheduling.generation import ChunkLevel, Generator
from ebrl.scheduling.plan import SchedulerPlan
from ebrl.scheduling.shards import StepLevel
from ebrl.scheduling.transitions import Down, Generating, Idle, NeedsReset, Place, Ready, Waiting

MAX_TRIES = 3
"""How often one episode is tried before it counts as failed."""

MAX_RESTARTS = 3
"""Times in a row that the generator may be lost without finishing a batch."""


@dataclass(slots=True)
class Result:
    """What became of the episodes."""

    ends: list[EpisodeEnd] = field(default_factory=list)
    """Of the episodes that were played to their end."""
    failed: int = 0
    """Episodes that could not be played: the environment failed each time."""
    retries: int = 0
    """Times that an episode was begun again after a failure; what is played again may go better."""

    @property
    def success_rate(self) -> float:
        """Share of successes among all episodes; one that could not be played is none."""
        total = len(self.ends) + self.failed
        return sum(end.success for end in self.ends) / total if total else 0.0


class EvaluationScheduler:
    """``handle`` for an evaluation; see the module's docstring."""

    def __init__(
        self,
        plan: SchedulerPlan,
        *,
        num_episodes: int,
    ) -> None:
        """Nothing is played yet.

        Args:
            plan: says what there is: shards, their environments, CPUs, generators, the length of a chunk,
                and how many failures in a row of one environment are survived. Barriers, env groups and
                what concerns training are not used.
            num_episodes: episodes to play.
        """
        self.num_episodes = num_episodes
        self.max_env_failures = plan.max_env_failures
        num_shards = plan.num_shards
        group_of = (0,) * num_shards
        self.step_level = StepLevel(
            group_of=group_of, cpu_sets=plan.cpu_sets, node_of=plan.node_of(), chunk_len=plan.chunk_len
        )
        self.chunk_level = ChunkLevel(
            group_of=group_of, num_generators=plan.num_generators, min_batch=max(1, num_shards // 2)
        )
        self.result = Result()
        self.stopped = False
        self._width = plan.envs_per_shard
        self._epochs = [Epoch(0)] * num_shards
        self._played = [0] * (num_shards * self._width)
        """By environment: episodes that it has behind it."""
        self._tries = [0] * (num_shards * self._width)
        self._over: list[set[int]] = [set(range(self._width)) for _ in range(num_shards)]
        """Environments of each shard that are in no episode."""
        self._failures = [0] * num_shards
        self._serials = [0] * num_shards

    def handle(self, event: Event, now: float) -> list[Command]:
        """Take one event in and say everything that is to be done about it, in order."""
        if self.stopped:
            return []
        commands = self._learn(event, now)
        if len(self.result.ends) + self.result.failed >= self.num_episodes and not _stops(commands):
            commands = [Stop(reason=f"{self.num_episodes} episodes", failed=False)]
        self.stopped = _stops(commands)
        if not self.stopped:
            commands += self.step_level.bind(now)
            self._generate(commands, now)
        return commands

    def _learn(self, event: Event, now: float) -> list[Command]:
        match event:
            case EnvWorkerReady(shard=shard, epoch=epoch) if epoch == self._epochs[shard]:
                self._next_episodes(shard, now)
            case ResetDone(shard=shard, epoch=epoch) if epoch == self._epochs[shard]:
                self.step_level.estimates.add_reset(shard, event.reset_s)
                self._wait(shard, now)
            case StepsDone(shard=shard, epoch=epoch) if epoch == self._epochs[shard]:
                self._steps_done(event, now)
            case EpisodeInvalid(shard=shard, epoch=epoch) if epoch == self._epochs[shard]:
                self._next_episode_after_failure(shard, now)
                return self._too_many_failures(shard, "invalid", f"{event.field} was not finite")
            case EnvWorkerLost(shard=shard, epoch=epoch) if epoch == self._epochs[shard]:
                return self._env_worker_lost(event, now)
            case ChunksReady(generator=generator, epoch=epoch) if epoch == self._generator(generator).epoch:
                self._chunks_ready(event, now)
            case GeneratorReady(generator=generator, epoch=epoch) if epoch == self._generator(generator).epoch:
                self._generator(generator).up = True
            case GeneratorLost(generator=generator, epoch=epoch) if epoch == self._generator(generator).epoch:
                return self._generator_lost(event, now)
            case StopRequested(reason=reason):
                return [Stop(reason=reason, failed=False)]
            case _:
                pass  # what concerns training (a lost learner too), and answers of processes that were replaced
        return []

    def _steps_done(self, event: StepsDone, now: float) -> None:
        shard = event.shard
        self.step_level.estimates.add_steps(shard, event.num_steps, event.step_s)
        for end in event.episode_ends:
            if end.env in self._over[shard]:
                continue  # of an episode of training, which this environment was in when the evaluation began
            self.result.ends.append(end)
            self._over[shard].add(end.env)
            self._played[self._number(shard, end.env)] += 1
            self._tries[self._number(shard, end.env)] = self._failures[shard] = 0
        self._next_episodes(shard, now)

    def _next_episode_after_failure(self, shard: ShardId, now: float) -> None:
        self._failed(shard)
        self._next_episodes(shard, now)

    def _too_many_failures(self, shard: ShardId, reason: str, detail: str) -> list[Command]:
        self._failures[shard] += 1
        times = self._failures[shard]
        if times <= self.max_env_failures:
            return []
        return [
            Stop(reason=f"environment {shard} failed {times} times in a row ({reason})", failed=True, detail=detail)
        ]

    def _failed(self, shard: ShardId) -> None:
        """The shard's episodes are lost, those included that it was to begin."""
        for env in range(self._width):
            number = self._number(shard, env)
            self._over[shard].add(env)
            if not self._has_episode(number):
                continue
            self._tries[number] += 1
            if self._tries[number] >= MAX_TRIES:
                self.result.failed += 1
                self._played[number] += 1
                self._tries[number] = 0
            else:
                self.result.retries += 1

    def _env_worker_lost(self, event: EnvWorkerLost, now: float) -> list[Command]:
        shard = event.shard
        phase = self.step_level.phases[shard]
        if isinstance(phase, Waiting):
            self.chunk_level.remove(shard)
        if not isinstance(phase, Down):
            self.step_level.set_phase(shard, Down(), now)
        self._failed(shard)
        self._epochs[shard] = Epoch(event.epoch + 1)
        too_many = self._too_many_failures(shard, event.reason, event.detail)
        return too_many or [StartEnvWorker(shard=shard, epoch=self._epochs[shard])]

    def _generator(self, generator: GeneratorId) -> Generator:
        return self.chunk_level.generators[generator]

    def _generator_lost(self, event: GeneratorLost, now: float) -> list[Command]:
        generator = self._generator(event.generator)
        for shard in self.chunk_level.finish(event.generator):
            if isinstance(self.step_level.phases[shard], Generating):
                self._wait(shard, now)
        generator.up = False
        generator.losses += 1
        if generator.losses > MAX_RESTARTS:
            reason = f"generator {event.generator} was lost {generator.losses} times in a row"
            return [Stop(reason=reason, failed=True, detail=event.detail)]
        generator.epoch = Epoch(event.epoch + 1)
        return [StartGenerator(generator=event.generator, epoch=generator.epoch)]

    def _next_episodes(self, shard: ShardId, now: float) -> None:
        """Want a reset for the episodes that come next, go on with those that are played, or rest."""
        over = self._over[shard]
        numbers = {env: self._number(shard, env) for env in sorted(over)}
        starts = tuple(
            EpisodeStart(env, self._episode(number)) for env, number in numbers.items() if self._has_episode(number)
        )
        over.difference_update(start.env for start in starts)
        if starts:
            self.step_level.set_phase(shard, NeedsReset(None, starts), now)
        elif len(over) < self._width:
            self._wait(shard, now)
        else:
            self.step_level.set_phase(shard, Idle(), now)

    def _number(self, shard: ShardId, env: int) -> int:
        return shard * self._width + env

    def _episode(self, number: int) -> EpisodeId:
        return EpisodeId(self._played[number] * len(self._played) + number)

    def _has_episode(self, number: int) -> bool:
        return self._episode(number) < self.num_episodes

    def _wait(self, shard: ShardId, now: float) -> None:
        self.step_level.set_phase(shard, Waiting(Place(TrajectoryId(shard), SlotId(shard), 0)), now)
        self.chunk_level.add(shard)

    def _chunks_ready(self, event: ChunksReady, now: float) -> None:
        self._generator(event.generator).losses = 0
        for shard in self.chunk_level.finish(event.generator):
            phase = self.step_level.phases[shard]
            if isinstance(phase, Generating):
                self._serials[shard] += 1
                self.step_level.set_phase(shard, Ready(phase.place, 0), now)

    def _generate(self, commands: list[Command], now: float) -> None:
        level = self.step_level
        may_join = level.num_moving[0] + level.num_preparing[0] > 0
        while True:
            batch = self.chunk_level.next_batch(others_may_join=[may_join], live_version=PolicyVersion(0))
            if batch is None:
                return
            generator, shards = batch
            requests = tuple(self._request(shard, generator, now) for shard in shards)
            commands.append(GenerateChunks(generator=generator, requests=requests))

    def _request(self, shard: ShardId, generator: GeneratorId, now: float) -> ChunkRequest:
        place = Place(TrajectoryId(shard), SlotId(shard), 0)
        self.step_level.set_phase(shard, Generating(place, generator), now)
        return ChunkRequest(shard=shard, slot=place.slot, chunk=0, serial=self._serials[shard])


def _stops(commands: list[Command]) -> bool:
    return any(isinstance(command, Stop) for command in commands)
