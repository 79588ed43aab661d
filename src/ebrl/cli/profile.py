"""``ebrl profile``."""

from __future__ import annotations

import json as json_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ebrl.cli.answer import Answer
from ebrl.cli.options import Json, RunFile, Sets
from ebrl.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ebrl.resources.profile import BatchTime, Memory, Profile

_MIB = 1 << 20


def profile(
    run_file: RunFile,
    sets: Sets = None,
    seconds: Annotated[float, typer.Option(min=1, max=3600, help="About how long to measure.")] = 15.0,
    output: Annotated[Path, typer.Option(help="The file to write.")] = Path("profile.json"),
    json: Json = False,
) -> Answer:
    """Measure what each stage of a run costs on this machine, for forecasts and allocations.

    Each stage is measured alone, with real processes, by batch and threads; then briefly all of them together.
    A stage ends early when its means are known to 2 %.
    """
    from ebrl.cli.progress import open_display
    from ebrl.config.load import load_config
    from ebrl.profiling.measure import take_profile
    from ebrl.records.writer import write_json
    from ebrl.runtime.plugins import check_plugins

    config = load_config(run_file, sets or [])
    check_plugins(config)
    if not output.absolute().parent.is_dir() or output.is_dir():
        raise UsageError(f"--output {output}: want a file in a directory that is there")
    with open_display(quiet=json) as display:
        taken = take_profile(config, seconds=seconds, say=display.phase, progress=display.progress)
    document = json_module.loads(json_module.dumps(taken.to_json()))
    write_json(output, document)
    return Answer(document | {"output": str(output)}, "\n".join([*profile_text(taken), f"written to {output}"]))


def profile_text(taken: Profile) -> list[str]:
    """A profile for people."""
    from statistics import fmean

    step, reset = taken.simulation.env_step_s, taken.simulation.reset_s
    grants = [grant for tape in taken.simulation.tapes for grant in tape]
    on_cpu = sum(g.cpu_s for g in grants) / max(sum(g.cpu_s + g.other_s for g in grants), 1e-12)
    batches = ", ".join(f"{row.num_chunks}: {1e3 * (row.cpu_s + row.other_s):.1f}" for row in taken.generation.table)
    updates = [work.cpu_s + work.other_s for work in taken.training.updates]
    events = dict(taken.control.event_s)
    corun = (taken.simulation.corun, taken.generation.corun, taken.training.corun)
    return [
        f"env step     {1e3 * step.mean:.2f} ms mean, sd {1e3 * step.sd:.2f}, 99 % {1e3 * step.p99:.2f} "
        f"({step.count} steps), correlation within an environment {taken.simulation.within_env_correlation:.2f}, "
        f"{on_cpu:.0%} of grants on the CPU",
        f"reset        {1e3 * reset.mean:.2f} ms mean ({reset.count})",
        f"             {1e3 * taken.simulation.observation_s:.2f} ms more where the observation is read, "
        f"{taken.simulation.own_bytes / _MIB:.0f} MiB per env worker",
        f"generation   ms by batch size: {batches}",
        *_by_threads(taken.generation.by_threads, "batches"),
        f"             {_memory(taken.generation.memory)} of batch",
        f"training     {1e3 * fmean(updates):.0f} ms per update ({len(updates)}), micro-batches of "
        f"{taken.training.micro_batch} chunks",
        *_by_threads(taken.training.by_threads, "micro-batches"),
        f"             {_memory(taken.training.memory)} of micro-batch",
        f"control      {1e6 * events.get('StepsDone', 0.0):.0f} µs per grant, "
        f"{1e6 * taken.control.command_s:.0f} µs per command, messages take {1e6 * taken.control.latency_s:.0f} µs",
        "together     simulation × {:.2f}, generation × {:.2f}, training × {:.2f} CPU seconds".format(*corun),
        f"taking it    {taken.taken_s:.1f} s: " + ", ".join(f"{name} {cost:.1f} s" for name, cost in taken.cost_s),
        f"             known to 2 % before their time was over: {', '.join(taken.stopped_early) or 'none'}",
        *(f"             {note}" for note in taken.notes),
    ]


def _by_threads(table: Sequence[BatchTime], what: str) -> list[str]:
    """A line for each number of threads."""
    lines = []
    for threads in sorted({row.threads for row in table}):
        times = ", ".join(f"{row.num_chunks}: {1e3 * row.seconds:.1f}" for row in table if row.threads == threads)
        lines.append(f"             {threads} thread{'s' if threads > 1 else ''}, ms by size of {what}: {times}")
    return lines


def _memory(memory: Memory) -> str:
    return f"{memory.fixed_bytes / _MIB:.0f} MiB and {memory.chunk_bytes / _MIB:.2f} MiB for each chunk"
