"""``check_env``: does an environment keep the contract of ``ebrl.envs.base.Env``?

Usable on installed names and on a class of one's own (``module:Class``). Everything the runtime
relies on is tried on the real thing, in this process.
"""

from __future__ import annotations

import contextlib
import dataclasses
import numbers
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

import numpy as np

from ebrl.data.spec import INSTRUCTION_BYTES, ArraySpec, EnvSpec
from ebrl.envs.base import comes_apart, episode_seed
from ebrl.errors import UsageError
from ebrl.registry import load, make_config
from ebrl.testing.episodes import (
    NUM_STEPS,
    Wrong,
    compare,
    copied,
    distance,
    expect,
    play,
    play_in_parts,
    random_actions,
)

__all__ = ["CheckResult", "check_env"]

MAX_END_STEPS = 1000
"""Env steps spent in search of an episode's end."""

JUMP = 5.0
"""A last env step this many times longer than any before it looks like a reset."""

SEED_A, SEED_B = (episode_seed(0, episode, evaluation=False) for episode in range(2))


@dataclasses.dataclass(frozen=True)
class CheckResult:
    """The outcome of one check."""

    name: str
    ok: bool
    detail: str
    """What was found, and if the check failed, where and what was wanted."""
    severity: Literal["check", "warning", "info"] = "check"
    """A ``warning`` is allowed but unusual, an ``info`` is a measurement; both have ``ok`` true."""


def check_env(name: str, section: Mapping[str, Any] | None = None) -> list[CheckResult]:
    """Try every rule of the contract on environment ``name`` with its config ``section``.

    A check that cannot run because an earlier one failed is left out.

    Raises:
        UsageError: the name, the config or the installation is wrong, so there is nothing to check.
    """
    cls, task = load("env", name)
    config = make_config(cls, section or {}, "env.config")
    opened: list[Any] = []

    def make() -> Any:
        env = cls(task, config)
        opened.append(env)
        return env

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return list(_run(make))
        finally:
            for env in opened:
                with contextlib.suppress(Exception):
                    env.close()


def _run(make: Callable[[], Any]) -> Iterator[CheckResult]:
    env: Any = None

    def construct() -> str:
        nonlocal env
        started = time.perf_counter()
        env = make()
        return f"{time.perf_counter() - started:.3f} s"

    basic: list[tuple[str, Callable[[], str]]] = [
        ("construct", construct),
        ("spec", lambda: _check_spec(env.spec)),
        ("reset", lambda: _check_reset(env)),
        ("step", lambda: _check_step(env)),
    ]
    for name, check in basic:
        result = _attempt(name, check)
        yield result
        if not result.ok:
            return
    yield _attempt("same seed, same episode", lambda: _check_history(env))
    yield _attempt("second instance agrees", lambda: _check_second(env, make()))
    if comes_apart(type(env)):
        yield _attempt("steps in parts", lambda: _check_parts(env, make()))
    yield _attempt("need_obs", lambda: _check_need_obs(env))
    yield _attempt("own truncation", lambda: _check_own_truncation(env))
    yield _attempt("no auto-reset", lambda: _check_end(env))
    yield _attempt("seeds differ", lambda: _check_seeds(env))
    yield _attempt("instruction", lambda: _check_instruction(env))
    yield _attempt("speed", lambda: _measure(env))
    yield _attempt("close twice", lambda: _check_close(env))


class _Warning(str):
    """A detail that should be read though the check passed."""


class _Info(str):
    """A detail that is only a measurement."""


def _attempt(name: str, check: Callable[[], str]) -> CheckResult:
    try:
        detail = check()
    except Wrong as wrong:
        return CheckResult(name, ok=False, detail=str(wrong))
    except UsageError:
        raise
    except Exception as error:
        return CheckResult(name, ok=False, detail=f"raised {type(error).__name__}: {error}; {_where(error)}")
    if isinstance(detail, _Warning):
        return CheckResult(name, ok=True, detail=detail, severity="warning")
    return CheckResult(name, ok=True, detail=detail, severity="info" if isinstance(detail, _Info) else "check")


def _where(error: Exception) -> str:
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    return f"at {frame.tb_frame.f_code.co_filename}:{frame.tb_lineno}" if frame is not None else ""


def _check_spec(spec: Any) -> str:
    expect(isinstance(spec, EnvSpec), f"spec is a {type(spec).__name__}: want an EnvSpec")
    expect(bool(spec.observation), "spec.observation is empty: want at least one array")
    for name, array in spec.observation.items():
        _check_array_spec(name, array)
    low, high = spec.action_low, spec.action_high
    expect(len(low) == len(high) > 0, f"{len(low)} lower and {len(high)} upper action limits: want as many, over 0")
    for i, (a, b) in enumerate(zip(low, high, strict=True)):
        expect(bool(np.isfinite(a) and np.isfinite(b) and a < b), f"action {i} has limits {a} to {b}: want finite")
    steps = spec.max_episode_steps
    expect(isinstance(steps, int) and steps >= 1, f"spec.max_episode_steps = {steps!r}: want an int, at least 1")
    arrays = ", ".join(f"{name} {list(a.shape)} {a.dtype}" for name, a in spec.observation.items())
    return f"{arrays}; {spec.action_dim} action values; at most {steps} env steps"


def _check_array_spec(name: str, array: Any) -> None:
    where = f"spec.observation[{name!r}]"
    expect(isinstance(array, ArraySpec), f"{where} is a {type(array).__name__}: want an ArraySpec")
    shape = tuple(array.shape)
    expect(all(isinstance(n, int) and n > 0 for n in shape), f"{where} has shape {shape}: want ints above 0")
    try:
        np.dtype(array.dtype)
    except TypeError:
        raise Wrong(f"{where} has dtype {array.dtype!r}: want the name of a numpy dtype") from None
    if name == "state":
        expect(
            len(shape) == 1 and array.dtype == "float32", f"{where} is {list(shape)} {array.dtype}: want [S] float32"
        )
    elif name == "instruction":
        want = len(shape) == 1 and array.dtype == "uint8"
        expect(want, f"{where} is {list(shape)} {array.dtype}: want [n] uint8, n = {INSTRUCTION_BYTES} as a rule")
    elif array.dtype == "uint8":
        expect(len(shape) == 3 and shape[2] == 3, f"{where} has shape {list(shape)}: want an image [h, w, 3]")


def _check_observation(observation: Any, spec: EnvSpec, where: str) -> None:
    expect(isinstance(observation, Mapping), f"{where}: observation is a {type(observation).__name__}: want a mapping")
    names, wanted = set(observation), set(spec.observation)
    expect(names == wanted, f"{where}: observation has {sorted(names)}: the spec says {sorted(wanted)}")
    for name, want in spec.observation.items():
        array = observation[name]
        here = f"{where}: observation[{name!r}]"
        expect(isinstance(array, np.ndarray), f"{here} is a {type(array).__name__}: want a numpy array")
        expect(array.shape == tuple(want.shape), f"{here} has shape {array.shape}: the spec says {tuple(want.shape)}")
        expect(array.dtype == np.dtype(want.dtype), f"{here} has dtype {array.dtype}: the spec says {want.dtype}")
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            bad = tuple(int(i) for i in np.argwhere(~np.isfinite(array))[0])
            raise Wrong(f"{here} is {array[bad]} at index {list(bad)}: want finite numbers")


def _check_reset(env: Any) -> str:
    result = env.reset(SEED_A)
    expect(isinstance(result, tuple) and len(result) == 2, f"reset gave {_kind(result)}: want (observation, info)")
    observation, info = result
    _check_observation(observation, env.spec, f"reset({SEED_A})")
    expect(isinstance(info, dict), f"reset: info is a {type(info).__name__}: want a dict")
    return "as the spec says"


def _check_step(env: Any) -> str:
    env.reset(SEED_A)
    actions = random_actions(env.spec, NUM_STEPS)
    for t, action in enumerate(actions, start=1):
        result = env.step(action.copy(), need_obs=True)
        where = f"env step {t}"
        expect(isinstance(result, tuple) and len(result) == 5, f"{where} gave {_kind(result)}: want five values")
        observation, reward, terminated, truncated, info = result
        _check_observation(observation, env.spec, where)
        expect(isinstance(reward, numbers.Real), f"{where}: reward is a {type(reward).__name__}: want a float")
        expect(bool(np.isfinite(reward)), f"{where}: reward is {reward}: want a finite number")
        for name, value in (("terminated", terminated), ("truncated", truncated)):
            expect(isinstance(value, bool), f"{where}: {name} is {value!r} ({type(value).__name__}): want a bool")
        expect(isinstance(info, dict), f"{where}: info is a {type(info).__name__}: want a dict")
        success = info.get("success", False)
        expect(isinstance(success, bool), f"{where}: info['success'] is {success!r}: want a bool")
        if terminated or truncated:
            return f"episode over after {t} env steps of random actions"
    return f"{len(actions)} env steps of random actions"


def _kind(result: Any) -> str:
    return f"a tuple of {len(result)}" if isinstance(result, tuple) else f"a {type(result).__name__}"


def _check_history(env: Any) -> str:
    first = play(env, SEED_A)
    play(env, SEED_B)
    play(env, SEED_B)
    env.reset(SEED_B)
    because = "when another episode was played in between; want a function of the seed alone"
    compare(first, play(env, SEED_A), because)
    return f"identical over {len(first) - 1} env steps, whatever was played before"


def _check_second(env: Any, second: Any) -> str:
    compare(play(env, SEED_A), play(second, SEED_A), "in a second instance; want a function of the seed alone")
    return "identical"


def _check_parts(env: Any, other: Any) -> str:
    whole = [play(env, seed) for seed in (SEED_A, SEED_B)]
    for one, parts in zip(whole, play_in_parts([env, other], [SEED_A, SEED_B]), strict=True):
        compare(one, parts, "when each part of an env step is done for two environments before the next part")
    return "identical to whole ones, with another environment in between"


def _check_need_obs(env: Any) -> str:
    env.reset(SEED_A)
    observation = env.step(random_actions(env.spec, 1)[0], need_obs=False)[0]
    first = play(env, SEED_A)
    compare(first, play(env, SEED_A, observe=lambda t: t % 4 == 0), "when some env steps had need_obs=False")
    if observation is not None:
        return _Warning("need_obs=False still gave an observation: allowed, but the work was wasted")
    return "None where not needed, and nothing else changes"


def _check_own_truncation(env: Any) -> str:
    """The value after an episode that was cut short is that of its last observation, asked for or not."""
    steps_left, episode, limit = MAX_END_STEPS, 0, env.spec.max_episode_steps
    while steps_left > 0:
        env.reset(episode_seed(0, episode, evaluation=False))
        episode += 1
        for t, action in enumerate(random_actions(env.spec, min(steps_left, limit)), start=1):
            steps_left -= 1
            # The runtime cannot know that an episode ends here, unless its own limit ends it.
            observation, _, terminated, truncated, _ = env.step(action.copy(), need_obs=t == limit)
            if truncated and not terminated:
                where = f"env step {t}, truncated by the environment with need_obs={t == limit}"
                expect(observation is not None, f"{where}: no observation: want the last one; its value is needed")
                _check_observation(observation, env.spec, where)
                return f"episode cut short at env step {t}, and its last observation is there"
            if terminated:
                break
        else:
            break
    return "the environment does not cut its episodes short; the runtime will"


def _check_end(env: Any) -> str:
    """An environment that resets itself shows its next episode where the last one ends."""
    start, _ = env.reset(SEED_A)
    start = copied(start)
    before, longest = start, 0.0
    limit = min(env.spec.max_episode_steps, MAX_END_STEPS)
    for t, action in enumerate(random_actions(env.spec, limit), start=1):
        if callable(getattr(env, "expert_action", None)):
            action = env.expert_action()
        observation, _, terminated, truncated, info = env.step(action, need_obs=True)
        way = distance(before, observation)
        if terminated or truncated:
            if longest > 0:
                _check_last(env, start, observation, info, t)
            if t > 2 and way > JUMP * longest > 0:
                return _Warning(f"the observation jumps at the end (env step {t}): is that a reset?")
            return f"episode stays over after env step {t}"
        longest = max(longest, way)
        before = copied(observation)
    return f"no end within {limit} env steps; the runtime will truncate"


def _check_last(env: Any, start: Mapping[str, Any], last: Mapping[str, Any], info: dict[str, Any], t: int) -> None:
    signs = {"final_observation", "final_obs", "final_info", "terminal_observation"} & set(info)
    want = "want the last observation of this episode; resets are the runtime's"
    expect(
        not signs, f"env step {t} ended the episode with info[{min(signs, default='')!r}], a sign of auto-reset; {want}"
    )
    expect(distance(start, last) > 0, f"env step {t} ended the episode but shows the start of one; {want}")
    following = env.step(random_actions(env.spec, 1)[0], need_obs=True)[0]
    expect(distance(start, following) > 0, f"the env step after the end shows the start of an episode; {want}")


def _check_seeds(env: Any) -> str:
    starts = [copied(env.reset(episode_seed(0, i, evaluation=False))[0]) for i in range(8)]
    different = {tuple(array.tobytes() for _, array in sorted(start.items())) for start in starts}
    if len(different) < len(starts):
        return _Warning(f"8 seeds give {len(different)} different first observations; is the seed used?")
    return "8 seeds give 8 different first observations"


def _check_instruction(env: Any) -> str:
    observation, _ = env.reset(SEED_A)
    if "instruction" not in observation:
        return "none"
    raw = observation["instruction"].tobytes().rstrip(b"\0")
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        raise Wrong(f"observation['instruction'] is not UTF-8: {error}") from None
    expect(bool(text) and "\0" not in text, f"observation['instruction'] is {text!r}: want text, padded with zeros")
    return repr(text)


def _measure(env: Any) -> str:
    started = time.perf_counter()
    num_resets = 5
    for i in range(num_resets):
        env.reset(episode_seed(1, i, evaluation=False))
    reset_s = (time.perf_counter() - started) / num_resets
    rates = {need: _steps_per_s(env, need) for need in (True, False)}
    return _Info(
        f"{rates[True]:.0f} env steps/s, {rates[False]:.0f} without observations; reset {reset_s * 1e3:.2f} ms"
    )


def _steps_per_s(env: Any, need_obs: bool) -> float:
    env.reset(SEED_A)
    spent_s, steps = 0.0, 0
    for action in random_actions(env.spec, 200):
        started = time.perf_counter()
        _, _, terminated, truncated, _ = env.step(action, need_obs=need_obs)
        spent_s += time.perf_counter() - started
        steps += 1
        if terminated or truncated:
            env.reset(SEED_A)
        if spent_s > 1.0:
            break
    return steps / spent_s


def _check_close(env: Any) -> str:
    env.close()
    env.close()
    return "no error"
