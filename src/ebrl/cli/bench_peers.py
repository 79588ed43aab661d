"""``ebrl bench peers``."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from ebrl.cli.answer import Answer
from ebrl.cli.options import Json


def peers(
    peer: Annotated[
        list[str] | None,
        typer.Option(help="stable-baselines3, sample-factory, envpool or torchrl; may be repeated; else all."),
    ] = None,
    env: Annotated[list[str] | None, typer.Option(help="metaworld or halfcheetah; may be repeated; else both.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="One short repeat, few envs, learning alone.")] = False,
    install: Annotated[bool, typer.Option("--install", help="First make the private environments not there.")] = False,
    json: Json = False,
) -> Answer:
    """The same environment, networks and batch under other systems and under ours, interleaved."""
    from ebrl.bench.peers import PEERS, TASKS, chosen, install_missing, measure
    from ebrl.cli.progress import open_display
    from ebrl.runtime.interrupts import Interrupts

    names, envs = chosen(peer, PEERS, "--peer"), chosen(env, TASKS, "--env")
    with Interrupts(lambda: None), open_display() as display:
        problems = install_missing(names, say=display.notice) if install else {}
        result = measure(names, envs, quick=quick, say=display.notice, problems=problems)
    lines: list[str] = []
    for name in envs:
        lines += _table(name, result)
    for name, target in result["targets"].items() if result["met"] else ():
        lines.append(f"{name} at least {target} for each rival: {'met' if result['met'][name] else 'missed'}")
    lines.append(f"machine  {result['machine']['usable_cpus']} usable CPUs, {result['machine']['cpu_model']}")
    return Answer(result, "\n".join(lines))


def _table(env: str, result: dict[str, Any]) -> list[str]:
    found = result["by_env"][env]
    lines = [
        f"{env}: env steps/s (min … max), share of the ceiling, its CPUs + those of others, CPU µs per env step, ebrl "
        "over it (chunks of 1 / of 8)"
    ]
    for kind, end in (("learning", ""), ("collection", "_collection")):
        rows = [row for row in result["rows"] if (row["env"], row["kind"]) == (env, kind)]
        if not rows:
            continue
        lines.append("  with learning" if kind == "learning" else "  collection alone")
        one, eight = found["ebrl_over" + end], found["ebrl_over_chunk8" + end]
        lines += [_line(row, one, eight) for row in rows]
    return lines


def _line(row: dict[str, Any], one: dict[str, float], eight: dict[str, float]) -> str:
    system = row["system"] + (f", chunks of {row['chunk_len']}" if row["system"] == "ebrl" else "")
    if "failed" in row:
        return f"    {system:<36} failed: {row['failed'].splitlines()[0]}"
    rates = row["repeats"]
    text = f"    {system:<36} {row['env_steps_per_s']:8,.0f} ({min(rates):,.0f} … {max(rates):,.0f})"
    text += f"  {row['share_of_ceiling']:4.0%}  {row['cpus_busy']:.2f} + {max(row['others_cpus']):.2f}"
    text += f"  {row['cpu_us_per_step']:4.0f} µs"
    if row["system"] in one:
        text += f"   {one[row['system']]:.2f}×"
        text += f" / {eight[row['system']]:.2f}×" if row["system"] in eight else ""
    return text
