"""A device that is not there: its shares are accounted for, and whoever emulates it stretches work accordingly."""

from __future__ import annotations

from ebrl.host.sharing.base import Capabilities, Held, Split, Stage, nested_table
from ebrl.host.sharing.gate import GRACE_S
from ebrl.host.sharing.gated import GatedSharing, Obstacle


class Emulated(GatedSharing):
    """Shares of a device that a description stands for; switches obey the same rules as on a real one."""

    name = "emulated"

    def __init__(self, *, num_sms: int, sm_step: int, initial: Split | None = None, grace_s: float = GRACE_S) -> None:
        """A device of ``num_sms`` SMs that is split in steps of ``sm_step``, as its profile says."""
        super().__init__(initial=initial, grace_s=grace_s)
        self.num_sms = num_sms
        self.sm_step = sm_step

    def fraction(self, stage: Stage) -> float:
        """Share of the device that the stage has now, to look its service time up with."""
        return self.split(stage).of(stage) / self.num_sms

    def _examine(self) -> tuple[Capabilities, tuple[Split, ...]]:
        if not 1 <= self.sm_step <= self.num_sms:
            raise Obstacle(f"a device of {self.num_sms} SMs in steps of {self.sm_step}: want num_sms ≥ sm_step ≥ 1")
        found = Capabilities(
            works=True,
            reason="emulated: no device does the work",
            total=self.num_sms,
            step=self.sm_step,
            live_resplit=True,
            exclusive=True,
            processes=0,
        )
        return found, nested_table(self.num_sms, self.sm_step)

    def _held(self, stage: Stage) -> Held:
        return Held(units=self.split(stage).of(stage))
