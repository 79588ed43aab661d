"""What a run costs in a few numbers: what the allocator has to know. JSON in and out.

A profile holds samples, for forecasts; this holds their means and how they change with quotas. It can be
made from a profile, or written by hand from published figures, with the source of each.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from ebrl.resources.decoding import decode

FORMAT = 1
"""Of the JSON document; another one is refused."""

Unit = Literal["cpu", "gpu"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationCosts:
    """Of one env worker's environment."""

    chunk_s: float
    """Mean seconds of the env steps and observation of one chunk, its share of resets included, on
    ``cpus_per_worker`` CPUs of its own."""
    chunk_sd_s: float = 0.0
    """Standard deviation between chunks."""
    cpus_per_worker: int = 1
    env_step_s: float = 0.0
    """Of one env step without an observation; 0 where it is not known apart."""
    env_step_sd_s: float = 0.0
    """Standard deviation between env steps."""
    observe_s: float = 0.0
    """Of one observation, images included."""
    reset_s: float = 0.0
    """Of one reset in place, with its observation."""
    hard_reset_s: float = 0.0
    """Of one reset that builds the simulation anew, with its observation; 0 where there is no other."""
    episode_steps: float = 0.0
    """Mean number of env steps until the task ends an episode, or its time limit does."""
    horizon_steps: int = 0
    """The time limit, in env steps."""
    memory_bytes: int = 0
    """Of one env worker."""
    device_memory_bytes: int = 0
    """Of one env worker on a GPU, where it renders there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchCosts:
    """Of one batch of generation, or one micro-batch of training, in one process.

    Seconds are T(b, q) = (fixed_s + item_s · b) · (serial + (1 − serial) · min(1, saturation) / min(q, saturation)),
    formulas B.1, with the quota q a share of one GPU, or a number of CPUs. ``fixed_s`` and ``item_s`` are those at
    quota 1: the whole GPU, or one CPU.
    """

    fixed_s: float
    """Whatever the size of the batch."""
    item_s: float
    """For each chunk."""
    serial: float = 0.0
    """Share of these seconds that no quota shortens, 0 to 1."""
    saturation: float = 1.0
    """Quota beyond which more does not help."""
    memory_bytes: int = 0
    """Whatever the size of the batch: weights, optimizer state, context of the device."""
    item_memory_bytes: int = 0
    """For each chunk of a batch."""

    def seconds(self, num_items: float, quota: float) -> float:
        """Of one batch of so many chunks."""
        return (self.fixed_s + self.item_s * num_items) * self.factor(quota)

    def factor(self, quota: float) -> float:
        """By which a quota stretches (above 1) or shortens the time at quota 1."""
        return self.serial + (1.0 - self.serial) * min(1.0, self.saturation) / min(quota, self.saturation)


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A run, for the allocator."""

    name: str
    num_envs: int
    chunk_len: int
    """Actions of a chunk."""
    trajectory_chunks: float
    """Mean number; those that are simulated though their episode is over count."""
    batch_trajectories: int
    """B: trajectories of an update."""
    slack: int
    """S: updates that data may lag behind."""
    epochs: int
    """Times that an update looks at each chunk."""
    unit: Unit
    """Where generation and training work."""
    simulation: SimulationCosts
    generation: BatchCosts
    """Items are chunks to be made."""
    training: BatchCosts
    """Items are chunks of a micro-batch, forward and backward."""
    trained_chunks: float = 0.0
    """Mean number of a trajectory's chunks that training takes time for; 0 is all of them."""
    minibatch_chunks: int = 0
    """Chunks between two optimizer steps, of all learners together: none trains on more than its part of them at
    once. 0 is a whole epoch."""
    update_s: float = 0.0
    """Seconds of an update besides its micro-batches: optimizer step, publication."""
    hand_over_s: float = 0.0
    """Seconds for a GPU to go from one stage to the other, where both cannot keep their memory on it."""
    sync_s: float = 0.0
    """Seconds of an update that several learners need to agree."""
    sharded_bytes: int = 0
    """Of training, besides ``training.memory_bytes``: shared out over all learners (optimizer state, gradients or
    weights, where they are sharded)."""
    host_cpus: float = 1.0
    """CPUs that one process keeps busy while it works on a GPU."""
    corun: float = 1.0
    """Factor on the times of generation and training while both work on one GPU, on disjoint SMs."""
    shared_cpu_factor: float = 1.0
    """Factor on CPU seconds of stages that share CPUs, over those alone."""
    max_batch: int = 256
    """Most chunks that one generator may be given at once."""
    device: str = ""
    """GPU that the times are of; empty for CPUs."""
    sources: Mapping[str, str] = field(default_factory=dict)
    """By field: where the number comes from, or how it was derived."""

    @property
    def training_chunks(self) -> float:
        """Mean number of a trajectory's chunks that training takes time for."""
        return self.trained_chunks or self.trajectory_chunks

    def to_json(self) -> dict[str, Any]:
        """The document that ``from_json`` reads."""
        return {"format": FORMAT, "kind": "workload", **dataclasses.asdict(self)}

    @staticmethod
    def from_json(document: Mapping[str, Any]) -> Workload:
        """The workload that ``to_json`` wrote.

        Raises:
            ValueError: not a workload file, of another version, or a field is missing, unknown or out of range.
        """
        if document.get("kind") != "workload" or document.get("format") != FORMAT:
            kind, form = document.get("kind"), document.get("format")
            raise ValueError(f"kind {kind!r}, format {form!r}: want a workload file, format {FORMAT}")
        fields = {name: value for name, value in document.items() if name not in ("format", "kind")}
        workload: Workload = decode(Workload, fields, "workload")
        check(workload)
        return workload


def check(workload: Workload) -> None:
    """Refuse numbers that cannot be.

    Raises:
        ValueError: names the field and what was wanted.
    """
    one, sim = workload, workload.simulation
    wrong = {
        "num_envs, batch_trajectories, epochs, max_batch, chunk_len: want 1 or more": min(
            one.num_envs, one.batch_trajectories, one.epochs, one.max_batch, one.chunk_len
        )
        < 1,
        "trajectory_chunks: want more than 0": one.trajectory_chunks <= 0,
        "trained_chunks: want 0 to trajectory_chunks": not 0 <= one.trained_chunks <= one.trajectory_chunks,
        "slack: want 0 or more": one.slack < 0,
        "unit: want 'cpu' or 'gpu'": one.unit not in ("cpu", "gpu"),
        "simulation.chunk_s: want more than 0": sim.chunk_s <= 0,
        "simulation.cpus_per_worker: want 1 or more": sim.cpus_per_worker < 1,
        "corun, shared_cpu_factor: want 1 or more": min(one.corun, one.shared_cpu_factor) < 1,
    }
    for stage, costs in (("generation", one.generation), ("training", one.training)):
        wrong[f"{stage}: want fixed_s + item_s more than 0, both 0 or more"] = (
            min(costs.fixed_s, costs.item_s) < 0 or costs.fixed_s + costs.item_s <= 0
        )
        wrong[f"{stage}.serial: want 0 to 1"] = not 0 <= costs.serial <= 1
        wrong[f"{stage}.saturation: want more than 0"] = not costs.saturation > 0
    numbers = [sim.chunk_sd_s, sim.memory_bytes, sim.device_memory_bytes, one.update_s, one.sync_s, one.host_cpus]
    numbers += [one.sharded_bytes, one.minibatch_chunks, one.hand_over_s, sim.env_step_s, sim.env_step_sd_s]
    numbers += [sim.observe_s, sim.reset_s, sim.hard_reset_s, sim.episode_steps, sim.horizon_steps]
    numbers += [n for c in (one.generation, one.training) for n in (c.memory_bytes, c.item_memory_bytes)]
    wrong["times, memory and host_cpus: want 0 or more"] = min(numbers) < 0
    for text, is_wrong in wrong.items():
        if is_wrong:
            raise ValueError(text)
