from __future__ import annotations

from dataclasses import FrozenInstanceError, fields
from typing import get_args

import pytest

from ebrl.scheduling import commands, events
from ebrl.testing.build import steps_done

NAMED_ONLY_INSIDE = {"ChunkRequest", "EpisodeStart", "EpisodeEnd", "Command", "Event"}


@pytest.mark.parametrize(("module", "union"), [(commands, commands.Command), (events, events.Event)])
def test_the_union_is_complete(module: object, union: object) -> None:
    public: list[str] = vars(module)["__all__"]
    assert sorted(set(public) - NAMED_ONLY_INSIDE) == sorted(member.__name__ for member in get_args(union))


@pytest.mark.parametrize("message", [*get_args(commands.Command), *get_args(events.Event)])
def test_a_message_is_frozen_and_slotted(message: type) -> None:
    assert vars(message)["__dataclass_params__"].frozen
    assert "__slots__" in vars(message)
    assert all(field.kw_only for field in fields(message))


def test_nobody_changes_an_event() -> None:
    event = steps_done()
    with pytest.raises(FrozenInstanceError):
        event.num_steps = 3  # type: ignore[misc]
