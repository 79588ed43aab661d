"""What Meta-World's own step is made of, for less: each part gives the same bits as the one it stands in for.

The package's rewards are the package's code; what they call is replaced, for one task object, by what is here.
Where a part is not sure that it would give the same bits, it asks the one that it stands in for.
"""

from __future__ import annotations

import math
import types
from collections.abc import Mapping
from typing import Any

import numpy as np

STEP_METHODS = (
    "_get_pos_objects",
    "_get_quat_objects",
    "compute_reward",
    "_gripper_caging_reward",
    "_reward_grab_effort",
    "_reward_pos",
    "_reward_quat",
)
"""Methods of tasks that observe and reward; no task has all of them."""

_FLOAT64 = np.dtype(np.float64)
_LONG_TAIL_SCALE = math.sqrt(1 / 0.1 - 1)
"""By which a long tail falls to 0.1 at its margin."""
_EXACT = frozenset((int, float, np.float64))
"""Numbers with which every operation is one on doubles."""


def cheap_methods(task: Any) -> dict[str, Any]:
    """Methods of ``task`` that stand in for its own, by name."""
    from metaworld.utils import reward_utils

    names = {"np": _NUMPY, "Rotation": Rotation, "reward_utils": _with_fields(reward_utils, tolerance=tolerance)}
    own = {name: getattr(task, name) for name in STEP_METHODS if hasattr(task, name)}
    cheap = {name: _seeing(method, names) for name, method in own.items()}
    return {name: method for name, method in cheap.items() if method is not own[name]}


def _with_fields(module: Any, **fields: Any) -> types.SimpleNamespace:
    """A module, but for some of its names."""
    return types.SimpleNamespace(**{**vars(module), **fields})


def _seeing(method: Any, names: Mapping[str, Any]) -> Any:
    """A method for which ``names`` mean something else than in its module; itself where it uses none of them."""
    function = getattr(method, "__func__", method)
    if names.keys().isdisjoint(function.__code__.co_names):
        return method
    seen = {**function.__globals__, **names}
    copy = types.FunctionType(function.__code__, seen, function.__name__, function.__defaults__, function.__closure__)
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy if function is method else types.MethodType(copy, method.__self__)


def norm(x: Any, *args: Any, **kwargs: Any) -> Any:
    """``np.linalg.norm``, which takes the same dot product and the same root for a vector of doubles."""
    if args or kwargs or type(x) is not np.ndarray or x.dtype is not _FLOAT64 or x.strides != (8,):
        return np.linalg.norm(x, *args, **kwargs)
    return np.float64(math.sqrt(x.dot(x)))


def tolerance(
    x: Any,
    bounds: tuple[float, float] = (0.0, 0.0),
    margin: Any = 0.0,
    sigmoid: Any = "gaussian",
    value_at_margin: float = 0.1,
) -> Any:
    """``reward_utils.tolerance``: 1 within ``bounds``, and less the more of ``margin`` lies between."""
    low, high = bounds
    if (
        sigmoid == "long_tail"
        and value_at_margin == 0.1
        and _EXACT.issuperset((type(x), type(low), type(high), type(margin)))
        and low <= high
        and margin > 0
    ):
        if low <= x <= high:
            return 1.0
        distance = float(low - x if x < low else x - high) / float(margin) * _LONG_TAIL_SCALE
        if abs(distance) < 1e100:  # a number whose square is one too
            return 1 / (distance**2 + 1)
    from metaworld.utils import reward_utils

    return reward_utils.tolerance(x, bounds, margin, sigmoid, value_at_margin)


_NUMPY = _with_fields(np, linalg=_with_fields(np.linalg, norm=norm))


class BodyPositions(dict[str, np.ndarray]):
    """Live positions of bodies by name: views of the simulation's memory, each looked up once."""

    def __init__(self, data: Any) -> None:
        super().__init__()
        self._data = data

    def __missing__(self, name: str) -> np.ndarray:
        view: np.ndarray = self._data.body(name).xpos
        self[name] = view
        return view


class Touch:
    """Whether both finger pads press on a geom: the package's own rule, read from whole arrays."""

    def __init__(self, data: Any) -> None:
        self._data = data
        self._pads = [int(data.geom(name).id) for name in ("leftpad_geom", "rightpad_geom")]

    def __call__(self, object_geom_id: int) -> bool:
        """As the package's ``touching_object``."""
        pairs = self._data.contact.geom.tolist()
        touching = [(i, pair) for i, pair in enumerate(pairs) if object_geom_id in pair]
        if not touching:
            return False
        addresses, forces = self._data.contact.efc_address, self._data.efc_force
        return all(sum(forces[addresses[i]] for i, pair in touching if pad in pair) > 0 for pad in self._pads)


class Rotation:
    """Stands in for scipy's class of that name: the same quaternion, without its general machinery."""

    def __init__(self, matrix: np.ndarray) -> None:
        m = matrix.tolist()
        trace = m[0][0] + m[1][1] + m[2][2]
        largest = max(range(4), key=(m[0][0], m[1][1], m[2][2], trace).__getitem__)
        if largest == 3:
            xyzw = [m[2][1] - m[1][2], m[0][2] - m[2][0], m[1][0] - m[0][1], 1 + trace]
        else:
            i, j, k = largest, (largest + 1) % 3, (largest + 2) % 3
            xyzw = [0.0, 0.0, 0.0, m[k][j] - m[j][k]]
            xyzw[i] = 1 - trace + 2 * m[i][i]
            xyzw[j] = m[j][i] + m[i][j]
            xyzw[k] = m[k][i] + m[i][k]
        x, y, z, w = xyzw
        self._xyzw = np.array(xyzw) / math.sqrt(x * x + y * y + z * z + w * w)

    @classmethod
    def from_matrix(cls, matrix: np.ndarray) -> Rotation:
        """Of a rotation matrix."""
        return cls(matrix)

    def as_quat(self) -> np.ndarray:
        """x, y, z, w."""
        return self._xyzw
