"""How charts of benches look: colours, hatches, markers, and what every one of them says about where it comes from.

No chart leans on colour alone: bars have hatches, lines have markers and dashes. Nothing here touches matplotlib's
global state, and nothing imports it before something is drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SUFFIXES = (".png", ".svg", ".pdf")
"""What a chart can be."""

KINDS = {
    "virtual": "virtual: the real control plane with the times of workloads; nothing ran on a GPU",
    "emulated": "emulated: real processes that take the times of workloads' GPUs; nothing ran on a GPU",
}
"""``kind`` of a document, in words."""


@dataclass(frozen=True, slots=True)
class Look:
    """One bar or line among others."""

    colour: str
    hatch: str
    marker: str
    dashes: str


ORANGE, SKY, GREEN, YELLOW, BLUE, VERMILION, PURPLE, BLACK = (
    "#E69F00",
    "#56B4E9",
    "#009E73",
    "#F0E442",
    "#0072B2",
    "#D55E00",
    "#CC79A7",
    "#000000",
)
"""Okabe and Ito's colours, which colour-blind readers can tell apart."""

GREY = "#666666"

_MODES = {
    "colocated": Look(GREEN, "//", "s", ":"),
    "disaggregated": Look(SKY, "\\\\", "^", ":"),
    "hybrid": Look(ORANGE, "..", "v", "-."),
    "async": Look(PURPLE, "xx", "D", "--"),
    "paper": Look(BLUE, "||", "P", "-."),
    "ebrl": Look(VERMILION, "", "o", "-"),
}
_COLOURS = (BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY, BLACK)
_HATCHES = ("", "//", "xx", "..", "\\\\")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "*", "h")
_DASHES = ("-", "--", "-.", ":")


def look_of(mode: str) -> Look:
    """Of an execution mode, the same in every chart."""
    return _MODES.get(mode) or look_at(sum(mode.encode()))


def look_at(index: int) -> Look:
    """Of one of several things that have no look of their own."""
    rounds, place = divmod(index, len(_COLOURS))
    return Look(
        _COLOURS[place],
        _HATCHES[index % len(_HATCHES)],
        _MARKERS[index % len(_MARKERS)],
        _DASHES[(rounds + place % 2) % len(_DASHES)],
    )


def new_figure(document: dict[str, Any], title: str, *, width: float, height: float) -> Figure:
    """An empty one, in inches, that says in its title what its times are."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained", dpi=120)
    kind = str(document.get("kind", ""))
    figure.suptitle(f"{title}\n{KINDS.get(kind, kind)}", fontsize=10.5)
    return figure


def save(figure: Figure, path: Path) -> None:
    """Write it in the format of the file's suffix; an SVG keeps its words as text, and no file has a date."""
    import matplotlib as mpl

    dates = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "ebrl"}):
        figure.savefig(path, metadata=dates.get(path.suffix.lower()))


def plain_log(axes: Axes, axis: str, marks: Sequence[float]) -> None:
    """A logarithmic axis that is marked with plain numbers at these places and nowhere else."""
    from matplotlib.ticker import NullFormatter, NullLocator

    one = axes.xaxis if axis == "x" else axes.yaxis
    (axes.set_xscale if axis == "x" else axes.set_yscale)("log")
    one.set_ticks(list(marks), [f"{mark:g}" for mark in marks])
    one.set_minor_locator(NullLocator())
    one.set_minor_formatter(NullFormatter())
