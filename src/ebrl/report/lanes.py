"""Numbers and names of the lanes of a picture or trace.

A lane is an env worker (``env``), a CPU of the simulation stage (``cpu``), a ``generator`` or the ``learner``.
"""

from __future__ import annotations

from ebrl.scheduling.plan import SchedulerPlan


def cpu_lane(plan: SchedulerPlan, node: int, cpu: int) -> int:
    """Number of a CPU's lane: on one node its own, on several one that no other CPU has."""
    return node * (1 + max(max(cpus) for cpus in plan.nodes)) + cpu


def cpu_name(plan: SchedulerPlan, lane: int) -> str:
    """The CPU of a lane, for people."""
    node, cpu = divmod(lane, cpu_lane(plan, 1, 0))
    return f"node {node} cpu {cpu}" if len(plan.nodes) > 1 else f"cpu {cpu}"


def env_name(plan: SchedulerPlan, shard: int) -> str:
    """The environments of a shard, for people."""
    first, count = shard * plan.envs_per_shard, plan.envs_per_shard
    return f"env {first}" if count == 1 else f"envs {first}–{first + count - 1}"


def lane_name(plan: SchedulerPlan, kind: str, index: int) -> str:
    """A lane, for people."""
    match kind:
        case "env":
            return env_name(plan, index)
        case "cpu":
            return cpu_name(plan, index)
        case "learner":
            return kind
        case _:
            return f"{kind} {index}"
