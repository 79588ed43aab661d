"""Episodes that are over, from an env worker's words to events; and whether their images look right."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ebrl.data import messages as m
from ebrl.scheduling.events import EpisodeEnd

_MIN_FRAMES = 100
"""Fewer say nothing."""

_MAX_FRACTION = 0.01


class EpisodeEnds:
    """Makes the events, and says once if so many images are of one colour that the renderer must be broken."""

    def __init__(self, env: str, on_notice: Callable[[str], None]) -> None:
        """``env`` is the environment's name."""
        self._env = env
        self._on_notice = on_notice
        self._frames = self._constant = 0
        self._said = False

    def events(self, ends: Sequence[m.EpisodeEnd]) -> tuple[EpisodeEnd, ...]:
        """What control is told of episodes that are over."""
        for end in ends:
            self._frames += end.frames
            self._constant += end.constant_frames
        if not self._said and self._frames >= _MIN_FRAMES and self._constant > _MAX_FRACTION * self._frames:
            self._said = True
            self._on_notice(
                f"{self._constant} of {self._frames} images of {self._env} are of one colour all over: is its renderer "
                "broken, or does a camera look at nothing? Look at them before you trust what is learned"
            )
        return tuple(map(_event, ends))


def _event(end: m.EpisodeEnd) -> EpisodeEnd:
    return EpisodeEnd(
        env=end.env,
        terminated=bool(end.flags & m.TERMINATED),
        success=bool(end.flags & m.SUCCESS),
        episode_return=end.episode_return,
        num_steps=end.episode_steps,
        constant_frames=end.constant_frames,
        repeated_frames=end.repeated_frames,
    )
