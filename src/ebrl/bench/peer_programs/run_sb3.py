"""Stable-Baselines3: PPO over two processes that step their environments one after the other.

``SubprocVecEnv`` starts a process for each environment, which on few CPUs is slower; the vector environment here
is the same idea with several environments to a process.
"""

# mypy: disable-error-code="import-not-found, misc, no-untyped-call"

from __future__ import annotations

import math
import multiprocessing
import os
import sys
from typing import Any

import numpy as np
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import SubprocVecEnv, VecEnv

from ebrl.bench.peer_programs.tasks import Request, Window, answer, make_env, read_request


def _serve(pipe: Any, request: Request, first: int, count: int) -> None:
    envs = [make_env(request, request.seed + first + i) for i in range(count)]
    pipe.send((envs[0].observation_space, envs[0].action_space))
    while True:
        try:
            actions = pipe.recv()
        except EOFError:
            return
        if actions is None:
            pipe.send(np.stack([env.reset(seed=request.seed + first + i)[0] for i, env in enumerate(envs)]))
            continue
        obs, rewards, dones, infos = [], [], [], []
        for env, action in zip(envs, actions, strict=True):
            observation, reward, terminated, truncated, _ = env.step(action)
            info: dict[str, Any] = {"TimeLimit.truncated": truncated and not terminated}
            if terminated or truncated:
                info["terminal_observation"] = observation
                observation = env.reset()[0]
            obs.append(observation)
            rewards.append(reward)
            dones.append(terminated or truncated)
            infos.append(info)
        pipe.send((np.stack(obs), np.asarray(rewards, np.float32), np.asarray(dones), infos))


class FewProcesses(VecEnv):
    """Several environments to a process."""

    def __init__(self, request: Request) -> None:
        self._pipes = []
        share = request.num_envs // request.num_processes
        context = multiprocessing.get_context("fork")
        for index in range(request.num_processes):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs, request, index * share, share), daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(ours)
        spaces = [pipe.recv() for pipe in self._pipes]
        super().__init__(request.num_envs, *spaces[0])

    def reset(self) -> Any:
        """The first observations."""
        for pipe in self._pipes:
            pipe.send(None)
        return np.concatenate([pipe.recv() for pipe in self._pipes])

    def step_async(self, actions: Any) -> None:
        """Each process takes its part of the actions."""
        for pipe, part in zip(self._pipes, np.split(actions, len(self._pipes)), strict=True):
            pipe.send(part)

    def step_wait(self) -> Any:
        """Wait for all of them."""
        obs, rewards, dones, infos = zip(*[pipe.recv() for pipe in self._pipes], strict=True)
        return np.concatenate(obs), np.concatenate(rewards), np.concatenate(dones), [i for part in infos for i in part]

    def close(self) -> None:
        """The processes end with their pipes."""
        for pipe in self._pipes:
            pipe.close()

    def get_attr(self, attr_name: str, indices: Any = None) -> Any:
        """Nobody asks for anything but the render mode."""
        return [None] * self.num_envs

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        """Not needed."""
        raise NotImplementedError

    def env_method(self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any) -> Any:
        """Not needed."""
        raise NotImplementedError

    def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> Any:
        """Not in a monitor: its files are nothing to measure."""
        return [False] * self.num_envs


class Clock(BaseCallback):
    """Marks the end of each update: the start of the next collection."""

    def __init__(self, window: Window) -> None:
        super().__init__()
        self._window = window
        self.over = False

    def _on_rollout_start(self) -> None:
        self.over = self._window.update_ended(self.num_timesteps)

    def _on_step(self) -> bool:
        return not self.over


class OnEveryCpu(PPO):
    """Learns with as many threads as there are CPUs: its environments wait meanwhile."""

    def train(self) -> None:
        """An update."""
        torch.set_num_threads(len(os.sched_getaffinity(0)))
        super().train()
        torch.set_num_threads(1)


class CollectOnly(PPO):
    """Collects and does not learn."""

    def train(self) -> None:
        """Not."""


def learn(vector: VecEnv, request: Request) -> Window:
    """PPO at the request's settings until the window is over."""
    torch.set_num_threads(1)
    layers = list(request.hidden)
    model = (OnEveryCpu if request.learn else CollectOnly)(
        "MlpPolicy",
        vector,
        n_steps=request.rollout,
        batch_size=request.minibatch_steps,
        n_epochs=request.epochs,
        learning_rate=request.learning_rate,
        policy_kwargs={"net_arch": {"pi": layers, "vf": layers}, "log_std_init": math.log(request.initial_std)},
        seed=request.seed,
        device="cpu",
        verbose=0,
    )
    window = Window(request)
    model.learn(10**9, callback=Clock(window), log_interval=None)
    return window


def main() -> None:
    """Measure once."""
    request = read_request()
    own = request.num_processes < request.num_envs
    vector: VecEnv
    if own:
        vector = FewProcesses(request)
    else:
        makers = [lambda i=i: make_env(request, request.seed + i) for i in range(request.num_envs)]
        vector = SubprocVecEnv(makers, start_method="fork")
    answer(learn(vector, request))
    sys.stdout.flush()
    vector.close()
    os._exit(0)


if __name__ == "__main__":
    main()
