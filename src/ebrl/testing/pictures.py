"""What an environment's cameras show at the end of a random episode, whatever interpreter it needs.

As a program this is the other end: it plays, and writes the images to one ``.npz`` file. That end uses the
standard library, numpy and the environment's own adapter only.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ebrl.errors import RunError
from ebrl.host.interpreters import command, environment
from ebrl.host.simulators import python_for
from ebrl.registry import load, make_config, portable

__all__ = ["pictures"]

WITHIN_S = 300.0


def pictures(name: str, section: Mapping[str, Any], directory: Path, *, seed: int, steps: int) -> dict[str, np.ndarray]:
    """Images of the last observation, ``[height, width, 3] uint8`` by name.

    Args:
        name: of the environment, as in ``env.name``.
        section: its ``env.config``.
        directory: takes a temporary file.
        seed: of the episode and of its random actions.
        steps: of the episode, at most.

    Raises:
        RunError: the environment failed; its last words are on standard error.
    """
    python, out = python_for(name), directory / "pictures.npz"
    arguments = [portable("env", name), json.dumps(dict(section)), str(seed), str(steps), str(out)]
    program = [*command(python, __name__), *arguments]
    done = subprocess.run(program, stdin=subprocess.DEVNULL, env=environment(python), timeout=WITHIN_S)
    if done.returncode:
        raise RunError(f"no pictures of {name}: it ended with exit code {done.returncode} under {python}")
    with np.load(out) as images:
        return dict(images)


def _play(name: str, section: dict[str, Any], seed: int, steps: int) -> dict[str, np.ndarray]:
    cls, task = load("env", name)
    env = cls(task, make_config(cls, section, "env.config"))
    rng = np.random.default_rng(seed)
    low, high = np.asarray(env.spec.action_low, np.float32), np.asarray(env.spec.action_high, np.float32)
    obs, _ = env.reset(seed)
    for number in range(steps):
        action = np.clip(0.3 * rng.standard_normal(len(low)), low, high).astype(np.float32)
        seen, _, terminated, truncated, _ = env.step(action, need_obs=number + 1 == steps)
        obs = seen or obs
        if terminated or truncated:
            break
    images = {name: np.asarray(value) for name, value in obs.items() if np.asarray(value).ndim == 3}
    env.close()
    return images


if __name__ == "__main__":
    np.savez(sys.argv[5], **_play(sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])))  # type: ignore[arg-type]
