"""Charts of benches, drawn from their JSON documents alone, so that a saved answer can be drawn at any time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ebrl.bench import chart_bars, chart_lines
from ebrl.bench.chart_style import SUFFIXES, save
from ebrl.bench.documents import bench_of
from ebrl.errors import UsageError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_CHARTS: dict[str, Callable[[dict[str, Any]], Figure]] = {
    "modes": chart_bars.modes,
    "ablation": chart_bars.ablation,
    "scaling": chart_lines.scaling,
    "staleness": chart_lines.staleness,
    "convergence": chart_lines.convergence,
}


def check_picture(path: Path) -> None:
    """Whether a chart can be written there; to be asked before something long is run for it.

    Raises:
        UsageError: its suffix is none of ours, or its folder is not there.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise UsageError(f"--plot {path}: want a file that ends in {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}")
    if not path.parent.is_dir():
        raise UsageError(f"--plot {path}: there is no folder {path.parent}; make it first")


def draw(document: dict[str, Any], path: Path) -> None:
    """Draw what one of the benches answered.

    Raises:
        UsageError: as ``check_picture``, or no bench with a chart made the document.
    """
    check_picture(path)
    bench = bench_of(document)
    if not bench:
        raise UsageError(f"--plot {path}: no chart is known of this document; known: {', '.join(_CHARTS)}")
    save(_CHARTS[bench](document), path)
