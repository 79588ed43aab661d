"""Take the profile of a run: each stage alone, then briefly all of them together.

Alone means that one process works while all others sleep, so a stage's time is its own. What can
only be seen in company is measured in a short run of the real thing: what an event costs the main
process, and by how much the same work needs more CPU when caches and memory are shared (``corun``).
Times are CPU seconds as the kernel counts them, so that a busy machine does not spoil them.

Where an env worker steps several environments, what is measured is a grant or reset of all of them; what
is noted is their mean share, so all figures are of single environments.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean

from ebrl.config.schema import RunConfig
from ebrl.errors import ConfigError
from ebrl.host.meters import nice_works
from ebrl.host.probe import machine
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
from ebrl.scheduling.events import EpisodeEnd

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
        ConfigError: the run is of a kind whose costs cannot be measured so.
        RunError: a process failed.
    """
    _check(config)
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="ebrl-profile-") as name:
        rig = Rig(config, Path(name))
        try:
            say(f"starting {config.simulation.num_envs} environments, generators and learner")
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
        num_generators=config.generation.num_generators,
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
        tick_s=tick_s(rig.plan.nodes[0][-1]),
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


def _check(config: RunConfig) -> None:
    trajectory, cpus = config.training.trajectory, config.simulation.cpus_per_worker
    if trajectory != "segment":
        raise ConfigError(
            "training.trajectory",
            f'= {trajectory!r}: profiles and forecasts want "segment": what an update on whole episodes costs depends '
            "on how long they are and which siblings differ, and that changes as the policy learns",
        )
    if cpus != 1:
        raise ConfigError(
            "simulation.cpus_per_worker",
            f"= {cpus}: profiles and forecasts want 1, since they take CPU seconds for seconds",
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
    _played: list[list[int]] = field(default_factory=list)
    """By shard and environment: env steps of the episode that goes on."""

    def play(self, *, until: float) -> None:
        """At least one round per batch size, then on until that time; trajectories are filled on the way."""
        rig = self.rig
        num_shards, width, chunks = rig.plan.num_shards, rig.plan.envs_per_shard, rig.plan.trajectory_chunks
        sizes = sorted({size for size in (1, 2, 4, 8, 16) if size < num_shards} | {num_shards})
        self.tapes = [[] for _ in range(num_shards)]
        self._played = [[0] * width for _ in range(num_shards)]
        for shard in range(num_shards):
            self.resets.append(rig.reset(shard, range(width)))
        number = 0
        while number < max(chunks, 2 * len(sizes)) or time.monotonic() < until:
            size = sizes[number % len(sizes)]
            for first in range(0, num_shards, size):
                shards = list(range(first, min(first + size, num_shards)))
                work = rig.generate(shards, chunk=number % chunks)
                if number >= len(sizes):  # the first calls of each size warm up
                    self.batches.setdefault(len(shards) * width, []).append(work)
            for shard in range(num_shards):
                self._chunk(shard, number % chunks, single=number % _STEP_BY_STEP_EVERY == 1)
            number += 1

    def _chunk(self, shard: int, chunk: int, *, single: bool) -> None:
        length = self.rig.plan.chunk_len
        quantum = 1 if single else self.rig.plan.quantum or length
        first = 0
        series: list[float] = []
        ends: list[EpisodeEnd] = []
        while True:
            done, work, took_s = self.rig.step(shard, chunk=chunk, first=first, count=min(quantum, length - first))
            self.num_grants += 1
            first += done.num_steps
            ends += done.episode_ends
            series.append(took_s / done.env_steps)
            if not single:
                self.tapes[shard].append(Grant(done.env_steps, work.cpu_s, work.other_s))
            if done.chunk_over:
                break
        if single:
            self.steps.append(series)
        self._count(shard, first, ends)

    def _count(self, shard: int, num_steps: int, ends: list[EpisodeEnd]) -> None:
        """Note the ends of episodes, and begin new ones in their place."""
        played = self._played[shard]
        for env in range(len(played)):
            played[env] += num_steps
        for end in ends:
            self.episodes.append(PlayedEpisode(end.num_steps, end.success, finished=True))
            played[end.env] = 0
        if ends:
            self.resets.append(self.rig.reset(shard, [end.env for end in ends]))

    def all_episodes(self) -> list[PlayedEpisode]:
        """Those that ended, and what was seen of the others."""
        counts = [count for played in self._played for count in played if count]
        return self.episodes + [PlayedEpisode(count, success=False, finished=False) for count in counts]

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
