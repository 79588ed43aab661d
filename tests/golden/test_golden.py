"""Runs of the control plane are, event for event, the stories that were read and approved."""

from __future__ import annotations

import json
from pathlib import Path
from typing import get_args

import pytest
from goldens import HERE, NAMES, load, play, trace

from ebrl.records.schema import event_from_json, plan_from_json, plan_to_json, to_json
from ebrl.scheduling import commands as c
from ebrl.scheduling import events as e
from ebrl.scheduling.scheduler import Scheduler

SMALLEST = 'about = "x"\n[plan]\nnum_shards = 1\nnodes = [[0]]\n'


@pytest.mark.parametrize("name", NAMES)
def test_the_run_is_the_one_on_file(name: str) -> None:
    assert trace(name).splitlines() == (HERE / f"{name}.trace").read_text().splitlines(), "see: make golden"


def test_every_trace_has_its_run() -> None:
    assert sorted(path.stem for path in HERE.glob("*.trace")) == NAMES


def test_together_they_tell_of_everything_that_can_happen() -> None:
    seen: set[type] = set()
    for name in NAMES:
        for _, event, commands in play(load(HERE / f"{name}.toml")):
            seen |= {type(event), *map(type, commands)}
    assert {*get_args(e.Event), *get_args(c.Command)} - seen == set()


@pytest.mark.parametrize("name", NAMES)
def test_a_story_can_be_told_again_from_what_is_kept_of_it(name: str) -> None:
    """Plan and events through JSON: the same commands, moves of resources included."""
    golden = load(HERE / f"{name}.toml")
    plan = plan_from_json(json.loads(json.dumps(plan_to_json(golden.plan))))
    assert plan == golden.plan
    again = Scheduler(plan)
    for now, event, commands in play(golden):
        kept = event_from_json(json.loads(json.dumps(to_json(event))))
        assert again.handle(kept, now) == commands


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (SMALLEST + "slak = 2\n", r"x\.toml: plan\.slak does not exist; did you mean 'slack'\?"),
        (SMALLEST + "slack = 'two'\n", "slack"),
        (SMALLEST + "[costs]\nrest_s = 1\n", r"costs\.rest_s does not exist; did you mean 'reset_s'\?"),
        ("sed = 1\n" + SMALLEST, r"x\.toml: sed does not exist; did you mean 'seed'\?"),
        ('about = "x"\n', "plan"),
    ],
)
def test_a_field_that_does_not_exist_is_named(tmp_path: Path, text: str, complaint: str) -> None:
    (tmp_path / "x.toml").write_text(text)
    with pytest.raises(ValueError, match=complaint):
        load(tmp_path / "x.toml")
