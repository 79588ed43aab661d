"""What goes wrong on the virtual engine, and how often."""

from __future__ import annotations

import random
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """Probabilities, each per command unless it says otherwise; without arguments nothing goes wrong."""

    env_worker_lost: float = 0.0
    """The env worker dies during a reset, a grant, or its start."""
    episode_invalid: float = 0.0
    """A reset or grant ends with a number that is not finite."""
    generator_lost: float = 0.0
    """The generator dies during a batch, an adoption, or its start."""
    learner_lost: float = 0.0
    """The learner dies during an update, a checkpoint, or its start."""
    update_skipped: float = 0.0
    """Per update: a loss or gradient is not finite."""
    idle_lost: float = 0.0
    """Per answer: the process dies some time later, whatever it does by then."""
    idle_lost_after_s: float = 0.1
    """Mean time from that answer to the death."""
    late_answer: float = 0.0
    """Per answer that a process owed when it died: it arrives after the process was replaced."""

    def happens(self, probability: float, rng: random.Random) -> bool:
        """Draw once; draws nothing where the probability is 0."""
        return probability > 0.0 and rng.random() < probability
