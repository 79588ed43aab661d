"""A run in figures, from its records: rates, busy and idle shares with reasons, staleness.

The same for a forecast and for a real run, so that the two can be laid side by side.
"""

from __future__ import annotations

from statistics import fmean
from typing import Any

from ebrl.report.activity import RESETTING, STEPPING, Activity


def steady_rate(updates: list[tuple[float, int]], start: float) -> float:
    """Trajectories per second between the first update and the last.

    What happens before the first one is filling the pipeline. With a single update it is the rate since
    the start.
    """
    if not updates:
        return 0.0
    if len(updates) == 1:
        return updates[0][1] / max(updates[0][0] - start, 1e-9)
    passed = updates[-1][0] - updates[0][0]
    return sum(size for _, size in updates[1:]) / max(passed, 1e-9)


def figures(activity: Activity) -> dict[str, Any]:
    """Everything that the records of a run say about its speed; call ``activity.finish`` before."""
    start = activity.start or 0.0
    seconds = max(activity.now - start, 1e-9)
    plan = activity.plan
    stepping = sum(lane.seconds.get(STEPPING, 0.0) for lane in activity.envs)
    resets = sum(lane.seconds.get(RESETTING, 0.0) for lane in activity.envs)
    generating = sum(
        sum(s for state, s in lane.seconds.items() if state.endswith("chunks")) for lane in activity.generators
    )
    capacities = {
        "simulation": seconds * plan.num_cpu_sets,
        "generation": seconds * plan.num_generators,
        "training": seconds,
    }
    busy = {
        "simulation": stepping + resets,
        "generation": generating,
        "training": activity.learner.seconds.get("update", 0.0),
    }
    env_s: dict[str, float] = {}
    for lane in activity.envs:
        for state, spent in lane.seconds.items():
            env_s[state] = env_s.get(state, 0.0) + spent
    return {
        "seconds": seconds,
        "updates": len(activity.updates),
        "trajectories_per_s": steady_rate(activity.updates, start),
        "env_steps": activity.env_steps,
        "env_steps_per_s": activity.env_steps / seconds,
        "generation_batch_mean": activity.chunks / max(activity.num_batches, 1),
        "busy": {stage: spent / capacities[stage] for stage, spent in busy.items()},
        "idle": {
            stage: {reason: s / capacities[stage] for reason, s in sorted(reasons.items(), key=lambda item: -item[1])}
            for stage, reasons in activity.idle.items()
        },
        "reset_share_of_simulation": resets / max(stepping + resets, 1e-9),
        "environments": {state: s / (seconds * plan.num_shards) for state, s in sorted(env_s.items())},
    }


def relative_error(forecast: float, measured: list[float]) -> float:
    """(forecast − median measured) / median measured."""
    ordered = sorted(measured)
    middle = len(ordered) // 2
    median = ordered[middle] if len(ordered) % 2 else fmean(ordered[middle - 1 : middle + 1])
    return (forecast - median) / median if median else float("inf")


def as_text(document: dict[str, Any]) -> list[str]:
    """The figures for people."""
    lines = [
        f"speed       {document['trajectories_per_s']:.2f} trajectories/s, "
        f"{document['env_steps_per_s']:,.0f} env steps/s",
        f"            {document['updates']} updates in {document['seconds']:.1f} s, "
        f"{document['generation_batch_mean']:.1f} chunks per generation batch",
    ]
    for stage, share in document["busy"].items():
        reasons = [(reason, s) for reason, s in document["idle"][stage].items() if s >= 0.005]
        waits = ", ".join(f"{reason} {s:.0%}" for reason, s in reasons)
        lines.append(f"{stage:<12}busy {share:4.0%}" + (f"; idle, waiting for: {waits}" if waits else ""))
    return lines
