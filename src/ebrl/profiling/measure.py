"""Take the profile of a run: each stage alone, then briefly all of them together.

Alone means that one process works while all others sleep, so a stage's time is its own. What can
only be seen in company is measured in a short run of the real thing: what an event costs the main
process, and by how much the same work needs more CPU when caches and memory are shared (``corun``).
Times are CPU seconds as the kernel counts them, so that a busy machine does not spoil them.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean

from ebrl.config.schema import RunConfig
from ebrl.host.meters import nice_works
from ebrl.host.probe import machine
from ebrl.ids import CpuId
from ebrl.profiling.company import together
from ebrl.profiling.rig import Rig
from ebrl.profiling.sections import sections_of
from ebrl.profiling.ticks import tick_s
from ebrl.resources.profile import (
    BatchCost,
    ControlProfile,
    GenerationProfile,
    Grant,
    PlayedEpisode,
    Profile,
    SimulationProfile,
    TrainingProfile,
    Work,
    lag_correlation,
    summarise,
)

ALONE_SHARE, TRAINING_SHARE, TOGETHER_SHARE = 0.4, 0.2, 0.4
"""Of the time that measuring may take; starting the processes comes on top."""
_MIN_UPDATES = 2
_STEP_BY_STEP_EVERY = 4
"""One round in so many is stepped step by step, for the statistics of single env steps."""

Say = Callable[[str], None]


def take_profile(config: RunConfig, *, seconds: float, say: Say = lambda text: None) -> Profile:
    """Measure what a run costs on this machine.

    Args:
        config: the run; it is measured from the policy's own weights, without warm start.
        seconds: about how long to measure, besides starting processes and finishing what was begun.
        say: is told how it goes.

    Raises:
        RunError: a process failed.
    """
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="ebrl-profile-") as name:
        rig = Rig(config, Path(name))
        try:
            say(f"starting {config.simulation.num_envs} environments, generator and learner")
            started_s = rig.start()
            say(f"processes started in {started_s:.1f} s; simulation and generation, one process at a time")
            alone = _Alone(rig)
            alone.play(until=time.monotonic() + ALONE_SHARE * seconds)
            say(f"{alone.num_grants} grants, {len(alone.resets)} resets; training")
            updates = _updates(rig, until=time.monotonic() + TRAINING_SHARE * seconds)
            adopt, checkpoint = rig.adopt(), rig.checkpoint()
            say(f"{len(updates)} updates of {fmean(w.cpu_s for w in updates):.3f} s; all stages together")
            company = together(rig, Path(name), seconds=TOGETHER_SHARE * seconds)
        finally:
            rig.engine.close()
    ratios = company.ratios(
        env_step_s=alone.env_step_cpu_s(),
        table=alone.table(),
        update_s=fmean(w.cpu_s for w in updates),
        adopt_s=adopt.cpu_s,
        checkpoint_s=checkpoint.cpu_s,
    )
    taken_s = time.monotonic() - start
    say(f"profile taken in {taken_s:.1f} s")
    facts = machine()
    return Profile(
        hardware=facts,
        sections=sections_of(config),
        chunk_len=config.policy.chunk_len,
        quantum=config.simulation.quantum,
        batch_trajectories=config.training.batch_trajectories,
        trajectory_chunks=config.training.trajectory_chunks,
        taken_s=taken_s,
        tick_s=tick_s(rig.plan.cpus[-1]),
        nice_works=nice_works(),
        simulation=SimulationProfile(
            env_step_s=summarise([s for series in alone.steps for s in series]),
            reset_s=summarise([w.cpu_s + w.other_s for w in alone.resets]),
            within_env_correlation=lag_correlation(alone.steps),
            tapes=tuple(tuple(tape) for tape in alone.tapes if tape),
            resets=tuple(alone.resets),
            episodes=tuple(alone.all_episodes() + company.episodes),
            max_episode_steps=rig.max_episode_steps,
            corun=ratios["simulation"],
        ),
        generation=GenerationProfile(table=alone.table(), adopt=adopt, corun=ratios["generation"]),
        training=TrainingProfile(updates=tuple(updates), checkpoint=checkpoint, corun=ratios["training"]),
        control=ControlProfile(
            event_s=tuple(sorted(company.event_s.items())),
            command_s=company.command_s,
            latency_s=_low(rig.latencies) / 2,
        ),
        notes=(f"processes started in {started_s:.1f} s", company.note),
    )


@dataclass
class _Alone:
    """Plays the run's environments with its policy, one process at a time."""

    rig: Rig
    tapes: list[list[Grant]] = field(default_factory=list)
    steps: list[list[float]] = field(default_factory=list)
    resets: list[Work] = field(default_factory=list)
    batches: dict[int, list[Work]] = field(default_factory=dict)
    episodes: list[PlayedEpisode] = field(default_factory=list)
    num_grants: int = 0
    _played: list[int] = field(default_factory=list)

    def play(self, *, until: float) -> None:
        """At least one round per batch size, then on until that time; trajectories are filled on the way."""
        rig = self.rig
        envs, chunks = rig.config.simulation.num_envs, rig.config.training.trajectory_chunks
        sizes = sorted({size for size in (1, 2, 4, 8, 16) if size < envs} | {envs})
        self.tapes = [[] for _ in range(envs)]
        self._played = [0] * envs
        for shard in range(envs):
            self.resets.append(rig.reset(shard, self._cpu(shard)))
        number = 0
        while number < max(chunks, 2 * len(sizes)) or time.monotonic() < until:
            size = sizes[number % len(sizes)]
            for first in range(0, envs, size):
                shards = list(range(first, min(first + size, envs)))
                work = rig.generate(shards, chunk=number % chunks)
                if number >= len(sizes):  # the first calls of each size warm up
                    self.batches.setdefault(len(shards), []).append(work)
            for shard in range(envs):
                self._chunk(shard, number % chunks, single=number % _STEP_BY_STEP_EVERY == 1)
            number += 1

    def _chunk(self, shard: int, chunk: int, *, single: bool) -> None:
        length = self.rig.config.policy.chunk_len
        quantum = 1 if single else self.rig.config.simulation.quantum or length
        first = 0
        series: list[float] = []
        while True:
            done, work, took_s = self.rig.step(
                shard, self._cpu(shard), chunk=chunk, first=first, count=min(quantum, length - first)
            )
            self.num_grants += 1
            first += done.num_steps
            self._played[shard] += done.num_steps
            series.append(took_s / done.num_steps)
            if not single:
                self.tapes[shard].append(Grant(done.num_steps, work.cpu_s, work.other_s))
            if done.chunk_over:
                break
        if single:
            self.steps.append(series)
        if done.episode_end is not None:
            self.episodes.append(PlayedEpisode(done.episode_end.num_steps, done.episode_end.success, finished=True))
            self._played[shard] = 0
            self.resets.append(self.rig.reset(shard, self._cpu(shard)))

    def _cpu(self, shard: int) -> CpuId:
        return self.rig.plan.cpus[shard % len(self.rig.plan.cpus)]

    def all_episodes(self) -> list[PlayedEpisode]:
        """Those that ended, and what was seen of the others."""
        return self.episodes + [PlayedEpisode(count, success=False, finished=False) for count in self._played if count]

    def table(self) -> tuple[BatchCost, ...]:
        """Mean cost by batch size."""
        return tuple(
            BatchCost(size, fmean(w.cpu_s for w in works), fmean(w.other_s for w in works))
            for size, works in sorted(self.batches.items())
        )

    def env_step_cpu_s(self) -> float:
        """CPU seconds per env step, overhead of grants included."""
        grants = [grant for tape in self.tapes for grant in tape]
        return sum(grant.cpu_s for grant in grants) / sum(grant.num_steps for grant in grants)


def _updates(rig: Rig, *, until: float) -> list[Work]:
    rig.update()  # the first one makes optimizer state and warms up
    works: list[Work] = []
    while len(works) < _MIN_UPDATES or time.monotonic() < until:
        works.append(rig.update())
        if len(works) >= 50:
            break
    return works


def _low(values: list[float]) -> float:
    """The fifth of the values that is undisturbed ends here."""
    return sorted(values)[len(values) // 5] if values else 0.0
