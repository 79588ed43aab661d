"""Workload files: those that come with the package, and those that users write.

The shipped ones are of models that few can run, so most of their numbers are published or derived. Each says so: every
source begins with ``measured``, ``published``, ``derived`` or ``assumed``.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ebrl.errors import ConfigError, UsageError, nearest
from ebrl.resources.workload import SimulationCosts, Workload

_WORKLOADS = Path(__file__).with_name("shipped_workloads")

KINDS = ("measured", "published", "derived", "assumed")
"""What a source can begin with, the firmest first."""

CONTEXT_BYTES = 10**9
"""Of ``memory_bytes`` of a stage on a GPU: the CUDA context, which stays while its process lives."""


def shipped_workloads() -> tuple[str, ...]:
    """Names of the workloads that come with the package."""
    return tuple(sorted(path.stem for path in _WORKLOADS.glob("*.json")))


def load_workload(name: str) -> Workload:
    """A workload that comes with the package, by its name, with or without ``.json``.

    Raises:
        UsageError: there is none of that name.
    """
    known, asked = shipped_workloads(), name
    name = asked.removesuffix(".json")
    if name not in known:
        hint = nearest(name, known)
        raise UsageError(
            f"no workload or file {asked!r}; {hint + ' ' if hint else ''}workloads that come with ebrl: "
            f"{', '.join(known)}; a profile of a run of your own: ebrl profile RUN.toml"
        )
    path = _WORKLOADS / f"{name}.json"
    return read_workload(read_document(path), path)


def read_document(path: Path) -> dict[str, Any]:
    """A JSON file: a workload, or a profile.

    Raises:
        ConfigError: it cannot be read, or holds no JSON object.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(str(path), str(error)) from error
    if not isinstance(document, dict):
        raise ConfigError(str(path), "want a JSON object")
    return document


def read_workload(document: Mapping[str, Any], path: Path) -> Workload:
    """The workload that a document of a file holds.

    Raises:
        ConfigError: it is none.
    """
    try:
        return Workload.from_json(document)
    except ValueError as error:
        raise ConfigError(str(path), str(error)) from error


def kinds_of_sources(workload: Workload) -> dict[str, int]:
    """How many numbers were measured, published, derived and assumed."""
    found = Counter(source.partition(":")[0] for source in workload.sources.values())
    return {kind: found[kind] for kind in KINDS if found[kind]}


def simulated_chunk_s(simulation: SimulationCosts, chunk_len: int) -> float:
    """Seconds of a chunk with the habits of ebrl: one observation at its end, and its share of a reset in place."""
    reset_s = simulation.reset_s * chunk_len / simulation.episode_steps
    return chunk_len * simulation.env_step_s + simulation.observe_s + reset_s


def hand_over_s(workload: Workload, *, num_learners: int, bytes_per_s: float) -> float:
    """Seconds for a GPU to go from one stage to the other: the one's memory goes to the host, the other's comes back.

    Args:
        workload: what each stage keeps on a GPU; what depends on the size of a batch is not moved.
        num_learners: over which training is sharded.
        bytes_per_s: between a GPU and its host.
    """
    generation = workload.generation.memory_bytes - CONTEXT_BYTES
    training = workload.training.memory_bytes - CONTEXT_BYTES + workload.sharded_bytes / num_learners
    return (generation + training) / bytes_per_s
