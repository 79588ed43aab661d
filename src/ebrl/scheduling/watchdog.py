"""Who waits for whom, in words, when nothing has moved for a while."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from ebrl.ids import PolicyVersion
from ebrl.scheduling.generation import ChunkLevel
from ebrl.scheduling.quotas import Member
from ebrl.scheduling.shards import StepLevel
from ebrl.scheduling.staleness import StalenessGate
from ebrl.scheduling.transitions import Down, Generating, Idle, NeedsReset, Phase, Ready, Resetting, Running, Waiting
from ebrl.scheduling.updates import Learner

_REASONS: dict[type[Phase], str] = {
    Down: "for an env worker to start",
    NeedsReset: "for a CPU to reset on",
    Resetting: "for a reset to end",
    Idle: "for a trajectory slot",
    Waiting: "for a chunk",
    Generating: "for a generator to finish",
    Ready: "for a CPU to step on",
    Running: "for env steps to end",
}


def who_waits(
    step_level: StepLevel,
    chunk_level: ChunkLevel,
    gate: StalenessGate,
    learner: Learner,
    owing: Iterable[Member] = (),
) -> list[str]:
    """One sentence for each thing that is waited for; ``owing`` has still to say that it has a new quota."""
    lines = [*_shards(step_level), *_generators(chunk_level, gate.live_version)]
    if not learner.up:
        lines.append("the learner is being started")
    elif learner.batch is not None:
        lines.append(f"the learner trains version {learner.policy_version + 1}")
    elif gate.has_batch:
        lines.append("the learner waits for SMs that generators have to give back")
    else:
        missing, batch = (gate.batch - gate.num_staged) * gate.unit, gate.batch * gate.unit
        lines.append(f"the learner waits for {missing} more of {batch} trajectories")
    lines += [f"{member} has still to take its new CPUs, threads or SMs" for member in owing]
    if not gate.may_admit:
        lines.append(
            f"all {gate.capacity * gate.unit} trajectory slots are held: {gate.num_held_untrained} by trajectories on "
            f"their way, {gate.num_held * gate.unit - gate.num_held_untrained} until weights newer than version "
            f"{gate.live_version} are live"
        )
    return lines


def _shards(step_level: StepLevel) -> list[str]:
    counts = Counter(type(phase) for phase in step_level.phases)
    lines = []
    for kind, reason in _REASONS.items():
        if counts[kind]:
            who = [shard for shard, phase in enumerate(step_level.phases) if type(phase) is kind]
            some = ", ".join(map(str, who[:8])) + (f" and {len(who) - 8} more" if len(who) > 8 else "")
            lines.append(f"waiting {reason}: shards {some}")
    return lines


def _generators(chunk_level: ChunkLevel, live: PolicyVersion) -> list[str]:
    lines = []
    for index, generator in enumerate(chunk_level.generators):
        if not generator.up:
            lines.append(f"generator {index} is being started")
        elif generator.busy_with:
            lines.append(f"generator {index} makes chunks for {len(generator.busy_with)} shards")
        elif generator.policy_version < live:
            lines.append(f"generator {index} must adopt version {live}, it holds {generator.policy_version}")
        else:
            lines.append(f"generator {index} waits for shards")
    return lines
