"""Whatever breaks, an evaluation plays every episode once or says that it could not."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from driving import MAX_EVENTS, NO_FAULTS, all_costs, all_faults, seeds
from hypothesis import given, settings
from hypothesis import strategies as st

from ebrl.engines.virtual.costs import Costs
from ebrl.engines.virtual.engine import VirtualEngine
from ebrl.engines.virtual.faults import Faults
from ebrl.ids import CpuId, EpisodeId, Epoch, ShardId
from ebrl.scheduling import commands as c
from ebrl.scheduling import events as e
from ebrl.scheduling.evaluation import MAX_TRIES, EvaluationScheduler


class Plays:
    """Which episode each shard plays, how often it was begun, and which came to an end."""

    def __init__(self) -> None:
        self.epochs: dict[ShardId, Epoch] = {}
        self.playing: dict[ShardId, EpisodeId] = {}
        self.begun: Counter[EpisodeId] = Counter()
        self.ended: Counter[EpisodeId] = Counter()
        self.cpus: dict[ShardId, CpuId] = {}

    def see(self, event: e.Event, commands: list[c.Command]) -> None:
        match event:
            case e.StepsDone() | e.ResetDone() | e.EpisodeInvalid() | e.EnvWorkerLost():
                if event.epoch == self.epochs.get(event.shard, 0):
                    self.cpus.pop(event.shard, None)
                    if isinstance(event, e.StepsDone) and event.episode_end:
                        self.ended[self.playing.pop(event.shard)] += 1
            case _:
                pass
        for command in commands:
            if isinstance(command, c.StartEnvWorker):
                self.epochs[command.shard] = command.epoch
            if isinstance(command, c.ResetEnv):
                self.playing[command.shard] = command.episode
                self.begun[command.episode] += 1
            if isinstance(command, c.ResetEnv | c.StepEnv):
                assert command.shard not in self.cpus, f"{command} to a busy shard"
                assert command.cpu not in self.cpus.values(), f"{command}: its CPU is busy"
                self.cpus[command.shard] = command.cpu


@settings(max_examples=200)
@given(
    num_shards=st.integers(1, 8),
    num_cpus=st.integers(1, 5),
    chunk_len=st.integers(1, 5),
    num_episodes=st.integers(1, 20),
    costs=all_costs(),
    faults=all_faults() | st.just(NO_FAULTS),
    seed=seeds,
)
def test_every_episode_is_played_once_or_counted_as_failed(
    num_shards: int, num_cpus: int, chunk_len: int, num_episodes: int, costs: Costs, faults: Faults, seed: int
) -> None:
    scheduler = EvaluationScheduler(
        num_shards=num_shards,
        cpus=tuple(CpuId(cpu) for cpu in range(num_cpus)),
        chunk_len=chunk_len,
        num_episodes=num_episodes,
    )
    costs = replace(costs, episode_steps=tuple(min(num_steps, 30) for num_steps in costs.episode_steps))
    engine = VirtualEngine(num_shards=num_shards, chunk_len=chunk_len, costs=costs, faults=faults, seed=seed)
    plays = Plays()
    stop: c.Stop | None = None
    for _ in range(MAX_EVENTS):
        event, now = engine.next_event()
        commands = scheduler.handle(event, now)
        plays.see(event, commands)
        if commands and isinstance(commands[-1], c.Stop):
            stop = commands[-1]
            break
        for command in commands:
            engine.execute(command)
    assert stop is not None
    assert all(count == 1 for count in plays.ended.values())
    assert len(scheduler.result.ends) == len(plays.ended)
    assert all(episode < num_episodes for episode in plays.begun)
    assert max(plays.begun.values(), default=0) <= MAX_TRIES
    if stop.failed:
        assert isinstance(event, e.GeneratorLost)
    else:
        assert len(scheduler.result.ends) + scheduler.result.failed == num_episodes
        assert faults != NO_FAULTS or len(plays.ended) == num_episodes
