"""What is given to whom: CPUs, streaming multiprocessors and memory of one node. Sums always balance."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Infeasible:
    """A budget that is too small, as a value: whoever asked can look for another way."""

    budget: str
    """Which, e.g. ``device memory of GPU 0``."""
    needed: float
    available: float
    detail: str
    """What the need is made of, and what to do."""
