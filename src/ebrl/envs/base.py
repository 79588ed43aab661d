"""What an environment is to EBRL.

Standard library and numpy only: this module is imported by env workers of every interpreter.

The runtime, not the environment, owns action chunks, resets, seeds, deadlines, time limits,
respawn and metrics. An environment never resets itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np

from ebrl.data.spec import INSTRUCTION_BYTES, ArraySpec, EnvSpec

__all__ = [
    "INSTRUCTION_BYTES",
    "ArraySpec",
    "Env",
    "EnvSpec",
    "InParts",
    "Observation",
    "OneWorld",
    "VectorEnv",
    "VectorStep",
    "comes_apart",
    "encode_instruction",
    "episode_seed",
]

Observation = Mapping[str, np.ndarray]
"""Named arrays, each exactly as the spec says."""


class Env(Protocol):
    """One simulated world.

    A class has one frozen dataclass ``Config`` nested in it, whose fields all have defaults, and is
    made as ``cls(task, config)`` where ``task`` is what follows the slash of its name (or ``""``).
    """

    Config: ClassVar[type]

    @property
    def spec(self) -> EnvSpec:
        """Shapes and limits; the same for the life of the environment."""
        ...

    def reset(self, seed: int) -> tuple[Observation, dict[str, Any]]:
        """Start an episode whose initial state depends on ``seed`` (0 ≤ seed < 2**31) alone."""
        ...

    def step(
        self, action: np.ndarray, *, need_obs: bool
    ) -> tuple[Observation | None, float, bool, bool, dict[str, Any]]:
        """Advance one env step with ``action`` ``[A] float32``, already clipped.

        Returns observation, reward, terminated, truncated, info. ``terminated`` means the task's own
        end (value 0 afterwards); ``truncated`` means cut short (the value goes on). With
        ``need_obs=False`` nobody reads the observation: return None and render nothing. Only an
        environment that truncates on its own returns it in any case when it does.
        ``info["success"]`` (bool, optional) marks success; once true it counts for the episode.
        """
        ...

    def close(self) -> None:
        """Give resources back; may be called twice."""
        ...


class InParts(Protocol):
    """An environment whose ``step`` comes apart.

    Optional, beside all of ``Env``. An env worker of several such environments that executes one env step of each
    does the first part of all, then the second of all, then the third: what is the same in each environment stays in
    the CPU's cache. One after the other the parts are ``step``, to the bit, whatever other environments do in between.
    See ``comes_apart``.
    """

    def begin_step(self, action: np.ndarray) -> None:
        """Take an action; as in ``step``."""
        ...

    def advance(self) -> None:
        """Let the physics act on it."""
        ...

    def end_step(self, *, need_obs: bool) -> tuple[Observation | None, float, bool, bool, dict[str, Any]]:
        """What ``step`` returns."""
        ...


def comes_apart(cls: type) -> bool:
    """Whether a class of environments has the parts of ``InParts``, and ``step`` is still made of them.

    It may not be where a subclass has another ``step`` and inherits any of the parts; then they are left alone.
    """
    definers: dict[str, int] = {}
    for depth, one in enumerate(cls.__mro__):
        for name in ("step", "begin_step", "advance", "end_step"):
            if name in vars(one):
                definers.setdefault(name, depth)
    step = definers.pop("step", 0)
    return len(definers) == 3 and max(definers.values()) <= step


class VectorStep(NamedTuple):
    """What one env step of W worlds gave; the rows of worlds that were not active mean nothing."""

    observation: Observation | None
    """Each array ``[W, ...]``; rows of worlds whose observation was not asked for mean nothing. None if none was."""
    reward: np.ndarray
    """``[W] float32``."""
    terminated: np.ndarray
    """``[W] bool``: the task's own end."""
    success: np.ndarray
    """``[W] bool``; once true it counts for the episode."""


class VectorEnv(Protocol):
    """W worlds that their simulator steps together, in lock-step, as one shard.

    Optional: a class of environments offers it as the class method ``make_vector(task, config, num_worlds)``;
    where that exists, an env worker of several environments steps them through it. World e is environment e
    of the shard. Nothing here truncates: time limits are the runtime's.
    """

    @property
    def spec(self) -> EnvSpec:
        """Shapes and limits of one world; the same for the life of all."""
        ...

    def reset(self, worlds: Sequence[int], seeds: Sequence[int]) -> Observation:
        """Start an episode in each of ``worlds``, whose initial state depends on its seed alone.

        The other worlds, in the middle of their episodes, are not disturbed. Row i of each array is the
        first observation of ``worlds[i]``.
        """
        ...

    def step(self, actions: np.ndarray, active: np.ndarray, *, need_obs: np.ndarray) -> VectorStep:
        """Advance the worlds that are ``active`` (``[W] bool``) one env step.

        ``actions`` is ``[W, A] float32``, already clipped; rows of worlds that are not active may hold anything,
        and such worlds may be stepped or not. ``need_obs`` (``[W] bool``) names the active worlds whose
        observation is read.
        """
        ...

    def close(self) -> None:
        """Give resources back; may be called twice."""
        ...


class OneWorld:
    """An ``Env`` that is the only world of a ``VectorEnv``."""

    def __init__(self, worlds: VectorEnv) -> None:
        self._worlds = worlds
        self.spec: EnvSpec = worlds.spec

    def reset(self, seed: int) -> tuple[Observation, dict[str, Any]]:
        """See ``Env``."""
        observation = self._worlds.reset((0,), (seed,))
        return {name: array[0] for name, array in observation.items()}, {"success": False}

    def step(
        self, action: np.ndarray, *, need_obs: bool
    ) -> tuple[Observation | None, float, bool, bool, dict[str, Any]]:
        """See ``Env``; may go on after success, then ``success`` says whether it still holds."""
        result = self._worlds.step(action[None], np.ones(1, bool), need_obs=np.full(1, need_obs))
        seen = result.observation
        return (
            {name: array[0] for name, array in seen.items()} if seen is not None else None,
            float(result.reward[0]),
            bool(result.terminated[0]),
            False,
            {"success": bool(result.success[0])},
        )

    def close(self) -> None:
        """See ``Env``."""
        self._worlds.close()


def encode_instruction(text: str, num_bytes: int = INSTRUCTION_BYTES) -> np.ndarray:
    """``text`` as ``[num_bytes] uint8``: UTF-8, padded with zeros.

    Raises:
        ValueError: it is longer.
    """
    raw = text.encode()
    if len(raw) > num_bytes:
        raise ValueError(f"instruction {text!r} has {len(raw)} bytes: want at most {num_bytes}")
    out = np.zeros(num_bytes, dtype=np.uint8)
    out[: len(raw)] = np.frombuffer(raw, dtype=np.uint8)
    return out


def episode_seed(run_seed: int, episode: int, *, evaluation: bool) -> int:
    """The seed of one episode: a pure function, and never the same in training and evaluation.

    Even seeds train, odd seeds evaluate, so the two pools are disjoint whatever the run seed.
    """
    mixed = np.random.SeedSequence((run_seed & 0xFFFFFFFF, episode)).generate_state(1)[0]
    return int(mixed) >> 2 << 1 | int(evaluation)
