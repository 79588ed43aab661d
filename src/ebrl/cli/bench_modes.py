"""``ebrl bench modes``, ``ablation``, ``scaling`` and ``staleness``."""

from __future__ import annotations

import enum
from statistics import median
from typing import Annotated, Any

import typer

from ebrl.cli.answer import Answer
from ebrl.cli.options import Json

Quick = Annotated[bool, typer.Option("--quick", help="Few, small configurations and repeats: for a look.")]
Configs = Annotated[
    list[str] | None, typer.Option("--config", help="A configuration of the matrix; may be repeated. All, by default.")
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
    json: Json = False,
) -> Answer:
    """Six execution modes on the same control plane.

    Nothing here is measured on a GPU: times come from the workloads' published and derived figures.
    """
    from ebrl.cli.progress import open_display

    with open_display(quiet=json) as display:
        if engine is EngineName.VIRTUAL:
            from ebrl.bench.modes import measure_modes

            result = measure_modes(quick=quick, names=config or [], say=display.phase)
        else:
            from ebrl.bench.modes_local import measure

            result = measure(quick=quick, names=config or [], say=display.phase)
    return Answer(result, "\n".join(modes_text(result)))


def modes_text(result: dict[str, Any]) -> list[str]:
    """The table for people."""
    rates = {(row["config"], row["mode"]): row["trajectories_per_s"] for row in result["rows"]}
    names = sorted({mode for _, mode in rates}, key=list(dict.fromkeys(row["mode"] for row in result["rows"])).index)
    lines = [f"{result['kind']}: trajectories/s, median of {result['repeats']} repeats"]
    lines.append(f"{'':<32}" + "".join(f"{name:>14}" for name in names) + f"{'over best':>22}{'over paper':>12}")
    for ratio in result["ratios"]:
        cells = [rates[ratio["config"], name] for name in names]
        figures = "".join(f"{median(cell):>14.3f}" if cell else f"{'–':>14}" for cell in cells)
        low, high = ratio["ci95"]
        over = f"{ratio['ebrl_over_best']:.2f} ({low:.2f}–{high:.2f})"
        paper = f"{ratio['ebrl_over_paper']:.2f}" if ratio["ebrl_over_paper"] else "–"
        lines.append(f"{ratio['config']:<32}{figures}{over:>22}{paper:>12}")
    for name in ("geomean_over_best", "geomean_over_paper"):
        low, high = result[f"{name}_ci95"]
        lines.append(f"{name}  {result[name]:.2f} (95 % interval {low:.2f}–{high:.2f})")
    shares = [ratio["roofline_share"] for ratio in result["ratios"] if "roofline_share" in ratio]
    if shares:
        lines.append(f"share of the roofline  {min(shares):.2f} at least, {median(shares):.2f} median")
    for name, emulation in result.get("emulated", {}).items():
        lines.append(f"emulated in {name}: {', '.join(f'{key} {value}' for key, value in emulation.items())}")
    lines += [
        f"{name}  target {result['targets'][name]}: {'met' if ok else 'missed'}" for name, ok in result["met"].items()
    ]
    return lines


def ablation(quick: Quick = False, config: Configs = None, json: Json = False) -> Answer:
    """What each mechanism brings, taken from ebrl and given to the asynchronous mode of other systems."""
    from ebrl.bench.modes import measure_ablation
    from ebrl.cli.progress import open_display

    with open_display(quiet=json) as display:
        result = measure_ablation(quick=quick, names=config or [], say=display.phase)
    lines = [f"{'':<30}{'ebrl over ebrl without':>26}{'async with over async':>26}{'paper':>8}"]
    for part, found in result["parts"].items():
        cells = [_gain_text(found[name]) for name in ("removed_from_ebrl", "added_to_async")]
        paper = f"{1 + found['paper']:.2f}" if found["paper"] else "–"
        lines.append(f"{part:<30}{cells[0]:>26}{cells[1]:>26}{paper:>8}")
    return Answer(result, "\n".join(lines))


def _gain_text(gain: dict[str, Any] | None) -> str:
    if gain is None:
        return "–"
    low, high = gain["ci95"]
    return f"{gain['geomean']:.2f} ({low:.2f}–{high:.2f})"


def scaling(quick: Quick = False, json: Json = False) -> Answer:
    """From one GPU to sixteen, and from 32 environments to 1,024, on the virtual engine."""
    from ebrl.bench.modes import measure_scaling
    from ebrl.cli.progress import open_display

    with open_display(quiet=json) as display:
        result = measure_scaling(quick=quick, say=display.phase)
    return Answer(result, "\n".join(_rows_text(result)))


def staleness(quick: Quick = False, json: Json = False) -> Answer:
    """Throughput of ebrl for slack 0 to 8, on the virtual engine."""
    from ebrl.bench.modes import measure_staleness
    from ebrl.cli.progress import open_display

    with open_display(quiet=json) as display:
        result = measure_staleness(quick=quick, say=display.phase)
    return Answer(result, "\n".join(_rows_text(result)))


def _rows_text(result: dict[str, Any]) -> list[str]:
    lines = [f"{result['kind']}: trajectories/s, median of {result['repeats']} repeats"]
    for row in result["rows"]:
        rate = f"{median(row['trajectories_per_s']):.3f}" if row["trajectories_per_s"] else row["impossible"]
        lines.append(f"{row['config']:<32}{row['mode']:<16}{rate}")
    return lines
