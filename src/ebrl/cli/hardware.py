"""``ebrl hardware``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ebrl.cli.answer import Answer
from ebrl.cli.options import Json
from ebrl.errors import ConfigError

if TYPE_CHECKING:
    from ebrl.resources.hardware import Gpu, Hardware, Node

_GIB = 2**30


def hardware(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="A machine that comes with ebrl, or a hardware file; else this one.")
    ] = "",
    output: Annotated[Path | None, typer.Option(help="Write a hardware file, to plan with or to change.")] = None,
    json: Json = False,
) -> Answer:
    """Show what a machine has, as far as a run may use it."""
    from ebrl.host.hardware import probe_hardware
    from ebrl.host.sharing.choose import probe_device
    from ebrl.plan.hardware import hardware_text, load_hardware, shipped_hardware

    found = load_hardware(name) if name else probe_hardware(sharing=probe_device)
    lines = list(describe(found))
    if not name:
        lines.append(f"others to plan for: {', '.join(shipped_hardware())}")
    if output is not None:
        try:
            output.write_text(hardware_text(found), encoding="utf-8")
        except OSError as error:
            raise ConfigError("--output", f"{output} cannot be written: {error.strerror}") from error
        lines.append(f"written to {output}")
    return Answer(found.to_json(), "\n".join(lines))


def describe(found: Hardware) -> Iterator[str]:
    """Hardware in lines for people."""
    yield found.name
    if found.source:
        yield f"  source   {found.source}"
    for number, node in enumerate(found.nodes):
        if len(found.nodes) > 1:
            yield f"node {number}"
        yield from _node_lines(node)


def _node_lines(node: Node) -> Iterator[str]:
    cores = {cpu.core for cpu in node.cpus}
    siblings = f", {len(cores)} cores with SMT" if len(cores) < len(node.cpus) else f", {len(cores)} cores without SMT"
    yield f"  CPUs     {len(node.cpus)}{siblings}"
    if node.cpu_quota:
        yield f"  quota    {node.cpu_quota:g} CPUs of time: keeps at most {node.num_cpus} CPUs busy"
    else:
        yield "  quota    none"
    for numa in sorted({cpu.numa for cpu in node.cpus}):
        yield f"  NUMA {numa}   CPUs {_ranges([cpu.id for cpu in node.cpus if cpu.numa == numa])}"
    yield f"  memory   {node.memory_bytes / _GIB:.1f} GiB"
    if not node.gpus:
        yield "  GPUs     none"
    for gpu in node.gpus:
        yield from _gpu_lines(gpu)
    if node.gpus and not any(gpu.sharing for gpu in node.gpus):
        yield "           ways to share them were not probed"


def _gpu_lines(gpu: Gpu) -> Iterator[str]:
    driver = f", driver {gpu.driver}" if gpu.driver else ""
    yield (
        f"  GPU {gpu.index}    {gpu.name}: {gpu.num_sms} SMs in steps of {gpu.sm_step}, "
        f"{gpu.memory_bytes / _GIB:.1f} GiB, NUMA {gpu.numa}{driver}"
    )
    for one in gpu.sharing:
        reason = f": {one.reason}" if one.reason else ""
        yield f"           sharing by {one.name} {'works' if one.works else 'does not work'}{reason}"


def _ranges(numbers: Sequence[int]) -> str:
    """``0-3,8`` for 0, 1, 2, 3, 8."""
    runs = []
    for _, members in groupby(enumerate(sorted(numbers)), key=lambda pair: pair[1] - pair[0]):
        run = [number for _, number in members]
        runs.append(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]))
    return ",".join(runs)
