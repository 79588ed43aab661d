from __future__ import annotations

from collections.abc import Iterable

from ebrl.ids import GeneratorId, PolicyVersion, ShardId
from ebrl.scheduling.generation import ChunkLevel

V0, V1 = PolicyVersion(0), PolicyVersion(1)


def level(waiting: Iterable[int], *, num_generators: int = 1, min_batch: int = 1, max_batch: int = 100) -> ChunkLevel:
    chunk_level = ChunkLevel(group_of=(0,) * 8, num_generators=num_generators, min_batch=min_batch, max_batch=max_batch)
    for generator in chunk_level.generators:
        generator.up = True
    for shard in waiting:
        chunk_level.add(ShardId(shard))
    return chunk_level


def test_nobody_waits_so_nobody_is_served() -> None:
    assert level([]).next_batch(others_may_join=[False], live_version=V0) is None


def test_who_waits_longest_is_served_first_in_shard_order() -> None:
    chunk_level = level([5, 3, 1], max_batch=2)
    assert chunk_level.next_batch(others_may_join=[True], live_version=V0) == (0, (3, 5))
    assert chunk_level.waiting() == [1]
    assert chunk_level.generators[0].busy_with == (3, 5)


def test_a_busy_generator_serves_nobody() -> None:
    chunk_level = level([0, 1], max_batch=1)
    chunk_level.next_batch(others_may_join=[True], live_version=V0)
    assert chunk_level.next_batch(others_may_join=[True], live_version=V0) is None
    assert chunk_level.num_waiting == 1


def test_the_next_free_generator_serves() -> None:
    chunk_level = level([0, 1], num_generators=2, max_batch=1)
    assert chunk_level.next_batch(others_may_join=[True], live_version=V0) == (0, (0,))
    assert chunk_level.next_batch(others_may_join=[True], live_version=V0) == (1, (1,))


def test_who_waits_is_shared_out_over_free_generators() -> None:
    chunk_level = level(range(7), num_generators=3)
    batches = [chunk_level.next_batch(others_may_join=[True], live_version=V0) for _ in range(3)]
    assert batches == [(0, (0, 1, 2)), (1, (3, 4)), (2, (5, 6))]
    few = level(range(4), num_generators=2, min_batch=3)
    assert few.next_batch(others_may_join=[True], live_version=V0) == (0, (0, 1, 2))


def test_too_few_wait_for_those_who_may_join() -> None:
    chunk_level = level([0, 1], min_batch=3)
    assert chunk_level.next_batch(others_may_join=[True], live_version=V0) is None
    assert chunk_level.next_batch(others_may_join=[False], live_version=V0) == (0, (0, 1))


def test_a_generator_that_is_down_serves_nobody() -> None:
    chunk_level = level([0])
    chunk_level.generators[0].up = False
    assert chunk_level.next_batch(others_may_join=[False], live_version=V0) is None


def test_a_generator_with_old_weights_serves_nobody() -> None:
    chunk_level = level([0], num_generators=2)
    chunk_level.generators[1].policy_version = V1
    assert chunk_level.next_batch(others_may_join=[False], live_version=V1) == (1, (0,))


def test_a_lost_shard_leaves_the_queue() -> None:
    chunk_level = level([0, 1])
    chunk_level.remove(ShardId(0))
    assert chunk_level.waiting() == [1]


def groups(*waiting: int, round_robin: bool = False, num_generators: int = 2) -> ChunkLevel:
    """Two env groups of two shards: 0 and 1, 2 and 3."""
    chunk_level = ChunkLevel(
        group_of=(0, 0, 1, 1), num_generators=num_generators, min_batch=None, round_robin=round_robin
    )
    for generator in chunk_level.generators:
        generator.up = True
    for shard in waiting:
        chunk_level.add(ShardId(shard))
    return chunk_level


EVERYONE = [True, True]


def test_a_group_is_served_when_its_last_member_waits() -> None:
    assert groups(0, 2).next_batch(others_may_join=EVERYONE, live_version=V0) is None
    assert groups(0, 2, 3).next_batch(others_may_join=EVERYONE, live_version=V0) == (0, (2, 3))


def test_a_group_does_not_wait_for_members_that_will_not_come() -> None:
    assert groups(0, 2).next_batch(others_may_join=[True, False], live_version=V0) == (0, (2,))


def test_the_group_that_was_complete_first_is_served_first() -> None:
    chunk_level = groups(0, 2, 3, 1)
    assert chunk_level.next_batch(others_may_join=EVERYONE, live_version=V0) == (0, (2, 3))
    assert chunk_level.next_batch(others_may_join=EVERYONE, live_version=V0) == (1, (0, 1))


def test_round_robin_lets_a_generator_idle_beside_a_group_out_of_turn() -> None:
    chunk_level = groups(2, 3, 0, round_robin=True)
    assert chunk_level.next_batch(others_may_join=EVERYONE, live_version=V0) is None
    chunk_level.add(ShardId(1))
    assert chunk_level.next_batch(others_may_join=EVERYONE, live_version=V0) == (0, (0, 1))
    assert chunk_level.next_batch(others_may_join=EVERYONE, live_version=V0) == (1, (2, 3))


def test_a_group_of_which_nobody_will_wait_loses_its_turn() -> None:
    chunk_level = groups(2, 3, round_robin=True)
    assert chunk_level.next_batch(others_may_join=[False, True], live_version=V0) == (0, (2, 3))
    assert chunk_level.next_batch(others_may_join=[False, False], live_version=V0) is None


def test_a_batch_is_cut_to_a_size_that_generators_are_fast_at() -> None:
    chunk_level = ChunkLevel(group_of=(0,) * 8, buckets=(2, 4))
    chunk_level.generators[0].up = True
    for shard in range(7):
        chunk_level.add(ShardId(shard))
    sizes = []
    while batch := chunk_level.next_batch(others_may_join=[True], live_version=V0):
        sizes.append(len(batch[1]))
        chunk_level.finish(batch[0])
    assert sizes == [4, 2, 1]


def test_a_shard_is_not_served_twice_at_once() -> None:
    chunk_level = level([0], num_generators=2)
    assert chunk_level.next_batch(others_may_join=[True], live_version=V0) == (0, (0,))
    chunk_level.add(ShardId(0))  # its env worker was replaced; the first generator still writes its old chunk
    assert chunk_level.waiting() == [0]
    assert chunk_level.next_batch(others_may_join=[True], live_version=V0) is None
    assert chunk_level.finish(GeneratorId(0)) == (0,)
    assert chunk_level.next_batch(others_may_join=[True], live_version=V0) == (0, (0,))


def test_a_shard_that_waits_late_may_be_lost_too() -> None:
    chunk_level = level([0], num_generators=2)
    chunk_level.next_batch(others_may_join=[True], live_version=V0)
    chunk_level.add(ShardId(0))
    chunk_level.remove(ShardId(0))
    chunk_level.finish(GeneratorId(0))
    assert chunk_level.waiting() == []


def test_the_rest_of_a_group_that_is_larger_than_a_batch_follows_at_once() -> None:
    chunk_level = ChunkLevel(group_of=(0, 0, 0, 1), min_batch=None, max_batch=2, round_robin=True)
    chunk_level.generators[0].up = True
    for shard in (0, 1, 2, 3):
        chunk_level.add(ShardId(shard))
    served = []
    while batch := chunk_level.next_batch(others_may_join=EVERYONE, live_version=V0):
        served.append(chunk_level.finish(batch[0]))
    assert served == [(0, 1), (2,), (3,)]


def test_a_rest_that_was_lost_is_not_waited_for() -> None:
    chunk_level = ChunkLevel(group_of=(0, 0), min_batch=None, max_batch=1)
    chunk_level.generators[0].up = True
    chunk_level.add(ShardId(0))
    chunk_level.add(ShardId(1))
    assert chunk_level.next_batch(others_may_join=[True], live_version=V0) == (0, (0,))
    chunk_level.remove(ShardId(1))
    chunk_level.finish(GeneratorId(0))
    chunk_level.add(ShardId(0))
    assert chunk_level.next_batch(others_may_join=[True], live_version=V0) is None
