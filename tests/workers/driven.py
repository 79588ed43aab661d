"""One env worker as a real process, with the test in the engine's place."""

from __future__ import annotations

import fcntl
import sys
import termios
from collections.abc import Callable, Iterator, Sequence
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

    def send(
        self,
        kind: int,
        *,
        cpus: tuple[int, ...] = (0,),
        starts: Sequence[m.EpisodeStart] = ((0, 1, 0),),
        chunk: int = 0,
        first: int = 0,
        count: int = 0,
    ) -> None:
        begun = starts if kind == m.RESET else ()
        self.process.send(
            m.pack_env_command(kind, slot=0, chunk=chunk, first_step=first, num_steps=count, cpus=cpus, starts=begun)
        )

    def has_heard(self) -> bool:
        """Whether the worker has taken everything that was sent to it."""
        unread = fcntl.ioctl(self.process.sock, termios.TIOCOUTQ, bytes(4))
        return unread == bytes(4)

    def hear(self) -> tuple[int, bytes]:
        self.process.sock.settimeout(ANSWER_S)
        self.said.append(self.process.receive())
        return self.said[-1]

    def reset(self, seed: int = 1, *, env: int = 0, episode: int = 0, cpus: tuple[int, ...] = (0,)) -> None:
        self.send(m.RESET, starts=[(env, seed, episode)], cpus=cpus)
        kind, data = self.hear()
        assert kind == m.RESET_DONE, data
        answer = m.unpack_env_answer(data)
        assert answer.seconds > 0
        assert answer == m.EnvAnswer(m.RESET_DONE, 0, 0, 0, answer.seconds, ())

    def step(self, chunk: int, count: int, *, first: int = 0, cpus: tuple[int, ...] = (0,)) -> m.EnvAnswer:
        self.send(m.STEP, chunk=chunk, first=first, count=count, cpus=cpus)
        kind, data = self.hear()
        assert kind == m.STEPS_DONE, data
        answer = m.unpack_env_answer(data)
        assert answer.seconds >= 0
        return answer

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

    def start(
        env: str,
        chunk_len: int = 8,
        num_chunks: int = 3,
        num_envs: int = 1,
        python: str = sys.executable,
        **config: Any,
    ) -> Driven:
        log = directory / f"{len(processes)}.log"
        process = WorkerProcess("ebrl.workers.env_worker", "env worker 0", log, python=python)
        processes.append(process)
        process.sock.settimeout(ANSWER_S)
        process.send_json(m.SETUP, {"shard": 0, "envs_per_worker": num_envs, "env": env, "config": config})
        kind, document, _ = m.receive_with_fds(process.sock)
        assert kind == m.BUILT, document
        spec = EnvSpec.from_json(document)
        slabs = SharedArrays.create(
            "slabs", slab_layout(spec, num_shards=1, envs_per_shard=num_envs, chunk_len=chunk_len)
        )
        layout = store_layout(
            spec,
            {},
            num_slots=1,
            envs_per_shard=num_envs,
            trajectory_chunks=num_chunks,
            num_transitions=1,
            chunk_len=chunk_len,
        )
        store = SharedArrays.create("store", layout)
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
