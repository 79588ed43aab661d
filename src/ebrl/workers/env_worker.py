"""Steps one environment: the body of an env worker.

Imports the standard library, numpy and the environment's own module; it runs under whatever
interpreter the environment needs. The engine sends a reset or a grant of env steps, the worker
answers when it is done. It owns the episode: time limit, early end, success, checks of every value.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from ebrl.data import messages as m
from ebrl.data.shared import SharedArrays
from ebrl.data.spec import EnvSpec
from ebrl.data.trajectory import part
from ebrl.registry import load, make_config
from ebrl.workers.process import enter

_MAX_REWARD = float(np.finfo(np.float32).max)
"""Rewards are stored as float32."""


class NotFinite(Exception):
    """A value that must not be trained on."""


class Episode:
    """One environment and the episode it is in."""

    def __init__(self, env: Any, shard: int, slabs: SharedArrays, store: SharedArrays) -> None:
        self.env = env
        self.spec: EnvSpec = env.spec
        self.shard = shard
        self.low = np.asarray(self.spec.action_low, np.float32)
        self.high = np.asarray(self.spec.action_high, np.float32)
        self.here = {name: array[shard] for name, array in part(slabs.arrays, "obs").items()}
        self.actions_HA = slabs["actions"][shard]
        self.store = store.arrays
        self.final_obs = part(store.arrays, "final_obs")
        self.num_steps = 0
        self.episode_return = 0.0
        self.success = False

    def reset(self, seed: int) -> None:
        """Start an episode and show its first observation."""
        obs, _ = self.env.reset(seed)
        self._check(obs)
        for name, array in self.here.items():
            array[...] = obs[name]
        self.num_steps, self.episode_return, self.success = 0, 0.0, False

    def run(self, slot: int, chunk: int, first: int, count: int) -> tuple[int, int]:
        """Execute actions ``first`` to ``first + count`` of the chunk, or up to the episode's end.

        Returns:
            Env steps executed, and flags of ``ENV_ANSWER``.
        """
        rewards_H = self.store["reward"][slot, chunk]
        horizon = len(self.actions_HA)
        if first == 0:
            rewards_H[:] = 0.0
            if not np.isfinite(self.actions_HA).all():
                raise NotFinite("action")
        for index in range(first, first + count):
            action_A = np.clip(self.actions_HA[index], self.low, self.high)
            at_limit = self.num_steps + 1 >= self.spec.max_episode_steps
            last = index + 1 == horizon
            obs, reward, terminated, truncated, info = self.env.step(action_A, need_obs=last or at_limit)
            if not abs(reward) <= _MAX_REWARD:  # nor is anything that is not a number
                raise NotFinite("reward")
            self.num_steps += 1
            self.episode_return += reward
            self.success = self.success or bool(info.get("success", False))
            rewards_H[index] = reward
            truncated = (truncated or at_limit) and not terminated
            if terminated or truncated or last:
                self._end_chunk(slot, chunk, index + 1, obs, terminated, truncated)
                over = terminated or truncated
                flags = m.CHUNK_OVER | (m.EPISODE_OVER if over else 0) | (m.TERMINATED if terminated else 0)
                return index + 1 - first, flags | (m.SUCCESS if self.success else 0)
        return count, 0

    def _end_chunk(
        self,
        slot: int,
        chunk: int,
        executed: int,
        obs: Mapping[str, np.ndarray] | None,
        terminated: bool,
        truncated: bool,
    ) -> None:
        if obs is None:
            if not terminated:
                raise ValueError("step returned no observation where one is read: at the end of a chunk or episode")
            obs = self.here  # never used: nothing follows a terminated episode
        else:
            self._check(obs)
        for name, array in self.final_obs.items():
            array[slot, chunk] = obs[name]
        if not (terminated or truncated):
            for name, array in self.here.items():
                array[...] = obs[name]
        self.store["num_executed"][slot, chunk] = executed
        self.store["terminated"][slot, chunk] = terminated
        self.store["truncated"][slot, chunk] = truncated

    def _check(self, obs: Mapping[str, np.ndarray]) -> None:
        if obs.keys() != self.spec.observation.keys():
            raise ValueError(f"observation has fields {sorted(obs)}, want {sorted(self.spec.observation)}")
        for name, spec in self.spec.observation.items():
            value = np.asarray(obs[name])
            if value.shape != spec.shape or value.dtype != spec.dtype:
                raise ValueError(
                    f"observation {name!r} is {value.dtype} {list(value.shape)}, want {spec.dtype} {list(spec.shape)}"
                )
            if value.dtype.kind == "f" and not np.isfinite(value).all():
                raise NotFinite(f"observation {name!r}")


class Pin:
    """Keeps every thread of this process on one CPU, as the engine says."""

    def __init__(self) -> None:
        self._cpu = -1

    def move(self, cpu: int) -> None:
        """Move to ``cpu`` unless already there; a process is more than its main thread."""
        if cpu == self._cpu:
            return
        for thread in os.listdir("/proc/self/task"):
            try:
                os.sched_setaffinity(int(thread), {cpu})
            except ProcessLookupError:
                pass  # the thread has ended meanwhile
        self._cpu = cpu


def body(sock: socket.socket) -> None:
    """Build the environment, then carry out commands until the engine is gone."""
    _, setup, _ = m.receive_with_fds(sock)
    if setup is None:
        return
    cls, task = load("env", setup["env"])
    env = cls(task, make_config(cls, setup["config"], "env.config"))
    m.send_json(sock, m.BUILT, env.spec.to_json())
    _, layouts, fds = m.receive_with_fds(sock)
    if layouts is None:
        return
    slabs = SharedArrays.attach(fds[0], layouts["slabs"])
    store = SharedArrays.attach(fds[1], layouts["store"])
    episode = Episode(env, setup["shard"], slabs, store)
    m.send_json(sock, m.READY, {})
    pin = Pin()
    while True:
        kind, data = m.receive(sock)
        if kind == 0:
            return
        _serve(sock, episode, pin, data)


def _serve(sock: socket.socket, episode: Episode, pin: Pin, data: bytes) -> None:
    kind, cpu, seed, slot, chunk, first, count = m.ENV_COMMAND.unpack(data)
    pin.move(cpu)
    start = time.perf_counter()
    try:
        if kind == m.RESET:
            episode.reset(seed)
            sock.send(m.ENV_ANSWER.pack(m.RESET_DONE, 0, 0, time.perf_counter() - start, 0.0, 0))
        else:
            executed, flags = episode.run(slot, chunk, first, count)
            seconds = time.perf_counter() - start
            answer = m.ENV_ANSWER.pack(
                m.STEPS_DONE, flags, executed, seconds, episode.episode_return, episode.num_steps
            )
            sock.send(answer)
    except NotFinite as error:
        m.send_text(sock, m.INVALID, str(error))


if __name__ == "__main__":
    enter(body)
