"""Small fixed messages between the engine and its worker processes.

One datagram of a ``SOCK_SEQPACKET`` pair is one message: a byte that says what it is, then a fixed
struct or JSON. Arrays never travel here; they lie in shared memory. Standard library only.
"""

from __future__ import annotations

import array
import json
import socket
import struct
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

MAX_BYTES = 1 << 17
"""Longest message; a longer text is cut."""

# engine → worker
SETUP = 1
"""JSON: everything the worker needs to build itself."""
ATTACH = 2
"""JSON: layouts of the shared arrays; their descriptors travel with it."""
RESET = 3
STEP = 4
GENERATE = 5
ADOPT = 6
TRAIN = 7
SAVE = 8
THREADS = 9

# worker → engine
BUILT = 65
"""JSON: what the worker built (env spec, or policy layouts)."""
READY = 66
STEPS_DONE = 67
RESET_DONE = 68
INVALID = 69
RAISED = 70
"""Text: traceback. The worker exits after it."""
CHUNKS_DONE = 71
LIVE = 72
UPDATED = 73
SAVED = 74
THREADS_SET = 76
PROGRESS = 75
"""JSON: how far the demonstrator is, or what the camera has played."""

ENV_COMMAND = struct.Struct("<Biiiiii")
"""kind, slot, chunk, first_step, num_steps, num_cpus, num_starts; then each CPU as int32, then each start."""
EPISODE_START = struct.Struct("<iIq")
"""env, seed, episode."""
ENV_ANSWER = struct.Struct("<BBiiid")
"""kind, flags, num_steps, env_steps, num_ends, seconds; then each end."""
EPISODE_END = struct.Struct("<iBdiiii")
"""The fields of ``EpisodeEnd``."""
GENERATE_HEAD = struct.Struct("<Bi")
"""GENERATE, number of requests; then shard, slot, chunk, serial of each as int32."""
TRAIN_HEAD = struct.Struct("<Bqi")
"""TRAIN, learner version, number of slots; then each slot as int32."""
THREADS_HEAD = struct.Struct("<Bii")
"""THREADS, number of torch threads, units of the emulated device; 0 of either changes nothing."""
THREADS_ANSWER = struct.Struct("<Bii")
"""THREADS_SET, number of torch threads, units of the emulated device; 0 units of one that is real."""
VERSION = struct.Struct("<Bqd")
"""kind, policy version, seconds."""

CHUNK_OVER = 1
"""Flag of ``ENV_ANSWER``."""
TERMINATED, SUCCESS = 1, 2
"""Flags of ``EPISODE_END``."""

EpisodeStart = tuple[int, int, int]
"""env, seed, episode."""


class EpisodeEnd(NamedTuple):
    """One episode that is over."""

    env: int
    flags: int
    episode_return: float
    episode_steps: int
    frames: int = 0
    """Images of all cameras that were looked at: at the reset and at the end of each chunk."""
    constant_frames: int = 0
    """Those of one colour all over."""
    repeated_frames: int = 0
    """Those that were the same, byte for byte, as the one before from the same camera."""


class EnvCommand(NamedTuple):
    """``RESET`` of some environments of a shard, or ``STEP`` of all."""

    kind: int
    slot: int
    chunk: int
    first_step: int
    num_steps: int
    cpus: tuple[int, ...]
    """Where the env worker is to run."""
    starts: tuple[EpisodeStart, ...]
    """Environments to be reset."""


class EnvAnswer(NamedTuple):
    """What a command has done."""

    kind: int
    flags: int
    num_steps: int
    """The most that any environment of the shard executed."""
    env_steps: int
    """Of all environments of the shard together."""
    seconds: float
    ends: tuple[EpisodeEnd, ...]
    """Episodes that are over since this command."""


def pack_env_command(
    kind: int,
    *,
    slot: int = 0,
    chunk: int = 0,
    first_step: int = 0,
    num_steps: int = 0,
    cpus: Sequence[int],
    starts: Iterable[EpisodeStart] = (),
) -> bytes:
    """An ``EnvCommand`` as a message."""
    begun = [EPISODE_START.pack(*start) for start in starts]
    head = ENV_COMMAND.pack(kind, slot, chunk, first_step, num_steps, len(cpus), len(begun))
    return b"".join((head, struct.pack(f"<{len(cpus)}i", *cpus), *begun))


def unpack_env_command(data: bytes) -> EnvCommand:
    """The ``EnvCommand`` in a message."""
    kind, slot, chunk, first_step, num_steps, num_cpus, num_starts = ENV_COMMAND.unpack_from(data)
    cpus = struct.unpack_from(f"<{num_cpus}i", data, ENV_COMMAND.size)
    starts = tuple(EPISODE_START.iter_unpack(data[ENV_COMMAND.size + 4 * num_cpus :]))
    assert len(starts) == num_starts, f"{len(starts)} episode starts in a message that announces {num_starts}"
    return EnvCommand(kind, slot, chunk, first_step, num_steps, cpus, starts)


def pack_env_answer(
    kind: int,
    *,
    flags: int = 0,
    num_steps: int = 0,
    env_steps: int = 0,
    seconds: float,
    ends: Sequence[EpisodeEnd] = (),
) -> bytes:
    """An ``EnvAnswer`` as a message."""
    head = ENV_ANSWER.pack(kind, flags, num_steps, env_steps, len(ends), seconds)
    return b"".join((head, *(EPISODE_END.pack(*end) for end in ends)))


def unpack_env_answer(data: bytes) -> EnvAnswer:
    """The ``EnvAnswer`` in a message."""
    kind, flags, num_steps, env_steps, num_ends, seconds = ENV_ANSWER.unpack_from(data)
    ends = tuple(map(EpisodeEnd._make, EPISODE_END.iter_unpack(data[ENV_ANSWER.size :])))
    assert len(ends) == num_ends, f"{len(ends)} episode ends in a message that announces {num_ends}"
    return EnvAnswer(kind, flags, num_steps, env_steps, seconds, ends)


def send_json(sock: socket.socket, kind: int, document: Any, fds: tuple[int, ...] = ()) -> None:
    """Send ``document``, and hand over ``fds``."""
    data = bytes([kind]) + json.dumps(document).encode()
    if len(data) > MAX_BYTES:
        raise ValueError(f"message {kind} has {len(data)} bytes, more than {MAX_BYTES}")
    if fds:
        socket.send_fds(sock, [data], list(fds))
    else:
        sock.send(data)


def send_text(sock: socket.socket, kind: int, text: str) -> None:
    """Send a text, keeping its end if it is too long: a traceback says most in its last lines."""
    sock.send(bytes([kind]) + text.encode()[-(MAX_BYTES - 1) :])


def receive(sock: socket.socket) -> tuple[int, bytes]:
    """The next message; kind 0 when the other side is gone."""
    data = sock.recv(MAX_BYTES)
    return (data[0], data) if data else (0, b"")


def receive_with_fds(sock: socket.socket) -> tuple[int, Any, list[int]]:
    """A JSON message and the descriptors that came with it; kind 0 when the other side is gone."""
    data, fds, _, _ = socket.recv_fds(sock, MAX_BYTES, 8)
    return (data[0], json.loads(data[1:]), fds) if data else (0, None, [])


def integers(data: bytes, offset: int) -> array.array[int]:
    """The int32 values behind a message's head."""
    values = array.array("i")
    values.frombytes(data[offset:])
    return values
