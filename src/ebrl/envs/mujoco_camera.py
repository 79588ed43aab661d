"""Pictures of a MuJoCo model on a machine without a screen, for adapters whose simulator is MuJoCo.

MuJoCo is imported on first use, so that this module can be imported without it.
"""

from __future__ import annotations

import ctypes
import importlib
import os
from typing import Any

import numpy as np

from ebrl.errors import UsageError

__all__ = ["GL_LIBRARIES", "Camera", "choose_gl"]

GL_LIBRARIES = {
    "egl": ("libEGL.so.1", "libegl1 libgl1-mesa-dri libgl1"),
    "osmesa": ("libOSMesa.so.8", "libosmesa6"),
}
"""By value of ``MUJOCO_GL``: the system library it needs and the Debian packages that bring it."""


def choose_gl() -> str:
    """The OpenGL platform, EGL unless ``MUJOCO_GL`` is set; call before MuJoCo is first imported.

    Raises:
        UsageError: its system library is missing. MuJoCo itself would abort the process.
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
    return platform


def _cannot_render(platform: str, problem: object) -> str:
    _, packages = GL_LIBRARIES[platform]
    return (
        f"cameras cannot render with MUJOCO_GL={platform}: {problem}; "
        f"run: apt-get install --no-install-recommends {packages}, or choose no camera"
    )


class Camera:
    """One fixed camera of a model, its pictures right way up; owns its OpenGL context."""

    def __init__(self, model: Any, data: Any, name: str, *, size: int, tuned: bool, upside_down: bool) -> None:
        """Set up for square pictures of ``size`` pixels.

        ``tuned`` leaves out shadows, reflections and multisampling, which cost most of a frame on a
        CPU. ``upside_down`` says that the model mounts this camera on its head.

        Raises:
            UsageError: no OpenGL context can be made.
        """
        import mujoco

        self._mujoco: Any = mujoco
        self._model, self._data, self._upside_down = model, data, upside_down
        model.vis.global_.offwidth = model.vis.global_.offheight = size
        if tuned:
            model.vis.quality.shadowsize = model.vis.quality.offsamples = 0
        self._gl = _make_context(choose_gl())
        self._gl.make_current()
        self._scene = self._mujoco.MjvScene(model, 1000)
        if tuned:
            self._scene.flags[self._mujoco.mjtRndFlag.mjRND_SHADOW] = 0
            self._scene.flags[self._mujoco.mjtRndFlag.mjRND_REFLECTION] = 0
        self._context = self._mujoco.MjrContext(model, self._mujoco.mjtFontScale.mjFONTSCALE_100)
        self._mujoco.mjr_setBuffer(self._mujoco.mjtFramebuffer.mjFB_OFFSCREEN, self._context)
        self._view = self._mujoco.MjvCamera()
        self._view.type = self._mujoco.mjtCamera.mjCAMERA_FIXED
        self._view.fixedcamid = model.camera(name).id
        self._option, self._perturb = self._mujoco.MjvOption(), self._mujoco.MjvPerturb()
        self._viewport = self._mujoco.MjrRect(0, 0, size, size)
        self._pixels = np.zeros((size, size, 3), np.uint8)

    def render(self) -> np.ndarray:
        """The scene as it is now, ``[size, size, 3] uint8``."""
        self._gl.make_current()
        everything = self._mujoco.mjtCatBit.mjCAT_ALL
        self._mujoco.mjv_updateScene(
            self._model, self._data, self._option, self._perturb, self._view, everything, self._scene
        )
        self._mujoco.mjr_render(self._viewport, self._scene, self._context)
        self._mujoco.mjr_readPixels(self._pixels, None, self._viewport, self._context)
        # OpenGL's rows run upwards, so a picture that needs a half turn has half of it already.
        return (self._pixels[:, ::-1] if self._upside_down else self._pixels[::-1]).copy()

    def close(self) -> None:
        """Free the context; call once."""
        self._gl.make_current()
        self._context.free()
        self._gl.free()


def _make_context(platform: str) -> Any:
    try:
        return importlib.import_module(f"mujoco.{platform}").GLContext(1, 1)
    except (ImportError, RuntimeError, AttributeError) as error:
        raise UsageError(_cannot_render(platform, error)) from error
