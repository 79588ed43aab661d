from __future__ import annotations

import json
import typing
from dataclasses import MISSING, fields, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ebrl.ids import CpuId
from ebrl.records.schema import command_from_json, event_from_json, plan_from_json, plan_to_json, to_json
from ebrl.scheduling.commands import Command, Stop
from ebrl.scheduling.events import Event
from ebrl.scheduling.plan import SchedulerPlan
from ebrl.scheduling.quotas import Split
from ebrl.testing.build import episode_end, make_plan, steps_done

st.register_type_strategy(float, st.floats(allow_nan=False))
CPUS = st.lists(st.integers(0, 9).map(CpuId), min_size=1).map(tuple)
st.register_type_strategy(
    Split, st.builds(Split, simulation=CPUS, generation=CPUS, training=CPUS, max_batch=st.integers(0, 9))
)


def through_json(document: object) -> Any:
    return json.loads(json.dumps(document))


@pytest.mark.parametrize("cls", typing.get_args(Event))
@settings(max_examples=30)
@given(data=st.data())
def test_an_event_comes_back_as_it_was(cls: type[Any], data: st.DataObject) -> None:
    event: Event = data.draw(st.from_type(cls))
    assert event_from_json(through_json(to_json(event))) == event


@pytest.mark.parametrize("cls", typing.get_args(Command))
@settings(max_examples=30)
@given(data=st.data())
def test_a_command_comes_back_as_it_was(cls: type[Any], data: st.DataObject) -> None:
    command: Command = data.draw(st.from_type(cls))
    assert command_from_json(through_json(to_json(command))) == command


def test_a_message_is_its_fields_and_its_name() -> None:
    end = {"is": "EpisodeEnd", "env": 0, "terminated": True, "success": True, "episode_return": 1.0, "num_steps": 4}
    end |= {"constant_frames": 0, "repeated_frames": 0}
    rest = {"shard": 3, "epoch": 0, "num_steps": 4, "env_steps": 4, "step_s": 1.0, "chunk_over": True}
    assert to_json(steps_done(3, end=episode_end())) == {"is": "StepsDone", **rest, "episode_ends": [end]}


@pytest.mark.parametrize(
    ("document", "complaint"),
    [
        ({"is": "StepsUndone"}, "no event or command is named 'StepsUndone'"),
        ({"is": "Stop", "reason": "enough", "failed": False}, "'Stop' is not an event"),
        ({"is": "TimerFired", "name": "tea", "sugar": 2}, "TimerFired has other fields now: .*sugar"),
    ],
)
def test_what_is_not_an_event_of_today_is_refused(document: dict[str, object], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        event_from_json(document)


def test_an_event_is_not_a_command() -> None:
    assert command_from_json(to_json(Stop(reason="enough", failed=False))) == Stop(reason="enough", failed=False)
    with pytest.raises(ValueError, match="'StepsDone' is not a command"):
        command_from_json(to_json(steps_done()))


def plans_with_one_change() -> list[SchedulerPlan]:
    """For each field whose type says enough, a plan in which only that field is not what it was."""
    plan = make_plan()
    hints = typing.get_type_hints(SchedulerPlan)
    other: dict[type, Any] = {int: 1, float: 0.25, bool: False}
    names = [field.name for field in fields(SchedulerPlan) if field.default is not MISSING]
    return [replace(plan, **{name: other[hints[name]]}) for name in names if hints[name] in other]


NODES = ((CpuId(0), CpuId(1)), (CpuId(4), CpuId(0)))


@pytest.mark.parametrize(
    "plan", [make_plan(), make_plan(nodes=NODES), make_plan(nodes=NODES, cpus_per_shard=2), *plans_with_one_change()]
)
def test_a_plan_comes_back_as_it_was(plan: SchedulerPlan) -> None:
    assert plan_from_json(through_json(plan_to_json(plan))) == plan


def test_a_plan_of_another_version_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown field 'slak'"):
        plan_from_json(plan_to_json(make_plan()) | {"slak": 2})
