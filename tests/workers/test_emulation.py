"""A device that is not there: how long its work takes, and what cannot be emulated."""

from __future__ import annotations

import time

import pytest

from ebrl.workers.emulation import EmulatedDevice


def device() -> EmulatedDevice:
    return EmulatedDevice({"table": [[8, 0.02, 0.004], [16, 0.01, 0.002]], "units": 8})


def test_time_follows_the_share_of_the_device() -> None:
    subject = device()
    assert subject.seconds(5) == pytest.approx(0.04)
    subject.set_units(16)
    assert subject.seconds(5) == pytest.approx(0.02)
    subject.set_units(0)
    assert subject.units == 16
    with pytest.raises(KeyError):
        subject.set_units(12)
    assert subject.units == 16


def test_work_is_stretched_to_the_devices_time() -> None:
    subject = device()
    start, cpu = time.perf_counter(), time.thread_time()
    subject.rest(start, 5)
    assert time.perf_counter() - start >= 0.04
    assert time.thread_time() - cpu < 0.02
    assert (subject.overruns, subject.overrun_s) == (0, 0.0)


def test_work_that_took_longer_is_counted() -> None:
    subject = device()
    subject.rest(time.perf_counter() - 1.0, 5)
    assert subject.overruns == 1
    assert subject.overrun_s == pytest.approx(0.96, abs=0.5)
