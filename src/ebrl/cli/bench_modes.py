"""``ebrl bench modes``, ``ablation``, ``scaling`` and ``staleness``."""

from __future__ import annotations

import enum
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from ebrl.cli.answer import Answer
from ebrl.cli.bench_tables import ablation_text, modes_text, scaling_text, staleness_text
from ebrl.cli.options import Json
from ebrl.errors import UsageError

Quick = Annotated[bool, typer.Option("--quick", help="Few, small configurations and repeats: for a look.")]
Configs = Annotated[
    list[str] | None, typer.Option("--config", help="A configuration of the matrix; may be repeated. All, by default.")
]
Plot = Annotated[Path | None, typer.Option("--plot", metavar="FILE", help="Draw it, too: a .png, .svg or .pdf file.")]
Saved = Annotated[
    Path | None,
    typer.Option("--from", metavar="FILE.json", help="Run nothing; take an answer that was saved with --json."),
]

Document = dict[str, Any]
Say = Callable[[str], None]


class PaddingName(enum.StrEnum):
    """What training makes of chunks that were never executed."""

    LEFT_OUT = "left_out"
    MASKED = "masked"


PaddingOption = Annotated[
    PaddingName,
    typer.Option(
        "--padding",
        help="Chunks that were never executed, since their episode was over: left_out of an update, as ebrl does in "
        "every mode; masked: they take training's time, as in systems that only mask their losses.",
    ),
]


class EngineName(enum.StrEnum):
    """Where the modes are played."""

    VIRTUAL = "virtual"
    LOCAL = "local"


def modes(
    engine: Annotated[
        EngineName,
        typer.Option(help="virtual: eleven configurations at full size; local: real processes, emulated GPUs."),
    ] = EngineName.VIRTUAL,
    quick: Quick = False,
    config: Configs = None,
    padding: PaddingOption = PaddingName.LEFT_OUT,
    plot: Plot = None,
    saved: Saved = None,
    json: Json = False,
) -> Answer:
    """Six execution modes on the same control plane.

    Nothing here is measured on a GPU: times come from the workloads' published and derived figures.
    """

    def measure(say: Say) -> Document:
        if engine is EngineName.VIRTUAL:
            from ebrl.bench.modes import measure_modes

            return measure_modes(quick=quick, names=config or [], padding=padding.value, say=say)
        from ebrl.bench.modes_local import measure as measure_local

        return measure_local(quick=quick, names=config or [], padding=padding.value, say=say)

    asks = quick or bool(config) or engine is EngineName.LOCAL or padding is not PaddingName.LEFT_OUT
    result = _result("modes", measure, saved=saved, plot=plot, asks=asks)
    return _answer(result, modes_text(result), plot)


def ablation(
    quick: Quick = False, config: Configs = None, plot: Plot = None, saved: Saved = None, json: Json = False
) -> Answer:
    """What each mechanism brings, taken from ebrl and given to the asynchronous mode of other systems."""

    def measure(say: Say) -> Document:
        from ebrl.bench.mode_studies import measure_ablation

        return measure_ablation(quick=quick, names=config or [], say=say)

    asks = quick or bool(config)
    result = _result("ablation", measure, saved=saved, plot=plot, asks=asks)
    return _answer(result, ablation_text(result), plot)


def scaling(quick: Quick = False, plot: Plot = None, saved: Saved = None, json: Json = False) -> Answer:
    """From one GPU to sixteen, and from 32 environments to 1,024, on the virtual engine."""

    def measure(say: Say) -> Document:
        from ebrl.bench.mode_studies import measure_scaling

        return measure_scaling(quick=quick, say=say)

    result = _result("scaling", measure, saved=saved, plot=plot, asks=quick)
    return _answer(result, scaling_text(result), plot)


def staleness(
    quick: Quick = False,
    success: Annotated[
        Path | None,
        typer.Option(metavar="FILE.json", help="Saved answer of ebrl bench convergence, to be laid beside this one."),
    ] = None,
    plot: Plot = None,
    saved: Saved = None,
    json: Json = False,
) -> Answer:
    """Throughput of ebrl and the age of its data for slack 0 to 8, on the virtual engine."""
    from ebrl.bench.documents import read_document

    learned = None if success is None else read_document(success, "convergence")

    def measure(say: Say) -> Document:
        from ebrl.bench.mode_studies import measure_staleness

        return measure_staleness(quick=quick, say=say)

    result = _result("staleness", measure, saved=saved, plot=plot, asks=quick)
    if learned is not None:
        from ebrl.bench.mode_studies import with_success

        result = with_success(result, learned)
    return _answer(result, staleness_text(result), plot)


def _result(
    bench: str, measure: Callable[[Say], Document], *, saved: Path | None, plot: Path | None, asks: bool
) -> Document:
    """What was saved, or else what is measured now; a plot that cannot be written is refused before that.

    Args:
        bench: whose answer it is.
        measure: runs it.
        saved: an answer of before.
        plot: where the picture will go.
        asks: whether the request says what to run, which goes with no saved answer.
    """
    from ebrl.bench.charts import check_picture
    from ebrl.bench.documents import read_document
    from ebrl.cli.progress import open_display

    if plot is not None:
        check_picture(plot)
    if saved is not None:
        if asks:
            raise UsageError(
                f"--from {saved}: nothing is run then; leave out --quick, --config, --engine and --padding"
            )
        return read_document(saved, bench)
    with open_display() as display:
        return measure(display.phase)


def _answer(result: Document, lines: list[str], plot: Path | None) -> Answer:
    if plot is not None:
        from ebrl.bench.charts import draw

        draw(result, plot)
        lines = [*lines, f"plot  {plot}"]
    return Answer(result, "\n".join(lines))
