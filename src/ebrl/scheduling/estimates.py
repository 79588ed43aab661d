"""Running means of measured times, for decisions that need to guess the next one."""

from __future__ import annotations

from ebrl.ids import ShardId

_WEIGHT = 0.1
"""Of the newest sample in a running mean: about the last twenty count."""


class RunningMean:
    """Exponentially weighted mean; the first sample counts in full."""

    __slots__ = ("count", "value")

    def __init__(self) -> None:
        self.value = 0.0
        self.count = 0

    def add(self, sample: float) -> None:
        """Take one sample in."""
        self.count += 1
        self.value += max(_WEIGHT, 1.0 / self.count) * (sample - self.value)


class Estimates:
    """Env-step and reset time of each shard, in seconds.

    A shard that was never measured is taken to be like the mean of all.
    """

    def __init__(self, num_shards: int) -> None:
        self._step = [RunningMean() for _ in range(num_shards)]
        self._reset = [RunningMean() for _ in range(num_shards)]
        self._any_step = RunningMean()
        self._any_reset = RunningMean()

    def add_steps(self, shard: ShardId, num_steps: int, step_s: float) -> None:
        """Record that ``num_steps`` took ``step_s`` seconds together."""
        self._step[shard].add(step_s / num_steps)
        self._any_step.add(step_s / num_steps)

    def add_reset(self, shard: ShardId, reset_s: float) -> None:
        """Record one reset."""
        self._reset[shard].add(reset_s)
        self._any_reset.add(reset_s)

    def env_step_s(self, shard: ShardId) -> float:
        """Seconds the next env step will probably take."""
        own = self._step[shard]
        return own.value if own.count else self._any_step.value

    def reset_s(self, shard: ShardId) -> float:
        """Seconds the next reset will probably take."""
        own = self._reset[shard]
        return own.value if own.count else self._any_reset.value
