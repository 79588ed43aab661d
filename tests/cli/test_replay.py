"""A real run, its continuation, and what ``ebrl replay`` says of them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from calling import TINY, call

QUICK = ("--set", "evaluation.episodes=0", "--set", "pretrain.enabled=false")


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with grants of two env steps, stopped after three updates and resumed for two more."""
    place = tmp_path_factory.mktemp("place")
    (place / "run.toml").write_text(TINY)
    whole = ("--set", "simulation.quantum=2", "--set", "records.level=steps")
    first = call("train", "run.toml", "--json", *QUICK, *whole, cwd=place)
    assert first.code == 0, first.err
    again = call("train", "--resume", "runs/latest", "--json", "--set", "training.max_updates=5", cwd=place)
    assert again.code == 0, again.err
    return place / str(first.document["run_dir"])


@pytest.fixture
def copied(run_dir: Path, tmp_path: Path) -> Path:
    """A copy of the run's records, to be spoilt."""
    for path in [*run_dir.glob("plan*.json"), *run_dir.glob("events*")]:
        shutil.copy(path, tmp_path)
    return tmp_path


def change_plan(path: Path, **changes: Any) -> None:
    document = json.loads(path.read_text())
    path.write_text(json.dumps(document | {"scheduler": document["scheduler"] | changes}))


def test_a_real_run_and_its_continuation_replay_without_a_difference(run_dir: Path) -> None:
    assert sorted(path.name for path in run_dir.glob("events*")) == ["events-002.jsonl.zst", "events.jsonl.zst"]
    result = call("replay", run_dir, "--json", cwd=run_dir)
    assert result.code == 0, result.err
    document = result.document
    assert (document["differing_commands"], document["difference"]) == (0, None)
    # Each of five updates trains 4 trajectories of 4 chunks of 4 env steps, in grants of 2.
    assert document["events"] > 5 * 4 * 4 * 2
    assert document["commands"] > 5 * 4 * 4 * 2
    text = call("replay", run_dir, cwd=run_dir)
    assert (text.code, "all as recorded" in text.out) == (0, True)


def test_a_run_that_today_would_go_otherwise_is_told_with_its_story(copied: Path) -> None:
    change_plan(copied / "plan.json", quantum=3)
    result = call("replay", copied, "--json", cwd=copied)
    assert result.code == 1
    found = result.document["difference"]
    assert result.document["differing_commands"] == 1
    assert found["recorded"] != found["today"]
    text = call("replay", copied, cwd=copied)
    assert text.code == 1
    assert f"event #{found['number']} at" in text.out
    assert "what led here:" in text.out
    assert text.out.index('"num_steps": 2') < text.out.index("today:") < text.out.index('"num_steps": 3')


def lose_the_log(copied: Path) -> None:
    for path in copied.glob("events*"):
        path.unlink()


def lose_the_plan(copied: Path) -> None:
    (copied / "plan.json").unlink()


def break_the_plan(copied: Path) -> None:
    (copied / "plan.json").write_text("{")


def name_an_unknown_field(copied: Path) -> None:
    change_plan(copied / "plan.json", slak=2)


def leave_grants_out(copied: Path) -> None:
    path = copied / "plan.json"
    path.write_text(path.read_text().replace('"records_level": "steps"', '"records_level": "chunks"'))


@pytest.mark.parametrize(
    ("spoil", "complaint"),
    [
        (lose_the_log, "it has no events.jsonl.zst (records.level = off?)"),
        (lose_the_plan, "it has no plan.json"),
        (break_the_plan, "cannot be replayed by this version of ebrl"),
        (name_an_unknown_field, "plan: unknown field 'slak'"),
        (leave_grants_out, "record with records.level = steps"),
    ],
)
def test_a_run_that_cannot_be_replayed_is_a_wrong_request(
    copied: Path, spoil: Callable[[Path], None], complaint: str
) -> None:
    spoil(copied)
    result = call("replay", copied, cwd=copied)
    assert (result.code, complaint in result.err) == (2, True), result.err


def test_a_run_recorded_at_the_default_level_replays(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(TINY)
    assert call("train", "run.toml", *QUICK, "--set", "training.max_updates=1", cwd=tmp_path).code == 0
    result = call("replay", "runs/latest", "--json", cwd=tmp_path)
    assert (result.code, result.document["differing_commands"]) == (0, 0), result.err
