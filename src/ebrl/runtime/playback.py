"""``before_after.gif``: the first and the newest checkpoint, from the same initial states.

One environment, configured as in the run, drives the policy. A second one is stepped with the same
seed and actions only to be looked at, so taking pictures cannot change what the policy sees.

Both live in this process. Where one of them hangs longer than an env worker may, the process shows its stack and ends.
"""

from __future__ import annotations

import contextlib
import dataclasses
import faulthandler
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ebrl.config.schema import RunConfig
from ebrl.data.checkpoint import list_checkpoints, load_policy, read_state
from ebrl.envs.base import episode_seed
from ebrl.errors import CheckpointError, UsageError
from ebrl.host.interpreters import is_own
from ebrl.host.simulators import python_for
from ebrl.policies.base import Policy, RowStreams
from ebrl.registry import load, make_config
from ebrl.report.video import Film, compose, save_gif
from ebrl.runtime.display import Display
from ebrl.workers.building import build_policy

PICTURE_SIZE = 256
"""Height and width of pictures, where the environment can choose."""

MAX_FRAMES = 50
"""Of one episode, about."""

USUAL_CAMERA = "corner2"
"""For an environment whose run has no camera."""

_STDERR = 2
"""The descriptor: ``sys.stderr`` may be something that has none."""


class _Pictures:
    """An environment whose observation has an image."""

    def __init__(self, config: RunConfig) -> None:
        cls, task = load("env", config.env.name)
        own = _with_pictures(make_config(cls, config.env.config, "env.config"))
        self._env = cls(task, own)
        images = self._images()
        if not images and hasattr(own, "render"):  # what the environment can draw beside its observation
            self._env.close()
            self._env = cls(task, dataclasses.replace(own, render=True))
            images = self._images()
        if not images:
            self._env.close()
            raise UsageError(f"{config.env.name} offers no picture, so there can be no video of it")
        self._image = "image" if "image" in images else images[0]

    def _images(self) -> list[str]:
        return [name for name, spec in self._env.spec.observation.items() if len(spec.shape) == 3]

    def reset(self, seed: int) -> np.ndarray:
        observation, _ = self._env.reset(seed)
        return np.asarray(observation[self._image])

    def step(self, action: np.ndarray, *, look: bool) -> np.ndarray | None:
        observation = self._env.step(action, need_obs=look)[0]
        return np.asarray(observation[self._image]) if look and observation is not None else None

    def close(self) -> None:
        self._env.close()


def _with_pictures(config: Any) -> Any:
    """The environment's config with a picture large enough to look at, as far as it has such fields."""
    names = {item.name for item in dataclasses.fields(config)}
    changes: dict[str, Any] = {}
    if "image_size" in names:
        changes["image_size"] = PICTURE_SIZE
    if "camera" in names and config.camera is None:
        changes["camera"] = USUAL_CAMERA
    return dataclasses.replace(config, **changes)


def record_before_after(run_dir: Path, config: RunConfig, display: Display, *, episodes: int) -> dict[str, Any]:
    """Write ``before_after.gif`` into the run directory.

    Returns:
        Its path and size, the checkpoints shown, and the success of each episode shown.

    Raises:
        CheckpointError: the run has no checkpoint.
        UsageError: the environment offers no picture, or OpenGL is missing.
    """
    found = list_checkpoints(run_dir / "checkpoints")
    if not found:
        raise CheckpointError(f"no checkpoint in {run_dir / 'checkpoints'}")
    shown = [("before", found[0]), ("after", found[-1])] if len(found) > 1 else [("so far", found[0])]
    display.phase(f"filming {episodes} episodes of {' and '.join(path.name for _, path in shown)}")
    done = 0

    def count() -> None:
        nonlocal done
        done += 1
        display.progress(done, episodes * len(shown), {})

    columns: list[tuple[str, list[Film]]] = []
    for title, checkpoint in shown:
        steps, films = film(config, checkpoint, episodes=episodes, max_frames=MAX_FRAMES, on_episode=count)
        columns.append((f"{title} ({_thousands(steps)} env steps)", films))
    path = run_dir / "before_after.gif"
    frames = compose(columns)
    num_frames = save_gif(frames, path)
    return {
        "path": str(path),
        "bytes": path.stat().st_size,
        "frames": num_frames,
        "checkpoints": [checkpoint.name for _, checkpoint in shown],
        "success": [[shot.success for shot in films] for _, films in columns],
    }


def check_pictures(config: RunConfig) -> None:
    """Whether this environment can be filmed on this machine.

    Raises:
        UsageError: it offers no picture, OpenGL is missing, or its simulator has an interpreter of its own.
    """
    python = python_for(config.env.name, config.env.python or None)
    if not is_own(python):
        raise UsageError(
            f"{config.env.name} plays under {python}, and films are made by the interpreter that runs ebrl, which does "
            "not have the simulator; `ebrl eval` without --video measures success"
        )
    _Pictures(config).close()


def film(
    config: RunConfig, checkpoint: Path, *, episodes: int, max_frames: int, on_episode: Callable[[], None]
) -> tuple[int, list[Film]]:
    """Play held-out episodes, the same for every checkpoint.

    Args:
        config: the run.
        checkpoint: whose policy plays.
        episodes: how many.
        max_frames: per episode, about; episodes are shown at an even pace.
        on_episode: called after each.

    Returns:
        Env steps of training behind the checkpoint, and the films.
    """
    cls, task = load("env", config.env.name)
    with _within(config.failures.start_s):
        env = cls(task, make_config(cls, config.env.config, "env.config"))
        pictures = _Pictures(config)
    policy = build_policy(
        {
            "env_spec": env.spec.to_json(),
            "policy": config.policy.name,
            "policy_config": config.policy.config,
            "chunk_len": config.policy.chunk_len,
            "seed": config.run.seed,
            "device": "cpu",
        }
    )
    load_policy(checkpoint, policy)
    policy.eval()
    every = max(1, round(env.spec.max_episode_steps / max_frames))
    films = []
    try:
        for episode in range(episodes):
            films.append(_play(env, pictures, policy, config, episode, every))
            on_episode()
    finally:
        env.close()
        pictures.close()
    return int(read_state(checkpoint).get("env_steps", 0)), films


def _play(env: Any, pictures: _Pictures, policy: Policy, config: RunConfig, episode: int, every: int) -> Film:
    """One episode, ended as an env worker ends it; a frame every so many env steps, and the last one."""
    run_seed = config.run.seed
    seed = episode_seed(run_seed, episode, evaluation=True)
    with _within(2 * config.failures.reset_s):
        obs, _ = env.reset(seed)
        shot = Film([pictures.reset(seed)], [0])
    low, high = (np.asarray(limits, np.float32) for limits in env.spec.clip_limits)
    steps, over = 0, False
    while not over:
        actions_HA = _chunk(policy, obs, (run_seed, episode, steps))
        for index, action in enumerate(actions_HA):
            action_A = np.clip(action, low, high)
            last = steps + 1 >= env.spec.max_episode_steps
            steps += 1
            with _within(2 * config.failures.step_s):
                obs, _, terminated, truncated, info = env.step(action_A, need_obs=last or index + 1 == len(actions_HA))
                over = bool(terminated or truncated or last)
                frame = pictures.step(action_A, look=over or steps % every == 0)
            shot.success = shot.success or bool(info.get("success", False))
            if frame is not None:
                shot.frames.append(frame)
                shot.num_steps.append(steps)
            if over:
                break
    return shot


@contextlib.contextmanager
def _within(seconds: float) -> Iterator[None]:
    faulthandler.dump_traceback_later(seconds, exit=True, file=_STDERR)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


@torch.inference_mode()
def _chunk(policy: Policy, obs: Any, key: tuple[int, ...]) -> np.ndarray:
    tensors = {name: torch.from_numpy(np.asarray(array)[None].copy()) for name, array in obs.items()}
    return policy.sample(tensors, RowStreams([key])).actions[0].numpy()


def _thousands(steps: int) -> str:
    return f"{steps / 1000:.0f}k" if steps >= 10_000 else str(steps)
