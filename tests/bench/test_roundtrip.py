"""Round trips of chunks are counted until there are enough for a figure, however slow the machine."""

from __future__ import annotations

import pytest

from ebrl.bench.roundtrip import measure
from ebrl.errors import RunError


def test_too_short_a_time_is_prolonged_until_a_figure_can_be_had() -> None:
    found = measure(0.01)
    assert found["count"] > 200
    assert 0 < found["median_us"] <= found["p95_us"] <= found["p99_us"]
    assert found["policy_median_us"] > 0
    assert found["seconds"] > 0.01


def test_a_run_without_enough_round_trips_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ebrl.bench.roundtrip._PATIENCE_S", 0.0)
    with pytest.raises(RunError, match="round trips; measure for longer"):
        measure(0.01)
