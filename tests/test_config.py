"""What is stored of a configuration can be read again, whatever is in it."""

from __future__ import annotations

import dataclasses
import datetime
import math
import tomllib
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ebrl import registry
from ebrl.config.load import make_config, to_toml
from ebrl.errors import ConfigError

SCALARS = st.text(max_size=8) | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.booleans()
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
)
SECTIONS = st.dictionaries(st.text(max_size=8), VALUES, max_size=4)


@given(SECTIONS, SECTIONS, SECTIONS)
@example({"x": math.inf, "y": [-math.inf]}, {"face": "\N{GRINNING FACE}"}, {"\x7f": '\x00\x1f\x7f\x80\r\n"\\\\'})
def test_a_configuration_survives_being_stored(
    env: dict[str, Any], policy: dict[str, Any], algorithm: dict[str, Any]
) -> None:
    config = make_config(
        {
            "env": {"name": "toy/reach-v1", "config": env},
            "policy": {"config": policy},
            "algorithm": {"config": algorithm},
            "training": {"max_minutes": math.inf},
        }
    )
    text = to_toml(config)
    assert make_config(tomllib.loads(text)) == config
    assert to_toml(make_config(tomllib.loads(text.encode().decode()))) == text


def test_nan_is_stored_too() -> None:
    text = to_toml(make_config({"env": {"name": "x", "config": {"a": math.nan}}}))
    assert math.isnan(tomllib.loads(text)["env"]["config"]["a"])


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, r"env\.config\.a: = None: leave the field out"),
        ([{"b": datetime.time(1)}], r"env\.config\.a\[0\]\.b: = datetime\.time\(1, 0\): want a string"),
    ],
)
def test_what_cannot_be_stored_is_refused(value: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_config({"env": {"name": "x", "config": {"a": value}}})


class Plugin:
    """Floats wherever a config may have them."""

    @dataclasses.dataclass(frozen=True)
    class Config:
        """Options."""

        one: float = 0.0
        maybe: float | None = None
        many: tuple[float, ...] = ()
        deep: tuple[tuple[float, ...], ...] = ()


@pytest.mark.parametrize(
    "section", [{"one": math.nan}, {"maybe": math.nan}, {"many": [0, math.nan]}, {"deep": [[1], [math.nan]]}]
)
def test_what_is_not_a_number_is_refused_in_every_float_of_a_plug_in(section: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=rf"x\.{next(iter(section))}.*: = nan: want"):
        registry.make_config(Plugin, section, "x")


def test_infinity_is_a_number_unless_the_plug_in_refuses_it() -> None:
    assert registry.make_config(Plugin, {"one": math.inf}, "x").one == math.inf
    with pytest.raises(ConfigError, match=r"x\.one: is too large"):
        registry.make_config(Plugin, {"one": 10**400}, "x")
