"""A run before it starts: the real control plane on the virtual engine, with measured costs."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any, Literal

from ebrl.config.schema import RunConfig
from ebrl.engines.virtual.costs import ProfiledCosts
from ebrl.engines.virtual.engine import VirtualEngine
from ebrl.engines.virtual.shared import SharedEngine
from ebrl.errors import UsageError
from ebrl.host.probe import usable_cpus
from ebrl.plan.plan import make_plan
from ebrl.profiling.sections import sections_of
from ebrl.records.eventlog import EventLog, event_file, plan_file
from ebrl.records.schema import plan_to_json
from ebrl.records.writer import write_json
from ebrl.report.activity import Activity
from ebrl.report.forecast import figures
from ebrl.resources.profile import Profile, alpha_beta, episode_lengths
from ebrl.resources.queueing import StageTimes, roofline
from ebrl.runtime.loop import run
from ebrl.scheduling.commands import Command
from ebrl.scheduling.events import Event
from ebrl.scheduling.plan import SchedulerPlan
from ebrl.scheduling.scheduler import Scheduler

Sharing = Literal["shared", "exclusive"]
"""``shared``: all processes share the CPUs. ``exclusive``: each stage has its own, and control costs nothing."""

Background = tuple[tuple[float, int], ...]
"""Since when (seconds) how many foreign tasks want a CPU all the time."""


def check_fits(profile: Profile, config: RunConfig) -> None:
    """Refuse a profile of another run.

    Raises:
        UsageError: environment, policy, algorithm, training batch or devices differ.
    """
    for section, asked in sections_of(config).items():
        measured = profile.sections.get(section)
        if measured != asked:
            raise UsageError(f"the profile was taken with {section} = {measured}, the run has {asked}; profile again")


def forecast(
    config: RunConfig,
    profile: Profile,
    *,
    updates: int,
    sharing: Sharing = "shared",
    run_dir: Path | None = None,
    background: Background = (),
    seed: int | None = None,
) -> dict[str, Any]:
    """Let a run happen on paper.

    Args:
        config: the run.
        profile: what its work costs.
        updates: how many updates to forecast.
        sharing: whether the stages share the CPUs.
        run_dir: takes the event log and the plan, as of a real run; None keeps nothing.
        background: since when how many foreign tasks want a CPU too; repeated.
        seed: of the draws; None takes the run's.

    Raises:
        UsageError: the profile is of another run.
    """
    check_fits(profile, config)
    cpus = usable_cpus()
    plan = replace(make_plan(config, cpus), max_updates=updates, max_env_steps=10**12)
    return forecast_plan(
        plan,
        profile,
        sharing=sharing,
        run_dir=run_dir,
        background=background,
        seed=config.run.seed if seed is None else seed,
        learner_weight=1.25**-config.training.nice if profile.nice_works else 1.0,
    )


def forecast_plan(
    plan: SchedulerPlan,
    profile: Profile,
    *,
    sharing: Sharing,
    run_dir: Path | None = None,
    background: Background = (),
    seed: int = 0,
    learner_weight: float = 1.0,
) -> dict[str, Any]:
    """The same for a plan of any machine; see ``forecast``.

    Raises:
        UsageError: the stages of a plan of several nodes are to share CPUs.
    """
    if sharing == "shared" and len(plan.nodes) > 1:
        raise UsageError(
            f"the plan has {len(plan.nodes)} nodes, and shared CPUs are modelled on one only; "
            "forecast with --cpu-sharing exclusive"
        )
    start = time.perf_counter()
    scheduler = Scheduler(plan)
    engine = _engine(plan, profile, sharing, background=background, seed=seed, learner_weight=learner_weight)
    activity = Activity(plan)
    log = None
    if run_dir is not None:
        document = {"scheduler": plan_to_json(plan), "records_level": "steps", "engine": "virtual"}
        write_json(run_dir / plan_file(""), document)
        log = EventLog(run_dir / event_file(""), level="steps")

    def record(now: float, event: Event, commands: list[Command]) -> None:
        activity.see(now, event, commands)
        if log is not None:
            log.write(now, event, commands)

    try:
        run(scheduler.handle, engine, record)
    finally:
        if log is not None:
            log.close()
    activity.finish()
    result = {"cpu_sharing": sharing, **figures(activity)}
    counts = scheduler.learner.staleness_counts
    result["staleness_counts"] = {str(s): n for s, n in sorted(counts.items())}
    result["staleness_bound"] = scheduler.gate.bound
    result["roofline"] = roofline_of(plan, profile, sharing)
    if isinstance(engine, SharedEngine):
        total = max(engine.host.now, 1e-9) * len(plan.nodes[0])
        result["host_cpu_share"] = {kind: s / total for kind, s in sorted(engine.host.busy_s.items())}
    took_s = time.perf_counter() - start
    result |= {"events": engine.num_events, "forecast_took_s": took_s, "events_per_s": engine.num_events / took_s}
    return result


def _engine(
    plan: SchedulerPlan, profile: Profile, sharing: Sharing, *, background: Background, seed: int, learner_weight: float
) -> VirtualEngine:
    costs = ProfiledCosts(profile, num_shards=plan.num_shards, envs_per_shard=plan.envs_per_shard)
    if sharing == "shared":
        return SharedEngine(
            num_shards=plan.num_shards,
            chunk_len=plan.chunk_len,
            envs_per_shard=plan.envs_per_shard,
            num_generators=plan.num_generators,
            costs=costs,
            control=profile.control,
            cpus=plan.nodes[0],
            tick_s=profile.tick_s,
            learner_weight=learner_weight,
            background=background,
            seed=seed,
            first_version=plan.first_version,
        )
    return VirtualEngine(
        num_shards=plan.num_shards,
        chunk_len=plan.chunk_len,
        envs_per_shard=plan.envs_per_shard,
        num_generators=plan.num_generators,
        costs=costs,
        seed=seed,
        first_version=plan.first_version,
    )


def roofline_of(plan: SchedulerPlan, profile: Profile, sharing: Sharing) -> dict[str, Any]:
    """Upper limits of the run from its stage times (formulas B.2 to B.5).

    What circulates are shards: a chunk of one is a chunk of each of its environments, one after the other.
    What is returned counts single environments. That siblings wait for each other is not known here.
    """
    simulation, generation, width = profile.simulation, profile.generation, plan.envs_per_shard
    rates = [(g.cpu_s * simulation.corun + g.other_s) / g.num_steps for tape in simulation.tapes for g in tape]
    reset_s = fmean(w.cpu_s * simulation.corun + w.other_s for w in simulation.resets)
    lengths = [length for length, _ in episode_lengths(simulation)]
    episode_chunks = fmean(math.ceil(length / plan.chunk_len) for length in lengths)
    chunk_steps = fmean(lengths) / episode_chunks
    chunk_s = width * (fmean(rates) * chunk_steps + reset_s / episode_chunks)
    trajectory_chunks = episode_chunks if plan.whole_episodes else plan.trajectory_chunks
    alpha_s, beta_s = alpha_beta(generation)
    alpha_s, beta_s = alpha_s * generation.corun, beta_s * generation.corun * width
    update_s = fmean(w.cpu_s * profile.training.corun + w.other_s for w in profile.training.updates)
    batch = plan.batch // width
    per_chunk_update_s = update_s / (batch * trajectory_chunks)
    size = max(plan.min_generation_batch, plan.num_shards / max(plan.env_groups, 1) if plan.env_groups else 1)
    event_s = dict(profile.control.event_s)
    control_s = event_s.get("StepsDone", 0.0) + event_s.get("ChunksReady", 0.0) / size + 2 * profile.control.command_s
    cpu_share = sum(g.cpu_s for tape in simulation.tapes for g in tape)
    cpu_share /= max(sum(g.cpu_s + g.other_s for tape in simulation.tapes for g in tape), 1e-12)
    result = roofline(
        StageTimes(
            num_envs=plan.num_shards,
            num_cpus=plan.num_cpu_sets,
            num_generators=plan.num_generators,
            max_batch=plan.max_generation_batch,
            chunk_s=chunk_s,
            chunk_sd_s=pstdev(rates) * plan.chunk_len * math.sqrt(width),
            alpha_s=alpha_s,
            beta_s=beta_s,
            update_s=update_s + sum(generation.adopt),
            batch=batch,
            slack=plan.slack,
            trajectory_chunks=trajectory_chunks,
            env_groups=plan.env_groups,
            host_cpus=sum(map(len, plan.nodes)) if sharing == "shared" else 0,
            host_chunk_s=chunk_s * cpu_share + alpha_s / size + beta_s + per_chunk_update_s + control_s,
        )
    )
    return {
        "binding": result.binding,
        "trajectories_per_s": result.trajectories_per_s * width,
        "limits": {name: rate * width for name, rate in result.limits.items()},
        "network_chunks_per_s": {
            "lower": result.network.lower * width,
            "balanced_lower": result.network.balanced_lower * width,
            "balanced_upper": result.network.balanced_upper * width,
            "upper": result.network.upper * width,
        },
        "chunk_s": chunk_s / width,
        "generation_alpha_s": alpha_s,
        "generation_beta_s": beta_s / width,
        "update_s": update_s,
    }
