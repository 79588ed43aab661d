"""Replaces env workers that have grown too large or served for long, before all of their environments are reset.

Simulators lose memory, at resets above all. Nothing is lost with such a worker: its episodes are over, and the
trajectory in progress lies in shared memory. So control does not hear of it: the reset that it has asked for is
held until the successor can take it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from ebrl.engines.local.process import WorkerProcess
from ebrl.engines.local.setup import Limits
from ebrl.ids import ShardId
from ebrl.scheduling.commands import ResetEnv

_GIB = 1 << 30


class Recycling:
    """Says which env workers are to be replaced, and holds their resets meanwhile."""

    def __init__(self, limits: Limits, envs_per_shard: int, on_notice: Callable[[str], None]) -> None:
        """``on_notice`` is told of the first worker that is replaced for each reason."""
        self.counts = {"memory": 0, "resets": 0}
        """Workers replaced, by the limit that they had reached."""
        self._limits = limits
        self._envs_per_shard = envs_per_shard
        self._on_notice = on_notice
        self._num_resets: Counter[ShardId] = Counter()
        """Environments that the process of today was told to reset."""
        self._held: dict[ShardId, ResetEnv] = {}

    def is_due(self, command: ResetEnv, process: WorkerProcess) -> bool:
        """Whether the env worker is to be replaced before this reset, which is held if so."""
        shard, num_starts = command.shard, len(command.starts)
        reason = self._reason(shard, process) if num_starts == self._envs_per_shard else ""
        if not reason:
            self._num_resets[shard] += num_starts
            return False
        self._num_resets[shard] = num_starts
        self.counts[reason] += 1
        self._held[shard] = command
        return True

    def release(self, shard: ShardId) -> ResetEnv | None:
        """The reset that was held until now, if any."""
        return self._held.pop(shard, None)

    def forget(self, shard: ShardId) -> None:
        """The env worker was lost; nothing of it counts for the next one."""
        self._held.pop(shard, None)
        del self._num_resets[shard]

    def drop_resets(self) -> None:
        """Nobody waits for the resets that are held; their run is over."""
        self._held.clear()

    def _reason(self, shard: ShardId, process: WorkerProcess) -> str:
        limits, num_resets = self._limits, self._num_resets[shard]
        reason = text = ""
        if limits.memory_bytes and process.own_bytes > limits.memory_bytes:
            reason = "memory"
            text = f"it has {process.own_bytes / _GIB:.3g} GiB of its own after {num_resets} resets, "
            text += f"failures.worker_memory_gib = {limits.memory_bytes / _GIB:.3g}"
            if num_resets <= self._envs_per_shard:
                text += " is less than it needs, so that every episode will take a new process: raise it"
        elif limits.resets and num_resets >= limits.resets:
            reason, text = "resets", f"it has served {num_resets} resets, failures.worker_resets = {limits.resets}"
        if not (reason and num_resets) or process.has_ended():  # a death is heard elsewhere, and no matter of limits
            return ""
        if not self.counts[reason]:
            self._on_notice(f"{process.label} is replaced: {text}; the next ones are only counted")
        return reason
