"""MIG instances that an administrator has made: each stage's process is bound to one of them.

The only way that also divides memory bandwidth and cache, and keeps faults apart. Instances are read and never
made: that needs root and an idle card. A process sees one instance, so another split needs another process.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import permutations

from ebrl.host.sharing.base import Capabilities, Held, Processes, Split, Stage, in_table, remarked
from ebrl.host.sharing.gate import GRACE_S
from ebrl.host.sharing.gated import GatedSharing, Obstacle

LISTER = "nvidia-smi"
ANSWER_S = 10.0

SMS_OF_SLICES: Mapping[str, Mapping[int, int]] = {
    "A100": {1: 14, 2: 28, 3: 42, 4: 56, 7: 98},
    "H100": {1: 16, 2: 32, 3: 60, 4: 64, 7: 132},
    "H200": {1: 16, 2: 32, 3: 60, 4: 64, 7: 132},
}
"""SMs of an instance by its number of compute slices, for cards whose name contains the key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """A part of a card, with memory of its own."""

    uuid: str
    profile: str
    """Such as 3g.71gb."""
    num_sms: int


def list_devices() -> str:
    """What ``nvidia-smi -L`` prints.

    Raises:
        Obstacle: there is no such program, or it fails.
    """
    if shutil.which(LISTER) is None:
        raise Obstacle(f"{LISTER} is not on PATH; it comes with NVIDIA's driver")
    try:
        result = subprocess.run(
            [LISTER, "-L"], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=ANSWER_S
        )
    except subprocess.TimeoutExpired:
        raise Obstacle(f"{LISTER} -L gave no answer within {ANSWER_S:g} s") from None
    except OSError as error:
        raise Obstacle(f"{LISTER} -L did not run: {error.strerror}") from error
    if result.returncode:
        said = (result.stdout + result.stderr).strip().splitlines()
        raise Obstacle(f"{LISTER} -L failed with status {result.returncode}: {said[0] if said else 'no message'}")
    return result.stdout


def instances(listing: str, device: int, sms_of_slices: Mapping[str, Mapping[int, int]]) -> tuple[Instance, ...]:
    """Instances of one card in a listing.

    Raises:
        Obstacle: no such card, or one whose instances have an unknown number of SMs.
    """
    cards = re.split(r"(?m)^GPU ", listing)[1:]
    card = next((text for text in cards if text.startswith(f"{device}:")), None)
    if card is None:
        raise Obstacle(f"{LISTER} lists no GPU {device}")
    name = re.sub(r"\s*\(UUID.*", "", card.splitlines()[0].split(":", 1)[1].strip())
    found = re.findall(r"MIG\s+(?:\d+c\.)?((\d+)g\.\S+)\s.*\(UUID:\s*(MIG-[^)\s]+)\)", card)
    counts = next((counts for key, counts in sms_of_slices.items() if key in name), {})
    if unknown := sorted({profile for profile, slices, _ in found if int(slices) not in counts}):
        raise Obstacle(f"how many SMs {', '.join(unknown)} has on {name!r} is not known here")
    return tuple(Instance(uuid=uuid, profile=profile, num_sms=counts[int(slices)]) for profile, slices, uuid in found)


class Mig(GatedSharing):
    """One process per stage, each on an instance of its own."""

    name = "mig"

    def __init__(
        self,
        *,
        device: int = 0,
        lister: Callable[[], str] = list_devices,
        sms_of_slices: Mapping[str, Mapping[int, int]] = SMS_OF_SLICES,
        initial: Split | None = None,
        grace_s: float = GRACE_S,
    ) -> None:
        """Share the card with this index, as ``lister`` sees it."""
        super().__init__(initial=initial, grace_s=grace_s)
        self._device = device
        self._lister = lister
        self._sms_of_slices = sms_of_slices
        self._instances: tuple[Instance, ...] = ()
        self._pairs: dict[Split, tuple[int, int]] = {}
        """Position of generation's and training's instance."""
        self._processes = Processes()

    def add(self, stage: Stage, pid: int, units: int = 0) -> None:
        """A process of ``stage`` is up, and sees so many SMs (torch: ``multi_processor_count``)."""
        self._processes.add(stage, pid, units)

    def remove(self, stage: Stage, pid: int) -> None:
        """A process has ended."""
        self._processes.remove(stage, pid)

    def instance(self, stage: Stage, split: Split) -> Instance:
        """The instance of a stage at a split.

        Raises:
            UsageError: ``split`` is not in the table.
        """
        in_table(split, self.table(), self.name)
        return self._instances[self._pairs[split][0 if stage == "generation" else 1]]

    def environment(self, stage: Stage, split: Split) -> Mapping[str, str]:
        """The only device that the process will see."""
        return {"CUDA_VISIBLE_DEVICES": self.instance(stage, split).uuid}

    def _units(self, split: Split, stage: Stage) -> frozenset[int]:
        return frozenset({self._pairs[split][0 if stage == "generation" else 1]})

    def _examine(self) -> tuple[Capabilities, tuple[Split, ...]]:
        found = instances(self._lister(), self._device, self._sms_of_slices)
        if len(found) < 2:
            raise Obstacle(
                f"GPU {self._device} has {len(found)} MIG instances; want 2, made by an administrator (nvidia-smi mig)"
            )
        pairs: dict[Split, tuple[int, int]] = {}
        for one, two in permutations(range(len(found)), 2):
            split = Split(generation=found[one].num_sms, training=found[two].num_sms)
            pairs.setdefault(split, (one, two))
        table = tuple(sorted(pairs, key=lambda split: (split.generation, -split.training)))
        if not self._pairs:
            self._instances, self._pairs = found, pairs
        return (
            Capabilities(
                works=True,
                reason="each stage on an instance that exists; another split needs another process",
                total=sum(instance.num_sms for instance in found),
                exclusive=True,
                memory_cap=True,
                fault_isolation=True,
                processes=2,
            ),
            table,
        )

    def _held(self, stage: Stage) -> Held:
        held = self._processes.held(stage)
        wanted = self.instance(stage, self.split(stage))
        there = instances(self._lister(), self._device, self._sms_of_slices)
        gone = wanted.uuid not in {instance.uuid for instance in there}
        return remarked(held, f"instance {wanted.uuid} ({wanted.profile}) is gone" if gone else "")
