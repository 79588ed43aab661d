"""Park a cart: drive it to the mark and stop there."""

from dataclasses import dataclass

import numpy as np

from ebrl.envs.base import ArraySpec, EnvSpec


class Parking:
    """A cart on a line; the action is its acceleration."""

    @dataclass(frozen=True)
    class Config:
        tolerance: float = 0.1

    def __init__(self, task, config):
        self.config = config
        self.spec = EnvSpec(
            observation={"state": ArraySpec((2,), "float32")},
            action_low=(-1.0,),
            action_high=(1.0,),
            max_episode_steps=80,
        )

    def reset(self, seed):
        rng = np.random.default_rng(seed)
        self.position, self.velocity = rng.uniform(-1.0, 1.0, size=2).tolist()
        return self.observe(), {}

    def step(self, action, *, need_obs):
        self.velocity = 0.98 * self.velocity + 0.1 * float(action[0])
        self.position += 0.1 * self.velocity
        parked = abs(self.position) < self.config.tolerance and abs(self.velocity) < self.config.tolerance
        reward = 1.0 if parked else -0.01 * abs(self.position)
        return self.observe() if need_obs else None, reward, parked, False, {"success": parked}

    def observe(self):
        return {"state": np.array([self.position, self.velocity], np.float32)}

    def close(self):
        pass
