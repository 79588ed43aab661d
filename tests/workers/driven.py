"""One env worker as a real process, with the test in the engine's place."""

from __future__ import annotations

import fcntl
import termios
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ebrl.data import messages as m
from ebrl.data.shared import SharedArrays
from ebrl.data.spec import EnvSpec
from ebrl.data.trajectory import slab_layout, store_layout
from ebrl.engines.local.process import WorkerProcess

ANSWER_S = 30.0


@dataclass
class Driven:
    """A worker that has built its environment, and the memory it shares with the test."""

    process: WorkerProcess
    spec: EnvSpec
    slabs: SharedArrays
    store: SharedArrays
    said: list[tuple[int, bytes]] = field(default_factory=list)

    def send(self, kind: int, *, cpu: int = 0, seed: int = 1, chunk: int = 0, first: int = 0, count: int = 0) -> None:
        self.process.send(m.ENV_COMMAND.pack(kind, cpu, seed, 0, chunk, first, count))

    def has_heard(self) -> bool:
        """Whether the worker has taken everything that was sent to it."""
        unread = fcntl.ioctl(self.process.sock, termios.TIOCOUTQ, bytes(4))
        return unread == bytes(4)

    def hear(self) -> tuple[int, bytes]:
        self.process.sock.settimeout(ANSWER_S)
        self.said.append(self.process.receive())
        return self.said[-1]

    def reset(self, seed: int = 1, *, cpu: int = 0) -> None:
        self.send(m.RESET, seed=seed, cpu=cpu)
        assert self.hear()[0] == m.RESET_DONE

    def step(self, chunk: int, count: int, *, first: int = 0, cpu: int = 0) -> tuple[int, int, float, int]:
        """Flags, env steps executed, episode return and episode length."""
        self.send(m.STEP, chunk=chunk, first=first, count=count, cpu=cpu)
        kind, data = self.hear()
        assert kind == m.STEPS_DONE, data
        _, flags, num_steps, seconds, episode_return, episode_steps = m.ENV_ANSWER.unpack(data)
        assert seconds >= 0
        return flags, num_steps, episode_return, episode_steps

    def says(self, kind: int) -> str:
        got, data = self.hear()
        assert got == kind, (got, data)
        return data[1:].decode()

    @property
    def here(self) -> np.ndarray:
        row: np.ndarray = self.slabs["obs/state"][0]
        return row

    def actions(self, values: Any) -> None:
        self.slabs["actions"][0] = values


Starter = Callable[..., Driven]


@contextmanager
def env_workers(directory: Path) -> Iterator[Starter]:
    """Starts env workers; all are dead at the end."""
    processes: list[WorkerProcess] = []

    def start(env: str, chunk_len: int = 8, num_chunks: int = 3, **config: Any) -> Driven:
        process = WorkerProcess("ebrl.workers.env_worker", "env worker 0", directory / f"{len(processes)}.log")
        processes.append(process)
        process.sock.settimeout(ANSWER_S)
        process.send_json(m.SETUP, {"shard": 0, "env": env, "config": config})
        kind, document, _ = m.receive_with_fds(process.sock)
        assert kind == m.BUILT, document
        spec = EnvSpec.from_json(document)
        slabs = SharedArrays.create("slabs", slab_layout(spec, num_shards=1, chunk_len=chunk_len))
        store = SharedArrays.create(
            "store",
            store_layout(spec, {}, num_slots=1, trajectory_chunks=num_chunks, num_transitions=1, chunk_len=chunk_len),
        )
        layouts = {"slabs": slabs.layout_json(), "store": store.layout_json()}
        process.send_json(m.ATTACH, layouts, (slabs.fd, store.fd))
        worker = Driven(process, spec, slabs, store)
        assert worker.hear()[0] == m.READY
        slabs.close()
        store.close()
        return worker

    try:
        yield start
    finally:
        for process in processes:
            process.kill()
