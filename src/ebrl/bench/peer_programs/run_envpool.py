"""EnvPool: its own C++ environments, stepped by as many threads, under Stable-Baselines3's PPO; it has no learner."""

# mypy: disable-error-code="import-not-found, misc, no-untyped-call"

from __future__ import annotations

import os
from typing import Any

import envpool
import gymnasium
import numpy as np
from stable_baselines3.common.vec_env import VecEnv

from ebrl.bench.peer_programs.run_sb3 import learn
from ebrl.bench.peer_programs.tasks import Request, answer, read_request


def task_id(name: str) -> str:
    """EnvPool's name for a task.

    Raises:
        SystemExit: EnvPool has no such task.
    """
    suite, _, task = name.partition("/")
    wanted = (f"Meta-World/{task}", f"MetaWorld/{task}", task) if suite == "metaworld" else (task, task[:-1] + "4")
    known = envpool.list_all_envs()
    plain = {one.lower().replace("-", "").replace("_", "").rpartition("/")[2]: one for one in known}
    for one in wanted:
        if one in known:
            return one
    for one in wanted:
        found = plain.get(one.lower().replace("-", "").replace("_", "").rpartition("/")[2])
        if found is not None:
            return str(found)
    raise SystemExit(f"EnvPool has no task {task}")


class Pool(VecEnv):
    """An EnvPool as Stable-Baselines3 wants it: what is over starts again in the same step."""

    def __init__(self, request: Request) -> None:
        self._pool = envpool.make(
            task_id(request.env),
            env_type="gymnasium",
            num_envs=request.num_envs,
            num_threads=request.num_processes,
            max_episode_steps=request.max_episode_steps,
            seed=request.seed,
        )
        obs = self._pool.observation_space
        space = gymnasium.spaces.Box(-np.inf, np.inf, obs.shape, np.float32)
        super().__init__(request.num_envs, space, self._pool.action_space)
        self._wide = self._pool.action_space.dtype

    def reset(self) -> Any:
        """The first observations."""
        return self._pool.reset()[0].astype(np.float32)

    def step_async(self, actions: Any) -> None:
        """The threads take them."""
        self._pool.send(np.asarray(actions, self._wide))

    def step_wait(self) -> Any:
        """All of them; an environment whose episode is over is reset by EnvPool in its next step."""
        obs, rewards, terminated, truncated, _ = self._pool.recv()
        obs = obs.astype(np.float32)
        infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        for i in np.flatnonzero(terminated | truncated):
            infos[i] = {"terminal_observation": obs[i], "TimeLimit.truncated": bool(truncated[i])}
        return obs, rewards.astype(np.float32), terminated | truncated, infos

    def close(self) -> None:
        """Stop the threads."""
        self._pool.close()

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
        """Not in a monitor."""
        return [False] * self.num_envs


def main() -> None:
    """Measure once."""
    request = read_request()
    answer(learn(Pool(request), request), task=task_id(request.env))
    os._exit(0)


if __name__ == "__main__":
    main()
