"""Episodes of random actions, and what two of them have in common: the ground of ``check_env``."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ebrl.data.spec import EnvSpec

NUM_STEPS = 40
"""Env steps of the episodes that are compared."""


class Wrong(Exception):
    """A broken rule, in words for the environment's author."""


@dataclasses.dataclass(frozen=True)
class Moment:
    """What one reset or env step gave; ``reward`` and the two ends are None for a reset."""

    observation: Mapping[str, np.ndarray] | None
    reward: float | None = None
    terminated: bool | None = None
    truncated: bool | None = None
    success: bool = False

    @property
    def is_last(self) -> bool:
        """Whether the episode ends with it."""
        return bool(self.terminated or self.truncated)


def expect(right: bool, problem: str) -> None:
    """Say ``problem`` to the environment's author unless all is ``right``."""
    if not right:
        raise Wrong(problem)


def random_actions(spec: EnvSpec, count: int) -> np.ndarray:
    """``[count, A] float32`` within the limits, the same for every call."""
    rng = np.random.Generator(np.random.Philox(key=0))
    low, high = np.asarray(spec.action_low), np.asarray(spec.action_high)
    return rng.uniform(low, high, (count, spec.action_dim)).astype(np.float32)


def play(env: Any, seed: int, *, observe: Callable[[int], bool] = lambda t: True) -> list[Moment]:
    """An episode of random actions, the same for every call, up to its end or ``NUM_STEPS``."""
    observation, _ = env.reset(seed)
    moments = [Moment(copied(observation))]
    for t, action in enumerate(random_actions(env.spec, NUM_STEPS), start=1):
        moments.append(_moment(env.step(action.copy(), need_obs=observe(t)), seen=observe(t)))
        if moments[-1].is_last:
            break
    return moments


def play_in_parts(envs: Sequence[Any], seeds: Sequence[int]) -> list[list[Moment]]:
    """As ``play``, of several environments at once: each part of an env step of all, then the next."""
    played = [[Moment(copied(env.reset(seed)[0]))] for env, seed in zip(envs, seeds, strict=True)]
    for action in random_actions(envs[0].spec, NUM_STEPS):
        going = [pair for pair in zip(envs, played, strict=True) if not pair[1][-1].is_last]
        for env, _ in going:
            env.begin_step(action.copy())
        for env, _ in going:
            env.advance()
        for env, moments in going:
            moments.append(_moment(env.end_step(need_obs=True), seen=True))
    return played


def _moment(result: tuple[Any, ...], *, seen: bool) -> Moment:
    observation, reward, terminated, truncated, info = result
    kept = copied(observation) if seen else None
    return Moment(kept, float(reward), terminated, truncated, info.get("success", False))


def copied(observation: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """An observation that stays as it is, whatever the environment does with its arrays."""
    return {name: array.copy() for name, array in observation.items()}


def compare(first: list[Moment], other: list[Moment], because: str) -> None:
    """Name the first difference between two episodes that should be one."""
    for t, (a, b) in enumerate(zip(first, other, strict=False)):
        where = f"env step {t}" if t else "the reset"
        if a.observation is not None and b.observation is not None:
            for name in a.observation:
                if not np.array_equal(a.observation[name], b.observation[name]):
                    gap = np.abs(a.observation[name].astype(np.float64) - b.observation[name]).max()
                    raise Wrong(f"observation[{name!r}] of {where} differs by up to {gap:.3g} {because}")
        for field in ("reward", "terminated", "truncated", "success"):
            one, two = getattr(a, field), getattr(b, field)
            expect(one == two, f"{field} of {where} is {one}, then {two}, {because}")
    expect(len(first) == len(other), f"the episode has {len(first) - 1}, then {len(other) - 1} env steps, {because}")


def distance(a: Mapping[str, np.ndarray], b: Mapping[str, np.ndarray]) -> float:
    """Largest change of any number that is not text."""
    names = [name for name in a if name != "instruction"]
    return max((float(np.abs(a[n].astype(np.float64) - b[n]).max()) for n in names), default=1.0)
