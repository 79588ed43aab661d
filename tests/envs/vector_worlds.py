"""A simulator that steps many worlds at once, small enough to read, and what every ``VectorEnv`` must do."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ebrl.data.spec import ArraySpec, EnvSpec
from ebrl.envs.base import Observation, VectorEnv, VectorStep

LIMIT = 30


class DriftVector:
    """Points on a line, all moved by one numpy addition; a world succeeds and ends beyond 1."""

    def __init__(self, num_worlds: int) -> None:
        self.spec = EnvSpec({"state": ArraySpec((1,), "float32")}, (-1.0,), (1.0,), LIMIT)
        self._place = np.zeros(num_worlds, np.float32)

    def reset(self, worlds: Sequence[int], seeds: Sequence[int]) -> Observation:
        for world, seed in zip(worlds, seeds, strict=True):
            self._place[world] = np.random.Generator(np.random.PCG64(seed)).uniform(-1, 0)
        return {"state": self._place[list(worlds), None].copy()}

    def step(self, actions: np.ndarray, active: np.ndarray, *, need_obs: np.ndarray) -> VectorStep:
        self._place += np.where(active, actions[:, 0] * np.float32(0.1) + np.float32(0.05), np.float32(0))
        over = self._place > 1
        seen = {"state": self._place[:, None].copy()} if need_obs.any() else None
        return VectorStep(seen, over.astype(np.float32), over, over)

    def close(self) -> None:
        pass


class Drift:
    """One world of it, as an environment."""

    @dataclasses.dataclass(frozen=True)
    class Config:
        pass

    @classmethod
    def make_vector(cls, task: str, config: Config, num_worlds: int) -> DriftVector:
        return DriftVector(num_worlds)

    def __init__(self, task: str = "", config: Config | None = None) -> None:
        self._worlds = DriftVector(1)
        self.spec = self._worlds.spec

    def reset(self, seed: int) -> tuple[Observation, dict[str, Any]]:
        return {name: array[0] for name, array in self._worlds.reset((0,), (seed,)).items()}, {}

    def step(
        self, action: np.ndarray, *, need_obs: bool
    ) -> tuple[Observation | None, float, bool, bool, dict[str, Any]]:
        one = self._worlds.step(action[None], np.ones(1, bool), need_obs=np.full(1, need_obs))
        seen = {name: array[0] for name, array in one.observation.items()} if one.observation is not None else None
        return seen, float(one.reward[0]), bool(one.terminated[0]), False, {"success": bool(one.success[0])}

    def close(self) -> None:
        pass


def check_worlds(vector: VectorEnv, make: Callable[[], Any], num_worlds: int, num_steps: int) -> None:
    """Every world of ``vector`` does what a single environment does alone, to the last bit.

    Worlds start at different times, rest at different times, and are looked at in different steps.
    """
    rng = np.random.Generator(np.random.PCG64(0))
    singles = [make() for _ in range(num_worlds)]
    low, high = np.asarray(vector.spec.action_low), np.asarray(vector.spec.action_high)
    over = np.ones(num_worlds, bool)
    for t in range(num_steps):
        begin = [world for world in range(num_worlds) if over[world] and t >= 3 * world]
        if begin:
            starts = vector.reset(begin, [100 + 10 * t + world for world in begin])
            for row, world in enumerate(begin):
                alone, _ = singles[world].reset(100 + 10 * t + world)
                _same({name: array[row] for name, array in starts.items()}, alone, f"world {world}, reset at {t}")
                over[world] = False
        active = ~over & (rng.random(num_worlds) < 0.8)
        need_obs = active & (rng.random(num_worlds) < 0.5)
        actions = rng.uniform(low, high, (num_worlds, len(low))).astype(np.float32)
        actions[~active] = np.nan
        if not active.any():
            continue
        result = vector.step(actions, active, need_obs=need_obs)
        assert (result.observation is None) == (not need_obs.any())
        for world in map(int, np.flatnonzero(active)):
            seen, reward, terminated, truncated, info = singles[world].step(actions[world], need_obs=need_obs[world])
            got = result.reward[world], result.terminated[world], result.success[world]
            assert got == (np.float32(reward), terminated, info["success"]), (world, t)
            assert not truncated
            if need_obs[world]:
                assert result.observation is not None
                _same({name: array[world] for name, array in result.observation.items()}, seen, f"world {world} at {t}")
            over[world] = terminated or rng.random() < 0.05
    for single in singles:
        single.close()
    vector.close()
    vector.close()


def _same(got: Observation, want: Observation, where: str) -> None:
    assert got.keys() == want.keys(), where
    for name, array in want.items():
        assert got[name].dtype == array.dtype, (where, name)
        assert np.array_equal(got[name], array), (where, name)
