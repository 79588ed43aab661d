"""toy/reach-v1 with an expert whose demonstrations come to nothing."""

from __future__ import annotations

import os
import threading
import time
from typing import Any

import numpy as np

from ebrl.data.spec import EnvSpec
from ebrl.envs.base import Observation
from ebrl.envs.toy import Reach

Step = tuple[Observation | None, float, bool, bool, dict[str, Any]]


def _hang() -> None:
    threading.Event().wait()


class HangsWhenBuilt(Reach):
    def __init__(self, task: str = "", config: Reach.Config | None = None) -> None:
        super().__init__(task, config)
        _hang()


class HangsAtStep(Reach):
    steps = 0

    def step(self, action: np.ndarray, *, need_obs: bool) -> Step:
        self.steps += 1
        if self.steps == 3:
            _hang()
        return super().step(action, need_obs=need_obs)


class HangsInItsThirdReset(Reach):
    """The tries before it fail."""

    resets = 0

    def reset(self, seed: int) -> tuple[Observation, dict[str, Any]]:
        self.resets += 1
        if self.resets == 3:
            _hang()
        return super().reset(seed)

    @property
    def spec(self) -> EnvSpec:
        spec = super().spec
        return EnvSpec(spec.observation, spec.action_low, spec.action_high, 1)


class Slow(Reach):
    """A try takes six seconds."""

    def step(self, action: np.ndarray, *, need_obs: bool) -> Step:
        time.sleep(1.0)
        _, reward, _, truncated, info = super().step(action, need_obs=True)
        self.steps += 1
        info["success"] = self.steps == 6
        return self._observation(), reward, False, truncated, info

    steps = 0


class Dies(Reach):
    def reset(self, seed: int) -> tuple[Observation, dict[str, Any]]:
        os._exit(3)


class Raises(Reach):
    def reset(self, seed: int) -> tuple[Observation, dict[str, Any]]:
        raise RuntimeError("no table")
