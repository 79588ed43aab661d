"""``ebrl bench``."""

from __future__ import annotations

from statistics import median
from typing import Annotated

import typer

from ebrl.cli.answer import Answer
from ebrl.cli.options import Json


def roundtrip(
    seconds: Annotated[float, typer.Option(min=0.5, max=60, help="How long to measure, at least.")] = 3.0,
    json: Json = False,
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


def split(
    quick: Annotated[bool, typer.Option("--quick", help="Three moves instead of ten: seconds, not a minute.")] = False,
    json: Json = False,
) -> Answer:
    """What it costs to move CPUs between the stages of a run while it goes on."""
    from ebrl.bench.split import measure

    result = measure(quick=quick)
    rates = {name: median(values) for name, values in result["env_steps_per_s"].items()}
    lines = [
        f"a move  {1e3 * result['done_median_s']:.1f} ms median, {1e3 * result['done_max_s']:.1f} ms at most, from the "
        f"decision until every process has its new CPUs ({result['moves']} moves)",
        f"costs   {1e3 * result['cost_median_s']:.0f} ms of throughput, median",
        f"rates   {rates['apart']:,.0f} env steps/s with one CPU for simulation and one for the rest, "
        f"{rates['together']:,.0f} with both for all",
        f"lost    {sum(result['trajectories_dropped'].values())} trajectories, {sum(result['restarts'].values())} "
        f"restarts, {result['mismatches']} read-backs that differ",
        f"machine  {result['machine']['usable_cpus']} usable CPUs, {result['machine']['cpu_model']}",
    ]
    return Answer(result, "\n".join(lines))


def forecast(
    quick: Annotated[
        bool, typer.Option("--quick", help="One short repeat of two of the settings: a minute or two, not ten.")
    ] = False,
    json: Json = False,
) -> Answer:
    """How well forecasts foretell real runs on this machine: four settings, each profiled, forecast and run."""
    from ebrl.bench.forecast import measure
    from ebrl.cli.progress import open_display

    with open_display() as display:
        result = measure(quick=quick, say=display.phase)
    lines = [f"{'trajectories/s':<30} forecast   measured (min … max)      error   others' CPUs"]
    for setting in result["settings"]:
        low, high = min(setting["measured"]), max(setting["measured"])
        others = sum(row["others_cpus"] for row in setting["repeats"]) / len(setting["repeats"])
        measured = f"{setting['measured_median']:.2f} ({low:.2f} … {high:.2f})"
        forecast = setting["forecast_median"]
        lines.append(f"{setting['name']:<30} {forecast:8.2f}   {measured:<22} {setting['error']:+7.1%}   {others:.2f}")
    verdict = "met" if result["met"] else "missed"
    lines.append(f"max_abs_error  {result['max_abs_error']:.3f}, target {result['target']:.2f}: {verdict}")
    lines.append(f"machine  {result['machine']['usable_cpus']} usable CPUs, {result['machine']['cpu_model']}")
    return Answer(result, "\n".join(lines))


def simulators(
    env: Annotated[
        list[str] | None, typer.Option(help="libero, robosuite, metaworld or maniskill; may be repeated.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="One repeat with short episodes: for a look.")] = False,
    json: Json = False,
) -> Answer:
    """Real simulators under the usual lock-step loop, the paper's and ours; and what each habit costs."""
    from ebrl.bench.simulators import SETTINGS, measure
    from ebrl.cli.progress import open_display
    from ebrl.errors import UsageError, nearest

    chosen = env or ["libero"]
    for name in chosen:
        if name not in SETTINGS:
            raise UsageError(
                f"--env {name}: no such simulator; {nearest(name, SETTINGS) or f'known: {list(SETTINGS)}'}"
            )
    with open_display() as display:
        results = [measure(name, quick=quick, say=display.phase) for name in chosen]
    lines: list[str] = []
    for result in results:
        lines.append(f"{result['env']}: env steps/s, {result['repeats']} interleaved repeats")
        for loop, rates in result["env_steps_per_s"].items():
            lines.append(f"  {loop:<38} {median(rates):8.1f} ({min(rates):.1f} … {max(rates):.1f})")
        for switch, row in result["one_switch"].items():
            rates = row["env_steps_per_s"]
            spread = f"({min(rates):.1f} … {max(rates):.1f})"
            lines.append(f"  ebrl, but {switch:<28} {median(rates):8.1f} {spread}, ebrl is {row['ebrl_over']:.2f}×")
        for name in ("speedup_over_lockstep", "ebrl_over_paper"):
            target = result["targets"].get(name)
            verdict = "" if target is None else f", target {target}: {'met' if result[name] >= target else 'missed'}"
            lines.append(f"  {name}  {result[name]:.2f}{verdict}")
    machine = results[0]["machine"]
    lines.append(f"machine  {machine['usable_cpus']} usable CPUs, {machine['cpu_model']}")
    return Answer(results[0] if len(results) == 1 else {"simulators": results}, "\n".join(lines))
