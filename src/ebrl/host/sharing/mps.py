"""MPS percentages: each stage is a process that may use a part of the SMs, fixed when it starts.

A percentage is a cap and no reservation: nothing is set aside, and blocks of both processes may meet on one SM. A
running process keeps its percentage whatever the daemon is told later. So another split needs another process:
start one with ``environment``, let it warm up, and let the old one end when its work is done.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping

from ebrl.host.sharing.base import (
    STAGES,
    Capabilities,
    Held,
    Processes,
    Split,
    Stage,
    in_table,
    refused,
    remarked,
)
from ebrl.host.sharing.driver import count_sms
from ebrl.host.sharing.gate import GRACE_S, Gate
from ebrl.host.sharing.gated import GatedSharing, Obstacle
from ebrl.host.sharing.mps_daemon import MpsDaemon, MpsError, find_programs


class Mps(GatedSharing):
    """One process per stage, each with a percentage of the SMs."""

    name = "mps"

    def __init__(
        self,
        *,
        device: int = 0,
        num_sms: Callable[[], int] | None = None,
        daemon: MpsDaemon | None = None,
        step_percent: int = 5,
        memory_bytes: Mapping[Stage, int] | None = None,
        initial: Split | None = None,
        grace_s: float = GRACE_S,
    ) -> None:
        """Share a device by percentages.

        Args:
            device: index among those that the daemon sees, for the memory limit.
            num_sms: SMs of the device; without it, the driver is asked.
            daemon: ours, unless another one is given.
            step_percent: by how much neighbouring splits differ.
            memory_bytes: device memory that a stage's process may take; none for a stage means no limit.
            initial: split to begin with.
            grace_s: how long a stage that gains waits for the other.
        """
        super().__init__(initial=initial, grace_s=grace_s)
        self._device = device
        self._num_sms = num_sms or (lambda: count_sms(device))
        self._daemon = MpsDaemon() if daemon is None else daemon
        self._step_percent = step_percent
        self._memory_bytes = dict(memory_bytes or {})
        self._percent: dict[Split, dict[Stage, int]] = {}
        self._processes = Processes()

    def probe(self) -> Capabilities:
        """Whether it works here; a daemon that is only started to see that is stopped again."""
        ran = self._daemon.running
        found = super().probe()
        try:
            if not ran:
                self._daemon.stop()
        except MpsError as error:
            return refused(str(error)) if found.works else found
        return found

    def add(self, stage: Stage, pid: int, units: int = 0) -> None:
        """A process of ``stage`` is up, and sees so many SMs (torch: ``multi_processor_count``)."""
        self._processes.add(stage, pid, units)

    def remove(self, stage: Stage, pid: int) -> None:
        """A process has ended."""
        self._processes.remove(stage, pid)

    def prepare(self, split: Split) -> None:
        """See to it that the daemon runs.

        Raises:
            UsageError: ``split`` is not in the table.
            MpsError: the daemon does not start.
        """
        in_table(split, self.table(), self.name)
        self._daemon.start()

    def environment(self, stage: Stage, split: Split) -> Mapping[str, str]:
        """What makes the process a client with its percentage.

        It must not set ``CUDA_VISIBLE_DEVICES``: the daemon has numbered the devices already.
        """
        in_table(split, self.table(), self.name)
        variables = self._daemon.variables()
        variables["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = str(self._percent[split][stage])
        if limit := self._memory_bytes.get(stage):
            variables["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] = f"{self._device}={limit >> 20}M"
        return variables

    def _examine(self) -> tuple[Capabilities, tuple[Split, ...]]:
        if not sys.platform.startswith("linux"):
            raise Obstacle(f"MPS exists on Linux only; this is {sys.platform}")
        find_programs()
        total, step = self._num_sms(), self._step_percent
        for part in range(step, 100, step):
            sms = Split(generation=total * part // 100, training=total * (100 - part) // 100)
            if sms.generation and sms.training:
                self._percent[sms] = {"generation": part, "training": 100 - part}
        whole = Split(generation=total, training=total, shared=True)
        self._percent[whole] = dict.fromkeys(STAGES, 100)
        self._daemon.start()
        found = Capabilities(
            works=True,
            reason="a percentage is a cap, not a reservation; another split needs another process",
            total=total,
            memory_cap=True,
            processes=2,
        )
        return found, tuple(self._percent)

    def _started(self, gate: Gate) -> None:
        self._daemon.start()

    def _held(self, stage: Stage) -> Held:
        held = self._processes.held(stage)
        clients = self._daemon.clients()
        strangers = [pid for pid in held.pids if pid not in clients]
        states = {server: self._daemon.state(server) for server in self._daemon.servers()}
        faulty = [f"server {server} is {state}" for server, state in states.items() if state != "ACTIVE"]
        outside = [f"process {pid} is no client of MPS: it runs unrestricted" for pid in strangers]
        return remarked(held, *outside, *faulty)

    def _release(self) -> None:
        self._daemon.stop()
