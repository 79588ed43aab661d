from __future__ import annotations

from typing import get_args

from ebrl.scheduling.transitions import SHARD_TRANSITIONS, Down, Phase


def test_every_phase_has_a_row() -> None:
    assert set(SHARD_TRANSITIONS) == set(get_args(Phase))


def test_every_phase_is_reached_and_left() -> None:
    reached = set().union(*SHARD_TRANSITIONS.values())
    assert reached == set(get_args(Phase))
    assert all(SHARD_TRANSITIONS.values())


def test_a_shard_may_be_lost_in_every_phase() -> None:
    assert [phase for phase, after in SHARD_TRANSITIONS.items() if Down not in after] == [Down]
