"""Images that a working renderer hardly makes: of one colour all over, or the same twice in a row.

Imports the standard library and numpy: it runs in env workers of every interpreter.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ebrl.data.spec import ArraySpec


class Frames:
    """Counts such images of one environment's cameras; a look takes a few microseconds for each of them."""

    def __init__(self, observation: Mapping[str, ArraySpec]) -> None:
        """Cameras are the fields of ``[height, width, 3] uint8``."""
        self._cameras = [
            name
            for name, spec in observation.items()
            if spec.dtype == "uint8" and len(spec.shape) == 3 and spec.shape[2] == 3
        ]
        self._before: dict[str, np.ndarray] = {}
        self.begin_episode()

    def begin_episode(self) -> None:
        """Count from 0; the first image is compared with the last one of the episode before."""
        self.total = self.constant = self.repeated = 0

    def look(self, obs: Mapping[str, np.ndarray]) -> None:
        """Count the images of an observation."""
        for name in self._cameras:
            frame = np.asarray(obs[name]).flatten()  # a copy: the environment may write into its own again
            before = self._before.get(name)
            self._before[name] = frame
            self.total += 1
            self.constant += bool((frame[3:] == frame[:-3]).all())
            self.repeated += before is not None and bool((frame == before).all())
