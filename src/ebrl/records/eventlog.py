"""``events.jsonl.zst``: every event of a run with the commands that answered it.

One line each: ``{"now": seconds, "event": {...}, "commands": [...]}``. Written as independent frames
of a few hundred lines, so that a crash costs at most the last frame.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, Literal

import zstandard

from ebrl.records.schema import event_from_json, to_json
from ebrl.scheduling.commands import Command
from ebrl.scheduling.events import Event, StepsDone


def event_file(part: str) -> str:
    """Name of the event log of one part of a run: ``""`` for its beginning, ``-002`` after the first resume."""
    return f"events{part}.jsonl.zst"


def plan_file(part: str) -> str:
    """Name of the plan of that part."""
    return f"plan{part}.json"


def next_part(run_dir: Path) -> str:
    """The part that begins now; earlier ones are kept."""
    earlier = len(list(run_dir.glob(plan_file("*"))))
    return f"-{earlier + 1:03d}" if earlier else ""


def parts(run_dir: Path) -> list[str]:
    """Parts of a run that have an event log, in the order in which they ran."""
    names = [path.name for path in run_dir.glob(event_file("*"))]
    return sorted(name.removeprefix("events").removesuffix(".jsonl.zst") for name in names)


Level = Literal["off", "chunks", "steps"]
"""What is written. ``chunks`` leaves out grants that end inside a chunk (there are none unless
``simulation.quantum`` is set); a run recorded without them cannot be replayed."""

_LINES_PER_FRAME = 512


class EventLog:
    """Writes one event log."""

    def __init__(self, path: Path, *, level: Level) -> None:
        self.level = level
        self.num_left_out = 0
        """Events that the level leaves out."""
        self._lines: list[str] = []
        self._compressor = zstandard.ZstdCompressor(level=3)
        self._file = None if level == "off" else path.open("wb")

    def write(self, now: float, event: Event, commands: list[Command]) -> None:
        """Record one event and its answer."""
        if self._file is None:
            return
        if self.level == "chunks" and isinstance(event, StepsDone) and not event.chunk_over:
            self.num_left_out += 1
            return
        line = {"now": now, "event": to_json(event), "commands": [to_json(command) for command in commands]}
        self._lines.append(json.dumps(line, separators=(",", ":")))
        if len(self._lines) >= _LINES_PER_FRAME:
            self._flush(self._file)

    def close(self) -> None:
        """Write what is left."""
        if self._file is not None:
            file, self._file = self._file, None
            with file:
                self._flush(file)

    def _flush(self, file: BinaryIO) -> None:
        if self._lines:
            file.write(self._compressor.compress(("\n".join(self._lines) + "\n").encode()))
            file.flush()
            self._lines.clear()


def read_events(path: Path) -> Iterator[tuple[float, Event, list[dict[str, Any]]]]:
    """Time, event and recorded commands (as JSON) of each line; ends where the file was cut off or damaged.

    Raises:
        ValueError: a line is none of this version of the program.
    """
    for frame in _whole_frames(path):
        for line in frame.splitlines():
            document = json.loads(line)
            yield document["now"], event_from_json(document["event"]), document["commands"]


def _whole_frames(path: Path) -> Iterator[bytes]:
    """What each frame holds, up to the first that is not whole."""
    rest = b""
    with path.open("rb") as file:
        while True:
            frame = zstandard.ZstdDecompressor().decompressobj()
            held = b""
            while not frame.eof:
                rest = rest or file.read(1 << 16)
                if not rest:
                    return
                try:
                    held += frame.decompress(rest)
                except zstandard.ZstdError:
                    return
                rest = frame.unused_data
            yield held
