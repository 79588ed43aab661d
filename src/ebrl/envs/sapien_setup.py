"""SAPIEN imported with a renderer that is known to work, or made to do without one.

Nothing of SAPIEN is imported before it is asked for.
"""

from __future__ import annotations

import functools
import importlib
import subprocess
import sys
import warnings
from typing import Any

from ebrl.errors import UsageError

__all__ = ["import_module", "load_maniskill", "move_to_new_scene", "rendering_device"]

PROBE_DEADLINE_S = 60.0
"""Longest that a Vulkan driver may take to say whether it can render."""

PROBE = "import sapien; sapien.Scene([sapien.physx.PhysxCpuSystem(), sapien.render.RenderSystem()])"

LOOKS = ("RenderMaterial", "RenderTexture2D", "RenderTexture")
"""Classes that only describe how a body looks, and that cannot be made without a renderer."""


def import_module(name: str) -> Any:
    """A module of the simulator; what it holds is not typed."""
    return importlib.import_module(name)


@functools.cache
def load_maniskill(*, cameras: bool) -> Any:
    """Import ManiSkill, once per process and way, with or without a renderer.

    Returns:
        The module ``torch``, in which ManiSkill counts.

    Raises:
        UsageError: it is not installed; cameras are wanted and Vulkan cannot render, or they were given up before.
    """
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Failed to find system libvulkan")
            sapien = import_module("sapien")
            if cameras and sapien.render.RenderMaterial is _Nothing:
                raise UsageError("maniskill/*: this process has made an environment without cameras; use another one")
            if cameras:
                _probe_vulkan()
            else:
                for module in (sapien.render, sapien.pysapien.render):
                    for name in LOOKS:
                        setattr(module, name, _Nothing)
            torch = import_module("torch")
            import_module("mani_skill.envs")
    except ModuleNotFoundError as error:
        where = f"which {sys.executable} does not have"
        raise UsageError(
            f"maniskill/* needs the module {error.name!r}, {where}; run: ebrl install maniskill"
        ) from error
    torch.set_num_threads(1)  # an env step is a thousand tiny operations
    return torch


def move_to_new_scene(scene: Any) -> None:
    """Put the bodies of a ManiSkill scene into a new physics scene, which remembers no contacts; CPU only.

    Bodies keep their poses and velocities; a renderer goes with them.
    """
    sapien = import_module("sapien")
    old = scene.sub_scenes[0]
    physics = sapien.physx.PhysxCpuSystem()
    physics.timestep = scene.px.timestep
    new = sapien.Scene([physics, old.render_system] if scene.can_render() else [physics])
    entities = list(old.entities)
    for entity in entities:
        entity.remove_from_scene()
    for entity in entities:
        new.add_entity(entity)
    scene.sub_scenes[0], scene.px = new, physics


def rendering_device() -> str:
    """ManiSkill's name of the device that renders: a GPU if there is one, else the processor."""
    try:
        import_module("sapien").Device("cuda")
    except RuntimeError:
        return "cpu"
    return "gpu"


class _Nothing:
    """Accepts whatever is done to the description of a look, and forgets it."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Nothing()

    def __call__(self, *args: object, **kwargs: object) -> _Nothing:
        return _Nothing()

    def __getitem__(self, index: object) -> Any:
        return [1.0, 1.0, 1.0] if isinstance(index, slice) else 1.0

    def __setitem__(self, index: object, value: object) -> None:
        pass


def _probe_vulkan() -> None:
    """Ask in a child process, with a deadline, whether SAPIEN can render: a bad driver may hang or crash it."""
    command = [sys.executable, "-W", "ignore", "-c", PROBE]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PROBE_DEADLINE_S, check=False
        )
    except subprocess.TimeoutExpired:
        problem = f"the driver did not answer within {PROBE_DEADLINE_S:.0f} s"
    else:
        if done.returncode == 0:
            return
        problem = f"{(done.stderr.strip() or 'no message').splitlines()[-1]} (exit status {done.returncode})"
    raise UsageError(
        f"maniskill/*: cameras need a Vulkan driver that can render: {problem}; install the GPU's driver, "
        "or Mesa 25 or later (Debian: mesa-vulkan-drivers, in Debian 12 from bookworm-backports), or choose no cameras"
    )
