"""What a run shows while it goes on."""

from __future__ import annotations

import pytest

from ebrl.cli.progress import LiveDisplay, PlainDisplay, describe, open_display
from ebrl.runtime.display import Silent

FACTS = {
    "policy_version": 7.0,
    "success": 0.5,
    "simulation/env_steps_per_s": 1234.0,
    "training/trajectories_per_s": 5.25,
    "simulation/busy_fraction": 0.9,
    "generation/busy_fraction": 0.25,
    "training/busy_fraction": 1.0,
    "training/staleness_mean": 0.5,
    "training/staleness_max": 1.0,
    "training/kl": 0.1,
}


def test_figures_are_described_in_words_and_details_are_left_out() -> None:
    assert describe(FACTS) == [
        ("success", "0.50"),
        ("env steps/s", "1,234"),
        ("trajectories/s", "5.25"),
        ("busy simulation", "90%"),
        ("busy generation", "25%"),
        ("busy training", "100%"),
        ("staleness", "0.50 mean, 1 max"),
        ("updates", "7"),
    ]
    assert describe({"loss": 0.25}) == [("loss", "0.25")]


def test_plain_lines_come_at_most_every_few_seconds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = 100.0
    monkeypatch.setattr("ebrl.cli.progress.time.monotonic", lambda: now)
    display = PlainDisplay()
    display.phase("training")
    for step in range(120):
        now = 100.0 + step / 10
        display.progress(step, 1000, {"success": 0.5})
    display.notice("env worker 1 is replaced")
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [
        "training",
        "    5 %  50 of 1,000  success 0.50",
        "   10 %  100 of 1,000  success 0.50",
        "note: env worker 1 is replaced",
    ]


def test_the_live_display_leaves_phases_and_notices(capsys: pytest.CaptureFixture[str]) -> None:
    with LiveDisplay().shown() as display:
        display.phase("training")
        display.progress(10, 100, FACTS)
        display.notice("[env worker 1] is replaced")
        display.phase("evaluation")
    out, err = capsys.readouterr()
    assert out == ""
    assert "note: [env worker 1] is replaced" in err
    assert err.index("training  [0 s]") < err.index("evaluation  [0 s]")


def test_quiet_is_silent() -> None:
    with open_display(quiet=True) as display:
        assert isinstance(display, Silent)
