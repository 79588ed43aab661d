"""A picture of how a run learned."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ebrl.records.writer import read_metrics


def draw_learning_curve(run_dir: Path, summary: dict[str, Any]) -> Path:
    """Draw success against env steps into ``learning_curve.png``; returns its path."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib.figure import Figure

    rows = read_metrics(run_dir)
    steps = [row["env_steps"] / 1000 for row in rows]
    figure = Figure(figsize=(9, 6.5), layout="constrained", dpi=110)
    top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=[3, 1])
    top.plot(steps, [row["rollout/success_rate"] for row in rows], color="#0072B2", label="training, last 200 episodes")
    ends = [(0.0, summary.get("success_before")), (steps[-1] if steps else 0.0, summary.get("success_after"))]
    marks = [(x, y) for x, y in ends if y is not None]
    if marks:
        label = f"evaluation, {summary['evaluation_episodes']} unseen initial states"
        top.plot(*zip(*marks, strict=True), "o", color="#D55E00", markersize=9, label=label)
        for (x, y), left in zip(marks, (False, True), strict=False):
            place = {"xytext": (-10, -14), "ha": "right"} if left else {"xytext": (8, -14)}
            top.annotate(f"{y:.2f}", (x, y), textcoords="offset points", color="#D55E00", **place)
    top.set(
        ylim=(-0.03, 1.03),
        ylabel="success rate",
        title=f"{summary['env']} · {summary['policy']} · seed {summary['seed']}",
    )
    top.grid(alpha=0.3)
    top.legend(loc="lower right")
    bottom.plot(steps, [row["simulation/env_steps_per_s"] for row in rows], color="#009E73")
    bottom.set(xlabel="env steps (thousands)", ylabel="env steps/s", ylim=(0, None))
    bottom.grid(alpha=0.3)
    path = run_dir / "learning_curve.png"
    figure.savefig(path)
    return path
