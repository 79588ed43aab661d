"""Which initial states come next.

Environment e of shard s is number s·W + e of N, and plays the episodes number, number + N, number + 2N, …:
what one environment starts from never depends on how far the others are.
"""

from __future__ import annotations

from collections.abc import Iterable

from ebrl.ids import EpisodeId, ShardId
from ebrl.scheduling.commands import EpisodeStart


class Episodes:
    """Counts the episodes of each environment."""

    def __init__(self, *, num_shards: int, envs_per_shard: int = 1, first: int = 0) -> None:
        """Every environment has begun ``first`` episodes."""
        self._width = envs_per_shard
        self._begun = [first] * (num_shards * envs_per_shard)

    @property
    def most_begun(self) -> int:
        """Most episodes that any environment has begun."""
        return max(self._begun)

    def begin(self, shard: ShardId, envs: Iterable[int]) -> tuple[EpisodeStart, ...]:
        """The next episode of some environments of a shard."""
        starts = []
        for env in envs:
            number = shard * self._width + env
            starts.append(EpisodeStart(env, EpisodeId(self._begun[number] * len(self._begun) + number)))
            self._begun[number] += 1
        return tuple(starts)
