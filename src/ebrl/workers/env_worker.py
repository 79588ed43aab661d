"""Steps the environments of one shard: the body of an env worker.

Imports the standard library, numpy and the environment's own module; it runs under whatever
interpreter the environment needs. The engine sends a reset or a grant of env steps, the worker
answers when it is done. It owns the episodes: time limit, early end, success, checks of every value.

Axes: H chunk horizon, A action size.
"""

from __future__ import annotations

import dataclasses
import errno
import os
import socket
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ebrl.data import messages as m
from ebrl.data.shared import SharedArrays
from ebrl.data.spec import EnvSpec
from ebrl.data.trajectory import part
from ebrl.envs.base import VectorEnv, comes_apart
from ebrl.registry import load, make_config
from ebrl.workers.frames import Frames
from ebrl.workers.process import enter

_MAX_REWARD = float(np.finfo(np.float32).max)
"""Rewards are stored as float32."""


class NotFinite(Exception):
    """A value that must not be trained on."""


def all_finite(array: np.ndarray) -> bool:
    """Whether no entry is infinite or not a number; half the price of ``.all()`` on few of them."""
    return bool(np.count_nonzero(np.isfinite(array)) == array.size)


@dataclasses.dataclass(frozen=True, slots=True)
class Habits:
    """What other systems do and this one need not: for comparisons."""

    every_frame: bool = False
    """Ask for the observation after every env step, not only where it is read."""
    to_horizon: bool = False
    """Step an episode that its task has ended on to its time limit; those steps count for nothing."""


class Episode:
    """One environment and the episode it is in; there is none, so it is over, before the first reset."""

    def __init__(
        self,
        env: Any,
        row: int,
        slabs: SharedArrays,
        store: SharedArrays,
        *,
        whose: str = "",
        habits: Habits = Habits(),
    ) -> None:
        """``row`` is the environment's in the slabs; ``whose`` follows the name of a value that is not finite."""
        self.env = env
        self.habits = habits
        self.spec: EnvSpec = env.spec
        self.whose = whose
        self.fields = [(name, spec.shape, np.dtype(spec.dtype)) for name, spec in self.spec.observation.items()]
        self.here = {name: array[row] for name, array in part(slabs.arrays, "obs").items()}
        self.frames = Frames(self.spec.observation)
        self.clipped_HA = slabs["actions"][row]
        """The chunk that is executed, within the action limits; a new array for each, for environments may keep it."""
        self.store = store.arrays
        self.final_obs = part(store.arrays, "final_obs")
        self.number = -1
        self.over = True
        self.terminated = False
        self.num_steps = 0
        self.num_wasted = 0
        """Steps after the task had ended the episode."""
        self.episode_return = 0.0
        self.success = False

    def reset(self, seed: int, number: int) -> None:
        """Start the episode of this number and show its first observation."""
        self.begin(self.env.reset(seed)[0], number)

    def begin(self, obs: Mapping[str, np.ndarray], number: int) -> None:
        """An episode of this number has started with ``obs``."""
        self._check(obs)
        self.frames.begin_episode()
        self.frames.look(obs)
        self._show(obs)
        self.number, self.over, self.terminated = number, False, False
        self.num_steps, self.num_wasted, self.episode_return, self.success = 0, 0, 0.0, False

    def enter(self, row: int, chunk: int) -> None:
        """Take up a chunk of the trajectory in ``row`` of the store."""
        self.row, self.chunk = row, chunk
        self.rewards_H = self.store["reward"][row, chunk]

    def step(self, index: int) -> bool:
        """Execute one action of the chunk; whether the episode is over now."""
        return self.took(index, *self.env.step(self.clipped_HA[index], need_obs=self.needs_obs(index)))

    def run(self, first: int, end: int) -> int:
        """Execute actions ``first`` to ``end`` of the chunk, up to the episode's end; the first one not executed."""
        for index in range(first, end):
            if self.step(index):
                return index + 1
        return end

    def needs_obs(self, index: int) -> bool:
        """Whether the observation after action ``index`` of the chunk is read."""
        return index + 1 == len(self.clipped_HA) or self._at_limit() or self.habits.every_frame

    def _at_limit(self) -> bool:
        return self.num_steps + self.num_wasted + 1 >= self.spec.max_episode_steps

    def took(
        self,
        index: int,
        obs: Mapping[str, np.ndarray] | None,
        reward: float,
        terminated: bool,
        truncated: bool,
        info: Mapping[str, Any],
    ) -> bool:
        """Take in what action ``index`` of the chunk has led to; whether the episode is over now."""
        at_limit, last = self._at_limit(), index + 1 == len(self.clipped_HA)
        if self.terminated:
            self.num_wasted += 1
            self.over = truncated or at_limit
            if obs is not None:
                self._show(obs)
            return self.over
        if not abs(reward) <= _MAX_REWARD:  # nor is anything that is not a number
            raise NotFinite(f"reward{self.whose}")
        self.num_steps += 1
        self.episode_return += reward
        self.success = self.success or bool(info.get("success", False))
        self.rewards_H[index] = reward
        truncated = (truncated or at_limit) and not terminated
        self.terminated = terminated
        self.over = truncated or (terminated and (at_limit or not self.habits.to_horizon))
        if terminated or self.over or last:
            self._end_chunk(index + 1, obs)
        return self.over

    def end(self, env: int) -> m.EpisodeEnd:
        """Of an episode that is over; the environment is number ``env`` of its shard."""
        flags = (m.TERMINATED if self.terminated else 0) | (m.SUCCESS if self.success else 0)
        frames = self.frames
        return m.EpisodeEnd(
            env, flags, self.episode_return, self.num_steps, frames.total, frames.constant, frames.repeated
        )

    def _end_chunk(self, executed: int, obs: Mapping[str, np.ndarray] | None) -> None:
        if obs is None:
            if not self.terminated:
                raise ValueError("step returned no observation where one is read: at the end of a chunk or episode")
            obs = self.here  # never used: nothing follows a terminated episode
        else:
            self._check(obs)
            self.frames.look(obs)
        at = self.row, self.chunk
        for name, array in self.final_obs.items():
            array[at] = obs[name]
        if not self.over:
            self._show(obs)
        self.store["num_executed"][at] = executed
        self.store["terminated"][at] = self.terminated
        self.store["truncated"][at] = self.over and not self.terminated
        self.store["episode"][at] = self.number

    def _show(self, obs: Mapping[str, np.ndarray]) -> None:
        for name, array in self.here.items():
            array[...] = obs[name]

    def _check(self, obs: Mapping[str, np.ndarray]) -> None:
        if obs.keys() != self.spec.observation.keys():
            raise ValueError(f"observation has fields {sorted(obs)}, want {sorted(self.spec.observation)}")
        for name, shape, dtype in self.fields:
            value = np.asarray(obs[name])
            if value.shape != shape or value.dtype != dtype:
                raise ValueError(
                    f"observation {name!r} is {value.dtype} {list(value.shape)}, want {dtype} {list(shape)}"
                )
            if dtype.kind == "f" and not all_finite(value):
                raise NotFinite(f"observation {name!r}{self.whose}")


class Shard:
    """The environments of one env worker, which take up every chunk, and every grant of env steps, together."""

    def __init__(
        self,
        envs: Sequence[Any],
        shard: int,
        slabs: SharedArrays,
        store: SharedArrays,
        *,
        habits: Habits = Habits(),
        vector: VectorEnv | None = None,
    ) -> None:
        """``vector``, if given, steps all environments at once, and ``envs`` only tell their spec."""
        width = len(envs)
        self.vector = vector
        self.in_parts = len(envs) > 1 and vector is None and comes_apart(type(envs[0]))
        self.episodes = [
            Episode(
                env, shard * width + e, slabs, store, whose=f" of environment {e}" if width > 1 else "", habits=habits
            )
            for e, env in enumerate(envs)
        ]
        self.chunk_len = slabs["actions"].shape[1]
        self.actions_WHA = slabs["actions"][shard * width : (shard + 1) * width]
        self.low, self.high = (np.asarray(limits, np.float32) for limits in envs[0].spec.clip_limits)
        self.cleared = [store[name] for name in ("reward", "num_executed", "terminated", "truncated")]

    def reset(self, starts: Sequence[m.EpisodeStart]) -> None:
        """Start episodes in some of the environments; the others stay as they are."""
        if self.vector is None:
            for env, seed, number in starts:
                self.episodes[env].reset(seed, number)
            return
        obs = self.vector.reset([env for env, _, _ in starts], [seed for _, seed, _ in starts])
        for row, (env, _, number) in enumerate(starts):
            self.episodes[env].begin({name: array[row] for name, array in obs.items()}, number)

    def run(self, slot: int, chunk: int, first: int, count: int) -> tuple[int, int, int, list[m.EpisodeEnd]]:
        """Execute actions ``first`` to ``first + count`` of the chunk, each environment up to its episode's end.

        Returns:
            Flags of ``ENV_ANSWER``, the most env steps that any environment executed, env steps of all of them that
            count, episodes that ended.
        """
        first_row = slot * len(self.episodes)
        if first == 0:
            self._begin_chunk(slice(first_row, first_row + len(self.episodes)), chunk)
        for row, episode in enumerate(self.episodes, first_row):
            episode.enter(row, chunk)
        begun = {env: episode for env, episode in enumerate(self.episodes) if not episode.over}
        going = list(begun.values())
        before = sum(episode.num_steps for episode in going)
        if self.vector is None and (count > 1 or not self.in_parts):
            # Each as far as it gets, then the next: what one needs stays in the CPU's cache meanwhile.
            index = max((episode.run(first, first + count) for episode in going), default=first)
            going = [episode for episode in going if not episode.over]
        else:
            index = first
            while going and index < first + count:
                if self.vector is None:
                    self._step_in_parts(going, index)
                else:
                    self._step_at_once(self.vector, index)
                going = [episode for episode in going if not episode.over]
                index += 1
        flags = m.CHUNK_OVER if not going or index == self.chunk_len else 0
        env_steps = sum(episode.num_steps for episode in begun.values()) - before
        ends = [episode.end(env) for env, episode in begun.items() if episode.over]
        return flags, index - first, env_steps, ends

    def _begin_chunk(self, rows: slice, chunk: int) -> None:
        """Take the actions in; nothing is left of an older trajectory in this chunk and those behind it.

        For all environments at once: with one action to a chunk, numpy's calls are dear beside what they do.
        """
        for array in self.cleared:
            array[rows, chunk:] = 0
        going = [env for env, episode in enumerate(self.episodes) if not episode.over]
        actions_GHA = self.actions_WHA if len(going) == len(self.episodes) else self.actions_WHA[going]
        if not all_finite(actions_GHA):
            first = next(env for env, actions_HA in zip(going, actions_GHA, strict=True) if not all_finite(actions_HA))
            raise NotFinite(f"action{self.episodes[first].whose}")
        for env, clipped_HA in zip(going, actions_GHA.clip(self.low, self.high), strict=True):
            self.episodes[env].clipped_HA = clipped_HA

    def _step_in_parts(self, going: Sequence[Episode], index: int) -> None:
        """See ``ebrl.envs.base.InParts``."""
        for episode in going:
            episode.env.begin_step(episode.clipped_HA[index])
        for episode in going:
            episode.env.advance()
        for episode in going:
            episode.took(index, *episode.env.end_step(need_obs=episode.needs_obs(index)))

    def _step_at_once(self, vector: VectorEnv, index: int) -> None:
        active = np.array([not episode.over for episode in self.episodes])
        need_obs = np.array([not episode.over and episode.needs_obs(index) for episode in self.episodes])
        actions_WA = np.stack([episode.clipped_HA[index] for episode in self.episodes])
        result = vector.step(actions_WA, active, need_obs=need_obs)
        for env in map(int, np.flatnonzero(active)):
            obs = None
            if need_obs[env] and result.observation is not None:
                obs = {name: array[env] for name, array in result.observation.items()}
            reward, terminated = float(result.reward[env]), bool(result.terminated[env])
            success = {"success": bool(result.success[env])}
            self.episodes[env].took(index, obs, reward, terminated, False, success)


class Pin:
    """Keeps every thread of this process on some CPUs, as the engine says."""

    def __init__(self) -> None:
        self._cpus: tuple[int, ...] = ()

    def move(self, cpus: tuple[int, ...]) -> None:
        """Move to ``cpus`` unless already there; a process is more than its main thread."""
        if cpus == self._cpus:
            return
        for thread in os.listdir("/proc/self/task"):
            try:
                os.sched_setaffinity(int(thread), cpus)
            except ProcessLookupError:
                pass  # the thread has ended meanwhile
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
                return  # these CPUs are gone, which the engine has found out and said
        self._cpus = cpus


def body(sock: socket.socket) -> None:
    """Build the environments, then carry out commands until the engine is gone."""
    _, setup, _ = m.receive_with_fds(sock)
    if setup is None:
        return
    cls, task = load("env", setup["env"])
    config = make_config(cls, setup["config"], "env.config")
    width = setup["envs_per_worker"]
    vector: VectorEnv | None = None
    if width > 1 and hasattr(cls, "make_vector"):
        vector = cls.make_vector(task, config, width)
    envs = [cls(task, config) for _ in range(width)] if vector is None else [vector] * width
    m.send_json(sock, m.BUILT, envs[0].spec.to_json())
    _, layouts, fds = m.receive_with_fds(sock)
    if layouts is None:
        return
    slabs = SharedArrays.attach(fds[0], layouts["slabs"])
    store = SharedArrays.attach(fds[1], layouts["store"])
    shard = Shard(envs, setup["shard"], slabs, store, habits=Habits(**setup.get("habits", {})), vector=vector)
    m.send_json(sock, m.READY, {})
    pin = Pin()
    while True:
        kind, data = m.receive(sock)
        if kind == 0:
            return
        _serve(sock, shard, pin, m.unpack_env_command(data))


def _serve(sock: socket.socket, shard: Shard, pin: Pin, command: m.EnvCommand) -> None:
    pin.move(command.cpus)
    start = time.perf_counter()
    try:
        if command.kind == m.RESET:
            shard.reset(command.starts)
            answer = m.pack_env_answer(m.RESET_DONE, seconds=time.perf_counter() - start)
        else:
            flags, num_steps, env_steps, ends = shard.run(
                command.slot, command.chunk, command.first_step, command.num_steps
            )
            seconds = time.perf_counter() - start
            answer = m.pack_env_answer(
                m.STEPS_DONE, flags=flags, num_steps=num_steps, env_steps=env_steps, seconds=seconds, ends=ends
            )
    except NotFinite as error:
        m.send_text(sock, m.INVALID, str(error))
    else:
        sock.send(answer)


if __name__ == "__main__":
    enter(body)
