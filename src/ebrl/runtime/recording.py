"""What a training run writes while it goes on: its event log, and a row of metrics for every update."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ebrl.records.eventlog import EventLog, Level, event_file, next_part, plan_file
from ebrl.records.schema import plan_to_json
from ebrl.records.writer import MetricsWriter, write_json
from ebrl.scheduling.commands import Command
from ebrl.scheduling.events import Event
from ebrl.scheduling.plan import SchedulerPlan

Say = Callable[[str], None]


class Recording:
    """Both files of one part of a run.

    A disk that is full, or a quota that is used up, does not end the run where it stands: ``lost`` says what could not
    be written, nothing more is, and whoever records lets the run end with a checkpoint.
    """

    def __init__(
        self,
        run_dir: Path,
        plan: SchedulerPlan,
        *,
        level: Level,
        machine: Mapping[str, Any],
        keep_up_to_version: int | None,
        on_lost: Say,
    ) -> None:
        """Open both, and write the plan that belongs to the log.

        Args:
            run_dir: the run's directory.
            plan: of the control plane.
            level: how much of the log is written.
            machine: in words and numbers.
            keep_up_to_version: see ``MetricsWriter``.
            on_lost: is told, once, what could not be written.
        """
        self.lost = ""
        self._on_lost = on_lost
        self._run_dir = run_dir
        part = next_part(run_dir)
        document = {"scheduler": plan_to_json(plan), "records_level": level, "machine": machine}
        write_json(run_dir / plan_file(part), document)
        self._writer = MetricsWriter(run_dir, keep_up_to_version=keep_up_to_version)
        self._log = EventLog(run_dir / event_file(part), level=level)

    @property
    def num_left_out(self) -> int:
        """Events that the level leaves out."""
        return self._log.num_left_out

    def event(self, now: float, event: Event, commands: list[Command]) -> None:
        """One turn of the control plane."""
        if not self.lost:
            with self._noticed("the event log"):
                self._log.write(now, event, commands)

    def row(self, row: Mapping[str, float]) -> None:
        """Metrics of one update."""
        if not self.lost:
            with self._noticed("metrics.jsonl"):
                self._writer.write(row)

    def close(self) -> None:
        """Write what is left, as far as that goes."""
        with self._noticed("metrics.jsonl"):
            self._writer.close()
        with self._noticed("the event log"):
            self._log.close()

    @contextlib.contextmanager
    def _noticed(self, what: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if not self.lost:
                self.lost = f"{what} in {self._run_dir} cannot be written: {error.strerror or error}"
                self._on_lost(self.lost)
