"""How long everything takes on the virtual engine: from a few numbers, or from a profile."""

from __future__ import annotations

import bisect
import math
import random
from dataclasses import dataclass
from itertools import accumulate
from typing import Protocol

from ebrl.ids import ShardId
from ebrl.resources.profile import Profile, Work, episode_lengths, generation_cost
from ebrl.scheduling.quotas import Stage


class CostModel(Protocol):
    """What the engine asks for; every draw comes from the random numbers of the process that works."""

    @property
    def start_s(self) -> float:
        """From the start of a process until it is ready."""
        ...

    @property
    def update_heard_s(self) -> float:
        """From new weights in the buffer, or a checkpoint on disk, until control hears of it."""
        ...

    @property
    def loss_heard_s(self) -> float:
        """From the death of a process until control hears of it."""
        ...

    def episode(self, rng: random.Random, env_steps: int) -> tuple[int, bool]:
        """Length and success of a new episode, after so many env steps of the run."""
        ...

    def steps(self, shard: ShardId, env: int, num_steps: int, rng: random.Random) -> Work:
        """Env steps of one environment of the shard in one grant."""
        ...

    def reset(self, shard: ShardId, env: int, rng: random.Random) -> Work:
        """One reset of one environment of the shard."""
        ...

    def generation(self, num_chunks: int) -> Work:
        """One generation batch."""
        ...

    def adoption(self) -> Work:
        """A generator's taking of new weights."""
        ...

    def update(self, rng: random.Random) -> Work:
        """One update."""
        ...

    def checkpoint(self) -> Work:
        """One checkpoint."""
        ...

    def set_quota(self, stage: Stage, index: int, num_cpus: int, units: int) -> None:
        """A process has other CPUs, and another share of its GPU, from now on."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Seconds for each kind of work; drawn times keep the stated mean, whatever the spread."""

    env_step_s: float = 0.01
    """Mean of one env step."""
    env_step_sigma: float = 0.0
    """Of the logarithm of the time that one environment takes for a grant; above 1 the tail is heavy."""
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

    def episode(self, rng: random.Random, env_steps: int) -> tuple[int, bool]:
        """See ``CostModel``."""
        length = rng.choice(self.episode_steps)
        return length, rng.random() < self.success_share

    def steps(self, shard: ShardId, env: int, num_steps: int, rng: random.Random) -> Work:
        """See ``CostModel``."""
        factor = self.shard_factors[shard % len(self.shard_factors)]
        return Work(num_steps * spread(self.env_step_s * factor, self.env_step_sigma, rng))

    def reset(self, shard: ShardId, env: int, rng: random.Random) -> Work:
        """See ``CostModel``."""
        return Work(spread(self.reset_s, self.reset_sigma, rng))

    def generation(self, num_chunks: int) -> Work:
        """See ``CostModel``: T(b) = α + β·b."""
        return Work(self.generation_alpha_s + self.generation_beta_s * num_chunks)

    def adoption(self) -> Work:
        """See ``CostModel``."""
        return Work(self.publish_s)

    def update(self, rng: random.Random) -> Work:
        """See ``CostModel``."""
        return Work(spread(self.training_s, self.training_sigma, rng))

    def checkpoint(self) -> Work:
        """See ``CostModel``."""
        return Work(self.checkpoint_s)

    def set_quota(self, stage: Stage, index: int, num_cpus: int, units: int) -> None:
        """See ``CostModel``; these costs are the same whatever the quota."""


def spread(mean: float, sigma: float, rng: random.Random) -> float:
    """A lognormal number of this mean; exactly the mean where ``sigma`` is 0."""
    return mean * math.exp(rng.gauss(-0.5 * sigma * sigma, sigma)) if sigma else mean


class ProfiledCosts:
    """Costs of a profile.

    Grants are played back: at each reset an environment starts somewhere on one of the recorded tapes
    and follows it, so tails and the correlation within an environment are the measured ones. Env steps of
    a shard with several environments are the sum of theirs, each on a tape of its own.
    """

    update_heard_s = 0.0
    loss_heard_s = 0.0

    def __init__(self, profile: Profile, *, num_shards: int, envs_per_shard: int = 1, start_s: float = 0.0) -> None:
        """CPU seconds are those beside the other stages (``corun``); env workers start in ``start_s``."""
        self.start_s = start_s
        self._envs_per_shard = envs_per_shard
        simulation = profile.simulation
        self._lengths = episode_lengths(simulation)
        self._scale = simulation.length_scale
        self._tapes = [
            [(g.cpu_s * simulation.corun / g.num_steps, g.other_s / g.num_steps) for g in tape]
            for tape in simulation.tapes
            if tape
        ]
        self._ends = list(accumulate(len(tape) for tape in self._tapes))
        self._places = [(0, -1)] * (num_shards * envs_per_shard)
        """Tape and place on it of each environment, shard by shard; place −1 starts anew."""
        self._resets = [Work(w.cpu_s * simulation.corun, w.other_s) for w in simulation.resets]
        self._generation = profile.generation
        self._batches: dict[int, Work] = {}
        self._updates = [Work(w.cpu_s * profile.training.corun, w.other_s) for w in profile.training.updates]
        self._checkpoint = profile.training.checkpoint

    def episode(self, rng: random.Random, env_steps: int) -> tuple[int, bool]:
        """See ``CostModel``."""
        length, success = self._lengths[int(rng.random() * len(self._lengths))]
        return max(1, round(length * self._factor(env_steps))), success

    def _factor(self, env_steps: int) -> float:
        if not self._scale:
            return 1.0
        upper = bisect.bisect_right(self._scale, (env_steps, math.inf))
        if upper in (0, len(self._scale)):
            return self._scale[min(upper, len(self._scale) - 1)][1]
        (x0, y0), (x1, y1) = self._scale[upper - 1], self._scale[upper]
        return y0 + (y1 - y0) * (env_steps - x0) / (x1 - x0)

    def steps(self, shard: ShardId, env: int, num_steps: int, rng: random.Random) -> Work:
        """See ``CostModel``."""
        row = shard * self._envs_per_shard + env
        tape, place = self._places[row]
        if place < 0:
            number = int(rng.random() * self._ends[-1])
            tape = bisect.bisect_right(self._ends, number)
            place = number - (self._ends[tape - 1] if tape else 0)
        cpu_s, other_s = self._tapes[tape][place]
        self._places[row] = (tape, (place + 1) % len(self._tapes[tape]))
        return Work(num_steps * cpu_s, num_steps * other_s)

    def reset(self, shard: ShardId, env: int, rng: random.Random) -> Work:
        """See ``CostModel``."""
        self._places[shard * self._envs_per_shard + env] = (0, -1)
        return self._resets[int(rng.random() * len(self._resets))]

    def generation(self, num_chunks: int) -> Work:
        """See ``CostModel``."""
        known = self._batches.get(num_chunks)
        if known is None:
            cpu_s, other_s = generation_cost(self._generation, num_chunks)
            known = self._batches[num_chunks] = Work(cpu_s * self._generation.corun, other_s)
        return known

    def adoption(self) -> Work:
        """See ``CostModel``."""
        return self._generation.adopt

    def update(self, rng: random.Random) -> Work:
        """See ``CostModel``."""
        return self._updates[int(rng.random() * len(self._updates))]

    def checkpoint(self) -> Work:
        """See ``CostModel``."""
        return self._checkpoint

    def set_quota(self, stage: Stage, index: int, num_cpus: int, units: int) -> None:
        """See ``CostModel``; a profile's costs are those of the quota that it was taken with."""
