"""How long everything takes on the virtual engine."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

from ebrl.ids import ShardId


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Seconds for each kind of work; drawn times keep the stated mean, whatever the spread."""

    env_step_s: float = 0.01
    """Mean of one env step."""
    env_step_sigma: float = 0.0
    """Of the logarithm of a grant's time; above 1 the tail is heavy."""
    shard_factors: tuple[float, ...] = (1.0,)
    """How much slower than the mean each shard is; shards beyond the last begin again at the first."""
    reset_s: float = 0.05
    reset_sigma: float = 0.0
    episode_steps: tuple[int, ...] = (100,)
    """Episode lengths in env steps, each as likely as every other."""
    success_share: float = 0.5
    """Of the episodes."""
    generation_alpha_s: float = 0.01
    """Of a generation batch, whatever its size."""
    generation_beta_s: float = 0.001
    """For each chunk of a generation batch."""
    training_s: float = 0.1
    training_sigma: float = 0.0
    publish_s: float = 0.005
    """Until a generator has adopted new weights."""
    checkpoint_s: float = 0.05
    start_s: float = 1.0
    """From the start of a process until it is ready."""
    update_heard_s: float = 0.0
    """From new weights in the buffer, or a checkpoint on disk, until control hears of it."""
    loss_heard_s: float = 0.0
    """From the death of a process until control hears of it."""

    def steps_s(self, shard: ShardId, num_steps: int, rng: random.Random) -> float:
        """Time of one grant of env steps."""
        factor = self.shard_factors[shard % len(self.shard_factors)]
        return num_steps * spread(self.env_step_s * factor, self.env_step_sigma, rng)

    def one_reset_s(self, rng: random.Random) -> float:
        """Time of one reset."""
        return spread(self.reset_s, self.reset_sigma, rng)

    def generation_s(self, num_chunks: int) -> float:
        """Time of one generation batch: T(b) = α + β·b."""
        return self.generation_alpha_s + self.generation_beta_s * num_chunks

    def update_s(self, rng: random.Random) -> float:
        """Time of one update."""
        return spread(self.training_s, self.training_sigma, rng)


def spread(mean: float, sigma: float, rng: random.Random) -> float:
    """A lognormal number of this mean; exactly the mean where ``sigma`` is 0."""
    return mean * math.exp(rng.gauss(-0.5 * sigma * sigma, sigma)) if sigma else mean
