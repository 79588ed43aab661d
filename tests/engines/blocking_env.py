"""An environment that is never built."""

from __future__ import annotations

import signal

from ebrl.envs.toy import Reach


class Never(Reach):
    """Waits for a signal that nobody sends."""

    def __init__(self, task: str = "", config: Reach.Config | None = None) -> None:
        signal.pause()
