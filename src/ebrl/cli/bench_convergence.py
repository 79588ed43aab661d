"""``ebrl bench convergence``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from ebrl.cli.answer import Answer
from ebrl.cli.bench_modes import PaddingName, PaddingOption, Plot, Saved
from ebrl.cli.options import Json


def convergence(
    task: Annotated[str, typer.Option(help="A Meta-World task: reach-v3 or drawer-open-v3.")] = "reach-v3",
    mode: Annotated[
        list[str] | None,
        typer.Option(help="An execution mode; may be repeated. colocated, async, paper and ebrl by default."),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, max=100, help="Runs of each.")] = 5,
    slacks: Annotated[bool, typer.Option("--slacks", help="Also ebrl with slack 1, 2, 4 and 8.")] = False,
    rows: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Keep each finished run here, and do not run again what is in it."),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="One seed, colocated and ebrl, few env steps: minutes, for a look.")
    ] = False,
    padding: PaddingOption = PaddingName.LEFT_OUT,
    plot: Plot = None,
    saved: Saved = None,
    json: Json = False,
) -> Answer:
    """Time until a policy succeeds in 90 % of its episodes, by execution mode.

    Real simulation and real learning on the clock of emulated GPUs:
    an hour and a half on fast CPUs and over two on slow ones, with --slacks an hour more.
    """
    from ebrl.bench.charts import check_picture, draw
    from ebrl.bench.documents import read_document

    if plot is not None:
        check_picture(plot)
    if saved is not None:
        result = read_document(saved, "convergence")
    else:
        result = _measured(
            task, mode or [], seeds=seeds, slacks=slacks, rows=rows, quick=quick, padding=padding, json=json
        )
    lines = convergence_text(result)
    if plot is not None:
        draw(result, plot)
        lines.append(f"plot  {plot}")
    return Answer(result, "\n".join(lines))


def _measured(
    task: str,
    mode: list[str],
    *,
    seeds: int,
    slacks: bool,
    rows: Path | None,
    quick: bool,
    padding: PaddingName,
    json: bool,
) -> dict[str, Any]:
    from ebrl.bench import convergence_settings as chosen
    from ebrl.bench.convergence import measure
    from ebrl.cli.progress import open_display
    from ebrl.config.modes import NAMES
    from ebrl.errors import UsageError, nearest

    settings = replace(chosen.settings_of(task), padding=padding.value)
    known = {name: name for name in NAMES}
    modes = list(chosen.QUICK_MODES if quick else chosen.MODES) if not mode else []
    for name in mode:
        if name not in known:
            raise UsageError(f"--mode {name}: no such mode; {nearest(name, known) or f'known: {list(NAMES)}'}")
        modes.append(known[name])
    variants = chosen.variants(modes, chosen.SLACKS if slacks else ())
    if quick:
        settings, seeds = chosen.quick(settings), 1
    with open_display() as display:
        return measure(settings, variants, num_seeds=seeds, kept=rows, say=display.phase)


def convergence_text(result: dict[str, Any]) -> list[str]:
    """The tables for people."""
    what = ", ".join(f"{key} {value}" for key, value in result["emulated"].items())
    lines = [
        f"{result['kind']}: {result['task']}, seeds: {result['repeats']}; median time to "
        f"{100 * result['level']:.0f} % success (runs that got there), mean success at the end (least … most)",
        f"{'':<18}{'seconds':>9}{'env steps':>12}{'got there':>11}   {'at the end, %':<22}{'staleness':>10}"
        f"   {'ebrl sooner':<22}{'ebrl at the end, points':<24}",
    ]
    lines += [_line(name, found, result["ratios"].get(name)) for name, found in result["summary"].items()]
    lines += [f"emulated  {what}", _truth(result["rows"])]
    for name, target in result["targets"].items():
        if name in result["met"]:
            lines.append(f"{name}  target {target:g}: {'met' if result['met'][name] else 'missed'}")
    lines.append(f"machine  {result['machine']['usable_cpus']} usable CPUs, {result['machine']['cpu_model']}")
    return lines


def _line(name: str, found: dict[str, Any], ratio: dict[str, Any] | None) -> str:
    seconds = "–" if found["seconds_to_90"] is None else f"{found['seconds_to_90']:.1f}"
    steps = "–" if found["env_steps_to_90"] is None else f"{found['env_steps_to_90']:,.0f}"
    there = f"{found['runs'] - found['censored']} of {found['runs']}"
    low, high = 100 * found["final_success_low"], 100 * found["final_success_high"]
    final = f"{100 * found['final_success']:.1f} ({low:.1f} … {high:.1f})"
    line = f"{name:<18}{seconds:>9}{steps:>12}{there:>11}   {final:<22}{found['staleness_mean']:>10.1f}"
    if ratio is None:
        return line
    low, high = ratio["ci95"]
    times = f"{'≥ ' if ratio['at_least'] else ''}{ratio['ebrl_sooner']:.2f} ({low:.2f}–{high:.2f})"
    times = times if ratio["ebrl_sooner"] else "–, ebrl never"
    low, high = (100 * value for value in ratio["final_success_difference_ci95"])
    points = f"{100 * ratio['final_success_difference']:+.1f} ({low:+.1f} … {high:+.1f})"
    return f"{line}   {times:<22}{points:<24}"


def _truth(rows: list[dict[str, Any]]) -> str:
    """How true the emulated clock was."""
    overruns, updates = sum(row["training_overruns"] for row in rows), sum(row["updates"] for row in rows)
    worst, others = (max(row[name] for row in rows) for name in ("generation_stretch_fraction", "others_cpus"))
    return (
        f"overruns  {overruns} of {updates} updates took longer on the CPU than on the emulated GPU; generation took "
        f"{100 * worst:+.1f} % at most over its emulated time; other programs kept {others:.2f} CPUs busy at most"
    )
