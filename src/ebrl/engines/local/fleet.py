"""The processes of a run and the memory they share: how they start, and how they end."""

from __future__ import annotations

import json
import select
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ebrl.data import messages as m
from ebrl.data.checkpoint import list_checkpoints
from ebrl.data.shared import SharedArrays, num_bytes
from ebrl.data.spec import ArraySpec, EnvSpec
from ebrl.data.trajectory import slab_layout, store_layout
from ebrl.engines.local.process import WorkerProcess
from ebrl.engines.local.setup import LocalSetup
from ebrl.errors import ConfigError, EnvFailure, RunError, WorkerFailure
from ebrl.host.probe import available_bytes


@dataclass(frozen=True, slots=True)
class Key:
    """Which process."""

    kind: Literal["env", "generator", "learner"]
    index: int = 0

    @property
    def label(self) -> str:
        """How messages name it."""
        return _LABELS[self.kind].format(self.index)


LEARNER = Key("learner")

_LABELS = {"env": "env worker {}", "generator": "generator {}", "learner": "learner"}

_MODULES = {
    "env": "ebrl.workers.env_worker",
    "generator": "ebrl.workers.generator",
    "learner": "ebrl.workers.learner",
}

_GIB = 1 << 30

_MEMORY = {"env": ("slabs", "store"), "generator": ("slabs", "store", "weights"), "learner": ("store", "weights")}
"""What each kind of process maps, in the order in which it expects the descriptors."""


class Fleet:
    """Env workers, generators and learner of one run.

    A process starts in three moves: it is set up and builds its part (``BUILT``), it is attached to
    the shared memory, and it is ready (``READY``). The sizes of the memory follow from what the
    first environment and the learner built.
    """

    def __init__(self, setup: LocalSetup, on_launch: Callable[[Key, WorkerProcess], None]) -> None:
        """Nothing starts here; ``on_launch`` hears of every process that is started later."""
        self.setup = setup
        self.generators = tuple(Key("generator", index) for index in range(setup.num_generators))
        self.processes: dict[Key, WorkerProcess] = {}
        """Processes that live, as far as is known."""
        self.up: set[Key] = set()
        """Those that are ready for work."""
        self.built: dict[str, Any] = {}
        """What the learner said of the policy: layouts, number of parameters."""
        self.env_spec: EnvSpec
        self._memory: dict[str, SharedArrays] = {}
        self._on_launch = on_launch

    def start(self) -> None:
        """Start every process; returns when learner and generators are ready and one env worker has built its part.

        Raises:
            EnvFailure: the first env worker cannot make its environments; carries its traceback.
            WorkerFailure: a generator or the learner cannot be made.
            ConfigError: the memory that trajectories take is not there.
        """
        first = Key("env", 0)
        for key in (first, LEARNER, *self.generators):
            self._launch(key)
        self._set_up_env(first)
        self.env_spec = EnvSpec.from_json(json.loads(self._await(first, m.BUILT)[1:]))
        for shard in range(1, self.setup.num_shards):
            self.launch(Key("env", shard), version=self.setup.first_version)
        self._set_up_learner(self.setup.first_version, restart=False)
        self.built = json.loads(self._await(LEARNER, m.BUILT)[1:])
        self._make_memory()
        self._attach(first)
        self._attach(LEARNER)
        self._await(LEARNER, m.READY)
        self._is_ready(LEARNER)
        for key in self.generators:
            self._set_up_generator(key)
        for key in self.generators:
            self._await(key, m.BUILT)
            self._attach(key)
        for key in self.generators:
            self._await(key, m.READY)
            self._is_ready(key)

    def launch(self, key: Key, *, version: int) -> None:
        """Start or replace one process of a fleet that was started; a learner goes on from ``version``."""
        self._launch(key)
        if key.kind == "env":
            self._set_up_env(key)
        elif key.kind == "generator":
            self._set_up_generator(key)
        else:
            self._set_up_learner(version, restart=True)

    def hear_start(self, key: Key, got: int, data: bytes) -> bool:
        """Take the next message of a process that is starting; True once it is ready.

        Raises:
            EnvFailure: the environments of a worker are not like those of the first one.
        """
        if got == m.READY:
            self._is_ready(key)
            return True
        if key.kind == "env":
            spec = EnvSpec.from_json(json.loads(data[1:]))
            if spec != self.env_spec:
                raise EnvFailure(f"{key.label} has another environment than worker 0: {spec}, want {self.env_spec}")
        self._attach(key)
        self.processes[key].begins_now()  # until now it may have waited for somebody who listens
        return False

    def bury(self, key: Key, *, dump_stack: bool = False) -> str:
        """Make certain that a process is dead; says how it ended."""
        self.up.discard(key)
        return self.processes.pop(key).kill(dump_stack=dump_stack)

    def close(self) -> None:
        """Kill every process and give all memory back."""
        for key in list(self.processes):
            self.bury(key)
        for shared in self._memory.values():
            shared.close()
        self._memory.clear()

    def _launch(self, key: Key) -> None:
        log = self.setup.run_dir / "logs" / f"{key.label.replace(' ', '-')}.log"
        threads = self.setup.cpus_per_shard if key.kind == "env" else None  # torch is told in its process
        python = self.setup.env_python if key.kind == "env" else sys.executable
        variables = self.setup.env_variables(key.index) if key.kind == "env" else {}
        process = WorkerProcess(_MODULES[key.kind], key.label, log, threads=threads, python=python, variables=variables)
        process.expect("its start", self.setup.deadlines.start_s)
        self.processes[key] = process
        self._on_launch(key, process)

    def _send_setup(self, key: Key, document: Mapping[str, Any]) -> None:
        process = self.processes[key]
        process.send_json(m.SETUP, document)
        process.begins_now()  # learner and generators wait for what the first env worker and the learner say

    def _is_ready(self, key: Key) -> None:
        self.processes[key].answered()
        self.up.add(key)

    def _set_up_env(self, key: Key) -> None:
        setup = self.setup
        document = {
            "shard": key.index,
            "envs_per_worker": setup.envs_per_shard,
            "env": setup.env,
            "config": setup.env_config,
            "habits": {"every_frame": setup.observe_every_step, "to_horizon": setup.run_to_horizon},
        }
        self._send_setup(key, document)

    def _set_up_generator(self, key: Key) -> None:
        setup = self.setup
        document = setup.policy_setup(
            self.env_spec,
            device=setup.generator_device,
            threads=setup.generator_threads,
            emulated=setup.emulated_generator,
        )
        self._send_setup(key, document)

    def _set_up_learner(self, version: int, *, restart: bool) -> None:
        setup = self.setup
        found = list_checkpoints(setup.checkpoint_dir) if restart else []
        checkpoint = found[-1] if found else setup.checkpoint
        own = {
            "algorithm": setup.algorithm,
            "algorithm_config": setup.algorithm_config,
            "checkpoint": str(checkpoint) if checkpoint else "",
            "restore_algorithm": setup.restore_algorithm or bool(found),
            "version": version,
            "restart": restart,
            "nice": setup.learner_nice,
        }
        shared = setup.policy_setup(
            self.env_spec,
            device=setup.learner_device,
            threads=setup.learner_threads,
            emulated=setup.emulated_learner,
        )
        self._send_setup(LEARNER, shared | own)

    def _make_memory(self) -> None:
        setup, width = self.setup, self.setup.envs_per_shard
        slabs = slab_layout(self.env_spec, num_shards=setup.num_shards, envs_per_shard=width, chunk_len=setup.chunk_len)
        store = store_layout(
            self.env_spec,
            {name: ArraySpec.from_json(value) for name, value in self.built["record"].items()},
            num_slots=self._num_slots,
            envs_per_shard=width,
            trajectory_chunks=self._num_chunks,
            num_transitions=self.built["num_transitions"],
            chunk_len=setup.chunk_len,
        )
        weights = {name: ArraySpec.from_json(value) for name, value in self.built["weights"].items()}
        layouts = {"slabs": slabs, "store": store, "weights": weights}
        self._check_memory(sum(map(num_bytes, layouts.values())))
        for name, layout in layouts.items():
            self._memory[name] = SharedArrays.create(name, layout)

    @property
    def weights(self) -> SharedArrays:
        """The double buffer of policy weights, once there is memory."""
        return self._memory["weights"]

    @property
    def _num_slots(self) -> int:
        """An evaluation has one for each shard."""
        return max(self.setup.num_slots, self.setup.num_shards)

    @property
    def _num_chunks(self) -> int:
        """Most chunks of a trajectory."""
        setup = self.setup
        return (
            -(-self.env_spec.max_episode_steps // setup.chunk_len) if setup.whole_episodes else setup.trajectory_chunks
        )

    def _check_memory(self, needed: int) -> None:
        """Memory is given when it is first written to: too much of it would end the run later, without a word."""
        available = available_bytes()
        if available is not None and needed > available:
            count = self._num_slots * self.setup.envs_per_shard
            length = "the environment's time limit" if self.setup.whole_episodes else "training.trajectory_chunks"
            raise ConfigError(
                f"training.batch_trajectories, training.slack, {length}",
                f"{count} trajectories of {self._num_chunks} chunks are held at once, which takes "
                f"{needed / _GIB:.1f} GiB of memory ({needed} bytes): want at most the {available / _GIB:.1f} GiB that "
                "are available; lower one",
            )

    def _attach(self, key: Key) -> None:
        shared = {name: self._memory[name] for name in _MEMORY[key.kind]}
        layouts = {name: arrays.layout_json() for name, arrays in shared.items()}
        self.processes[key].send_json(m.ATTACH, layouts, tuple(arrays.fd for arrays in shared.values()))

    def _await(self, key: Key, kind: int) -> bytes:
        """Wait for one message of one process, before there is a loop to wait in."""
        process = self.processes[key]
        error: type[RunError] = EnvFailure if key.kind == "env" else WorkerFailure
        left = process.deadline - time.monotonic()
        if not select.select([process.sock], [], [], max(0.0, left))[0]:
            self.bury(key, dump_stack=True)
            raise error(f"{key.label} did not finish {process.waits_for} in time\n{process.log_tail()}")
        got, data = process.receive()
        if got == kind:
            return data
        how = self.bury(key)
        text = data[1:].decode(errors="replace") if got == m.RAISED else process.log_tail()
        raise error(f"{key.label} failed while starting ({how})\n{text}")
