from __future__ import annotations

import pytest

from ebrl.testing.build import make_plan


def test_env_groups_are_runs_of_neighbours() -> None:
    assert make_plan(num_shards=5, env_groups=2).group_of() == (0, 0, 0, 1, 1)
    assert make_plan(num_shards=3).group_of() == (0, 0, 0)


def test_a_step_barrier_wants_env_groups() -> None:
    with pytest.raises(ValueError, match="step_barrier wants env_groups"):
        make_plan(step_barrier=True)


def test_there_are_not_more_env_groups_than_shards() -> None:
    with pytest.raises(ValueError, match=r"env_groups = 4: want at most num_shards \(3\)"):
        make_plan(num_shards=3, env_groups=4)
