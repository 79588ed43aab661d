from __future__ import annotations

import pytest

from ebrl.ids import ShardId
from ebrl.scheduling.estimates import Estimates, RunningMean


def test_the_first_sample_counts_in_full() -> None:
    mean = RunningMean()
    mean.add(4.0)
    assert (mean.value, mean.count) == (4.0, 1)


def test_few_samples_are_averaged_plainly() -> None:
    mean = RunningMean()
    for sample in (1.0, 2.0, 6.0):
        mean.add(sample)
    assert mean.value == pytest.approx(3.0)


def test_later_samples_count_a_tenth() -> None:
    mean = RunningMean()
    for _ in range(50):
        mean.add(1.0)
    mean.add(11.0)
    assert mean.value == pytest.approx(2.0)


def test_a_shard_never_measured_is_like_the_mean_of_all() -> None:
    estimates = Estimates(3)
    assert (estimates.env_step_s(ShardId(2)), estimates.reset_s(ShardId(2))) == (0.0, 0.0)
    estimates.add_steps(ShardId(0), 4, 0.4)
    estimates.add_steps(ShardId(1), 2, 0.6)
    estimates.add_reset(ShardId(0), 1.0)
    estimates.add_reset(ShardId(1), 3.0)
    assert [estimates.env_step_s(ShardId(s)) for s in range(3)] == pytest.approx([0.1, 0.3, 0.2])
    assert [estimates.reset_s(ShardId(s)) for s in range(3)] == pytest.approx([1.0, 3.0, 2.0])
