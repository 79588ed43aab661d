"""The chunks of a training batch as rows: those that were executed, and what they are judged by.

Axes: B trajectories, K chunks of a trajectory, N chunks that train, M chunks of a minibatch, U ratio
units of a chunk, H chunk horizon.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping

from torch import Tensor

from ebrl.algorithms.base import TrainingBatch


class ExecutedChunks:
    """The way from the ``[B, K]`` chunks of a training batch to the N executed ones, and back.

    What fills up the rows of short episodes was never executed and holds anything at all. It is
    left out here, before anything is evaluated, so that it costs nothing and changes nothing.
    """

    def __init__(self, batch: TrainingBatch, trains_B: Tensor | None = None) -> None:
        """The executed chunks of all trajectories, or of those in ``trains_B`` (bool).

        Raises:
            ValueError: there are none.
        """
        executed_BK = batch.num_executed > 0
        if trains_B is not None:
            executed_BK = executed_BK & trains_B[:, None]
        self._shape = executed_BK.shape
        self._index_N = executed_BK.flatten().nonzero()[:, 0]
        if not len(self._index_N):
            raise ValueError(f"training batch of {self._shape[0]} trajectories: num_executed is 0 in every chunk")
        self.obs = self.rows_of(batch.obs)
        self.record = self.rows_of(batch.record)

    def __len__(self) -> int:
        """N."""
        return len(self._index_N)

    @property
    def trajectory_N(self) -> Tensor:
        """``[N] int64``: which trajectory of the batch each chunk belongs to."""
        return self._index_N // self._shape[1]

    def rows(self, x_BK: Tensor) -> Tensor:
        """``[B, K, ...]`` → ``[N, ...]``; a view where every chunk was executed."""
        flat = x_BK.flatten(0, 1)
        return flat if len(self) == len(flat) else flat.index_select(0, self._index_N)

    def rows_of(self, arrays: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """``rows`` of each."""
        return {name: self.rows(x) for name, x in arrays.items()}

    def grid(self, x_N: Tensor) -> Tensor:
        """``[N]`` → ``[B, K]``, with zeros where nothing was executed."""
        return x_N.new_zeros(self._shape.numel()).index_copy(0, self._index_N, x_N).view(self._shape)


@dataclasses.dataclass(frozen=True, slots=True)
class Chunks:
    """What minibatches are drawn from: N chunks, with everything fixed for the update."""

    obs: dict[str, Tensor]
    record: dict[str, Tensor]
    executed_NH: Tensor | None
    """None where every chunk is judged by the density of its whole path."""
    old_NDHA: Tensor
    """Log-densities that ratios are taken against: anchor's or behaviour policy's."""
    weight_NU: Tensor
    mask_NU: Tensor
    anchor_mean: Tensor
    anchor_std: Tensor
    """``[N, ...]``, broadcastable to ``anchor_mean``."""
    advantage_N: Tensor

    def select(self, index_M: Tensor) -> Chunks:
        """The chunks of one minibatch."""
        return self._each(lambda x: x.index_select(0, index_M))

    def micro_batches(self, size: int) -> Iterator[MicroBatch]:
        """All chunks in their order, at most ``size`` at a time; 0 takes all at once."""
        num_chunks, num_units = len(self.advantage_N), self.mask_NU.sum().clamp(min=1.0)
        size = size or num_chunks
        for start in range(0, num_chunks, size):
            rows = slice(start, min(start + size, num_chunks))
            part = self._rows(rows)
            yield MicroBatch(
                chunks=part,
                rows=rows,
                chunk_share=(rows.stop - rows.start) / num_chunks,
                unit_share=part.mask_NU.sum() / num_units,
            )

    def _rows(self, rows: slice) -> Chunks:
        return self._each(lambda x: x[rows])

    def _each(self, part: Callable[[Tensor], Tensor]) -> Chunks:
        return Chunks(
            obs={name: part(x) for name, x in self.obs.items()},
            record={name: part(x) for name, x in self.record.items()},
            executed_NH=None if self.executed_NH is None else part(self.executed_NH),
            old_NDHA=part(self.old_NDHA),
            weight_NU=part(self.weight_NU),
            mask_NU=part(self.mask_NU),
            anchor_mean=part(self.anchor_mean),
            anchor_std=part(self.anchor_std),
            advantage_N=part(self.advantage_N),
        )


@dataclasses.dataclass(frozen=True, slots=True)
class MicroBatch:
    """Some chunks of a minibatch. A mean over them, times their share, is their part of the mean over all of it.

    Means over units and means over chunks have shares of their own, for chunks hold unequal numbers of units.
    """

    chunks: Chunks
    rows: slice
    """Of the minibatch."""
    chunk_share: float
    unit_share: Tensor
    """Of the units in ``mask_NU``."""
