"""Typed names for the integers that travel between the parts."""

from __future__ import annotations

from typing import NewType

ShardId = NewType("ShardId", int)
"""What one env worker steps as a unit; dense from 0."""

TrajectoryId = NewType("TrajectoryId", int)
"""Admission number of a trajectory; never used twice in a run."""

SlotId = NewType("SlotId", int)
"""Place of a trajectory in the preallocated ring; used again when the slot is free."""

EpisodeId = NewType("EpisodeId", int)
"""``count * num_shards + shard``: fixes the initial state, whatever happened before."""

CpuId = NewType("CpuId", int)
"""One logical processor, as the kernel numbers it."""

CpuSet = tuple[CpuId, ...]
"""Logical processors that are given together."""

GeneratorId = NewType("GeneratorId", int)
"""One generator process."""

PolicyVersion = NewType("PolicyVersion", int)
"""Number of updates that made these weights."""

Epoch = NewType("Epoch", int)
"""How often a process has been replaced; answers of an older epoch are not believed."""
