"""Meta-World as the peers see it: the 39 numbers and nothing to read."""

from __future__ import annotations

import dataclasses
from typing import Any

from ebrl.data.spec import EnvSpec
from ebrl.envs.base import Observation
from ebrl.envs.metaworld import MetaWorld


class StateOnly(MetaWorld):
    """``MetaWorld`` without its instruction, which peers do not get and whose encoder would cost more than the rest."""

    @classmethod
    def bench_config(cls, max_episode_steps: int) -> MetaWorld.Config:
        """The package's own reward and episodes."""
        return cls.Config(max_episode_steps=max_episode_steps, terminate_on_success=False, reward="dense")

    def _make_spec(self) -> EnvSpec:
        spec = super()._make_spec()
        return dataclasses.replace(spec, observation={"state": spec.observation["state"]})

    def _observation(self) -> Observation:
        state: Any = self._obs.astype("float32")
        return {"state": state}
