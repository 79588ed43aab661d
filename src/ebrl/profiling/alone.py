"""Simulation and generation, one process at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean, median

from ebrl.profiling.rig import GENERATOR, Rig
from ebrl.profiling.stages import Estimate, Stage, batch_time
from ebrl.resources.profile import BatchCost, BatchTime, Grant, Memory, PlayedEpisode, Work, line
from ebrl.scheduling.events import EpisodeEnd

_STEP_BY_STEP_EVERY = 4
"""One round in so many is stepped step by step, for the statistics of single env steps."""
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
"""Generation batches, in env workers, as far as there are so many."""


@dataclass
class Alone:
    """Plays the run's environments with its policy, one process at a time."""

    rig: Rig
    tapes: list[list[Grant]] = field(default_factory=list)
    steps: list[list[float]] = field(default_factory=list)
    resets: list[Work] = field(default_factory=list)
    batches: dict[int, list[Work]] = field(default_factory=dict)
    episodes: list[PlayedEpisode] = field(default_factory=list)
    by_threads: list[BatchTime] = field(default_factory=list)
    num_grants: int = 0
    notes: list[str] = field(default_factory=list)
    _played: list[list[int]] = field(default_factory=list)
    """By shard and environment: env steps of the episode that goes on."""
    _peaks: list[tuple[float, float]] = field(default_factory=list)
    _means: dict[str, Estimate] = field(default_factory=dict)

    @property
    def sizes(self) -> list[int]:
        """Generation batches that are measured, in env workers; ascending."""
        num_shards = self.rig.plan.num_shards
        return sorted({size for size in _SIZES if size < num_shards} | {num_shards})

    def play(self, stage: Stage) -> None:
        """At least one round per batch size, then on until everything is known or time is over.

        Trajectories are filled on the way. When all of their chunks are there, only the last one is played again:
        to begin a chunk clears those behind it, and updates are measured on full trajectories.
        """
        rig, sizes = self.rig, self.sizes
        num_shards, width, chunks = rig.plan.num_shards, rig.plan.envs_per_shard, rig.plan.trajectory_chunks
        self.tapes = [[] for _ in range(num_shards)]
        self._played = [[0] * width for _ in range(num_shards)]
        self._means = {"env steps": Estimate(), "resets": Estimate(), "lengths of episodes": Estimate()}
        for shard in range(num_shards):
            self._reset(shard, list(range(width)))
        with stage.uncounted():
            self._warm_up_generation()
        number = 0
        while number < max(chunks, 2 * len(sizes)) or stage.goes_on(self._means.values()):
            size, chunk = sizes[number % len(sizes)], min(number, chunks - 1)
            for first in range(0, num_shards, size):
                self._generate(list(range(first, min(first + size, num_shards))), chunk)
            before = sum(map(len, self.tapes))
            for shard in range(num_shards):
                self._chunk(shard, chunk, single=number % _STEP_BY_STEP_EVERY == 1)
            if sum(map(len, self.tapes)) > before:
                self._means["env steps"].add(self._round_s())
            number += 1
            stage.show()

    def _warm_up_generation(self) -> None:
        """The first calls of each size, and how much memory they take at their peak; in ascending order."""
        width, last = self.rig.plan.envs_per_shard, self.rig.plan.trajectory_chunks - 1
        for size in self.sizes:
            self.rig.forget_peak(GENERATOR)
            for _ in range(2):
                self.rig.generate(list(range(size)), chunk=last)
            self._peaks.append((size * width, self.rig.peak_bytes(GENERATOR)))

    def _generate(self, shards: list[int], chunk: int) -> None:
        work = self.rig.generate(shards, chunk=chunk).work
        size = len(shards) * self.rig.plan.envs_per_shard
        self.batches.setdefault(size, []).append(work)
        self._means.setdefault(f"batches of {size}", Estimate()).add(work.cpu_s + work.other_s)

    def _round_s(self) -> float:
        """Seconds per env step of the last grant of each env worker; grants of one round are one sample."""
        last = [tape[-1] for tape in self.tapes if tape]
        return sum(g.cpu_s + g.other_s for g in last) / sum(g.num_steps for g in last)

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
            self._means["lengths of episodes"].add(end.num_steps)
            played[end.env] = 0
        if ends:
            self._reset(shard, [end.env for end in ends])

    def _reset(self, shard: int, envs: list[int]) -> None:
        work = self.rig.reset(shard, envs)
        self.resets.append(work)
        self._means["resets"].add(work.cpu_s + work.other_s)

    def generate_by_threads(self, stage: Stage, threads: tuple[int, ...]) -> None:
        """Every batch size with every number of threads; the generator has its own number again afterwards.

        When time is over, only what was begun is finished; the first number of threads is measured in any case.
        """
        rig, last = self.rig, self.rig.plan.trajectory_chunks - 1
        shares = len(threads) * len(self.sizes)
        for count in threads:
            if stage.left_s <= 0 and self.by_threads:
                self.notes.append(f"no time to measure generation with {count} threads or more")
                stage.known = False
                break
            rig.set_threads(GENERATOR, count)
            for size in self.sizes:
                shards = list(range(size))
                with stage.uncounted():
                    rig.generate(shards, chunk=last)  # warms up

                def once(shards: list[int] = shards) -> float:
                    return rig.generate(shards, chunk=last).seconds

                found = stage.repeat(once, shares=shares)
                self.by_threads.append(batch_time(count, size * rig.plan.envs_per_shard, found))
                shares -= 1
        rig.set_threads(GENERATOR, rig.own_threads(GENERATOR))

    # What came of it.

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

    def memory(self) -> Memory:
        """Of the generator, over its batch."""
        fixed, slope = line(self._peaks)
        return Memory(round(fixed), round(slope))

    def observation_s(self) -> float:
        """What an env step takes longer whose observation is read; see ``SimulationProfile``."""
        return observation_s(self.steps, self.rig.plan.chunk_len)


def observation_s(series: Sequence[Sequence[float]], chunk_len: int) -> float:
    """Median of the last env step of each full chunk less the mean of those before it; not below 0."""
    full = [one for one in series if len(one) == chunk_len > 1]
    return max(0.0, median(one[-1] - fmean(one[:-1]) for one in full)) if full else 0.0
