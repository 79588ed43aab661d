from __future__ import annotations

from collections.abc import Iterable

from ebrl.ids import PolicyVersion, ShardId
from ebrl.scheduling.generation import ChunkLevel

V0, V1 = PolicyVersion(0), PolicyVersion(1)


def level(waiting: Iterable[int], *, num_generators: int = 1, min_batch: int = 1, max_batch: int = 100) -> ChunkLevel:
    chunk_level = ChunkLevel(num_generators=num_generators, min_batch=min_batch, max_batch=max_batch)
    for generator in chunk_level.generators:
        generator.up = True
    for shard in waiting:
        chunk_level.add(ShardId(shard))
    return chunk_level


def test_nobody_waits_so_nobody_is_served() -> None:
    assert level([]).next_batch(others_may_join=False, live_version=V0) is None


def test_who_waits_longest_is_served_first_in_shard_order() -> None:
    chunk_level = level([5, 3, 1], max_batch=2)
    assert chunk_level.next_batch(others_may_join=True, live_version=V0) == (0, (3, 5))
    assert chunk_level.waiting() == [1]
    assert chunk_level.generators[0].busy_with == (3, 5)


def test_a_busy_generator_serves_nobody() -> None:
    chunk_level = level([0, 1], max_batch=1)
    chunk_level.next_batch(others_may_join=True, live_version=V0)
    assert chunk_level.next_batch(others_may_join=True, live_version=V0) is None
    assert chunk_level.num_waiting == 1


def test_the_next_free_generator_serves() -> None:
    chunk_level = level([0, 1], num_generators=2, max_batch=1)
    assert chunk_level.next_batch(others_may_join=True, live_version=V0) == (0, (0,))
    assert chunk_level.next_batch(others_may_join=True, live_version=V0) == (1, (1,))


def test_too_few_wait_for_those_who_may_join() -> None:
    chunk_level = level([0, 1], min_batch=3)
    assert chunk_level.next_batch(others_may_join=True, live_version=V0) is None
    assert chunk_level.next_batch(others_may_join=False, live_version=V0) == (0, (0, 1))


def test_a_generator_that_is_down_serves_nobody() -> None:
    chunk_level = level([0])
    chunk_level.generators[0].up = False
    assert chunk_level.next_batch(others_may_join=False, live_version=V0) is None


def test_a_generator_with_old_weights_serves_nobody() -> None:
    chunk_level = level([0], num_generators=2)
    chunk_level.generators[1].policy_version = V1
    assert chunk_level.next_batch(others_may_join=False, live_version=V1) == (1, (0,))


def test_a_lost_shard_leaves_the_queue() -> None:
    chunk_level = level([0, 1])
    chunk_level.remove(ShardId(0))
    assert chunk_level.waiting() == [1]
