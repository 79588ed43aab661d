"""Takes updates: the body of the learner.

Reads batches from the trajectory store, trains, and writes the new weights into the double
buffer before it answers. Checkpoints are written between two updates.
"""

from __future__ import annotations

import json
import os
import socket
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ebrl.algorithms.base import Algorithm, TrainingBatch, make_algorithm
from ebrl.data import messages as m
from ebrl.data.checkpoint import load_algorithm, load_policy, save_checkpoint
from ebrl.data.shared import SharedArrays
from ebrl.data.trajectory import crc, part, rows_of
from ebrl.data.weights import Weights, layout_to_json, weights_layout
from ebrl.errors import RatioMismatch
from ebrl.policies.base import Policy
from ebrl.registry import load, make_config
from ebrl.workers.building import build_policy, emulated_device, prepare_torch, set_threads, use_fast_products
from ebrl.workers.process import enter

RATIO_TOLERANCE = 1e-4
"""Largest |ratio − 1| of a chunk made by exactly the weights that evaluate it again."""


def read_batch(store: SharedArrays, rows: np.ndarray, device: str) -> TrainingBatch:
    """Copy the trajectories in ``rows`` out of shared memory, in this order."""

    def take(array: np.ndarray) -> Tensor:
        return torch.from_numpy(array[rows]).to(device)

    arrays = store.arrays
    return TrainingBatch(
        obs={name: take(array) for name, array in part(arrays, "obs").items()},
        final_obs={name: take(array) for name, array in part(arrays, "final_obs").items()},
        record={name: take(array) for name, array in part(arrays, "record").items()},
        log_prob=take(arrays["log_prob"]),
        mean=take(arrays["mean"]),
        value=take(arrays["value"]),
        reward=take(arrays["reward"]),
        num_executed=take(arrays["num_executed"]),
        terminated=take(arrays["terminated"]),
        truncated=take(arrays["truncated"]),
        behavior_version=take(arrays["behavior_version"]),
        episode=take(arrays["episode"]),
    )


class Learning:
    """A policy, its algorithm, and the memory between them and the rest."""

    def __init__(
        self, setup: dict[str, Any], policy: Policy, algorithm: Algorithm, store: SharedArrays, weights: Weights
    ) -> None:
        self.setup = setup
        self.policy = policy
        self.algorithm = algorithm
        self.store = store
        self.weights = weights
        self.version = int(setup["version"])
        self._checked = False
        self._observations_agree = False
        self._num_unchecked = 0
        """Updates whose algorithm did not say whether ratios are right."""

    def train(self, slots: np.ndarray) -> dict[str, float]:
        """One update on the trajectories of all environments in ``slots``; new weights are in the buffer afterwards."""
        rows = rows_of(slots, self.setup["envs_per_worker"])
        batch = read_batch(self.store, rows, self.setup["device"])
        rng = torch.Generator()
        rng.manual_seed(self.setup["seed"] * 1_000_003 + self.version)
        metrics = dict(self.algorithm.update(batch, learner_version=self.version, rng=rng))
        if "skipped" not in metrics:
            name = type(self.algorithm).__name__
            raise ValueError(f"{name}.update reports {', '.join(metrics) or 'nothing'}: want a metric 'skipped'")
        if "ratio_checked_chunks" in metrics:
            self._check_first(metrics, rows)
        else:
            self._num_unchecked += 1
            metrics["updates_without_ratio_check"] = float(self._num_unchecked)
            self._check_observations(rows)
        if not metrics["skipped"]:
            self.version += 1
            self.weights.write(self.version, self.policy.state_dict())
        return metrics

    def num_chunks(self, slots: np.ndarray, *, padding: bool) -> int:
        """Of these trajectories; with ``padding`` those that were never executed, too."""
        executed = self.store["num_executed"][rows_of(slots, self.setup["envs_per_worker"])]
        return executed.size if padding else int(np.count_nonzero(executed))

    def _check_first(self, metrics: dict[str, float], rows: np.ndarray) -> None:
        """Before anything was learned, the learner must agree with the generator on every chunk."""
        if self._checked or not metrics["ratio_checked_chunks"]:
            return
        self._checked = True
        deviation = metrics["ratio_max_deviation_first"]
        # Looked at in any case: new policies often ignore what they see, and then the ratio is right.
        self._check_observations(rows, f"; the probability ratio of fresh chunks is off by {deviation:.3g}")
        if deviation > RATIO_TOLERANCE:
            raise RatioMismatch(
                f"first update: the probability ratio of fresh chunks is off by {deviation:.3g}, want at most "
                f"{RATIO_TOLERANCE:g}; the observations agree byte for byte, so the weights or the policy's two code "
                "paths differ"
            )

    def _check_observations(self, rows: np.ndarray, consequence: str = "") -> None:
        if self._observations_agree:
            return
        if fields := self._different_fields(rows):
            raise RatioMismatch(
                f"first update: the learner reads other values of observation {', '.join(map(repr, fields))} than the "
                f"generator saw{consequence}"
            )
        self._observations_agree = True

    def _different_fields(self, rows: np.ndarray) -> list[str]:
        seen, executed = self.store["obs_crc"], self.store["num_executed"] > 0
        fields = list(part(self.store.arrays, "obs").items())
        return [
            name
            for index, (name, array) in enumerate(fields)
            if any(
                crc(array[row, chunk]) != seen[row, chunk, index]
                for row in rows
                for chunk in np.flatnonzero(executed[row])
            )
        ]


def body(sock: socket.socket) -> None:
    """Build policy and algorithm, then train and save until the engine is gone."""
    _, setup, _ = m.receive_with_fds(sock)
    if setup is None:
        return
    prepare_torch(setup)
    if setup["device"] == "cpu":
        use_fast_products()
    os.nice(setup["nice"])
    policy = build_policy(setup)
    cls, _ = load("algorithm", setup["algorithm"])
    algorithm = make_algorithm(cls, make_config(cls, setup["algorithm_config"], "algorithm.config"), policy)
    if setup["checkpoint"]:
        load_policy(Path(setup["checkpoint"]), policy)
        if setup["restore_algorithm"]:
            load_algorithm(Path(setup["checkpoint"]), algorithm)
    m.send_json(sock, m.BUILT, _built(policy))
    _, layouts, fds = m.receive_with_fds(sock)
    if layouts is None:
        return
    store = SharedArrays.attach(fds[0], layouts["store"])
    weights = Weights(SharedArrays.attach(fds[1], layouts["weights"]))
    if setup["restart"]:
        weights.read_again(setup["version"], policy.state_dict())
        weights.forget_newer(setup["version"])
    else:
        weights.write(setup["version"], policy.state_dict())
    _serve(sock, Learning(setup, policy, algorithm, store, weights))


def _built(policy: Policy) -> dict[str, Any]:
    return {
        "record": layout_to_json(policy.record_spec()),
        "num_transitions": policy.num_transitions(),
        "weights": layout_to_json(weights_layout(policy.state_dict())),
        "num_parameters": sum(p.numel() for p in policy.parameters()),
    }


def _serve(sock: socket.socket, learning: Learning) -> None:
    emulated = emulated_device(learning.setup)
    sock.send(m.VERSION.pack(m.READY, learning.version, 0.0))
    while True:
        kind, data = m.receive(sock)
        if kind == 0:
            return
        start = time.perf_counter()
        if kind == m.THREADS:
            sock.send(set_threads(data, emulated))
        elif kind == m.TRAIN:
            slots = np.asarray(m.integers(data, m.TRAIN_HEAD.size))
            metrics = learning.train(slots)
            if emulated is not None:
                num_chunks = learning.num_chunks(slots, padding=learning.setup["emulated"]["padding"])
                emulated.rest(start, num_chunks)
                metrics |= {
                    "emulation_overruns": emulated.overruns,
                    "emulation_overrun_s": emulated.overrun_s,
                    "emulation_device_s": emulated.seconds(num_chunks),
                }
            document = {"version": learning.version, "seconds": time.perf_counter() - start, "metrics": metrics}
            m.send_json(sock, m.UPDATED, document)
        else:
            request = json.loads(data[1:])
            save_checkpoint(
                Path(request["directory"]),
                learning.policy,
                learning.algorithm,
                {**request["state"], "policy_version": learning.version},
                keep=request["keep"],
            )
            sock.send(m.VERSION.pack(m.SAVED, learning.version, time.perf_counter() - start))


if __name__ == "__main__":
    enter(body)
