"""One configuration of the matrix in one execution mode, on paper: the real control plane on the virtual engine.

Whatever differs between two modes is a switch; costs, machine and control are the same. A trajectory is an episode, as
long as the mode's habits make it, where the algorithm compares episodes; else it is a segment of as many chunks as an
episode has in the mean. Rates count episodes in both cases.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from ebrl.bench.matrix import Configuration
from ebrl.config.modes import MODES, Document, Mode
from ebrl.engines.virtual.engine import VirtualEngine
from ebrl.engines.virtual.workload import WorkloadCosts
from ebrl.ids import CpuId
from ebrl.report.activity import Activity
from ebrl.report.forecast import figures
from ebrl.resources.allocation import largest_batch
from ebrl.resources.allocator import Candidate
from ebrl.resources.pool import Infeasible
from ebrl.resources.uses import GpuUse, Habits, allocation_for, segment_like_episode, turns_s, with_habits
from ebrl.resources.workload import Workload
from ebrl.scheduling.management import split_of_sms
from ebrl.scheduling.plan import SchedulerPlan
from ebrl.scheduling.scheduler import Scheduler

UPDATES = 3
"""In what is measured; one less with slack 0, where every round is like the first.

Before them go as many as data may be old, and one: by then the queue in front of the learner is as long as it gets,
if data comes twice as fast as it trains.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Switches:
    """What modes differ in."""

    step_barrier: bool = False
    env_groups: int = 0
    round_robin: bool = False
    observe_every_step: bool = False
    run_to_horizon: bool = False
    slack: int = 1
    gpu_use: GpuUse = "best"
    lend: bool = True
    whole_episodes: bool = False
    """Trajectories are episodes, although the algorithm would take segments."""
    trains_on_padding: bool = False

    @property
    def habits(self) -> Habits:
        """Those of simulation, and of training on what was simulated too long."""
        return Habits(
            observe_every_step=self.observe_every_step,
            run_to_horizon=self.run_to_horizon,
            trains_on_padding=self.trains_on_padding,
        )


def switches_of(mode: Mode | Document) -> Switches:
    """The switches of a mode, or of a document like one."""
    document = MODES[mode] if isinstance(mode, str) else mode
    simulation, generation = document.get("simulation", {}), document.get("generation", {})
    resources = document.get("resources", {})
    return Switches(
        step_barrier=simulation.get("step_barrier", False),
        env_groups=generation.get("env_groups", 0),
        round_robin=generation.get("round_robin", False),
        observe_every_step=simulation.get("observe") == "every_step",
        run_to_horizon=simulation.get("finished_episodes") == "run_to_horizon",
        slack=document.get("training", {}).get("slack", 1),
        gpu_use=resources.get("gpu_use", "best"),
        lend=resources.get("lend", True),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """What became of it."""

    trajectories_per_s: float
    """Episodes per second; of segments, how many episodes their chunks would be."""
    predicted: float
    """By the roofline, in the same unit."""
    binding: str
    idle: dict[str, dict[str, float]]
    """Stage → reason → share of its time."""
    busy: dict[str, float]
    allocation: dict[str, Any]
    events: int
    idle_s: dict[str, dict[str, float]]
    """Stage → reason → seconds, summed over the stage's CPUs, generators or learner, from the start on."""
    drop_share: float
    """Of all trajectories that were trained or dropped; the rate counts those that were trained."""
    staleness_mean: float
    """Versions, over the trajectories of the updates that are measured."""
    staleness_max: int


def play(configuration: Configuration, switches: Switches, *, seed: int) -> Played | Infeasible:
    """One run, some updates long."""
    workload = workload_of(configuration, switches)
    found = allocation_for(switches.gpu_use, workload, configuration.shape, env_groups=switches.env_groups)
    if isinstance(found, Infeasible):
        return found
    return _run(configuration, switches, workload, found, seed)


def has_segments(configuration: Configuration, switches: Switches) -> bool:
    """Whether trajectories are segments, not episodes."""
    return not (configuration.whole_episodes or switches.whole_episodes)


def workload_of(configuration: Configuration, switches: Switches) -> Workload:
    """What a run costs with the habits of its mode."""
    given = replace(configuration.workload, slack=switches.slack)
    chunks = segment_like_episode(given, switches.habits)[0] if has_segments(configuration, switches) else None
    return with_habits(given, switches.habits, segment_chunks=chunks)


def _run(configuration: Configuration, switches: Switches, workload: Workload, chosen: Candidate, seed: int) -> Played:
    one, shape = chosen.allocation, configuration.shape
    workload = replace(workload, update_s=workload.update_s + turns_s(switches.gpu_use, workload, shape, one))
    segments = has_segments(configuration, switches)
    episodes = segment_like_episode(workload, switches.habits)[1] if segments else 1.0
    warm_up, updates = switches.slack + 1, UPDATES if switches.slack else UPDATES - 1
    cpus = tuple(CpuId(cpu) for cpu in range(one.simulation_cpus))
    generators = one.num_generators * shape.num_nodes
    plan = SchedulerPlan(
        num_shards=workload.num_envs,
        nodes=(cpus,) * shape.num_nodes,
        num_generators=generators,
        chunk_len=workload.chunk_len,
        trajectory_chunks=round(workload.trajectory_chunks) if segments else 1,
        whole_episodes=not segments,
        siblings=configuration.siblings,
        step_barrier=switches.step_barrier,
        env_groups=min(switches.env_groups, workload.num_envs),
        round_robin=switches.round_robin,
        min_generation_batch=one.min_batch,
        max_generation_batch=largest_batch(one.max_batch, switches.env_groups, workload.num_envs, generators),
        batch=workload.batch_trajectories,
        slack=workload.slack,
        max_updates=warm_up + updates,
        split=split_of_sms(one, simulation=cpus, host=cpus),
        lend=switches.lend and one.gpu_sharing == "split",
    )
    now = 0.0
    simulation = workload.simulation
    costs = WorkloadCosts(
        workload,
        shape,
        one,
        clock=lambda: now,
        episode_steps=round(switches.habits.episode_steps(workload)),
        env_step_sigma=simulation.env_step_sd_s / (simulation.env_step_s + simulation.observe_s),
        habits=switches.habits,
    )
    engine = VirtualEngine(
        num_shards=plan.num_shards, chunk_len=plan.chunk_len, num_generators=generators, costs=costs, seed=seed
    )
    scheduler, activity = Scheduler(plan), Activity(plan)
    learner = scheduler.learner
    early: dict[int, int] = {}
    while learner.policy_version < warm_up + updates:
        event, now = engine.next_event()
        commands = scheduler.handle(event, now)
        activity.see(now, event, commands)
        for command in commands:
            engine.execute(command)
        if not early and learner.policy_version == warm_up:
            early = dict(learner.staleness_counts)
    activity.finish()
    result = figures(activity)
    times = [time for time, _ in activity.updates]
    rate = updates * plan.batch * episodes / (times[-1] - times[warm_up - 1])
    after = {age: count - early.get(age, 0) for age, count in learner.staleness_counts.items()}
    counts = {age: count for age, count in after.items() if count}
    return Played(
        trajectories_per_s=rate,
        predicted=chosen.prediction.trajectories_per_s * episodes,
        binding=chosen.prediction.binding,
        idle=result["idle"],
        busy=result["busy"],
        allocation=asdict(one),
        events=engine.num_events,
        idle_s=activity.idle,
        drop_share=_drop_share(scheduler),
        staleness_mean=sum(age * count for age, count in counts.items()) / sum(counts.values()),
        staleness_max=max(counts),
    )


def _drop_share(scheduler: Scheduler) -> float:
    ledger = scheduler.gate.ledger
    dropped = sum(ledger.dropped.values())
    return dropped / (dropped + ledger.trained)
