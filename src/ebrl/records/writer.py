"""Files of a run directory: metrics line by line, TensorBoard, JSON documents."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch.utils.tensorboard.writer import SummaryWriter


class MetricsWriter:
    """Appends rows to ``metrics.jsonl`` and to TensorBoard files in ``tensorboard/``."""

    def __init__(self, run_dir: Path, *, keep_up_to_version: int | None = None) -> None:
        """Open both.

        Args:
            run_dir: the run's directory.
            keep_up_to_version: of an earlier run that is resumed here, keep the rows up to this
                policy version; later ones describe updates that are taken again.
        """
        path = run_dir / "metrics.jsonl"
        if keep_up_to_version is not None:
            rows = [row for row in read_metrics(run_dir) if row["policy_version"] <= keep_up_to_version]
            temporary = path.with_name(f".{path.name}.{os.getpid()}")
            temporary.write_text("".join(json.dumps(row) + "\n" for row in rows))
            temporary.replace(path)
        self._file = path.open("a", buffering=1)
        self._tensorboard = _tensorboard(run_dir / "tensorboard")

    def write(self, row: Mapping[str, float]) -> None:
        """Append one row; its ``env_steps`` is TensorBoard's step."""
        self._file.write(json.dumps(row) + "\n")
        for name, value in row.items():
            self._tensorboard.add_scalar(name, value, int(row["env_steps"]))

    def close(self) -> None:
        """Flush both."""
        try:
            self._file.close()
        finally:
            self._tensorboard.close()


def read_metrics(run_dir: Path) -> list[dict[str, float]]:
    """All rows of a run; a last line that was cut off by a crash is left out."""
    path = run_dir / "metrics.jsonl"
    rows: list[dict[str, float]] = []
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            rows.append(json.loads(line))
        except ValueError:
            break
    return rows


def write_json(path: Path, document: Any) -> None:
    """Write ``document`` so that a reader sees the old file or the whole new one."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(json.dumps(document, indent=2) + "\n")
    temporary.replace(path)


def _tensorboard(directory: Path) -> SummaryWriter:
    from torch.utils.tensorboard.writer import SummaryWriter

    return SummaryWriter(str(directory))
