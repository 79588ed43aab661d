"""Makes action chunks: the body of a generator.

Observations are read from the shards' slabs; actions go back there, and everything that training
needs goes straight into the trajectory store. New weights are adopted between two batches.
"""

from __future__ import annotations

import socket
import time
from typing import Any

import numpy as np
import torch

from ebrl.data import messages as m
from ebrl.data.shared import SharedArrays
from ebrl.data.trajectory import crc, part, rows_of
from ebrl.data.weights import Weights
from ebrl.policies.base import Policy, RowStreams, Sample
from ebrl.workers.building import build_policy, emulated_device, prepare_torch, set_threads
from ebrl.workers.process import enter


class Generation:
    """A policy and the memory it reads and writes."""

    def __init__(
        self,
        policy: Policy,
        *,
        seed: int,
        device: str,
        envs_per_shard: int,
        slabs: SharedArrays,
        store: SharedArrays,
        weights: Weights,
    ) -> None:
        self.policy = policy.eval()
        self.seed = seed
        self.device = device
        self.envs_per_shard = envs_per_shard
        self.weights = weights
        self.here = part(slabs.arrays, "obs")
        self.actions_NHA = slabs["actions"]
        self.store = store.arrays
        self.obs = part(store.arrays, "obs")
        self.record = part(store.arrays, "record")
        self.version = -1

    def adopt(self, wanted: int | None = None) -> int:
        """Take the weights of a version, or those of the next one if they are gone; the newest if none is named."""
        self.version = self.weights.read_into(self.policy.state_dict(), wanted=wanted)
        return self.version

    @torch.inference_mode()
    def serve(self, requests_E4: np.ndarray) -> None:
        """Make a chunk for each environment of each request; columns are shard, slot, chunk, serial.

        The random numbers of an environment depend on its row and the serial alone, not on its company.
        """
        shards, slots, chunks, serials = requests_E4.T
        width = self.envs_per_shard
        here, there = rows_of(shards, width), (rows_of(slots, width), np.repeat(chunks, width))
        obs = {name: array[here] for name, array in self.here.items()}
        keys = [(self.seed, *key) for key in zip(here.tolist(), np.repeat(serials, width).tolist(), strict=True)]
        tensors = {name: torch.from_numpy(array).to(self.device) for name, array in obs.items()}
        self._write(self.policy.sample(tensors, RowStreams(keys)), obs, here, there)

    def _write(
        self, sample: Sample, obs: dict[str, np.ndarray], here: np.ndarray, there: tuple[np.ndarray, np.ndarray]
    ) -> None:
        """``here`` are rows of the slabs, ``there`` rows and chunks of the store."""
        self.actions_NHA[here] = sample.actions.numpy(force=True)
        for name, array in obs.items():
            self.obs[name][there] = array
        for name, tensor in sample.record.items():
            self.record[name][there] = tensor.numpy(force=True)
        self.store["log_prob"][there] = sample.log_prob.numpy(force=True)
        self.store["mean"][there] = sample.mean.numpy(force=True)
        self.store["value"][there] = sample.value.numpy(force=True)
        self.store["behavior_version"][there] = self.version
        self.store["obs_crc"][there] = [[crc(array[row]) for array in obs.values()] for row in range(len(here))]


def body(sock: socket.socket) -> None:
    """Build the policy, then serve batches until the engine is gone."""
    _, setup, _ = m.receive_with_fds(sock)
    if setup is None:
        return
    prepare_torch(setup)
    policy = build_policy(setup)
    m.send_json(sock, m.BUILT, {})
    _, layouts, fds = m.receive_with_fds(sock)
    if layouts is None:
        return
    generation = _attach(policy, setup, layouts, fds)
    emulated = emulated_device(setup)
    sock.send(m.VERSION.pack(m.READY, generation.adopt(), 0.0))
    while True:
        kind, data = m.receive(sock)
        if kind == 0:
            return
        start = time.perf_counter()
        if kind == m.THREADS:
            sock.send(set_threads(data, emulated))
        elif kind == m.ADOPT:
            version = generation.adopt(m.VERSION.unpack(data)[1])
            sock.send(m.VERSION.pack(m.LIVE, version, time.perf_counter() - start))
        else:
            requests_E4 = np.asarray(m.integers(data, m.GENERATE_HEAD.size)).reshape(-1, 4)
            generation.serve(requests_E4)
            if emulated is not None:
                emulated.rest(start, len(requests_E4) * generation.envs_per_shard)
            sock.send(m.VERSION.pack(m.CHUNKS_DONE, generation.version, time.perf_counter() - start))


def _attach(policy: Policy, setup: dict[str, Any], layouts: dict[str, Any], fds: list[int]) -> Generation:
    slabs, store, weights = (
        SharedArrays.attach(fd, layouts[name]) for fd, name in zip(fds, ("slabs", "store", "weights"), strict=True)
    )
    return Generation(
        policy,
        seed=setup["seed"],
        device=setup["device"],
        envs_per_shard=setup["envs_per_worker"],
        slabs=slabs,
        store=store,
        weights=Weights(weights),
    )


if __name__ == "__main__":
    enter(body)
