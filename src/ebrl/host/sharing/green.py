"""Green contexts: disjoint sets of SMs for two threads of one process, exchanged while both work.

The device is cut once, into the smallest parts that it allows. At every split generation has the first of them and
training the rest, so that the sets of one split have nothing in common, and neighbouring splits differ by a
part. (Cutting the device anew for every split would give sets that overlap.) A lane is a context on such a set and a
stream in it. Lanes are made ahead of time and live until ``close``: a switch only makes one stream wait for another.

Only work that is given to the lane's stream stays in the lane. Side streams, and CUDA graphs that were captured
elsewhere, use the whole device.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

from ebrl.host.sharing.base import STAGES, Capabilities, Held, Split, Stage, in_table, nested_table, remarked
from ebrl.host.sharing.driver import Driver, DriverError, cuda_device, load, require
from ebrl.host.sharing.gate import GRACE_S, Gate
from ebrl.host.sharing.gated import GatedSharing, Obstacle

PRIORITIES: Mapping[Stage, int] = {"generation": -5, "training": 0}
"""Lower goes first where both wait for the same thing, such as memory."""

FINE = 1
"""Flag of the cut: steps of 2 SMs, at the cost of large thread-block clusters."""

MPS_SHARE = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"


@dataclass(frozen=True, slots=True, kw_only=True)
class Atoms:
    """A device that was cut."""

    device: Any
    parts: tuple[Any, ...]
    sms_per_part: int
    remainder: Any
    num_remainder: int
    """SMs that are left over and may join the last part; 0 where the driver refuses that."""

    @property
    def total(self) -> int:
        """SMs that can be given to a stage."""
        return len(self.parts) * self.sms_per_part + self.num_remainder


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """A set of SMs with a stream on it."""

    context: Any
    raw: Any
    stream: Any
    remark: str


class Green(GatedSharing):
    """SMs of one device, for threads of one process."""

    name = "green"

    def __init__(
        self,
        *,
        device: int = 0,
        driver: Driver | None = None,
        cuda: Any = None,
        fine: bool = False,
        priorities: Mapping[Stage, int] = PRIORITIES,
        initial: Split | None = None,
        grace_s: float = GRACE_S,
    ) -> None:
        """Share a device by its SMs.

        Args:
            device: index.
            driver: the CUDA driver, unless another one is given.
            cuda: ``torch.cuda``, unless another one is given.
            fine: steps of 2 SMs instead of what the device prefers; kernels with large clusters do not run then.
            priorities: of each stage's streams.
            initial: split to begin with.
            grace_s: how long a stage that gains waits for the other.
        """
        super().__init__(initial=initial, grace_s=grace_s)
        self._index = device
        self._driver = driver
        self._cuda = cuda
        self._flags = FINE if fine else 0
        self._priorities = priorities
        self._atoms: Atoms | None = None
        self._prepared: dict[tuple[Stage, Split], Lane] = {}
        self._preparing = threading.RLock()
        self._lanes = _Order(self.made)

    def prepare(self, split: Split) -> None:
        """Make both lanes of a split, unless they exist; some milliseconds each.

        Raises:
            UsageError: ``split`` is not in the table.
            DriverError: the driver refuses.
        """
        in_table(split, self.table(), self.name)
        self._make(split)

    def made(self, stage: Stage, split: Split) -> Lane | None:
        """A lane that was prepared; None where the stage has no SMs."""
        return self._prepared[stage, split] if split.of(stage) else None

    def environment(self, stage: Stage, split: Split) -> Mapping[str, str]:
        """Enough hardware queues that the streams of both stages do not fall into one; read at the first CUDA call."""
        return {"CUDA_DEVICE_MAX_CONNECTIONS": "32"}

    def _examine(self) -> tuple[Capabilities, tuple[Split, ...]]:
        atoms = self._cut()
        if len(atoms.parts) < 2:
            raise Obstacle(f"the device can be cut into {len(atoms.parts)} part; want 2 at least")
        left = 0 if atoms.num_remainder else int(atoms.remainder.sm.smCount)
        found = Capabilities(
            works=True,
            reason=f"{left} SMs stay idle: the driver gives the remainder to nobody" if left else "",
            total=atoms.total,
            step=atoms.sms_per_part,
            live_resplit=True,
            exclusive=True,
        )
        return found, nested_table(atoms.total, atoms.sms_per_part)

    def _cut(self) -> Atoms:
        """The device's parts; it is cut once however often this is called."""
        with self._preparing:
            if self._atoms is None:
                share = os.environ.get(MPS_SHARE, "100")
                if share not in ("", "100"):
                    raise Obstacle(f"{MPS_SHARE}={share} is set: a context could grow over its SMs; unset it")
                self._driver = load() if self._driver is None else self._driver
                require(self._driver.version())
                self._cuda = cuda_device() if self._cuda is None else self._cuda
                self._cuda.init()
                self._atoms = self._cut_device(self._driver)
            return self._atoms

    def _cut_device(self, driver: Driver) -> Atoms:
        device = driver.initialize(self._index)
        try:
            whole = driver.device_sms(device)
            smallest = max(int(whole.sm.minSmPartitionSize), int(whole.sm.smCoscheduledAlignment))
            step = 2 if self._flags & FINE else smallest
            parts, remainder = driver.cut(whole, int(whole.sm.smCount) // step, step, self._flags)
            if not parts:
                raise Obstacle(f"the driver cannot cut {int(whole.sm.smCount)} SMs into parts of {step}")
            left = int(remainder.sm.smCount)
            if left and not self._joins(driver, device, parts[-1], remainder):
                left = 0
        except BaseException:
            driver.release(device)
            raise
        return Atoms(
            device=device,
            parts=tuple(parts),
            sms_per_part=int(parts[0].sm.smCount),
            remainder=remainder,
            num_remainder=left,
        )

    def _joins(self, driver: Driver, device: Any, part: Any, remainder: Any) -> bool:
        """Whether a context may have the remainder besides a part: not documented, so it is tried."""
        try:
            context = driver.green_context([part, remainder], device)
        except DriverError:
            return False
        try:
            return driver.context_sms(context) == int(part.sm.smCount) + int(remainder.sm.smCount)
        finally:
            driver.destroy_context(context)

    def _started(self, gate: Gate) -> None:
        self._make(gate.split("generation"))

    def _make(self, split: Split) -> None:
        with self._preparing:
            for stage in STAGES:
                if split.of(stage) and (stage, split) not in self._prepared:
                    self._prepared[stage, split] = self._make_lane(stage, split)

    def _make_lane(self, stage: Stage, split: Split) -> Lane:
        atoms, driver = self._cut(), self._known_driver()
        first = split.generation // atoms.sms_per_part
        parts = atoms.parts[:first] if stage == "generation" else atoms.parts[first:]
        whole = stage == "training" or not split.training
        context, remark = self._context(parts, with_remainder=whole and bool(atoms.num_remainder))
        raw = None
        try:
            raw = driver.stream(context, self._priorities[stage])
            stream = self._cuda.ExternalStream(int(raw), device=self._index)
        except BaseException:
            if raw is not None:
                driver.destroy_stream(raw)
            driver.destroy_context(context)
            raise
        return Lane(context=context, raw=raw, stream=stream, remark=remark)

    def _context(self, parts: tuple[Any, ...], *, with_remainder: bool) -> tuple[Any, str]:
        atoms, driver = self._cut(), self._known_driver()
        if with_remainder:
            try:
                return driver.green_context([*parts, atoms.remainder], atoms.device), ""
            except DriverError as error:
                return driver.green_context(parts, atoms.device), f"{atoms.num_remainder} SMs stay idle: {error}"
        return driver.green_context(parts, atoms.device), ""

    def _known_driver(self) -> Driver:
        assert self._driver is not None, "the device was not cut yet"
        return self._driver

    def _lane(self, stage: Stage, split: Split) -> AbstractContextManager[object]:
        return cast("AbstractContextManager[object]", self._cuda.stream(self._prepared[stage, split].stream))

    def _held(self, stage: Stage) -> Held:
        lane = self.made(stage, self.split(stage))
        if lane is None:
            return Held(units=0)
        return remarked(Held(units=self._known_driver().context_sms(lane.context)), lane.remark)

    def _release(self) -> None:
        """Streams before their contexts, each once its work is done; a failure does not keep the others from going."""
        if self._atoms is None:
            return
        driver, errors = self._known_driver(), list[Exception]()
        while self._prepared:
            _, lane = self._prepared.popitem()
            _attempt(errors, lane.stream.synchronize)
            _attempt(errors, partial(driver.destroy_stream, lane.raw))
            _attempt(errors, partial(driver.destroy_context, lane.context))
        _attempt(errors, partial(driver.release, self._atoms.device))
        self._atoms = None
        if errors:
            raise errors[0]


class _Order:
    """Order between lanes, by events on the device: the host waits for nothing."""

    def __init__(self, lane: Callable[[Stage, Split], Lane | None]) -> None:
        self._lane = lane
        self._owed: dict[Stage, list[Any]] = {stage: [] for stage in STAGES}
        """Events that a stage without SMs will have to wait for once it has some."""

    def mark(self, stage: Stage, split: Split) -> object:
        """An event behind the lane's work; None where there is no lane."""
        lane = self._lane(stage, split)
        return None if lane is None else lane.stream.record_event()

    def follow(self, stage: Stage, split: Split, mark: object) -> None:
        """The lane waits for the event, on the device."""
        if mark is not None:
            self._owed[stage].append(mark)
        lane = self._lane(stage, split)
        while lane is not None and self._owed[stage]:
            lane.stream.wait_event(self._owed[stage].pop())

    def move(self, stage: Stage, split: Split) -> None:
        """Nothing more: the next lane that the stage asks for is that of ``split``."""


def _attempt(errors: list[Exception], call: Callable[[], object]) -> None:
    try:
        call()
    except Exception as error:
        errors.append(error)
