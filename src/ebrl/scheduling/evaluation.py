"""Control of an evaluation: a fixed number of episodes under weights that do not change.

Shard s plays the episodes s, s + N, s + 2N, …, so which initial states are seen depends on nothing
but their number. There are no trajectories: each shard's chunks go to a slot of its own. A shard
whose env worker is lost plays its episode again; an episode that keeps failing is counted as such.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ebrl.ids import CpuId, Epoch, GeneratorId, PolicyVersion, ShardId, SlotId, TrajectoryId
from ebrl.scheduling.commands import ChunkRequest, Command, GenerateChunks, StartEnvWorker, StartGenerator, Stop
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

    @property
    def success_rate(self) -> float:
        """Share of successes among all episodes; one that could not be played is none."""
        total = len(self.ends) + self.failed
        return sum(end.success for end in self.ends) / total if total else 0.0


class EvaluationScheduler:
    """``handle`` for an evaluation; see the module's docstring."""

    def __init__(
        self,
        *,
        num_shards: int,
        cpus: tuple[CpuId, ...],
        chunk_len: int,
        num_episodes: int,
        max_env_failures: int = 1_000_000,
    ) -> None:
        """Nothing is played yet.

        Args:
            num_shards: shards, numbered from 0.
            cpus: what simulation may use.
            chunk_len: actions of a chunk that are executed.
            num_episodes: episodes to play.
            max_env_failures: failures in a row of one environment that the evaluation survives.
        """
        self.num_episodes = num_episodes
        self.max_env_failures = max_env_failures
        group_of = (0,) * num_shards
        self.step_level = StepLevel(group_of=group_of, cpus=cpus, chunk_len=chunk_len)
        self.chunk_level = ChunkLevel(group_of=group_of, min_batch=max(1, num_shards // 2))
        self.result = Result()
        self.stopped = False
        self._epochs = [Epoch(0)] * num_shards
        self._played = [0] * num_shards
        self._tries = [0] * num_shards
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
                self._next_episode(shard, now)
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
        if event.episode_end is None:
            self._wait(shard, now)
            return
        self.result.ends.append(event.episode_end)
        self._played[shard] += 1
        self._tries[shard] = self._failures[shard] = 0
        self._next_episode(shard, now)

    def _next_episode_after_failure(self, shard: ShardId, now: float) -> None:
        self._failed(shard)
        self._next_episode(shard, now)

    def _too_many_failures(self, shard: ShardId, reason: str, detail: str) -> list[Command]:
        self._failures[shard] += 1
        times = self._failures[shard]
        if times <= self.max_env_failures:
            return []
        return [
            Stop(reason=f"environment {shard} failed {times} times in a row ({reason})", failed=True, detail=detail)
        ]

    def _failed(self, shard: ShardId) -> None:
        if not self._has_episode(shard):
            return
        self._tries[shard] += 1
        if self._tries[shard] >= MAX_TRIES:
            self.result.failed += 1
            self._played[shard] += 1
            self._tries[shard] = 0

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

    def _next_episode(self, shard: ShardId, now: float) -> None:
        """Want a reset for the episode that comes next, or rest if there is none."""
        if self._has_episode(shard):
            self.step_level.set_next_episode(shard, self._played[shard])
            self.step_level.set_phase(shard, NeedsReset(None), now)
        else:
            self.step_level.set_phase(shard, Idle(), now)

    def _has_episode(self, shard: ShardId) -> bool:
        return self._played[shard] * len(self._played) + shard < self.num_episodes

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
        batch = self.chunk_level.next_batch(others_may_join=[may_join], live_version=PolicyVersion(0))
        if batch is not None:
            generator, shards = batch
            requests = tuple(self._request(shard, generator, now) for shard in shards)
            commands.append(GenerateChunks(generator=generator, requests=requests))

    def _request(self, shard: ShardId, generator: GeneratorId, now: float) -> ChunkRequest:
        place = Place(TrajectoryId(shard), SlotId(shard), 0)
        self.step_level.set_phase(shard, Generating(place, generator), now)
        return ChunkRequest(shard=shard, slot=place.slot, chunk=0, serial=self._serials[shard])


def _stops(commands: list[Command]) -> bool:
    return any(isinstance(command, Stop) for command in commands)
