"""What the real work of an emulated run costs on this machine, measured before any run whose speed counts.

First one process works at a time: env steps, frames, resets, generation. Then everybody, in a short run; where env
steps sleep in two, without and with a barrier after every env step. They say by how much the same work needs more CPU
seconds in company, what control costs, and what an update costs; how fast they are is not looked at.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import fmean, median
from typing import Any

from ebrl.config.load import make_config
from ebrl.config.modes import BASELINES, Mode, in_mode, laid_over
from ebrl.config.schema import RunConfig
from ebrl.engines.local.fleet import LEARNER
from ebrl.envs.toy import Dial
from ebrl.errors import RunError
from ebrl.host.meters import Usage
from ebrl.profiling.rig import GENERATOR, Rig
from ebrl.profiling.ticks import tick_s
from ebrl.registry import load
from ebrl.registry import make_config as make_plugin_config
from ebrl.resources.profile import ControlProfile, line
from ebrl.runtime.loop import run
from ebrl.runtime.management import run_plan
from ebrl.scheduling.commands import Command
from ebrl.scheduling.events import ChunksReady, Event, ResetDone, StepsDone, UpdateDone
from ebrl.scheduling.plan import SchedulerPlan
from ebrl.scheduling.scheduler import Scheduler

ALONE_S, TOGETHER_S = 4.0, 3.0
"""Seconds for env steps alone, and for each short run."""
_FEW_UPDATES = 2
"""That the first short run should see."""
_PATIENCE = 5
"""How many times as long as planned it may go on to see them."""
_CALLS = 5
"""Batches of each size; the first of them warms up."""
_LATE = 1_000_000
"""Numbers of episodes and chunks of the short runs begin there, and again as much later."""

Document = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sleeps:
    """What a simulator that sleeps through its work is told; of one that works, zeros."""

    step_s: float = 0.0
    sigma: float = 0.0
    observe_s: float = 0.0
    reset_s: float = 0.0
    min_steps: int = 0
    max_steps: int = 0
    """Episodes are from ``min_steps`` to ``max_steps`` env steps long."""


def sleeps_of(config: RunConfig) -> Sleeps | None:
    """Of a run's simulator; None where it works."""
    cls, _ = load("env", config.env.name)
    if cls is not Dial:
        return None
    own: Dial.Config = make_plugin_config(cls, config.env.config, "env.config")
    if own.busy:
        return None
    return Sleeps(
        step_s=own.step_s,
        sigma=own.tail_sigma,
        observe_s=own.observe_s,
        reset_s=own.reset_s,
        min_steps=own.min_episode_steps,
        max_steps=own.max_episode_steps,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvCosts:
    """Of one env worker alone."""

    grant_cpu_s: float
    """CPU seconds of a grant, whatever its env steps."""
    step_cpu_s: float
    """Of one env step without a frame; the mean."""
    frame_cpu_s: float
    step_late_s: float = 0.0
    """By which a sleep of an env step lasts longer than was asked for."""
    frame_late_s: float = 0.0
    factors: tuple[tuple[float, ...], ...] = ()
    """By env worker: CPU seconds of one env step after the other, over the mean; none where they are all alike."""
    resets: tuple[float, ...]
    """CPU seconds of each."""
    lengths: tuple[int, ...]
    """Env steps of whole episodes."""
    max_episode_steps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class InCompany:
    """What a short run of everybody said."""

    simulation: float = 1.0
    """CPU seconds of env workers over those of the same work alone."""
    generation: float = 1.0
    control: ControlProfile


@dataclass(frozen=True, slots=True, kw_only=True)
class HostCosts:
    """Of one configuration, in seconds."""

    env: EnvCosts
    batch_cpu_s: float
    """Of a generation batch, whatever its size."""
    chunk_cpu_s: float
    """For each chunk of it."""
    adopt_cpu_s: float
    update_cpu_s: float
    greedy: InCompany
    """Without a barrier."""
    lock_step: InCompany
    """With a barrier after every env step."""
    tick_s: float
    taken_s: float = 0.0
    """What measuring took."""

    def without_work(self) -> HostCosts:
        """The same where nothing needs a CPU and nobody sleeps too long."""
        free = EnvCosts(
            grant_cpu_s=0.0,
            step_cpu_s=0.0,
            frame_cpu_s=0.0,
            resets=(0.0,),
            lengths=self.env.lengths,
            max_episode_steps=self.env.max_episode_steps,
        )
        return replace(self, env=free, batch_cpu_s=0.0, chunk_cpu_s=0.0, adopt_cpu_s=0.0, update_cpu_s=0.0)

    def to_json(self) -> Document:
        """Without the tapes of single env steps."""
        document = asdict(self)
        env = document["env"]
        del env["factors"]
        env["resets"], env["lengths"] = fmean(env["resets"]), fmean(env["lengths"])
        return document


def kinds_of(config: RunConfig) -> tuple[Mode, ...]:
    """Modes whose costs are measured, the others are like one of them: a real frame costs more where it is one of many,
    and where its process is bound to no CPU; asleep it does not."""
    return ("ebrl",) if sleeps_of(config) else ("ebrl", "paper", "async")


def kind_of(mode: Mode, kinds: Collection[Mode]) -> Mode:
    """Which of them a mode is like."""
    if len(kinds) == 1:
        return "ebrl"
    return "async" if mode in BASELINES else mode


def measure_costs(document: Mapping[str, Any], mode: Mode = "ebrl") -> HostCosts:
    """Start the processes of a configuration, and count what they need.

    Args:
        document: the configuration, without a mode.
        mode: whose switches they have.

    Raises:
        RunError: a process failed.
    """
    start = time.monotonic()
    sleeps = sleeps_of(make_config(document))
    alike = laid_over(document, {"env": {"config": {"tail_sigma": 0.0}}}) if sleeps else dict(document)
    config = make_config(in_mode(mode, alike))
    plans = [run_plan(make_config(in_mode(one, alike))) for one in ((mode, "async") if sleeps else (mode,))]
    with tempfile.TemporaryDirectory(prefix="ebrl-bench-modes-costs-") as directory:
        rig = Rig(config, Path(directory))
        try:
            rig.start()
            env = play_alone(rig, sleeps, seconds=ALONE_S)
            batch_s, chunk_s = _generation(rig)
            adopt_s = median(rig.adopt().cpu_s for _ in range(_CALLS))
            latency_s = sorted(rig.latencies)[len(rig.latencies) // 5] / 2
            companies = []
            for number, plan in enumerate(plans):
                company = _Company(plan, env, batch_s, chunk_s, updates=0 if number else _FEW_UPDATES)
                company.run(rig, (number + 1) * _LATE)
                companies.append(company)
        finally:
            rig.engine.close()
    return HostCosts(
        env=env,
        batch_cpu_s=batch_s,
        chunk_cpu_s=chunk_s,
        adopt_cpu_s=adopt_s,
        update_cpu_s=companies[0].update_s(),
        greedy=companies[0].figures(latency_s),
        lock_step=companies[-1].figures(latency_s),
        tick_s=tick_s(rig.plan.nodes[0][-1]),
        taken_s=time.monotonic() - start,
    )


# One process at a time.


@dataclass
class Grants:
    """Samples of three kinds of grants: CPU seconds, and seconds beyond those that were to be slept."""

    single: list[tuple[float, float]] = field(default_factory=list)
    """One env step without a frame."""
    last: list[tuple[float, float]] = field(default_factory=list)
    """One env step with a frame."""
    whole: list[tuple[float, float]] = field(default_factory=list)
    """A chunk with one frame at its end."""

    def parts(self, chunk_len: int, middle: Callable[[list[float]], float]) -> tuple[Parts, Parts]:
        """Of CPU seconds, and of seconds beyond sleep; ``middle`` makes one number of many."""

        def parts(which: int) -> Parts:
            single_s, last_s, whole_s = (
                middle([pair[which] for pair in kind]) for kind in (self.single, self.last, self.whole)
            )
            return parts_of(single_s, last_s, whole_s, chunk_len)

        return parts(0), parts(1)


@dataclass(frozen=True, slots=True)
class Parts:
    """What a grant consists of."""

    grant_s: float
    step_s: float
    frame_s: float


def parts_of(single_s: float, last_s: float, whole_s: float, chunk_len: int) -> Parts:
    """Of a grant of one env step, of one with a frame, and of one of a whole chunk with a frame at its end."""
    step_s = max(0.0, (whole_s - last_s) / max(1, chunk_len - 1))
    return Parts(max(0.0, single_s - step_s), step_s, max(0.0, last_s - single_s))


def play_alone(rig: Rig, sleeps: Sleeps | None, *, seconds: float) -> EnvCosts:
    """Play episodes, one env worker after the other, until time is over; one at least."""
    grants = Grants()
    lengths: list[int] = []
    resets: list[float] = []
    tapes: list[list[float]] = [[] for _ in range(rig.plan.num_shards)]
    until, shard = time.monotonic() + seconds, 0
    while not lengths or time.monotonic() < until:
        resets.append(rig.reset(shard, [0]).cpu_s)
        lengths.append(_episode(rig, shard, sleeps or Sleeps(), grants, tapes[shard]))
        shard = (shard + 1) % rig.plan.num_shards
    if not (grants.single and grants.last and grants.whole):
        raise RunError(f"{rig.config.env.name}: episodes of {lengths} env steps tell nothing of a chunk")
    cpu, beyond = grants.parts(rig.plan.chunk_len, median if sleeps else fmean)
    mean_s = fmean(cpu_s for cpu_s, _ in grants.single)
    return EnvCosts(
        grant_cpu_s=cpu.grant_s,
        step_cpu_s=cpu.step_s,
        frame_cpu_s=cpu.frame_s,
        step_late_s=max(0.0, beyond.step_s - cpu.step_s) if sleeps else 0.0,
        frame_late_s=max(0.0, beyond.frame_s - cpu.frame_s) if sleeps and sleeps.observe_s else 0.0,
        factors=() if sleeps else tuple(tuple(one / mean_s for one in tape) for tape in tapes if tape),
        resets=tuple(resets),
        lengths=tuple(lengths),
        max_episode_steps=rig.max_episode_steps,
    )


def _episode(rig: Rig, shard: int, sleeps: Sleeps, grants: Grants, tape: list[float]) -> int:
    """Every other chunk env step by env step; returns the length of the episode."""
    length, chunk = rig.plan.chunk_len, 0
    while True:
        rig.generate([shard], chunk=chunk)
        count, first = (1 if chunk % 2 else length), 0
        while first < length:
            done, work, own_s = rig.step(shard, chunk=chunk, first=first, count=count)
            first += done.num_steps
            frames = int(first == length)
            sample = work.cpu_s, own_s - done.num_steps * sleeps.step_s - frames * sleeps.observe_s
            if done.num_steps < count:
                pass  # the episode ended before its chunk did
            elif count > 1:
                grants.whole.append(sample)
            elif frames:
                grants.last.append(sample)
            else:
                grants.single.append(sample)
                tape.append(work.cpu_s)
            if done.episode_ends:
                return done.episode_ends[0].num_steps
        chunk += 1


def _generation(rig: Rig) -> tuple[float, float]:
    """CPU seconds of a batch whatever its size, and for each chunk."""
    num_shards = rig.plan.num_shards
    points = []
    for size in sorted({1, -(-num_shards // 2), num_shards}):
        calls = [rig.generate(list(range(size)), chunk=0).work.cpu_s for _ in range(_CALLS)]
        points.append((float(size), median(calls[1:])))
    return line(points)


# Everybody.


class _Company:
    """One short run, and what was counted."""

    def __init__(self, plan: SchedulerPlan, env: EnvCosts, batch_s: float, chunk_s: float, *, updates: int) -> None:
        self._plan = plan
        self._env = env
        self._batch_s, self._chunk_s = batch_s, chunk_s
        self._wanted = updates
        self._updates = 0
        self._alone = {"env": 0.0, "generator": 0.0}
        """CPU seconds that the same work needs alone."""
        self._used: dict[str, float] = {}
        self._events: dict[str, list[float]] = {}
        self._before = (0.0, "")

    def run(self, rig: Rig, first: int) -> None:
        """Let everybody work; ``first`` is the number of the first episode and chunk."""
        plan = replace(
            self._plan,
            num_generators=rig.plan.num_generators,
            split=None,
            lend=False,
            first_version=rig.version,
            first_episode=first,
            first_serial=first,
            max_updates=10**9,
        )
        scheduler = Scheduler(plan)
        begun, asked = time.monotonic(), False

        def record(now: float, event: Event, commands: list[Command]) -> None:
            nonlocal asked
            self._count(event)
            if isinstance(event, UpdateDone):
                rig.version = event.policy_version
            late_s = time.monotonic() - begun - TOGETHER_S
            enough = self._updates >= self._wanted or late_s > _PATIENCE * TOGETHER_S
            if late_s > 0 and enough and not asked:
                asked = True
                rig.engine.request_stop("measured")

        rig.engine.begin(evaluation=False)
        before = {key: rig.usage(key) for key in rig.everybody()}
        self._before = (time.process_time(), "")
        run(scheduler.handle, rig.engine, record)
        for key in rig.everybody():
            used: Usage = rig.usage(key).since(before[key])
            self._used[key.kind] = self._used.get(key.kind, 0.0) + used.run_s

    def _count(self, event: Event) -> None:
        since, kind = self._before
        now = time.process_time()
        if kind:
            self._events.setdefault(kind, []).append(now - since)
        env = self._env
        match event:
            case StepsDone():
                cpu_s = env.grant_cpu_s + event.num_steps * env.step_cpu_s + event.chunk_over * env.frame_cpu_s
                self._alone["env"] += cpu_s
            case ResetDone():
                self._alone["env"] += fmean(env.resets)
            case ChunksReady():
                self._alone["generator"] += self._batch_s + self._chunk_s * len(event.shards)
            case UpdateDone():
                self._updates += 1
        self._before = (time.process_time(), type(event).__name__)

    def update_s(self) -> float:
        """CPU seconds of an update."""
        return self._used[LEARNER.kind] / max(1, self._updates)

    def figures(self, latency_s: float) -> InCompany:
        """What is needed of it; an event's cost is that of its commands too."""
        return InCompany(
            simulation=_over(self._used["env"], self._alone["env"]),
            generation=_over(self._used[GENERATOR.kind], self._alone["generator"]),
            control=ControlProfile(
                event_s=tuple((kind, fmean(costs)) for kind, costs in sorted(self._events.items())),
                command_s=0.0,
                latency_s=latency_s,
            ),
        )


def _over(used_s: float, alone_s: float) -> float:
    return used_s / alone_s if alone_s > 0 else 1.0
