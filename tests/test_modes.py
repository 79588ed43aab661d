"""Execution modes are presets of the same switches, each complete, as DESIGN.md's table has them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ebrl.bench.playing import Switches, switches_of
from ebrl.cli.train import ModeName
from ebrl.config.load import load_config, make_config
from ebrl.config.modes import MODES, NAMES, in_mode

TABLE = {
    "colocated": Switches(
        step_barrier=True,
        env_groups=1,
        observe_every_step=True,
        run_to_horizon=True,
        slack=0,
        gpu_use="hand_over",
        lend=False,
    ),
    "disaggregated": Switches(
        step_barrier=True,
        env_groups=1,
        observe_every_step=True,
        run_to_horizon=True,
        slack=0,
        gpu_use="whole",
        lend=False,
    ),
    "hybrid": Switches(
        step_barrier=True,
        env_groups=2,
        round_robin=True,
        observe_every_step=True,
        run_to_horizon=True,
        slack=0,
        gpu_use="hybrid",
        lend=False,
    ),
    "async": Switches(
        step_barrier=True,
        env_groups=2,
        round_robin=True,
        observe_every_step=True,
        run_to_horizon=True,
        slack=1,
        gpu_use="whole",
        lend=False,
    ),
    "paper": Switches(env_groups=4, observe_every_step=True, run_to_horizon=True, slack=1, gpu_use="split", lend=False),
    "ebrl": Switches(slack=1, gpu_use="best", lend=True),
}


@pytest.mark.parametrize("mode", NAMES)
def test_a_mode_is_its_row_of_the_table(mode: Any) -> None:
    assert switches_of(mode) == TABLE[mode]


@pytest.mark.parametrize("mode", NAMES)
def test_a_mode_says_every_switch(mode: Any) -> None:
    fields = {section: set(values) for section, values in MODES[mode].items()}
    assert fields == {section: set(values) for section, values in MODES["ebrl"].items()}


@pytest.mark.parametrize("mode", NAMES)
def test_a_mode_is_a_configuration_that_can_run(mode: Any) -> None:
    config = make_config(in_mode(mode, {"env": {"name": "toy/dial-v1"}, "training": {"slack": 3, "window": 2}}))
    assert config.training.slack == MODES[mode]["training"]["slack"]
    assert config.training.window == 2


def test_what_is_set_goes_on_top_of_a_mode(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text('[env]\nname = "toy/dial-v1"\n[generation]\nenv_groups = 8\n')
    assert load_config(path, mode="async").generation.env_groups == 2
    config = load_config(path, ["training.slack=0"], mode="async")
    assert (config.training.slack, config.simulation.step_barrier) == (0, True)


def test_the_command_line_knows_every_mode() -> None:
    assert tuple(mode.value for mode in ModeName) == NAMES
