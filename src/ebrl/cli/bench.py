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
