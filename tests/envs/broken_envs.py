"""One environment per way to break the contract; each is toy/reach-v1 with one defect."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from ebrl.data.spec import EnvSpec
from ebrl.envs.base import Observation
from ebrl.envs.toy import Reach

Step = tuple[Observation | None, float, bool, bool, dict[str, Any]]


def changed(observation: Observation | None, **arrays: Any) -> Any:
    return None if observation is None else {**observation, **arrays}


class WrongShape(Reach):
    def step(self, action: np.ndarray, *, need_obs: bool) -> Step:
        observation, *rest = super().step(action, need_obs=need_obs)
        return (changed(observation, state=np.zeros(3, np.float32)), *rest)


class WrongDtype(Reach):
    def reset(self, seed: int) -> tuple[Observation, dict[str, Any]]:
        observation, info = super().reset(seed)
        return changed(observation, state=observation["state"].astype(np.float64)), info


class MissingArray(Reach):
    def reset(self, seed: int) -> tuple[Observation, dict[str, Any]]:
        observation, info = super().reset(seed)
        return {"state": observation["state"]}, info


class NanObservation(Reach):
    def step(self, action: np.ndarray, *, need_obs: bool) -> Step:
        observation, *rest = super().step(action, need_obs=need_obs)
        return (changed(observation, state=np.full(4, np.nan, np.float32)), *rest)


class NanReward(Reach):
    def step(self, action: np.ndarray, *, need_obs: bool) -> Step:
        observation, _, *ends, info = super().step(action, need_obs=need_obs)
        return observation, float("nan"), ends[0], ends[1], info


class NumpyFlag(Reach):
    def step(self, action: np.ndarray, *, need_obs: bool) -> Step:
        observation, reward, terminated, truncated, info = super().step(action, need_obs=need_obs)
        return observation, reward, np.bool_(terminated), truncated, info  # type: ignore[return-value]


class FourValues(Reach):
    def step(self, action: np.ndarray, *, need_obs: bool) -> Step:
        return super().step(action, need_obs=need_obs)[:4]  # type: ignore[return-value]


class Raises(Reach):
    def reset(self, seed: int) -> tuple[Observation, dict[str, Any]]:
        raise RuntimeError("no table")


class BadSpec(Reach):
    @property
    def spec(self) -> EnvSpec:
        return EnvSpec(super().spec.observation, (-1.0, 1.0), (1.0, 1.0), 50)


class HistoryDependent(Reach):
    resets = 0

    def reset(self, seed: int) -> tuple[Observation, dict[str, Any]]:
        self.resets += 1
        return super().reset(seed + self.resets)


class HistoryInDynamics(Reach):
    resets = 0

    def reset(self, seed: int) -> tuple[Observation, dict[str, Any]]:
        self.resets += 1
        return super().reset(seed)

    def step(self, action: np.ndarray, *, need_obs: bool) -> Step:
        return super().step(action * np.float32(1 - 0.01 * self.resets), need_obs=need_obs)


class InstanceDependent(Reach):
    made = 0

    def __init__(self, task: str = "", config: Reach.Config | None = None) -> None:
        super().__init__(task, config)
        InstanceDependent.made += 1
        self._shift = InstanceDependent.made

    def reset(self, seed: int) -> tuple[Observation, dict[str, Any]]:
        return super().reset(seed + self._shift)


class PartsOfTheLast(Reach):
    """Whose action counts is whose came last."""

    actions: ClassVar[list[np.ndarray]] = []

    def begin_step(self, action: np.ndarray) -> None:
        self.actions[:] = [action + self._goal.sum()]

    def advance(self) -> None:
        pass

    def end_step(self, *, need_obs: bool) -> Step:
        return self.step(self.actions[0] - self._goal.sum(), need_obs=need_obs)


class LazyPhysics(Reach):
    def step(self, action: np.ndarray, *, need_obs: bool) -> Step:
        return super().step(action if need_obs else 0 * action, need_obs=need_obs)


class AutoReset(Reach):
    seed = 0

    def reset(self, seed: int) -> tuple[Observation, dict[str, Any]]:
        self.seed = seed
        return super().reset(seed)

    def step(self, action: np.ndarray, *, need_obs: bool) -> Step:
        observation, reward, terminated, truncated, info = super().step(action, need_obs=need_obs)
        if terminated:
            observation, _ = self.reset(self.seed)
        return observation, reward, terminated, truncated, info


class AutoResetWithFinal(AutoReset):
    def step(self, action: np.ndarray, *, need_obs: bool) -> Step:
        last, reward, terminated, truncated, info = Reach.step(self, action, need_obs=need_obs)
        if terminated:
            info["final_obs"] = last
            last, _ = self.reset(self.seed + 2)
        return last, reward, terminated, truncated, info


class LateAutoReset(AutoReset):
    over = False

    def step(self, action: np.ndarray, *, need_obs: bool) -> Step:
        if self.over:
            self.over = False
            return self.reset(self.seed)[0], 0.0, False, False, {}
        observation, reward, self.over, truncated, info = Reach.step(self, action, need_obs=need_obs)
        return observation, reward, self.over, truncated, info


class CutsItself(Reach):
    """Nothing is wrong with cutting an episode short."""

    steps = 0

    def reset(self, seed: int) -> tuple[Observation, dict[str, Any]]:
        self.steps = 0
        return super().reset(seed)

    def step(self, action: np.ndarray, *, need_obs: bool) -> Step:
        self.steps += 1
        observation, reward, terminated, _, info = super().step(action, need_obs=need_obs or self.steps == 5)
        return observation, reward, terminated, self.steps == 5 and not terminated, info


class CutsUnseen(CutsItself):
    def step(self, action: np.ndarray, *, need_obs: bool) -> Step:
        observation, *rest = super().step(action, need_obs=need_obs)
        return (observation if need_obs else None, *rest)  # type: ignore[return-value]


class BadInstruction(Reach):
    def reset(self, seed: int) -> tuple[Observation, dict[str, Any]]:
        observation, info = super().reset(seed)
        return changed(observation, instruction=np.full(64, 255, np.uint8)), info


class ClosesOnce(Reach):
    closed = False

    def close(self) -> None:
        if self.closed:
            raise RuntimeError("already closed")
        self.closed = True


class IgnoresSeed(Reach):
    def reset(self, seed: int) -> tuple[Observation, dict[str, Any]]:
        return super().reset(0)


class NeverLooksAway(Reach):
    def step(self, action: np.ndarray, *, need_obs: bool) -> Step:
        return super().step(action, need_obs=True)
