"""A stand-in for RoboCasa: its interface as published, and of its world only what the adapter must get right.

Pictures upside down, observables that are updated while the physics runs, relative poses from the update before,
draws from the environment's generator and from numpy's own, everything built anew by a reset.
"""

from __future__ import annotations

import sys
import types
from typing import Any

import numpy as np
import pytest

TASKS = ("Kitchen", "OpenDrawer", "PickPlaceCounterToSink")
HORIZONS = {"OpenDrawer": 60}
NUM_PHYSICS_STEPS = 5


class Observable:
    def __init__(self, read: Any) -> None:
        self.read, self.enabled, self.value = read, True, np.zeros(1)


class FakeKitchen:
    """A base on a plane with a hand above it, and a drawer that opens as the hand is pulled back."""

    def __init__(self, env_name: str, cameras: list[str], size: int) -> None:
        self.name, self.cameras, self.size = env_name, cameras, size
        self.rng = np.random.default_rng()
        self.rendered: list[str] = []
        self.closed = 0
        self.reset()

    @property
    def action_spec(self) -> tuple[np.ndarray, np.ndarray]:
        return -np.ones(12), np.ones(12)

    def reset(self) -> dict[str, np.ndarray]:
        self.layout = int(self.rng.integers(60))
        self.base: np.ndarray = np.append(self.rng.uniform(-1, 1, 2), 0.0)
        self.hand: np.ndarray = self.base + np.array([0.4, 0.0, 1.0 + np.random.uniform(0, 0.01)])
        self.drawer = 0.0
        self.cache: dict[str, np.ndarray] = {}
        turn = np.array([0.0, 0.0, 0.0, 1.0])
        self._observables = {
            "robot0_base_to_eef_pos": Observable(lambda: self._relative()),
            "robot0_base_to_eef_quat": Observable(lambda: turn),
            "robot0_base_pos": Observable(lambda: self.base.copy()),
            "robot0_base_quat": Observable(lambda: turn),
            "robot0_eef_pos": Observable(lambda: self.hand.copy()),
            "robot0_gripper_qpos": Observable(lambda: np.full(2, 0.02)),
        }
        for camera in self.cameras:
            self._observables[f"{camera}_image"] = Observable(lambda camera=camera: self._render(camera))
        return self._get_observations(force_update=True)

    def _relative(self) -> np.ndarray:
        if "robot0_eef_pos" not in self.cache:
            return np.zeros(3)
        way: np.ndarray = self.cache["robot0_eef_pos"] - self.cache["robot0_base_pos"]
        return way

    def _render(self, camera: str) -> np.ndarray:
        """Bright above the horizon, a floor of the layout's colour below; rows from the bottom up."""
        self.rendered.append(camera)
        picture = np.full((self.size, self.size, 3), 220, np.uint8)
        picture[: self.size // 2] = [self.layout, int(100 * self.drawer), len(camera)]
        picture[: self.size // 4, :, 0] = int(50 + 40 * self.hand[0]) % 256
        return picture

    def step(self, action: np.ndarray) -> tuple[dict[str, np.ndarray], float, bool, dict[str, Any]]:
        assert action.shape == (12,)
        move, drive = (0.0, 1.0) if action[11] > 0 else (1.0, 0.0)
        for _ in range(NUM_PHYSICS_STEPS):
            self.hand = self.hand + 0.01 * move * action[:3] + 0.01 * drive * action[7:10]
            self.base = self.base + 0.01 * drive * action[7:10]
            self.drawer = min(1.0, max(0.0, self.drawer - 0.01 * move * float(action[0])))
            self._update_observables()
        return self._get_observations(), float(self._check_success()), False, {}

    def _update_observables(self, force: bool = False) -> None:
        for name, observable in self._observables.items():
            if observable.enabled:
                observable.value = self.cache[name] = observable.read()

    def _get_observations(self, force_update: bool = False) -> dict[str, np.ndarray]:
        if force_update:
            self._update_observables(force=True)
        return {name: observable.value for name, observable in self._observables.items() if observable.enabled}

    def modify_observable(self, observable_name: str, attribute: str, modifier: bool) -> None:
        assert attribute == "enabled"
        self._observables[observable_name].enabled = modifier

    def get_ep_meta(self) -> dict[str, Any]:
        return {"layout_id": self.layout, "lang": f"open the drawer of kitchen {self.layout}"}

    def _check_success(self) -> bool:
        return self.drawer > 0.9

    def close(self) -> None:
        self.closed += 1


def create_env(
    env_name: str,
    robots: str = "PandaOmron",
    camera_names: list[str] | None = None,
    camera_widths: int = 128,
    camera_heights: int = 128,
    seed: int | None = None,
    split: str | None = None,
) -> FakeKitchen:
    assert robots == "PandaOmron"
    assert split in ("pretrain", "target", "all")
    assert camera_widths == camera_heights
    if env_name == "PickPlaceCounterToSink":
        raise FileNotFoundError(2, "No such file or directory", "/assets/objects/apple/model.xml")
    return FakeKitchen(env_name, camera_names or [], camera_widths)


def get_task_horizon(task: str) -> int:
    if task not in HORIZONS:
        raise ValueError
    return HORIZONS[task]


def install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put the stand-in where ``import robocasa`` finds it."""
    contents: dict[str, dict[str, Any]] = {
        "robocasa": {"ALL_KITCHEN_ENVIRONMENTS": dict.fromkeys(TASKS).keys()},
        "robocasa.utils": {},
        "robocasa.utils.env_utils": {"create_env": create_env},
        "robocasa.utils.dataset_registry_utils": {"get_task_horizon": get_task_horizon},
    }
    for name, content in contents.items():
        module = types.ModuleType(name)
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, name, module)
