"""Pictures of a MuJoCo model on a machine without a screen, for adapters whose simulator is MuJoCo.

MuJoCo is imported on first use, so that this module can be imported without it.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import importlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from ebrl.errors import UsageError

__all__ = ["GL_LIBRARIES", "Camera", "Renderer", "choose_gl"]

GL_LIBRARIES = {
    "egl": ("libEGL.so.1", "libegl1 libgl1-mesa-dri libgl1"),
    "osmesa": ("libOSMesa.so.8", "libosmesa6"),
}
"""By value of ``MUJOCO_GL``: the system library it needs and the Debian packages that bring it."""


NO_GROUP = 5
"""A group of geoms that is never drawn; MuJoCo draws 0 to 2 unless told otherwise."""


PROBE_DEADLINE_S = 60.0

_PROBE = """
import importlib, os, sys
try:
    context = importlib.import_module("mujoco." + sys.argv[1]).GLContext(1, 1)
    context.make_current()
    context.free()
except Exception as error:
    print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
    os._exit(1)
"""


def choose_gl() -> str:
    """The OpenGL platform, EGL unless ``MUJOCO_GL`` is set; call before MuJoCo is first imported.

    Raises:
        UsageError: its system library is missing, or another process tried and could not make a
            context. In this process MuJoCo would abort, or the driver hang.
    """
    platform = os.environ.setdefault("MUJOCO_GL", "egl").lower()
    if platform not in GL_LIBRARIES:
        raise UsageError(f"MUJOCO_GL = {platform!r}: cameras want one of {', '.join(GL_LIBRARIES)}")
    library, _ = GL_LIBRARIES[platform]
    try:
        ctypes.CDLL(library)
    except OSError as error:
        raise UsageError(_cannot_render(platform, f"the system library {library} is not installed")) from error
    os.environ.setdefault("PYOPENGL_PLATFORM", platform)
    _probe(platform)
    return platform


@functools.cache
def _probe(platform: str) -> None:
    """Let a process of its own make a context, once.

    Raises:
        UsageError: it could not, or did not within the deadline.
    """
    try:
        done = subprocess.run(
            [sys.executable, "-c", _PROBE, platform],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PROBE_DEADLINE_S,
        )
    except subprocess.TimeoutExpired:
        problem = f"the driver did not answer within {PROBE_DEADLINE_S:.0f} s"
    else:
        if done.returncode == 0:
            return
        problem = f"{(done.stderr.strip() or 'no message').splitlines()[-1]} (exit status {done.returncode})"
    closed = [str(path) for path in sorted(Path("/dev").glob("dri/render*")) if not os.access(path, os.R_OK | os.W_OK)]
    if closed:
        problem += f"; this user may not open {', '.join(closed)}, so ask for membership in the group that may"
    raise UsageError(_cannot_render(platform, problem))


def _cannot_render(platform: str, problem: object) -> str:
    _, packages = GL_LIBRARIES[platform]
    return (
        f"cameras cannot render with MUJOCO_GL={platform}: {problem}; "
        f"run: apt-get install --no-install-recommends {packages}, or choose no camera"
    )


class Renderer:
    """Pictures of one model from any of its fixed cameras, rows from the top down.

    Every renderer of a process shares one OpenGL context and has its own copy of the model's meshes
    and textures in it.
    """

    def __init__(self, model: Any, data: Any, *, size: int, tuned: bool, hidden_groups: tuple[int, ...] = ()) -> None:
        """Set up for square pictures of ``size`` pixels, without the geoms of ``hidden_groups``.

        ``tuned`` leaves out shadows, reflections and multisampling, which cost most of a frame on a
        CPU, and geoms out of the camera's sight, which changes nothing.

        Raises:
            UsageError: no OpenGL context can be made.
        """
        import mujoco

        self._mujoco: Any = mujoco
        self._model, self._data, self._tuned = model, data, tuned
        model.vis.global_.offwidth = model.vis.global_.offheight = size
        if tuned:
            model.vis.quality.shadowsize = model.vis.quality.offsamples = 0
        self._gl = _process_context()
        self._gl.make_current()
        self._scene = mujoco.MjvScene(model, 10000)
        if tuned:
            self._scene.flags[mujoco.mjtRndFlag.mjRND_SHADOW] = 0
            self._scene.flags[mujoco.mjtRndFlag.mjRND_REFLECTION] = 0
        self._context = mujoco.MjrContext(model, mujoco.mjtFontScale.mjFONTSCALE_100)
        self._view = mujoco.MjvCamera()
        self._view.type = mujoco.mjtCamera.mjCAMERA_FIXED
        self._option, self._perturb = mujoco.MjvOption(), mujoco.MjvPerturb()
        for group in hidden_groups:
            self._option.geomgroup[group] = 0
        self._viewport = mujoco.MjrRect(0, 0, size, size)
        self._pixels = np.zeros((size, size, 3), np.uint8)
        self._groups = model.geom_group.copy()
        # A plane has no bounding sphere.
        self._radii = np.where(model.geom_rbound > 0, model.geom_rbound, np.inf)

    def render(self, camera: str) -> np.ndarray:
        """The scene as it is now, ``[size, size, 3] uint8``."""
        mujoco, model, data = self._mujoco, self._model, self._data
        self._gl.make_current()
        self._view.fixedcamid = model.camera(camera).id
        if self._tuned:
            model.geom_group[self._out_of_sight(self._view.fixedcamid)] = NO_GROUP
        mujoco.mjv_updateScene(
            model, data, self._option, self._perturb, self._view, mujoco.mjtCatBit.mjCAT_ALL, self._scene
        )
        model.geom_group[:] = self._groups
        mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN, self._context)
        mujoco.mjr_render(self._viewport, self._scene, self._context)
        mujoco.mjr_readPixels(self._pixels, None, self._viewport, self._context)
        return self._pixels[::-1].copy()  # OpenGL's rows run upwards

    def _out_of_sight(self, camera: int) -> np.ndarray:
        """Which geoms lie wholly beside or behind the camera's square field of view, ``[G] bool``."""
        half = np.deg2rad(self._model.cam_fovy[camera]) / 2
        right, up, back = (
            (self._data.geom_xpos - self._data.cam_xpos[camera]) @ self._data.cam_xmat[camera].reshape(3, 3)
        ).T
        aside = np.maximum(np.abs(right), np.abs(up))
        return np.asarray(aside * np.cos(half) + back * np.sin(half) > self._radii)

    def close(self) -> None:
        """Free the model's copy; call once."""
        self._gl.make_current()
        self._context.free()


class Camera:
    """One fixed camera of a model, its pictures right way up."""

    def __init__(self, model: Any, data: Any, name: str, *, size: int, tuned: bool, upside_down: bool) -> None:
        """As a ``Renderer``; ``upside_down`` says that the model mounts this camera on its head.

        Raises:
            UsageError: no OpenGL context can be made.
        """
        self._renderer = Renderer(model, data, size=size, tuned=tuned)
        self._name, self._upside_down = name, upside_down

    def render(self) -> np.ndarray:
        """The scene as it is now, ``[size, size, 3] uint8``."""
        picture = self._renderer.render(self._name)
        return picture[::-1, ::-1].copy() if self._upside_down else picture

    def close(self) -> None:
        """Free the renderer; call once."""
        self._renderer.close()


@functools.cache
def _process_context() -> Any:
    """The OpenGL context of this process, freed when it exits.

    Raises:
        UsageError: none can be made.
    """
    context = _make_context(choose_gl())
    atexit.register(context.free)  # before the platform closes its display, which it registered earlier
    return context


def _make_context(platform: str) -> Any:
    try:
        return importlib.import_module(f"mujoco.{platform}").GLContext(1, 1)
    except (ImportError, RuntimeError, AttributeError) as error:
        raise UsageError(_cannot_render(platform, error)) from error
