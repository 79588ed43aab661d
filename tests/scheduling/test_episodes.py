from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ebrl.ids import EpisodeId, ShardId
from ebrl.scheduling.commands import EpisodeStart
from ebrl.scheduling.episodes import Episodes


def test_each_environment_plays_its_own_series() -> None:
    episodes = Episodes(num_shards=2, envs_per_shard=2)
    assert episodes.begin(ShardId(1), range(2)) == (EpisodeStart(0, EpisodeId(2)), EpisodeStart(1, EpisodeId(3)))
    assert episodes.begin(ShardId(1), [1]) == (EpisodeStart(1, EpisodeId(7)),)
    assert episodes.begin(ShardId(0), [0]) == (EpisodeStart(0, EpisodeId(0)),)
    assert episodes.most_begun == 2


def test_a_resumed_run_goes_on_behind_the_last_episode() -> None:
    episodes = Episodes(num_shards=3, first=2)
    assert episodes.begin(ShardId(1), [0]) == (EpisodeStart(0, EpisodeId(7)),)
    assert episodes.most_begun == 3


@given(st.lists(st.tuples(st.integers(0, 2), st.sets(st.integers(0, 3)))))
def test_no_episode_is_begun_twice(order: list[tuple[int, set[int]]]) -> None:
    episodes = Episodes(num_shards=3, envs_per_shard=4)
    begun = [start.episode for shard, envs in order for start in episodes.begin(ShardId(shard), sorted(envs))]
    assert len(set(begun)) == len(begun)
