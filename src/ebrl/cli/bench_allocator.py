"""``ebrl bench allocator``."""

from __future__ import annotations

from typing import Annotated

import typer

from ebrl.cli.answer import Answer
from ebrl.cli.options import Json


def allocator(
    quick: Annotated[bool, typer.Option("--quick", help="A small sample: seconds, not minutes.")] = False,
    json: Json = False,
) -> Answer:
    """How near the allocator comes to the best of all allocations, how long it takes, and what runs make of it."""
    from ebrl.bench.allocator import measure
    from ebrl.cli.progress import open_display

    with open_display() as display:
        result = measure(quick=quick, say=display.phase)
    node, every, virtual = result["times"]["8-GPU node"], result["times"]["all pairs"], result["virtual"]
    lines = [
        f"ratio to the best of all allocations  worst {result['worst_ratio_to_exhaustive']:.4f}, median "
        f"{result['median_ratio_to_exhaustive']:.4f}, over {result['pairs']} workloads and machines",
        f"too small for anything  {result['both_infeasible']}, of which only one side said so: "
        f"{result['only_one_infeasible']}",
        f"time, 8-GPU node  {_times(node)}, over {node['count']}",
        f"time, all  {_times(every)}",
        f"ratio to the best on the virtual engine  worst {virtual['worst_ratio']:.3f}, median "
        f"{virtual['median_ratio']:.3f}, over {virtual['settings']} settings and {virtual['runs']} runs",
    ]
    for name, target in result["targets"].items():
        verdict = "met" if result["met"][name] else "missed"
        lines.append(f"{name}  {result[name]:.4g}, target {target:g}: {verdict}")
    lines.append(f"machine  {result['machine']['usable_cpus']} usable CPUs, {result['machine']['cpu_model']}")
    return Answer(result, "\n".join(lines))


def _times(row: dict[str, dict[str, float]]) -> str:
    cpu = row["cpu"]
    return f"{cpu['p50_ms']:.1f} ms median, {cpu['p95_ms']:.1f} ms 95 %, {cpu['max_ms']:.1f} ms largest (CPU time)"
