"""What one update looks at, and what it costs by threads and micro-batch."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field

from ebrl.config.schema import RunConfig
from ebrl.engines.local.fleet import LEARNER
from ebrl.profiling.rig import Rig
from ebrl.profiling.stages import Stage, batch_time
from ebrl.registry import load, make_config
from ebrl.resources.profile import BatchTime, Memory, Work, line

_MIN_UPDATES = 2
"""Samples of the run's own kind of update, whatever the time."""
_MOST_UPDATES, _MOST_OTHER_UPDATES = 50, 10
_OWN_SHARE = 0.5
"""Of the time for all updates, for those of the run's own kind: forecasts are made of them."""
_MOST_WARM_UP = 10
"""Updates that may be of another kind than those that follow: a critic alone, for instance."""
_SMALLER = 4
"""A second micro-batch is that many times smaller than the minibatch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Learning:
    """How an algorithm goes through its batch."""

    epochs: int
    minibatch: int
    """Chunks between two optimizer steps."""
    micro_batch: int
    """Of the run, in chunks; the minibatch where it is taken whole."""
    other_sizes: tuple[int, ...]
    """Micro-batches that are worth measuring beside it; none where the algorithm has no such choice."""

    @property
    def sizes(self) -> tuple[int, ...]:
        """All of them; the run's own is the last."""
        return (*self.other_sizes, self.micro_batch)

    def setting(self, size: int) -> int | None:
        """What to ask a learner for that is to have micro-batches of this size; None leaves the run's."""
        return None if size == self.micro_batch else size


def learning_of(config: RunConfig) -> Learning:
    """What the algorithm's own ``Config`` says; an algorithm without such fields takes its batch whole, once."""
    cls, _ = load("algorithm", config.algorithm.name)
    chosen = make_config(cls, config.algorithm.config, "algorithm.config")
    known = {one.name for one in dataclasses.fields(chosen)}
    num_chunks = config.training.batch_trajectories * config.training.trajectory_chunks
    minibatch = min(num_chunks, getattr(chosen, "minibatch_chunks", num_chunks))
    micro = min(minibatch, getattr(chosen, "micro_batch_chunks", 0) or minibatch)
    sizes = {max(1, minibatch // _SMALLER), minibatch} - {micro} if "micro_batch_chunks" in known else set()
    return Learning(
        epochs=getattr(chosen, "epochs", 1),
        minibatch=minibatch,
        micro_batch=micro,
        other_sizes=tuple(sorted(sizes)),
    )


@dataclass
class TrainingAlone:
    """Takes updates on the trajectories that were played."""

    rig: Rig
    learning: Learning
    threads: tuple[int, ...]
    """To try; the run's own among them."""
    updates: list[Work] = field(default_factory=list)
    """As the run takes them."""
    table: list[BatchTime] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    checkpoint: Work = field(default_factory=lambda: Work(0.0))
    _peaks: list[tuple[float, float]] = field(default_factory=list)

    def measure(self, stage: Stage) -> None:
        """Every micro-batch with every number of threads, as far as time allows; the run's own in any case.

        The learner has the first micro-batch when this begins, and the run's own when it ends.
        """
        planned_s = stage.seconds
        with stage.uncounted():
            usual_s = self._warm_up()
            self.checkpoint = self.rig.checkpoint()  # a learner that is started anew goes on from it
        sizes, threads = self.learning.sizes, self.threads
        if 2 * usual_s * len(sizes) * len(threads) > 2 * stage.left_s:
            self._skip(stage, f"an update takes {usual_s:.1f} s: only the run's own micro-batch was measured")
            sizes, threads = sizes[-1:], tuple(count for count in threads if self._is_needed(count))
        shares = (len(sizes) * len(threads) - 1) / (1.0 - _OWN_SHARE)
        for size in sizes:
            wanted = self.learning.setting(size)
            if wanted != self.rig.micro_batch:
                with stage.uncounted():
                    self.rig.restart_learner(wanted)
            self._measure_one(stage, size, threads, shares=shares, own_s=_OWN_SHARE * planned_s)
            shares -= len(threads)
        self.rig.set_threads(LEARNER, self.rig.own_threads(LEARNER))

    def _is_needed(self, threads: int) -> bool:
        """Whether nothing can be said without this number of threads."""
        return threads in (1, self.rig.own_threads(LEARNER))

    def _skip(self, stage: Stage, text: str) -> None:
        stage.known = False
        self.notes.append(text)

    def _warm_up(self) -> float:
        """Updates until they are of the usual kind; seconds of the last."""
        seconds = self.rig.update().seconds
        for _ in range(_MOST_WARM_UP):
            if self.rig.metrics.get("actor_minibatches", 1.0) > 0:
                break
            seconds = self.rig.update().seconds
        return seconds

    def _measure_one(self, stage: Stage, size: int, threads: tuple[int, ...], *, shares: float, own_s: float) -> None:
        rig, own = self.rig, size == self.learning.micro_batch
        rig.forget_peak(LEARNER)
        for number, count in enumerate(threads):
            if stage.left_s <= 0 and not self._is_needed(count):
                self._skip(stage, f"no time for updates with {count} threads and micro-batches of {size}")
                continue
            usual = own and count == rig.own_threads(LEARNER)
            works: list[Work] = self.updates if usual else []
            with stage.uncounted():
                rig.set_threads(LEARNER, count)
                rig.update()  # the first one starts threads

            def once(works: list[Work] = works) -> float:
                done = rig.update()
                works.append(done.work)
                return done.seconds

            found = stage.repeat(
                once,
                shares=max(1.0, shares - number),
                at_least_s=own_s if usual else 0.0,
                fewest=_MIN_UPDATES if usual else 1,
                most=_MOST_UPDATES if usual else _MOST_OTHER_UPDATES,
            )
            self.table.append(batch_time(count, size, found))
        self._peaks.append((size, rig.peak_bytes(LEARNER)))

    def memory(self) -> Memory:
        """Of the learner, over its micro-batch."""
        fixed, slope = line(self._peaks)
        return Memory(round(fixed), round(slope))
