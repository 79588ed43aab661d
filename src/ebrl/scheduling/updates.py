"""Trajectory before update, update before publication: versions and who holds which.

    batch full ──▶ Train(v) ──▶ UpdateDone(v+1) ──▶ PublishWeights(v+1) ──▶ WeightsLive(v+1)

The learner trains one batch at a time and does not wait for publication; generators adopt the
newest published weights between two batches. A version is live when every generator that works
answers with it or a newer one.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ebrl.ids import Epoch, PolicyVersion
from ebrl.scheduling.generation import Generator
from ebrl.scheduling.staleness import Batch


@dataclass(slots=True)
class Learner:
    """What control knows of the learner."""

    epoch: Epoch = Epoch(0)
    up: bool = False
    policy_version: PolicyVersion = PolicyVersion(0)
    """Of the newest weights it made."""
    batch: Batch | None = None
    """In training; kept over a restart of the learner, which trains it again."""
    losses: int = 0
    """Times it was lost since its last update."""
    saves: bool = False
    """Whether it was told to write a checkpoint and has not said that it is there."""
    saves_lost: int = 0
    """Times in a row that it was lost so, as on a disk that is full."""
    skipped_in_a_row: int = 0
    staleness_max: int = 0
    """Largest staleness of any trajectory that was trained."""
    staleness_counts: dict[int, int] = field(default_factory=dict)
    """Trained trajectories by staleness."""

    def count_staleness(self, batch: Batch, *, weight: int = 1) -> None:
        """Take the staleness of each member of a batch into the statistics, so many times."""
        for oldest in batch.oldest_versions:
            staleness = self.policy_version - oldest
            self.staleness_counts[staleness] = self.staleness_counts.get(staleness, 0) + weight
            self.staleness_max = max(self.staleness_max, staleness)


def live_version(generators: list[Generator], newest: PolicyVersion) -> PolicyVersion:
    """Oldest version that any working generator answers with; ``newest`` if none works.

    A generator that is down makes no chunks, and takes none before it holds live weights again.
    """
    return min((g.policy_version for g in generators if g.up), default=newest)
