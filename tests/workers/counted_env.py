"""An environment whose every number says where it comes from."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from ebrl.data.spec import ArraySpec, EnvSpec


class Counted:
    """``state`` is the episode's seed, env steps done, and the last action; the episode ends by itself
    after as many env steps as its seed says."""

    @dataclasses.dataclass(frozen=True)
    class Config:
        """Options."""

        nan_in: str = ""
        """``reward`` or ``observation``: what is not a number in the fourth env step of seed 13."""
        goes_on: bool = False
        """May be stepped though its task has ended the episode."""

    def __init__(self, task: str = "", config: Config | None = None) -> None:
        self.config = config if config is not None else self.Config()
        self.seed = self.steps = self.num_frames = 0

    @property
    def spec(self) -> EnvSpec:
        return EnvSpec({"state": ArraySpec((3,), "float32")}, (-1.0,), (1.0,), 20)

    def reset(self, seed: int) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        self.seed, self.steps = seed, 0
        return self._observe(0.0), {}

    def step(
        self, action: np.ndarray, *, need_obs: bool
    ) -> tuple[dict[str, np.ndarray] | None, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        assert self.config.goes_on or self.steps <= self.seed, "stepped though the episode is over"
        self.num_frames += need_obs
        bad = self.config.nan_in if (self.seed, self.steps) == (13, 4) else ""
        obs = self._observe(np.nan if bad == "observation" else float(action[0])) if need_obs else None
        reward = np.nan if bad == "reward" else float(self.seed)
        return obs, reward, self.steps == self.seed, False, {}

    def _observe(self, action: float) -> dict[str, np.ndarray]:
        return {"state": np.array([self.seed, self.steps, action], np.float32)}

    def close(self) -> None:
        pass
