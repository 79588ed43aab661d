"""Whatever breaks, an evaluation plays every episode once or says that it could not."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from driving import MAX_EVENTS, NO_FAULTS, all_costs, all_faults, engine_for, seeds
from hypothesis import given, settings
from hypothesis import strategies as st

from ebrl.engines.virtual.costs import Costs
from ebrl.engines.virtual.faults import Faults
from ebrl.ids import CpuSet, EpisodeId, Epoch, ShardId
from ebrl.scheduling import commands as c
from ebrl.scheduling import events as e
from ebrl.scheduling.evaluation import MAX_TRIES, EvaluationScheduler
from ebrl.testing.build import make_plan


class Plays:
    """Which episode each environment plays, how often it was begun, and which came to an end."""

    def __init__(self) -> None:
        self.epochs: dict[ShardId, Epoch] = {}
        self.playing: dict[tuple[ShardId, int], EpisodeId] = {}
        self.begun: Counter[EpisodeId] = Counter()
        self.ended: Counter[EpisodeId] = Counter()
        self.cpus: dict[ShardId, CpuSet] = {}

    def see(self, event: e.Event, commands: list[c.Command]) -> None:
        match event:
            case e.StepsDone() | e.ResetDone() | e.EpisodeInvalid() | e.EnvWorkerLost():
                if event.epoch == self.epochs.get(event.shard, 0):
                    self.cpus.pop(event.shard, None)
                    for end in event.episode_ends if isinstance(event, e.StepsDone) else ():
                        self.ended[self.playing.pop((event.shard, end.env))] += 1
            case _:
                pass
        for command in commands:
            if isinstance(command, c.StartEnvWorker):
                self.epochs[command.shard] = command.epoch
            if isinstance(command, c.ResetEnv):
                for start in command.starts:
                    self.playing[command.shard, start.env] = start.episode
                    self.begun[start.episode] += 1
            if isinstance(command, c.ResetEnv | c.StepEnv):
                assert command.shard not in self.cpus, f"{command} to a busy shard"
                assert command.cpus not in self.cpus.values(), f"{command}: its CPUs are busy"
                self.cpus[command.shard] = command.cpus


@settings(max_examples=200)
@given(
    num_shards=st.integers(1, 8),
    envs_per_shard=st.sampled_from([1, 1, 2, 3]),
    num_generators=st.sampled_from([1, 1, 2]),
    num_cpus=st.integers(1, 5),
    chunk_len=st.integers(1, 5),
    num_episodes=st.integers(1, 20),
    costs=all_costs(),
    faults=all_faults() | st.just(NO_FAULTS),
    seed=seeds,
)
def test_every_episode_is_played_once_or_counted_as_failed(
    num_shards: int,
    envs_per_shard: int,
    num_generators: int,
    num_cpus: int,
    chunk_len: int,
    num_episodes: int,
    costs: Costs,
    faults: Faults,
    seed: int,
) -> None:
    plan = make_plan(
        num_shards=num_shards,
        envs_per_shard=envs_per_shard,
        batch=envs_per_shard,
        num_generators=num_generators,
        num_cpus=num_cpus,
        chunk_len=chunk_len,
        max_env_failures=1_000_000,
    )
    scheduler = EvaluationScheduler(plan, num_episodes=num_episodes)
    costs = replace(costs, episode_steps=tuple(min(num_steps, 30) for num_steps in costs.episode_steps))
    engine = engine_for(plan, costs, faults=faults, seed=seed)
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
