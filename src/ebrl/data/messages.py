"""Small fixed messages between the engine and its worker processes.

One datagram of a ``SOCK_SEQPACKET`` pair is one message: a byte that says what it is, then a fixed
struct or JSON. Arrays never travel here; they lie in shared memory. Standard library only.
"""

from __future__ import annotations

import array
import json
import socket
import struct
from typing import Any

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
PROGRESS = 75
"""JSON: how far the demonstrator is."""

ENV_COMMAND = struct.Struct("<BiIiiii")
"""kind, cpu, seed, slot, chunk, first_step, num_steps."""
ENV_ANSWER = struct.Struct("<BBiddi")
"""kind, flags, num_steps, seconds, episode_return, episode_steps."""
GENERATE_HEAD = struct.Struct("<Bi")
"""GENERATE, number of requests; then shard, slot, chunk, serial of each as int32."""
TRAIN_HEAD = struct.Struct("<Bqi")
"""TRAIN, learner version, number of slots; then each slot as int32."""
VERSION = struct.Struct("<Bqd")
"""kind, policy version, seconds."""

CHUNK_OVER, EPISODE_OVER, TERMINATED, SUCCESS = 1, 2, 4, 8
"""Flags of ``ENV_ANSWER``."""


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
