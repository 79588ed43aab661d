"""A stand-in for OmniGibson 1.1.1: its interface as published, and of its world only what the adapter must get right.

One simulation for all scenes; pictures that lag; observations, rewards and endings from each environment's half of a
step; no auto-reset; an episode's timeout that would truncate it.
"""

from __future__ import annotations

import copy
import sys
import types
from typing import Any

import numpy as np
import pytest
import torch

LAG = 3
"""Which frame after a change is the first whose picture shows it."""


class Space:
    def __init__(self, size: int) -> None:
        self.low, self.high = -np.ones(size, np.float32), np.ones(size, np.float32)


class Robot:
    def __init__(self, config: dict[str, Any]) -> None:
        assert config["type"] == "R1"
        assert config["action_normalize"]
        self.name, self.action_space = config["name"], Space(4)
        self.modalities = set(config["obs_modalities"])
        self.picture = config["sensor_config"]["VisionSensor"]["sensor_kwargs"]
        self.command = torch.zeros(4)

    def apply_action(self, action: torch.Tensor) -> None:
        assert isinstance(action, torch.Tensor)
        assert action.shape == (4,)
        self.command = action


class Simulator:
    """Moves every robot by its last command, whoever asks for the step."""

    def __init__(self) -> None:
        self.environments: list[Environment] = []
        self.num_steps = 0

    def step(self) -> None:
        self.num_steps += 1
        for env in self.environments:
            env.place = env.place + 0.02 * env.robots[0].command.double()
        self.render()

    def render(self) -> None:
        for env in self.environments:
            env.frames = [*env.frames[1:], env.place.clone()]


class Environment:
    def __init__(self, config: dict[str, Any]) -> None:
        assert not config["env"]["automatic_reset"]
        assert config["task"]["activity_name"] == "turning_on_radio"
        self.config = copy.deepcopy(config)
        self.robots = [Robot(one) for one in config["robots"]]
        self.frames = [torch.zeros(4, dtype=torch.float64)] * LAG
        self.num_observed = 0
        og.sim.environments.append(self)
        self.reset(get_obs=False)

    def reset(self, get_obs: bool = True) -> Any:
        self.place, self.fulfilled, self.num_steps = torch.zeros(4, dtype=torch.float64), 0.0, 0
        self.robots[0].command = torch.zeros(4)
        if not get_obs:
            return None
        og.sim.step()
        return self.get_obs()

    def get_obs(self) -> tuple[dict[str, Any], dict[str, Any]]:
        self.num_observed += 1
        robot = self.robots[0]
        seen: dict[str, Any] = {"proprio": torch.cat([self.place, self.place.sin()])}
        if "rgb" in robot.modalities:
            height, width = robot.picture["image_height"], robot.picture["image_width"]
            for link in ("eyes", "left_eef_link"):
                picture = torch.full((height, width, 4), 255, dtype=torch.uint8)
                picture[height // 2 :, :, 0] = int(abs(float(self.frames[0][0])) * 100) % 256
                picture[height // 2 :, :, 1] = len(link)
                seen[f"{robot.name}:{link}:Camera:0"] = {"rgb": picture}
        return {robot.name: seen}, {robot.name: {}}

    def _pre_step(self, action: dict[str, torch.Tensor]) -> None:
        for robot in self.robots:
            robot.apply_action(action[robot.name])

    def _post_step(self, action: dict[str, torch.Tensor]) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        seen, _ = self.get_obs()
        self.num_steps += 1
        before, self.fulfilled = self.fulfilled, min(1.0, max(0.0, float(self.place[0]) * 4) // 0.5 * 0.5)
        success = self.fulfilled == 1.0
        late = self.num_steps >= self.config["task"]["termination_config"]["max_steps"]
        return seen, self.fulfilled - before, success, late, {"done": {"success": success}}


class VectorEnvironment:
    def __init__(self, num_envs: int, config: dict[str, Any]) -> None:
        self.num_envs = num_envs
        self.envs = [Environment(config) for _ in range(num_envs)]

    def step(self, actions: list[dict[str, torch.Tensor]]) -> tuple[list[Any], ...]:
        for env, action in zip(self.envs, actions, strict=True):
            env._pre_step(action)
        og.sim.step()
        results = [env._post_step(action) for env, action in zip(self.envs, actions, strict=True)]
        return tuple(list(part) for part in zip(*results, strict=True))


og: Any = types.ModuleType("omnigibson")
og.VectorEnvironment = VectorEnvironment


def install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put the stand-in, with a simulation of its own, where ``import omnigibson`` finds it."""
    og.sim = Simulator()
    monkeypatch.setitem(sys.modules, "omnigibson", og)
    monkeypatch.setenv("OMNIGIBSON_HEADLESS", "1")
