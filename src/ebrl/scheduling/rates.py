"""Measures stage times from events: between two samples, against what was predicted."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ebrl.resources.allocation import Prediction
from ebrl.resources.rebalance import Ratios
from ebrl.resources.workload import Workload
from ebrl.scheduling.events import ChunksReady, Event, ResetDone, StepsDone, UpdateDone


@dataclass(slots=True)
class _Sums:
    """What happened since the last sample."""

    simulation_s: float = 0.0
    chunks: int = 0
    """Of shards."""
    generation_s: float = 0.0
    predicted_generation_s: float = 0.0
    update_s: float = 0.0
    updates: int = 0
    episode_chunks: int = 0
    episodes: int = 0


class StageMeter:
    """Sums of one sample; ``take`` begins the next."""

    def __init__(self, *, envs_per_shard: int, chunk_len: int, whole_episodes: bool) -> None:
        self._width = envs_per_shard
        self._chunk_len = chunk_len
        self._whole_episodes = whole_episodes
        self._sums = _Sums()

    def see(self, event: Event, prediction: Prediction) -> None:
        """Take an event in."""
        sums = self._sums
        match event:
            case StepsDone():
                sums.simulation_s += event.step_s
                sums.chunks += event.chunk_over
                for end in event.episode_ends:
                    sums.episodes += 1
                    sums.episode_chunks += math.ceil(end.num_steps / self._chunk_len)
            case ResetDone():
                sums.simulation_s += event.reset_s
            case ChunksReady():
                items = len(event.shards) * self._width
                sums.generation_s += event.generation_s
                sums.predicted_generation_s += prediction.generation_fixed_s + prediction.generation_item_s * items
            case UpdateDone() if not event.skipped:
                sums.update_s += event.train_s
                sums.updates += 1
            case _:
                pass

    @property
    def num_chunks(self) -> int:
        """Of shards, since the last sample."""
        return self._sums.chunks

    def take(self, prediction: Prediction, believed: Workload) -> Ratios:
        """The sample's ratios of measured to predicted; what comes now belongs to the next."""
        sums, self._sums = self._sums, _Sums()
        chunk_s = sums.simulation_s / sums.chunks / self._width if sums.chunks else None
        trajectory = None
        if self._whole_episodes and sums.episodes:
            trajectory = sums.episode_chunks / sums.episodes / believed.trajectory_chunks
        return Ratios(
            chunk=chunk_s / prediction.chunk_s if chunk_s is not None else None,
            generation=sums.generation_s / sums.predicted_generation_s if sums.predicted_generation_s else None,
            update=sums.update_s / sums.updates / prediction.update_s if sums.updates else None,
            trajectory=trajectory,
        )
