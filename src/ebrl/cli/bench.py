"""``ebrl bench``."""

from __future__ import annotations

from typing import Annotated

import typer

from ebrl.cli.answer import Answer
from ebrl.cli.options import Json


def roundtrip(
    seconds: Annotated[float, typer.Option(min=0.5, max=60, help="How long to measure.")] = 3.0, json: Json = False
) -> Answer:
    """Time from an observation to the first action of the next chunk in the env worker, policy time excluded."""
    from ebrl.bench.roundtrip import measure

    result = measure(seconds)
    text = "\n".join(
        [
            f"chunk round trip  {result['median_us']:.0f} µs median, {result['p95_us']:.0f} µs 95 %, "
            f"{result['p99_us']:.0f} µs 99 %, over {result['count']} chunks",
            f"policy time, not included  {result['policy_median_us']:.0f} µs median",
            f"machine  {result['machine']['usable_cpus']} usable CPUs, {result['machine']['cpu_model']}",
        ]
    )
    return Answer(result, text)


def control(
    quick: Annotated[bool, typer.Option("--quick", help="Fewer events and repeats: seconds, not a minute.")] = False,
    json: Json = False,
) -> Answer:
    """Events per second that the control plane answers on one CPU."""
    from ebrl.bench.control import TARGETS, measure

    result = measure(quick=quick)
    lines = ["events per CPU second   control alone: median (min … max)   with the virtual engine"]
    for setting in result["settings"]:
        alone, together = setting["control"], setting["control_and_virtual_engine"]
        where = f"{setting['num_shards']}/{setting['num_cpus']} {setting['quantum']}"
        spread = f"{alone['median']:,.0f} ({alone['min']:,.0f} … {alone['max']:,.0f})"
        lines.append(f"{where:<23} {spread:<36} {together['median']:,.0f}")
    for name, target in TARGETS.items():
        lines.append(f"{name}  {result[name]:,.0f}, target {target:,}: {'met' if result['met'][name] else 'missed'}")
    lines.append(f"machine  {result['machine']['usable_cpus']} usable CPUs, {result['machine']['cpu_model']}")
    return Answer(result, "\n".join(lines))
