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
from ebrl.ids import CpuId
from ebrl.plan.plan import make_plan
from ebrl.scheduling.plan import SchedulerPlan

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


def plan_of(**sections: dict[str, Any]) -> SchedulerPlan:
    """On a machine of four CPUs."""
    config = make_config({"env": {"name": "toy/reach-v1"}, **sections})
    return make_plan(config, tuple(CpuId(cpu) for cpu in range(4)))


def test_control_counts_generation_in_env_workers_and_training_in_trajectories() -> None:
    plan = plan_of(
        simulation={"num_envs": 24, "envs_per_worker": 4, "cpus_per_worker": 2},
        generation={"min_batch": 5, "max_batch": 15, "buckets": [2, 4, 6, 8, 15], "num_generators": 3},
        training={"batch_trajectories": 48},
    )
    assert (plan.num_shards, plan.envs_per_shard, plan.num_generators) == (6, 4, 3)
    assert (plan.min_generation_batch, plan.max_generation_batch, plan.generation_buckets) == (2, 3, (1, 2, 3))
    assert (plan.batch, plan.unit) == (48, 4)
    assert (plan.nodes, plan.cpu_sets) == (((0, 1, 2, 3),), (((0, 1), (2, 3)),))


def test_siblings_are_whole_episodes_with_a_deadline() -> None:
    plan = plan_of(training={"trajectory": "episode", "siblings": 8, "trajectory_chunks": 3})
    assert (plan.whole_episodes, plan.siblings, plan.unit, plan.group_deadline_s) == (True, 8, 8, 600.0)


IMPOSSIBLE: list[tuple[dict[str, dict[str, Any]], str]] = [
    (
        {"simulation": {"num_envs": 10, "envs_per_worker": 4}},
        r"simulation\.num_envs: = 10: want a multiple of simulation\.envs_per_worker \(4\)",
    ),
    (
        {"simulation": {"envs_per_worker": 4}, "training": {"batch_trajectories": 6}},
        r"training\.batch_trajectories: = 6: want a multiple of simulation\.envs_per_worker \(4\)",
    ),
    (
        {"training": {"trajectory": "episode", "siblings": 4, "batch_trajectories": 6}},
        r"training\.batch_trajectories: = 6: want a multiple of training\.siblings \(4\)",
    ),
    ({"training": {"siblings": 2}}, r'training\.siblings: = 2: want training\.trajectory = "episode"'),
    (
        {"simulation": {"envs_per_worker": 2}, "training": {"trajectory": "episode"}},
        r'simulation\.envs_per_worker: = 2: training\.trajectory = "episode" wants 1',
    ),
    (
        {"simulation": {"envs_per_worker": 8}, "generation": {"max_batch": 7}},
        r"generation\.max_batch: = 7: want at least 8, which is min_batch in whole env workers \(of 8 environments\)",
    ),
    (
        {"simulation": {"envs_per_worker": 4}, "generation": {"min_batch": 5, "max_batch": 7}},
        r"generation\.max_batch: = 7: want at least 8, which is min_batch in whole env workers",
    ),
    (
        {"simulation": {"envs_per_worker": 8}, "generation": {"env_groups": 3}},
        r"generation\.env_groups: = 3: want at most the number of env workers \(2\)",
    ),
    (
        {"simulation": {"envs_per_worker": 8}, "generation": {"num_generators": 3}},
        r"generation\.num_generators: = 3: want at most the number of env workers \(2\)",
    ),
    (
        {"simulation": {"envs_per_worker": 4}, "generation": {"env_groups": 2, "max_batch": 4}},
        r"generation\.max_batch: = 4: want a whole env group \(8\) or more",
    ),
    (
        {"simulation": {"cpus_per_worker": 3}},
        r"simulation\.cpus_per_worker: = 3: want a divisor of 4, the number of CPUs that simulation has",
    ),
    (
        {"simulation": {"cpus": [1, 2, 3], "cpus_per_worker": 2}},
        r"simulation\.cpus_per_worker: = 2: want a divisor of 3",
    ),
    (
        {
            "run": {"deterministic": True},
            "simulation": {"num_envs": 4},
            "generation": {"min_batch": 4},
            "training": {"batch_trajectories": 4, "slack": 0, "trajectory": "episode"},
        },
        r"training\.trajectory: = 'episode': run\.deterministic wants \"segment\"",
    ),
]


@pytest.mark.parametrize(("sections", "message"), IMPOSSIBLE)
def test_what_does_not_go_together_is_named_before_control_sees_it(
    sections: dict[str, dict[str, Any]], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        plan_of(**sections)


@given(
    envs=st.integers(1, 12),
    width=st.integers(1, 4),
    cpus_per_worker=st.integers(1, 3),
    groups=st.integers(0, 5),
    least=st.integers(1, 13),
    most=st.integers(1, 13),
    batch=st.integers(1, 12),
    trajectory=st.sampled_from(["segment", "episode"]),
    siblings=st.integers(1, 3),
)
def test_whatever_control_refuses_was_refused_by_name(
    envs: int,
    width: int,
    cpus_per_worker: int,
    groups: int,
    least: int,
    most: int,
    batch: int,
    trajectory: str,
    siblings: int,
) -> None:
    """No ``ValueError`` of the plan ever reaches a user; and what is let through fits."""
    try:
        plan = plan_of(
            simulation={"num_envs": envs, "envs_per_worker": width, "cpus_per_worker": cpus_per_worker},
            generation={"env_groups": groups, "min_batch": least, "max_batch": most},
            training={"batch_trajectories": batch, "trajectory": trajectory, "siblings": siblings},
        )
    except ConfigError:
        return
    assert plan.num_shards * plan.envs_per_shard == envs
    assert 1 <= plan.min_generation_batch <= plan.max_generation_batch
    assert plan.max_generation_batch * width <= most
