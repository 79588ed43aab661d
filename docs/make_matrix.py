"""Writes the tables in ``docs/matrix.md`` anew: what the configurations are, and what ``ebrl plan`` makes of them.

With ``--check`` it only says whether they are up to date.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

from ebrl.bench.matrix import Configuration, configurations
from ebrl.plan.hardware import load_hardware
from ebrl.plan.planner import ResourcePlan, figure, lowest_limit, plan_resources

PAGE = Path(__file__).with_name("matrix.md")

_WAYS = {"split": "by SMs", "turns": "by time", "whole": "whole GPUs"}


def row(one: Configuration) -> tuple[str, ...]:
    """What it is."""
    workload, shape = one.workload, one.shape
    gpus = f"{shape.num_nodes * shape.num_gpus} × {workload.device}, {shape.num_nodes * shape.num_cpus} CPUs"
    algorithm = f"GRPO, groups of {one.siblings}" if one.whole_episodes else "PPO"
    steps = f"{workload.simulation.horizon_steps}, {workload.chunk_len}"
    counts = str(workload.num_envs), str(workload.batch_trajectories), steps, str(workload.epochs)
    return f"`{one.name}`", gpus, algorithm, *counts, one.about


def outcome(one: Configuration) -> tuple[str, ...]:
    """What binds."""
    plan = plan_resources(one.workload, load_hardware(one.machine))
    assert isinstance(plan, ResourcePlan), f"{one.name}: {plan}"
    best = plan.allocation
    ways = {best.gpu_sharing} | {rival.allocation.gpu_sharing for rival in plan.rivals}
    own = _WAYS[best.gpu_sharing]
    if best.gpu_sharing == "whole":
        own += f", {best.num_generators} + {best.num_learners}{' a node' if one.shape.num_nodes > 1 else ''}"
    rate = figure(plan.prediction.trajectories_per_s)
    fitting = ", ".join(words for way, words in _WAYS.items() if way in ways)
    return f"`{one.name}`", rate, lowest_limit(plan.prediction), own, fitting


def page(text: str) -> str:
    """The page with every table as it is now."""
    for name, make in {"configurations": row, "what binds": outcome}.items():
        text = _with_table(text, name, make)
    return text


def _with_table(text: str, name: str, make: Callable[[Configuration], tuple[str, ...]]) -> str:
    """Rows below the head of the table that stands between two comments."""
    block = re.compile(rf"(<!-- {name} -->\n[^\n]*\n[^\n]*\n).*?(<!-- end -->)", re.DOTALL)
    rows = "".join(f"| {' | '.join(make(one))} |\n" for one in configurations())
    return block.sub(lambda found: found[1] + rows + found[2], text)


def main(arguments: list[str]) -> int:
    """Write the page, or compare it."""
    old = PAGE.read_text(encoding="utf-8")
    new = page(old)
    if "--check" not in arguments:
        PAGE.write_text(new, encoding="utf-8")
        return 0
    if old == new:
        return 0
    print(f"{PAGE} is not what ebrl plan makes of the matrix; run: make docs", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
