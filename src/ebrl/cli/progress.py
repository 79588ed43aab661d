"""A run on the screen: a live panel on a terminal, plain lines elsewhere; always on standard error."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ebrl.runtime.display import Display, Silent

if TYPE_CHECKING:
    from rich.table import Table

PLAIN_EVERY_S = 5.0
"""Lines of progress come no faster, where there is no terminal."""

_BAR = 16
_STAGES = ("simulation", "generation", "training")


@contextlib.contextmanager
def open_display(*, quiet: bool = False) -> Iterator[Display]:
    """The display that fits: none, a live one on a terminal, else plain lines."""
    if quiet:
        yield Silent()
    elif sys.stderr.isatty():
        with LiveDisplay().shown() as live:
            yield live
    else:
        yield PlainDisplay()


class PlainDisplay:
    """One line per phase and notice, and one of progress every few seconds."""

    def __init__(self) -> None:
        self._shown = time.monotonic()

    def phase(self, text: str) -> None:
        """See ``Display``."""
        self._print(text)

    def progress(self, done: float, total: float, facts: Mapping[str, float]) -> None:
        """See ``Display``."""
        now = time.monotonic()
        if now - self._shown < PLAIN_EVERY_S and done < total:
            return
        if now - self._shown < 1.0:  # the end of a phase shorter than that needs no line
            return
        self._shown = now
        share = f"{100 * done / total:3.0f} %" if total else ""
        words = ", ".join(f"{name} {value}" for name, value in describe(facts))
        self._print(f"  {share}  {done:,.0f} of {total:,.0f}" + (f"  {words}" if words else ""))

    def notice(self, text: str) -> None:
        """See ``Display``."""
        self._print(f"note: {text}")

    def _print(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)


class LiveDisplay:
    """A progress bar with the time left, and the figures that matter below it."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.live import Live
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskProgressColumn, TimeRemainingColumn

        self._console = Console(stderr=True)
        self._bar = Progress(
            BarColumn(bar_width=40),
            TaskProgressColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=self._console,
        )
        self._live = Live(console=self._console, refresh_per_second=4, transient=True)
        self._title = ""
        self._task: Any = None
        self._started = time.monotonic()

    @contextlib.contextmanager
    def shown(self) -> Iterator[LiveDisplay]:
        """On the screen while inside."""
        with self._live:
            yield self
        self._finish_phase()

    def phase(self, text: str) -> None:
        """See ``Display``."""
        self._finish_phase()
        self._title, self._started = text, time.monotonic()
        self._show({})

    def progress(self, done: float, total: float, facts: Mapping[str, float]) -> None:
        """See ``Display``."""
        if self._task is None:
            self._task = self._bar.add_task("", total=int(total))
        self._bar.update(self._task, completed=min(int(done), int(total)))
        self._show(facts)

    def notice(self, text: str) -> None:
        """See ``Display``."""
        self._console.print(f"note: {text}", markup=False, highlight=False, style="yellow")

    def _finish_phase(self) -> None:
        if self._title:
            seconds = time.monotonic() - self._started
            self._console.print(f"{self._title}  [{seconds:.0f} s]", markup=False, highlight=False, style="dim")
        if self._task is not None:
            self._bar.remove_task(self._task)
        self._title, self._task = "", None

    def _show(self, facts: Mapping[str, float]) -> None:
        from rich.console import Group
        from rich.text import Text

        parts: list[Any] = [Text(self._title, style="bold")]
        if self._task is not None:
            parts.append(self._bar)
        if facts:
            parts.append(_table(facts))
        self._live.update(Group(*parts))


def _table(facts: Mapping[str, float]) -> Table:
    from rich.table import Table

    table = Table.grid(padding=(0, 2))
    for name, value in describe(facts):
        if name.startswith("busy "):
            filled = round(_BAR * min(1.0, facts[f"{name.removeprefix('busy ')}/busy_fraction"]))
            value = f"{'█' * filled}{'░' * (_BAR - filled)} {value}"
        table.add_row(name, value)
    return table


def describe(facts: Mapping[str, float]) -> list[tuple[str, str]]:
    """Names and values worth showing, in words; figures that are not known yet are left out."""
    rows: list[tuple[str, str]] = []
    if "success" in facts:
        rows.append(("success", f"{facts['success']:.2f}"))
    if "simulation/env_steps_per_s" in facts:
        rows.append(("env steps/s", f"{facts['simulation/env_steps_per_s']:,.0f}"))
    if "training/trajectories_per_s" in facts:
        rows.append(("trajectories/s", f"{facts['training/trajectories_per_s']:.2f}"))
    busy = {stage: facts.get(f"{stage}/busy_fraction") for stage in _STAGES}
    rows += [(f"busy {stage}", f"{share:.0%}") for stage, share in busy.items() if share is not None]
    if "training/staleness_max" in facts:
        mean, most = facts.get("training/staleness_mean", 0.0), facts["training/staleness_max"]
        rows.append(("staleness", f"{mean:.2f} mean, {most:.0f} max"))
    if "policy_version" in facts:
        rows.append(("updates", f"{facts['policy_version']:.0f}"))
    known = {"success", "policy_version", "env_steps", "seconds", "episodes"}
    rows += [(name, f"{value:,.4g}") for name, value in facts.items() if "/" not in name and name not in known]
    return rows
