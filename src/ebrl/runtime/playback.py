"""``before_after.gif``: the first and the newest checkpoint, from the same initial states.

The policy acts here; the environment plays in a process of its own (``workers.camera``), under the interpreter that
has its simulator.
"""

from __future__ import annotations

import json
import select
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ebrl.config.schema import RunConfig
from ebrl.data import messages as m
from ebrl.data.checkpoint import list_checkpoints, load_policy, read_state
from ebrl.data.shared import SharedArrays
from ebrl.data.spec import ArraySpec, EnvSpec
from ebrl.engines.local.process import WorkerProcess
from ebrl.envs.base import episode_seed
from ebrl.errors import CheckpointError, EnvFailure, UsageError
from ebrl.host.simulators import python_for
from ebrl.policies.base import Policy, RowStreams
from ebrl.registry import portable
from ebrl.report.video import Film, compose, save_gif
from ebrl.runtime.display import Display
from ebrl.workers.building import build_policy

MAX_FRAMES = 50
"""Of one episode, about."""


class _Camera:
    """The process that plays and takes pictures; whatever it is asked for has a deadline."""

    def __init__(self, config: RunConfig, log: Path) -> None:
        self._config = config
        python = python_for(config.env.name, config.env.python or None)
        self._process = WorkerProcess("ebrl.workers.camera", "camera", log, python=python)
        self._memory: SharedArrays | None = None
        try:
            name = config.env.name
            setup = {"env": portable("env", name), "env_config": config.env.config, "called": name}
            self._process.send_json(m.SETUP, setup)
            built = self._answer("its start", config.failures.start_s)
        except BaseException:
            self.close()
            raise
        if "error" in built:
            self.close()
            raise UsageError(built["error"])
        self.spec = EnvSpec.from_json(built["spec"])
        self._picture = tuple(built["picture"])

    def attach(self, chunk_len: int) -> None:
        """Hand over the memory for chunks of this length."""
        layout = {f"obs_{name}": spec for name, spec in self.spec.observation.items()}
        layout["actions"] = ArraySpec((chunk_len, self.spec.action_dim), "float32")
        layout["frames"] = ArraySpec((chunk_len + 1, *self._picture), "uint8")
        self._memory = SharedArrays.create("camera", layout)
        self._process.send_json(m.ATTACH, self._memory.layout_json(), (self._memory.fd,))

    def play(self, policy: Policy, episode: int, every: int) -> Film:
        """One episode, ended as an env worker ends it; a frame every so many env steps, and the last one."""
        assert self._memory is not None, "attach comes first"
        failures, run_seed = self._config.failures, self._config.run.seed
        seed = episode_seed(run_seed, episode, evaluation=True)
        told = self._ask(m.RESET, {"seed": seed}, "a reset", 2 * failures.reset_s)
        film, chunks = Film(), 0
        while True:
            film.frames += list(self._memory["frames"][: len(told["frames"])].copy())
            film.num_steps += told["frames"]
            film.success = told["success"]
            if told["over"]:
                return film
            obs = {name: self._memory[f"obs_{name}"] for name in self.spec.observation}
            steps = chunks * self._config.policy.chunk_len
            self._memory["actions"][...] = _chunk(policy, obs, (run_seed, episode, steps))
            told = self._ask(m.STEP, {"every": every}, "the env steps of a chunk", 2 * failures.step_s)
            chunks += 1

    def close(self) -> None:
        """End the process, and give the memory back."""
        self._process.kill()
        if self._memory is not None:
            self._memory.close()

    def _ask(self, kind: int, document: dict[str, Any], what: str, within_s: float) -> dict[str, Any]:
        self._process.send_json(kind, document)
        return self._answer(what, within_s)

    def _answer(self, what: str, within_s: float) -> dict[str, Any]:
        process, name = self._process, self._config.env.name
        if not select.select([process.sock], [], [], within_s)[0]:
            process.kill(dump_stack=True)
            raise EnvFailure(f"{name} did not finish {what} within {within_s:g} s, filmed\n{process.log_tail()}")
        kind, data = process.receive()
        if kind in (m.BUILT, m.PROGRESS):
            return dict(json.loads(data[1:]))
        text = data[1:].decode(errors="replace")
        raise EnvFailure(f"{name} failed while it was filmed: {process.kill()}\n{text or process.log_tail()}")


@contextmanager
def _camera(config: RunConfig, log: Path) -> Iterator[_Camera]:
    camera = _Camera(config, log)
    try:
        yield camera
    finally:
        camera.close()


def record_before_after(run_dir: Path, config: RunConfig, display: Display, *, episodes: int) -> dict[str, Any]:
    """Write ``before_after.gif`` into the run directory.

    Returns:
        Its path and size, the checkpoints shown, and the success of each episode shown.

    Raises:
        CheckpointError: the run has no checkpoint.
        UsageError: the environment offers no picture, or OpenGL is missing.
        EnvFailure: it crashed or hung.
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
    with _camera(config, run_dir / "logs" / "camera.log") as camera:
        camera.attach(config.policy.chunk_len)
        for title, checkpoint in shown:
            films = _film(camera, config, checkpoint, episodes, count)
            steps = int(read_state(checkpoint).get("env_steps", 0))
            columns.append((f"{title} ({_thousands(steps)} env steps)", films))
    path = run_dir / "before_after.gif"
    num_frames = save_gif(compose(columns), path)
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
        UsageError: it offers no picture, OpenGL is missing, or its simulator.
        EnvFailure: it crashed or hung.
    """
    with tempfile.TemporaryDirectory(prefix="ebrl-camera-") as directory:
        _Camera(config, Path(directory) / "camera.log").close()


def _film(
    camera: _Camera, config: RunConfig, checkpoint: Path, episodes: int, on_episode: Callable[[], None]
) -> list[Film]:
    """Play held-out episodes, the same for every checkpoint."""
    policy = build_policy(
        {
            "env_spec": camera.spec.to_json(),
            "policy": config.policy.name,
            "policy_config": config.policy.config,
            "chunk_len": config.policy.chunk_len,
            "seed": config.run.seed,
            "device": "cpu",
        }
    )
    load_policy(checkpoint, policy)
    policy.eval()
    every = max(1, round(camera.spec.max_episode_steps / MAX_FRAMES))
    films = []
    for episode in range(episodes):
        films.append(camera.play(policy, episode, every))
        on_episode()
    return films


@torch.inference_mode()
def _chunk(policy: Policy, obs: dict[str, np.ndarray], key: tuple[int, ...]) -> np.ndarray:
    tensors = {name: torch.from_numpy(array[None].copy()) for name, array in obs.items()}
    return policy.sample(tensors, RowStreams([key])).actions[0].numpy()


def _thousands(steps: int) -> str:
    return f"{steps / 1000:.0f}k" if steps >= 10_000 else str(steps)
