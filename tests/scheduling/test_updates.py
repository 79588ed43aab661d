from __future__ import annotations

from ebrl.ids import PolicyVersion, SlotId, TrajectoryId
from ebrl.scheduling.generation import Generator
from ebrl.scheduling.staleness import Batch
from ebrl.scheduling.updates import Learner, live_version


def generator(version: int, *, up: bool = True) -> Generator:
    return Generator(up=up, policy_version=PolicyVersion(version))


def test_the_oldest_weights_that_answer_are_live() -> None:
    assert live_version([generator(3), generator(2)], PolicyVersion(3)) == 2


def test_a_generator_that_is_down_answers_with_nothing() -> None:
    assert live_version([generator(3), generator(1, up=False)], PolicyVersion(3)) == 3
    assert live_version([generator(1, up=False)], PolicyVersion(2)) == 2


def test_staleness_is_counted_from_the_oldest_version_in_a_trajectory() -> None:
    learner = Learner(policy_version=PolicyVersion(5))
    batch = Batch(
        trajectories=(TrajectoryId(0), TrajectoryId(1), TrajectoryId(2)),
        slots=(SlotId(0), SlotId(1), SlotId(2)),
        oldest_versions=(PolicyVersion(5), PolicyVersion(3), PolicyVersion(5)),
    )
    learner.count_staleness(batch)
    assert (learner.staleness_max, learner.staleness_counts) == (2, {0: 2, 2: 1})
