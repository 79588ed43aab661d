"""Profiles keep what was measured, in memory and as JSON."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from ebrl.resources.profile import (
    BatchCost,
    GenerationProfile,
    PlayedEpisode,
    Profile,
    SimulationProfile,
    Work,
    alpha_beta,
    episode_lengths,
    generation_cost,
    lag_correlation,
    line,
    summarise,
)
from profiles import make_profile

TABLE = GenerationProfile(
    table=(BatchCost(1, 0.010, 0.0), BatchCost(4, 0.016, 0.002), BatchCost(8, 0.024, 0.002)), adopt=Work(0.001)
)


def document() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(json.dumps(make_profile().to_json()))
    return loaded


def test_a_profile_survives_json() -> None:
    assert Profile.from_json(document()) == make_profile()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 7}, "has format 7, want 2; take it again"),
        ({"format": 1}, "has format 1, want 2; take it again"),
        ({"colour": "red"}, "profile: unknown field 'colour'"),
        ({"control": {"event_s": []}}, "profile.control: .*missing"),
    ],
)
def test_a_document_of_another_kind_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Profile.from_json(document() | change)


def test_generation_is_linear_between_measured_sizes_and_beyond() -> None:
    assert generation_cost(TABLE, 4) == pytest.approx((0.016, 0.002))
    assert generation_cost(TABLE, 6) == pytest.approx((0.020, 0.002))
    assert generation_cost(TABLE, 12) == pytest.approx((0.032, 0.002))
    assert generation_cost(TABLE, 2) == pytest.approx((0.012, 2 / 3 * 0.001))
    one = GenerationProfile(table=TABLE.table[:1], adopt=Work(0.0))
    assert generation_cost(one, 9) == (0.010, 0.0)


def test_alpha_and_beta_fit_the_table() -> None:
    line = GenerationProfile(table=tuple(BatchCost(b, 0.05 + 0.004 * b, 0.0) for b in (1, 4, 16)), adopt=Work(0.0))
    assert alpha_beta(line) == pytest.approx((0.05, 0.004))
    assert alpha_beta(GenerationProfile(table=TABLE.table[:1], adopt=Work(0.0))) == (0.010, 0.0)


def test_a_line_has_neither_end_below_0() -> None:
    assert line([(1.0, 3.0), (2.0, 5.0)]) == pytest.approx((1.0, 2.0))
    assert line([(1.0, 5.0), (2.0, 3.0)]) == (4.0, 0.0)
    assert line([(1.0, 1.0), (3.0, 5.0)])[0] == 0.0
    assert line([(2.0, 3.0), (2.0, 5.0)]) == (4.0, 0.0)


def test_samples_in_numbers() -> None:
    found = summarise([float(value) for value in range(1, 101)])
    assert (found.count, found.mean, found.p50, found.p95, found.p99) == (100, 50.5, 50.0, 95.0, 99.0)
    assert found.sd == pytest.approx(math.sqrt((100**2 - 1) / 12))
    assert summarise([]).count == 0


def test_correlation_of_neighbours() -> None:
    assert lag_correlation([[1.0, 1.0, 1.0], [5.0, 5.0, 5.0]]) == pytest.approx(1.0)
    assert lag_correlation([[1.0, 5.0, 1.0, 5.0]]) == pytest.approx(-1.0)
    assert lag_correlation([[2.0, 2.0, 2.0]]) == 0.0
    assert lag_correlation([[1.0]]) == 0.0


def simulation(*episodes: PlayedEpisode) -> SimulationProfile:
    none = summarise([])
    return SimulationProfile(
        env_step_s=none,
        reset_s=none,
        within_env_correlation=0.0,
        tapes=(),
        resets=(),
        episodes=episodes,
        max_episode_steps=500,
    )


def test_episodes_that_were_all_seen_are_drawn_as_they_were() -> None:
    seen = simulation(PlayedEpisode(40, True, True), PlayedEpisode(80, False, True))
    lengths = episode_lengths(seen, 100)
    assert lengths.count((40, True)) == lengths.count((80, False)) == 50


def test_episodes_that_were_not_seen_to_end_are_longer() -> None:
    assert set(episode_lengths(simulation(PlayedEpisode(64, False, False)))) == {(500, False)}
    half = episode_lengths(simulation(PlayedEpisode(40, True, True), PlayedEpisode(64, False, False)), 100)
    assert half.count((40, True)) == half.count((500, False)) == 50
    early = episode_lengths(simulation(PlayedEpisode(10, False, False), PlayedEpisode(40, True, True)), 100)
    assert early.count((40, True)) == 100  # the other one says nothing about what happens after ten steps
