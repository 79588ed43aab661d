"""A Gymnasium environment that ends its episodes by truncation, without a registered limit."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np


class CutsItself(gymnasium.Env):
    """A point that drifts, and is taken away after seven steps."""

    action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)
    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._position, self._steps = float(self.np_random.uniform(-1, 1)), 0
        return self._look(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._position += float(action[0]) / 10
        self._steps += 1
        return self._look(), 0.0, False, self._steps == 7, {}

    def _look(self) -> Any:
        return np.array([self._position, self._steps], np.float32)
