"""Records demonstrations of a scripted expert: the body of the demonstrator.

One ``SETUP`` message comes in (the fields of ``DemoRequest``); ``PROGRESS`` messages go out: one when
the environment is built, one at the end of every try, and one a second during a try, so that silence
means that something hangs. The last one is ``{"done": true, ...}``, or ``{"error": ..., "traceback":
...}``. Standard library, numpy and the environment's own adapter only.

Axes: N windows, H chunk horizon, A action size.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import socket
import time
import traceback
import types
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ebrl.data import messages as m
from ebrl.envs.base import Env, Observation, episode_seed
from ebrl.errors import UsageError
from ebrl.registry import load, make_config
from ebrl.workers.process import enter

__all__ = ["DemoRequest", "correlated_noise", "record", "write_windows"]

_ALIVE_S = 1.0
"""How often a try that goes on says so."""


@dataclasses.dataclass(frozen=True)
class DemoRequest:
    """What to record. Everything recorded is a function of these fields."""

    env: str = ""
    env_config: Any = None
    """The environment's own section, a plain mapping; none means its defaults."""
    demo_seed: int = 0
    num_demos: int = 4
    noise_std: float = 0.5
    """Stationary standard deviation of the noise on each action dimension, in action units."""
    noise_ar: float = 0.8
    """How much of the noise one env step hands to the next; 0 is white noise."""
    chunk_len: int = 8
    max_tries: int = 100
    output: str = ""
    """The ``.npz`` file to write."""

    def __post_init__(self) -> None:
        problems = {
            "env": (not self.env, "want a name"),
            "output": (not self.output.endswith(".npz"), "want a path that ends in .npz"),
            "demo_seed": (self.demo_seed < 0, "want at least 0"),
            "num_demos": (self.num_demos < 1, "want at least 1"),
            "noise_std": (not 0.0 <= self.noise_std < np.inf, "want a finite number, at least 0"),
            "noise_ar": (not 0.0 <= self.noise_ar < 1.0, "want 0 to below 1"),
            "chunk_len": (self.chunk_len < 1, "want at least 1"),
            "max_tries": (self.max_tries < self.num_demos, f"want at least num_demos ({self.num_demos})"),
        }
        for name, (wrong, want) in problems.items():
            if wrong:
                raise ValueError(f"{name} = {getattr(self, name)!r}: {want}")


@dataclasses.dataclass(frozen=True)
class _Demo:
    """One successful episode; there are ``chunk_len`` more actions than env steps up to success."""

    observations: list[Observation]
    actions: list[np.ndarray]


def correlated_noise(demo_seed: int, attempt: int, action_dim: int, *, std: float, ar: float) -> Iterator[np.ndarray]:
    """Endless Gaussian noise ``[A]`` whose neighbours in time resemble each other.

    Stationary from the first value on: every value has standard deviation ``std``.
    """
    key = np.random.SeedSequence((demo_seed, attempt)).generate_state(2, np.uint64)
    rng = np.random.Generator(np.random.Philox(key=key))
    value = std * rng.standard_normal(action_dim)
    while True:
        yield value
        value = ar * value + std * np.sqrt(1.0 - ar * ar) * rng.standard_normal(action_dim)


def record(env: Env, request: DemoRequest, say: Callable[[dict[str, Any]], None]) -> dict[str, np.ndarray]:
    """Windows of the first ``num_demos`` successful tries: ``obs_<name> [N, ...]``, ``actions [N, H, A]``.

    Raises:
        UsageError: the environment has no scripted expert, or too few tries succeed.
    """
    if not callable(getattr(env, "expert_action", None)):
        raise UsageError(f"env {request.env!r} has no scripted expert (no method expert_action)")
    demos: list[_Demo] = []
    for attempt in range(request.max_tries):

        def alive(steps: int, tries: int = attempt) -> None:
            say({"demos": len(demos), "of": request.num_demos, "tries": tries, "steps": steps})

        demo = _try_once(env, request, attempt, alive)
        if demo is not None:
            demos.append(demo)
        steps = 0 if demo is None else len(demo.actions)
        say({"demos": len(demos), "of": request.num_demos, "tries": attempt + 1, "steps": steps, "kept": bool(demo)})
        if len(demos) == request.num_demos:
            return _windows(demos, request.chunk_len)
    raise UsageError(
        f"env {request.env!r}: only {len(demos)} of {request.num_demos} demonstrations succeeded in "
        f"{request.max_tries} tries; lower pretrain.noise_std ({request.noise_std}) or pretrain.num_demos "
        f"({request.num_demos})"
    )


def _try_once(env: Env, request: DemoRequest, attempt: int, alive: Callable[[int], None]) -> _Demo | None:
    """One noisy episode, or None if it does not succeed in time.

    It goes on ``chunk_len`` env steps past success, so that each env step up to success starts a
    whole window.
    """
    spec = env.spec
    low, high = np.asarray(spec.action_low, np.float32), np.asarray(spec.action_high, np.float32)
    noise = correlated_noise(request.demo_seed, attempt, spec.action_dim, std=request.noise_std, ar=request.noise_ar)
    observation, _ = env.reset(episode_seed(request.demo_seed, attempt, evaluation=False))
    observations, actions = [], []
    steps_left = spec.max_episode_steps
    success, said_at = False, time.monotonic()
    while steps_left > 0:
        action = np.clip(_expert(env) + next(noise), low, high).astype(np.float32)
        observations.append(observation)
        actions.append(action)
        following, _, terminated, _, info = env.step(action, need_obs=True)
        assert following is not None, "need_obs=True gave no observation"
        observation = following
        steps_left -= 1
        if time.monotonic() >= said_at + _ALIVE_S:
            said_at = time.monotonic()
            alive(len(actions))
        if not success and info.get("success", False):
            success, steps_left = True, request.chunk_len
        elif terminated and not success:
            return None
    return _Demo(observations, actions) if success else None


def _expert(env: Any) -> np.ndarray:
    return np.asarray(env.expert_action())


def _windows(demos: list[_Demo], chunk_len: int) -> dict[str, np.ndarray]:
    starts = [(demo, t) for demo in demos for t in range(len(demo.actions) - chunk_len + 1)]
    names = demos[0].observations[0]
    out = {f"obs_{name}": np.stack([demo.observations[t][name] for demo, t in starts]) for name in names}
    out["actions"] = np.stack([np.stack(demo.actions[t : t + chunk_len]) for demo, t in starts])
    return out


def write_windows(windows: dict[str, np.ndarray], path: Path) -> None:
    """Write all arrays, or nothing: readers never see half a file."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with partial.open("wb") as file:
            np.savez(file, **windows)  # type: ignore[arg-type]  # numpy 1 has no allow_pickle
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def run(section: Mapping[str, Any], say: Callable[[dict[str, Any]], None]) -> None:
    """Record what ``section`` asks for; the last thing said is how it ended."""
    try:
        request = make_config(types.SimpleNamespace(Config=DemoRequest), section, "demonstrations")
        cls, task = load("env", request.env)
        env = cls(task, make_config(cls, request.env_config or {}, "env.config"))
        say({"demos": 0, "of": request.num_demos, "tries": 0, "steps": 0})
        with contextlib.closing(env):
            windows = record(env, request, say)
            spec = env.spec.to_json()
        write_windows(windows, Path(request.output))
    except Exception as error:
        say({"error": f"{type(error).__name__}: {error}", "traceback": traceback.format_exc()})
    else:
        say({"done": True, "windows": len(windows["actions"]), "output": request.output, "spec": spec})


def body(sock: socket.socket) -> None:
    """Record what the one message asks for."""
    _, setup, _ = m.receive_with_fds(sock)
    if setup is not None:
        run(setup, lambda message: m.send_json(sock, m.PROGRESS, message))


if __name__ == "__main__":
    enter(body)
