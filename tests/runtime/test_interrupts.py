from __future__ import annotations

import os
import signal
import threading
from typing import Any

import pytest

from ebrl.runtime.interrupts import Interrupts


class Exited(BaseException):
    """Instead of leaving the test's own process."""


@pytest.fixture(autouse=True)
def exits(monkeypatch: pytest.MonkeyPatch) -> None:
    def leave(code: int) -> None:
        raise Exited(code)

    monkeypatch.setattr(os, "_exit", leave)


def send(number: signal.Signals) -> None:
    signal.raise_signal(number)


@pytest.mark.parametrize("number", Interrupts.SIGNALS)
def test_the_first_signal_asks_and_the_second_exits(number: signal.Signals) -> None:
    told: list[str] = []
    killed: list[bool] = []
    with Interrupts(lambda: killed.append(True)) as interrupts:
        interrupts.on_first = told.append
        send(number)
        assert (told, interrupts.received, killed) == ([f"interrupted by {number.name}"], number.name, [])
        with pytest.raises(Exited, match=str(128 + number)):
            send(number)
        assert (len(told), killed) == (1, [True])


def test_with_nothing_to_end_well_the_first_signal_is_an_exception() -> None:
    with Interrupts(lambda: None) as interrupts, pytest.raises(KeyboardInterrupt):
        send(signal.SIGTERM)
    assert interrupts.received == "SIGTERM"


def test_handlers_are_put_back() -> None:
    before = [signal.getsignal(number) for number in Interrupts.SIGNALS]
    with Interrupts(lambda: None):
        assert [signal.getsignal(number) for number in Interrupts.SIGNALS] != before
    assert [signal.getsignal(number) for number in Interrupts.SIGNALS] == before


def test_outside_the_main_thread_signals_are_left_alone() -> None:
    before = [signal.getsignal(number) for number in Interrupts.SIGNALS]
    seen: list[Any] = []

    def body() -> None:
        with Interrupts(lambda: None):
            seen.extend(signal.getsignal(number) for number in Interrupts.SIGNALS)

    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    assert seen == before
