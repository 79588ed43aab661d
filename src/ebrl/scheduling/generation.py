"""Chunk level: which waiting shards a free generator serves next.

Greedy (one env group): a free generator takes the shards that wait longest, up to ``max_batch``, as
soon as ``min_batch`` of them wait, or fewer if nobody else can join them before they are served.
``min_batch = 1`` never leaves a generator idle beside a waiting shard; a larger minimum buys
efficiency where generation shares its CPUs with simulation.

Groups: a group is served when its last member waits. Ready groups come first come, first served, or
in a fixed round-robin, which lets a generator idle beside a ready group (the baselines do that).

Either way the queue cannot grow beyond the number of shards.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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

    def may_serve(self, live_version: PolicyVersion) -> bool:
        """Whether it is free and its weights are not older than what is live."""
        return self.up and not self.busy_with and self.policy_version >= live_version


class ChunkLevel:
    """The queues of waiting shards, one per env group, and the generators that serve them."""

    def __init__(
        self,
        *,
        group_of: tuple[int, ...],
        num_generators: int = 1,
        min_batch: int | None = 1,
        max_batch: int = 1_000_000,
        buckets: tuple[int, ...] = (),
        round_robin: bool = False,
    ) -> None:
        """Nobody waits, and every generator is down.

        Args:
            group_of: env group of each shard, dense from 0.
            num_generators: generators, numbered from 0.
            min_batch: shards of a group that must wait; None means all of them.
            max_batch: most shards of a batch.
            buckets: batch sizes that generators are fast at, ascending; a batch is cut to the largest
                that it reaches. None means any size.
            round_robin: serve groups in a fixed order instead of first come, first served.
        """
        self.max_batch = max_batch
        self.generators = [Generator() for _ in range(num_generators)]
        self._group_of = group_of
        sizes = [group_of.count(group) for group in range(max(group_of) + 1)]
        self._min_batch = [size if min_batch is None else min(min_batch, size) for size in sizes]
        self._whole_groups = min_batch is None
        self._begun = [False] * len(sizes)
        """Groups of which a part is being served, because a batch holds fewer; the rest follows at once."""
        self._buckets = buckets
        self._round_robin = round_robin
        self._turn = 0
        self._queues: list[dict[ShardId, None]] = [{} for _ in sizes]
        self._last_arrival = [0] * len(sizes)
        self._arrivals = 0
        self._served_by: dict[ShardId, GeneratorId] = {}
        self._late: dict[ShardId, None] = {}
        """Shards that wait again while a generator still works on a chunk that nobody wants any more."""

    def set_max_batch(self, max_batch: int) -> None:
        """From the next batch on."""
        self.max_batch = max_batch

    def set_min_batch(self, min_batch: int) -> None:
        """From now on; env groups wait for all of their members whatever it is."""
        if not self._whole_groups:
            self._min_batch = [min(min_batch, self._group_of.count(group)) for group in range(len(self._queues))]

    @property
    def num_waiting(self) -> int:
        """Shards that wait for a chunk."""
        return sum(map(len, self._queues)) + len(self._late)

    def waiting(self) -> list[ShardId]:
        """Who waits; within a group, longest first."""
        return [shard for queue in self._queues for shard in queue] + list(self._late)

    def add(self, shard: ShardId) -> None:
        """A shard wants a chunk."""
        if shard in self._served_by:
            self._late[shard] = None
            return
        group = self._group_of[shard]
        self._queues[group][shard] = None
        self._arrivals += 1
        self._last_arrival[group] = self._arrivals

    def remove(self, shard: ShardId) -> None:
        """A waiting shard was lost."""
        if shard in self._late:
            del self._late[shard]
            return
        group = self._group_of[shard]
        del self._queues[group][shard]
        self._begun[group] = self._begun[group] and bool(self._queues[group])

    def next_batch(
        self, *, others_may_join: Sequence[bool], live_version: PolicyVersion
    ) -> tuple[GeneratorId, tuple[ShardId, ...]] | None:
        """Bind the next batch to a free generator, members in shard order.

        Args:
            others_may_join: by env group, whether some shard of it that is not waiting now will
                wait later on its own.
            live_version: a generator with older weights than these may not serve.
        """
        group = self.servable(others_may_join)
        if group is None:
            return None
        free = [index for index, generator in enumerate(self.generators) if generator.may_serve(live_version)]
        if not free:
            return None
        index = GeneratorId(free[0])
        members = self.generators[index].busy_with = self._take(group, index, len(free))
        if not self._begun[group]:
            self._turn = (group + 1) % len(self._queues)
        return index, members

    def servable(self, others_may_join: Sequence[bool]) -> int | None:
        """The env group that is served next, if any can be served now."""
        if self._round_robin:
            return self._in_turn(others_may_join)
        ready = [
            (self._last_arrival[group], group)
            for group, queue in enumerate(self._queues)
            if queue and self._is_complete(group, others_may_join)
        ]
        return min(ready)[1] if ready else None

    def finish(self, index: GeneratorId) -> tuple[ShardId, ...]:
        """A generator is done with its batch, or lost with it; says which shards it served."""
        generator = self.generators[index]
        served, generator.busy_with = generator.busy_with, ()
        for shard in served:
            del self._served_by[shard]
            if shard in self._late:
                del self._late[shard]
                self.add(shard)
        return served

    def _in_turn(self, others_may_join: Sequence[bool]) -> int | None:
        """The group whose turn it is; one that nobody of will ever wait in loses its turn."""
        for offset in range(len(self._queues)):
            group = (self._turn + offset) % len(self._queues)
            if not self._is_complete(group, others_may_join):
                return None
            if self._queues[group]:
                return group
        return None

    def _is_complete(self, group: int, others_may_join: Sequence[bool]) -> bool:
        """Whether nobody else of the group needs to be waited for."""
        enough = len(self._queues[group]) >= self._min_batch[group]
        return enough or self._begun[group] or not others_may_join[group]

    def _take(self, group: int, generator: GeneratorId, num_free: int) -> tuple[ShardId, ...]:
        """The next batch. What waits is shared out evenly over free generators; an env group stays together."""
        queue = self._queues[group]
        share = -(-len(queue) // num_free)
        size = min(len(queue), max(share, self._min_batch[group]), self.max_batch)
        size = max((bucket for bucket in self._buckets if bucket <= size), default=size)
        members = sorted(list(queue)[:size])
        for shard in members:
            del queue[shard]
            self._served_by[shard] = generator
        self._begun[group] = self._whole_groups and bool(queue)
        return tuple(members)
