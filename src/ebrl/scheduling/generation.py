"""Chunk level: which waiting shards a free generator serves next.

A free generator takes the shards that wait longest, up to ``max_batch``, as soon as ``min_batch``
of them wait, or fewer if nobody else can join them before they are served. ``min_batch = 1`` is
greedy and never leaves a generator idle beside a waiting shard; ``min_batch`` of all environments
is one full batch per round. In between, a larger minimum buys efficiency where generation shares
its CPUs with simulation. The queue cannot grow beyond the number of shards.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ebrl.ids import Epoch, GeneratorId, PolicyVersion, ShardId


@dataclass(slots=True)
class Generator:
    """What control knows of one generator."""

    epoch: Epoch = Epoch(0)
    up: bool = False
    policy_version: PolicyVersion = PolicyVersion(0)
    """Of the weights that it answers with."""
    busy_with: tuple[ShardId, ...] = ()
    losses: int = 0
    """Times it was lost since it last finished a batch."""


@dataclass(slots=True)
class ChunkLevel:
    """The queue of waiting shards and the generators that serve it."""

    num_generators: int
    min_batch: int
    max_batch: int
    generators: list[Generator] = field(init=False)
    _queue: dict[ShardId, None] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.generators = [Generator() for _ in range(self.num_generators)]

    @property
    def num_waiting(self) -> int:
        """Shards that wait for a chunk."""
        return len(self._queue)

    def waiting(self) -> list[ShardId]:
        """Who waits, longest first."""
        return list(self._queue)

    def add(self, shard: ShardId) -> None:
        """A shard wants a chunk."""
        self._queue[shard] = None

    def remove(self, shard: ShardId) -> None:
        """A waiting shard was lost."""
        del self._queue[shard]

    def next_batch(
        self, *, others_may_join: bool, live_version: PolicyVersion
    ) -> tuple[GeneratorId, tuple[ShardId, ...]] | None:
        """Bind the next batch to a free generator, members in shard order.

        Args:
            others_may_join: some shard that is not waiting now will wait later on its own.
            live_version: a generator with older weights than these may not serve.
        """
        if not self._queue or (len(self._queue) < self.min_batch and others_may_join):
            return None
        for index, generator in enumerate(self.generators):
            if generator.up and not generator.busy_with and generator.policy_version >= live_version:
                members = list(self._queue)[: self.max_batch]
                for shard in members:
                    del self._queue[shard]
                generator.busy_with = tuple(sorted(members))
                return GeneratorId(index), generator.busy_with
        return None
