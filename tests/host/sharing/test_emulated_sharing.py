"""Shares of a device that is not there."""

from __future__ import annotations

from ebrl.host.sharing.base import STAGES, Split
from ebrl.host.sharing.emulated import Emulated


def test_a_stage_is_told_its_fraction_of_the_device() -> None:
    emulated = Emulated(num_sms=132, sm_step=8, initial=Split(generation=96, training=36))
    assert [emulated.fraction(stage) for stage in STAGES] == [96 / 132, 36 / 132]


def test_what_the_last_step_leaves_over_goes_with_training() -> None:
    table = Emulated(num_sms=20, sm_step=8).table()
    assert [str(split) for split in table] == ["0/20", "8/12", "20/0"]


def test_a_description_that_cannot_be_is_an_obstacle() -> None:
    reason = Emulated(num_sms=4, sm_step=8).probe().reason
    assert reason == "a device of 4 SMs in steps of 8: want num_sms ≥ sm_step ≥ 1"


def test_it_says_that_it_is_emulated() -> None:
    assert Emulated(num_sms=132, sm_step=8).probe().reason == "emulated: no device does the work"
