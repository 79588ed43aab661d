"""The stages of measuring: how long each may take, when it knows enough, and what it cost."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager

from ebrl.resources.profile import BatchTime

ENOUGH = 0.02
"""Standard error over mean at which a mean is known well enough."""
FEWEST = 10
"""Samples before a standard error is believed: fewer may all have missed a heavy tail."""
_SHOW_EVERY_S = 0.25

Say = Callable[[str], None]
Progress = Callable[[float, float, Mapping[str, float]], None]
"""Done, total (both in seconds), and figures worth showing; see ``Display.progress``."""


class Estimate:
    """A mean, and how well it is known."""

    def __init__(self) -> None:
        self.mean = 0.0
        self._values: list[float] = []
        self._squares = 0.0

    @property
    def count(self) -> int:
        """Samples so far."""
        return len(self._values)

    @property
    def undisturbed(self) -> float:
        """The fifth of the samples that other programs disturbed least ends here."""
        return sorted(self._values)[self.count // 5]

    def add(self, value: float) -> None:
        """Count one sample."""
        self._values.append(value)
        shift = value - self.mean
        self.mean += shift / self.count
        self._squares += shift * (value - self.mean)

    @property
    def relative_error(self) -> float:
        """Standard error of the mean over the mean; infinite while there are too few samples."""
        if self.count < FEWEST:
            return math.inf
        return math.sqrt(self._squares / (self.count - 1) / self.count) / self.mean if self.mean > 0 else 0.0


def batch_time(threads: int, num_chunks: int, found: Estimate) -> BatchTime:
    """A row of a table by threads and batch."""
    return BatchTime(threads, num_chunks, found.undisturbed, min(found.relative_error, 1.0), found.count)


class Stage:
    """One stage while it goes on."""

    def __init__(self, seconds: float, progress: Progress) -> None:
        self.seconds = seconds
        """That it may take."""
        self.known = True
        """Whether everything that was measured to the end is known well enough."""
        self._start = time.monotonic()
        self._progress = progress
        self._shown = self._start
        self._worst = math.inf

    @property
    def left_s(self) -> float:
        """Seconds that remain; below 0 when they are over."""
        return self._start + self.seconds - time.monotonic()

    @contextmanager
    def uncounted(self) -> Iterator[None]:
        """What is done inside, like starting a process and warming up, is not taken from the stage's time."""
        start = time.monotonic()
        yield
        self.seconds += time.monotonic() - start

    def goes_on(self, estimates: Iterable[Estimate]) -> bool:
        """Whether there is time left, and an estimate that is not known well enough; shows how far it is."""
        self._worst = max((one.relative_error for one in estimates), default=math.inf)
        self.show()
        self.known = self._worst <= ENOUGH
        return self.left_s > 0 and not self.known

    def repeat(
        self, once: Callable[[], float], *, shares: float, at_least_s: float = 0.0, fewest: int = 1, most: int = 1000
    ) -> Estimate:
        """``once`` as often as it takes to know its mean.

        Args:
            once: does the work and returns its seconds.
            shares: how many such means, with this one, the rest of the stage's time is for.
            at_least_s: what this one gets, whatever the others have taken.
            fewest: calls, whatever the time.
            most: calls, however little is known.
        """
        estimate, until = Estimate(), time.monotonic() + max(0.0, self.left_s / shares, at_least_s)
        while estimate.count < fewest or (
            estimate.count < most and estimate.relative_error > ENOUGH and time.monotonic() < until
        ):
            estimate.add(once())
            self._worst = estimate.relative_error
            self.show()
        self.known = self.known and estimate.relative_error <= ENOUGH
        return estimate

    def show(self) -> None:
        """Show how far it is, if that was not done a moment ago."""
        now = time.monotonic()
        if now - self._shown >= _SHOW_EVERY_S:
            self._shown = now
            facts = {"error of the means (%)": 100 * self._worst} if math.isfinite(self._worst) else {}
            total = max(1.0, self.seconds)
            self._progress(min(total, now - self._start), total, facts)

    def finish(self) -> None:
        """Show that it is over."""
        if self.seconds:
            total = max(1.0, self.seconds)
            self._progress(total, total, {})


class Stages:
    """All stages, one after the other."""

    def __init__(self, say: Say, progress: Progress) -> None:
        self.cost_s: dict[str, float] = {}
        """What each took, in the order of the stages."""
        self.stopped_early: list[str] = []
        """Those that knew enough before their time was over."""
        self._say = say
        self._progress = progress

    @contextmanager
    def stage(self, name: str, seconds: float = 0.0, *, may_stop: bool = False) -> Iterator[Stage]:
        """A stage that may take so long; ``may_stop`` if it stops when it knows enough."""
        self._say(f"profile: {name}")
        start = time.monotonic()
        stage = Stage(seconds, self._progress)
        try:
            yield stage
        finally:
            self.cost_s[name] = time.monotonic() - start
        if may_stop and stage.known and stage.left_s > 0:
            self.stopped_early.append(name)
        stage.finish()
