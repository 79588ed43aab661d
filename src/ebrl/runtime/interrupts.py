"""Ctrl-C and SIGTERM: the first lets the run end well, the second ends it now."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any


class Interrupts:
    """Context in which the first SIGINT or SIGTERM calls ``on_first``, and the second exits.

    While ``on_first`` is None (nothing is running that could end well) the first signal raises
    ``KeyboardInterrupt``. Outside the main thread, signals are left alone.
    """

    SIGNALS = (signal.SIGINT, signal.SIGTERM)

    def __init__(self, on_second: Callable[[], None]) -> None:
        self.on_first: Callable[[str], None] | None = None
        self.received: str | None = None
        """Name of the first signal."""
        self._on_second = on_second
        self._old: dict[int, Any] = {}

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            for number in self.SIGNALS:
                self._old[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        for number, handler in self._old.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        name = signal.Signals(number).name
        if self.received is not None:
            self._on_second()
            os._exit(128 + number)
        self.received = name
        if self.on_first is None:
            raise KeyboardInterrupt
        self.on_first(f"interrupted by {name}")
