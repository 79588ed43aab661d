"""Which back-end a run uses: the one that the user named, or the best that works here."""

from __future__ import annotations

from collections.abc import Sequence

from ebrl.errors import ConfigError, nearest
from ebrl.host.probe import usable_cpus
from ebrl.host.sharing.base import Sharing
from ebrl.host.sharing.cpu import Cpu
from ebrl.host.sharing.green import Green
from ebrl.host.sharing.mig import Mig
from ebrl.host.sharing.mps import Mps
from ebrl.host.sharing.streams import Streams
from ebrl.host.sharing.time_slice import TimeSlice
from ebrl.ids import CpuId
from ebrl.resources.hardware import BackEnd

AUTO = "auto"

ORDER = ("green", "mig", "mps", "streams", "time_slice", "cpu")
"""Best first: a split that moves while workers run, one in hardware, a cap per process, overlap without a split,
turns, no device at all. An emulated device is only ever chosen by name."""


def on_host(*, device: int, cpus: Sequence[CpuId]) -> tuple[Sharing, ...]:
    """Every back-end that a real device can have, best first; nothing is started yet.

    A probe of ``green`` makes the calling process a user of the device until ``close``: close what is not used, or
    probe in a process of its own.
    """
    return (
        Green(device=device),
        Mig(device=device),
        Mps(device=device),
        Streams(device=device),
        TimeSlice(),
        Cpu(cpus=cpus),
    )


def probe_device(device: int) -> tuple[BackEnd, ...]:
    """What works to share this GPU, and why the rest does not; nothing stays behind in this process."""
    candidates = on_host(device=device, cpus=usable_cpus())
    try:
        return back_ends(candidates)
    finally:
        for candidate in candidates:
            candidate.close()


def choose(name: str, candidates: Sequence[Sharing], *, processes: int = 0, field: str = "sharing") -> Sharing:
    """The back-end called ``name``; for ``auto``, the first in ``ORDER`` that works.

    Args:
        name: as the user wrote it.
        candidates: back-ends to choose from, each name once.
        processes: how many processes the two stages run in, if that is settled.
        field: what the user set, for messages.

    Raises:
        ConfigError: it is not there, does not work, or does not fit; for ``auto``, none does. Says why.
    """
    named = {candidate.name: candidate for candidate in candidates}
    if name == AUTO:
        reasons = []
        for one in (one for one in ORDER if one in named):
            if not (problem := _problem(named[one], processes)):
                return named[one]
            reasons.append(f"{one}: {problem}")
        raise ConfigError(
            field, f"= {name!r}: no way of sharing works here; {'; '.join(reasons) or 'none was offered'}"
        )
    if name not in named:
        hint = nearest(name, [AUTO, *named]) or f"want {AUTO} or one of {', '.join(named)}"
        raise ConfigError(field, f"= {name!r}: there is no such way of sharing; {hint}")
    if problem := _problem(named[name], processes):
        raise ConfigError(field, f"= {name!r}: does not work here: {problem}; {AUTO} takes what works")
    return named[name]


def back_ends(candidates: Sequence[Sharing]) -> tuple[BackEnd, ...]:
    """What was probed, as the description of a device keeps it."""
    found = [(candidate.name, candidate.probe()) for candidate in candidates]
    return tuple(BackEnd(name=name, works=probed.works, reason=probed.reason) for name, probed in found)


def _problem(candidate: Sharing, processes: int) -> str:
    """Why a back-end cannot be used; empty if it can."""
    found = candidate.probe()
    if not found.works:
        return found.reason
    if processes and found.processes not in (0, processes):
        return f"it is for stages in {found.processes} process(es), and here they are in {processes}"
    return ""
