"""Plays episodes that are filmed, under the interpreter that has the simulator: the body of the camera's process.

One environment, configured as in the run, says what the policy sees. A second one is stepped with the same seed and
actions only to be looked at, so taking pictures cannot change what the policy sees.

``SETUP`` brings environment, config and the name for people; ``BUILT`` answers with the spec and a picture's shape, or
``{"error": ...}``. ``ATTACH`` brings shared memory: ``obs_<name>``, ``actions [H, A]``, ``frames [H + 1, height, width,
3]``. Then each ``RESET {"seed"}`` and ``STEP {"every"}`` is answered with a ``PROGRESS`` whose ``frames`` are the env
steps before each new picture. Standard library, numpy and the environment's own adapter only.
"""

from __future__ import annotations

import dataclasses
import json
import socket
from collections.abc import Mapping
from typing import Any

import numpy as np

from ebrl.data import messages as m
from ebrl.data.shared import SharedArrays
from ebrl.errors import UsageError
from ebrl.registry import load, make_config
from ebrl.workers.process import enter

PICTURE_SIZE = 256
"""Height and width of pictures, where the environment can choose."""

USUAL_CAMERA, USUAL_CAMERAS = "corner2", ("agentview",)
"""For an environment whose run has no camera: of those that have one at a time, and of those that may have several."""


class Pictures:
    """An environment whose observation has an image."""

    def __init__(self, name: str, section: Mapping[str, Any], *, called: str) -> None:
        """Build it; ``called`` is its name for people.

        Raises:
            UsageError: the environment offers no picture, or what draws it is missing.
        """
        cls, task = load("env", name)
        own = _with_pictures(make_config(cls, section, "env.config"))
        self._env = cls(task, own)
        images = self._images()
        if not images and hasattr(own, "render"):  # what the environment can draw beside its observation
            self._env.close()
            self._env = cls(task, dataclasses.replace(own, render=True))
            images = self._images()
        if not images:
            self._env.close()
            raise UsageError(f"{called} offers no picture, so there can be no video of it")
        self._image = "image" if "image" in images else images[0]

    @property
    def shape(self) -> tuple[int, ...]:
        """Of a picture: height, width, 3."""
        return tuple(self._env.spec.observation[self._image].shape)

    def _images(self) -> list[str]:
        return [name for name, spec in self._env.spec.observation.items() if len(spec.shape) == 3]

    def reset(self, seed: int) -> np.ndarray:
        """The first picture of an episode."""
        observation, _ = self._env.reset(seed)
        return np.asarray(observation[self._image])

    def step(self, action: np.ndarray, *, look: bool) -> np.ndarray | None:
        """One env step, and its picture if it is to be looked at."""
        observation = self._env.step(action, need_obs=look)[0]
        return np.asarray(observation[self._image]) if look and observation is not None else None


def _with_pictures(config: Any) -> Any:
    """The environment's config with a picture large enough to look at, as far as it has such fields."""
    names = {item.name for item in dataclasses.fields(config)}
    changes: dict[str, Any] = {}
    if "image_size" in names:
        changes["image_size"] = PICTURE_SIZE
    if "camera" in names and config.camera is None:
        changes["camera"] = USUAL_CAMERA
    if "cameras" in names:
        changes["cameras"] = tuple(config.cameras[:1]) or USUAL_CAMERAS
    return dataclasses.replace(config, **changes)


class Episode:
    """Both environments, in step."""

    def __init__(self, env: Any, pictures: Pictures, memory: SharedArrays) -> None:
        self._env, self._pictures, self._memory = env, pictures, memory
        self._steps = 0
        self._success = False

    def reset(self, seed: int) -> dict[str, Any]:
        """Begin an episode; the first picture is in the memory."""
        self._steps, self._success = 0, False
        obs, _ = self._env.reset(seed)
        self._show(obs)
        self._memory["frames"][0] = self._pictures.reset(seed)
        return {"frames": [0], "over": False, "success": False}

    def step(self, every: int) -> dict[str, Any]:
        """Execute the chunk in the memory, ended as an env worker ends it; a picture every so many env steps and a
        last one."""
        spec, actions_HA = self._env.spec, self._memory["actions"]
        low, high = (np.asarray(limits, np.float32) for limits in spec.clip_limits)
        frames: list[int] = []
        over = False
        for index, action in enumerate(actions_HA):
            action_A = np.clip(action, low, high)
            self._steps += 1
            last = self._steps >= spec.max_episode_steps
            obs, _, terminated, truncated, info = self._env.step(
                action_A, need_obs=last or index + 1 == len(actions_HA)
            )
            self._success = self._success or bool(info.get("success", False))
            over = bool(terminated or truncated or last)
            picture = self._pictures.step(action_A, look=over or self._steps % every == 0)
            if picture is not None:
                self._memory["frames"][len(frames)] = picture
                frames.append(self._steps)
            if over:
                break
        if not over:
            self._show(obs)
        return {"frames": frames, "over": over, "success": self._success}

    def _show(self, obs: Mapping[str, np.ndarray]) -> None:
        for name, array in obs.items():
            self._memory[f"obs_{name}"][...] = array


def body(sock: socket.socket) -> None:
    """Build both environments, then play what is asked for until nobody asks any more."""
    _, setup, _ = m.receive_with_fds(sock)
    if setup is None:
        return
    try:
        cls, task = load("env", setup["env"])
        env = cls(task, make_config(cls, setup["env_config"], "env.config"))
        pictures = Pictures(setup["env"], setup["env_config"], called=setup["called"])
    except UsageError as error:
        m.send_json(sock, m.BUILT, {"error": str(error)})
        return
    m.send_json(sock, m.BUILT, {"spec": env.spec.to_json(), "picture": pictures.shape})
    _, layout, fds = m.receive_with_fds(sock)
    if layout is None:
        return
    episode = Episode(env, pictures, SharedArrays.attach(fds[0], layout))
    while True:
        kind, data = m.receive(sock)
        if kind == 0:
            return
        asked = json.loads(data[1:])
        told = episode.reset(asked["seed"]) if kind == m.RESET else episode.step(asked["every"])
        m.send_json(sock, m.PROGRESS, told)


if __name__ == "__main__":
    enter(body)
