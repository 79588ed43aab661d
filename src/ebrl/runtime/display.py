"""What a run tells whoever watches it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol


class Display(Protocol):
    """Shows a run; the command line has one with a progress bar and one with plain lines."""

    def phase(self, text: str) -> None:
        """A part of the run begins, e.g. ``evaluation before training``."""
        ...

    def progress(self, done: float, total: float, facts: Mapping[str, float]) -> None:
        """How far the present part is, and figures worth showing."""
        ...

    def notice(self, text: str) -> None:
        """Something happened that a user should know of."""
        ...


class Silent:
    """Shows nothing; keeps notices."""

    def __init__(self) -> None:
        self.notices: list[str] = []

    def phase(self, text: str) -> None:
        """See ``Display``."""

    def progress(self, done: float, total: float, facts: Mapping[str, float]) -> None:
        """See ``Display``."""

    def notice(self, text: str) -> None:
        """See ``Display``."""
        self.notices.append(text)
