"""Environments that try what environments should not."""

from __future__ import annotations

import ctypes
import dataclasses
import faulthandler
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np

from ebrl.data.spec import ArraySpec, EnvSpec


class Plain:
    """Counts its steps; ``state`` is how many, and the last action."""

    @dataclasses.dataclass(frozen=True)
    class Config:
        """Options."""

        num_threads: int = 0
        """Threads that live as long as the environment."""
        read_stdin: bool = False
        child_pid_file: str = ""
        """Start a process and write its pid here."""
        segfault_at: int = 0
        """Die in native code in this step."""
        noise_bytes: int = 0
        """Print so much in every step, and as much again to standard error."""
        mark: str = ""
        """A file: written when an environment is made; where it is, no other can be made, once."""
        truncate_at: int = 0
        """Cut the episode at this step by itself."""
        dies_of_its_dump: bool = False
        """Be ended by the signal that asks for the stack."""
        reward: float = 1.0
        succeed_once: bool = False
        """Succeed in the first episode only."""
        chooses: bool = False
        """Of an action, the largest number counts."""

    def __init__(self, task: str = "", config: Config | None = None) -> None:
        self.config = config if config is not None else self.Config()
        if self.config.read_stdin:
            assert sys.stdin.read() == ""
        if self.config.child_pid_file:
            child = subprocess.Popen(["sleep", "1000"])
            Path(self.config.child_pid_file).write_text(str(child.pid))
        if self.config.mark:
            self._may_be_made(Path(self.config.mark))
        if self.config.dies_of_its_dump:
            faulthandler.unregister(signal.SIGUSR1)
        for _ in range(self.config.num_threads):
            threading.Thread(target=threading.Event().wait, daemon=True).start()
        self.steps = 0
        self.episodes = 0

    @property
    def spec(self) -> EnvSpec:
        return EnvSpec({"state": ArraySpec((2,), "float32")}, (-1.0,), (0.5,), 10, chooses=self.config.chooses)

    def reset(self, seed: int) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        self.steps = 0
        self.episodes += 1
        return self._observe(0.0), {}

    def step(
        self, action: np.ndarray, *, need_obs: bool
    ) -> tuple[dict[str, np.ndarray] | None, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        for stream in (sys.stdout, sys.stderr):
            stream.write("x" * self.config.noise_bytes)
        if self.steps == self.config.segfault_at:
            ctypes.string_at(0)
        cut = self.steps == self.config.truncate_at
        obs = self._observe(float(action[0])) if need_obs or cut else None
        success = self.steps == 2 and not (self.config.succeed_once and self.episodes > 1)
        return obs, self.config.reward, False, cut, {"success": success}

    @staticmethod
    def _may_be_made(mark: Path) -> None:
        if mark.exists():
            mark.unlink()
            raise OSError("no licence for a second one")
        mark.write_text("")

    def _observe(self, action: float) -> dict[str, np.ndarray]:
        return {"state": np.array([self.steps, action], np.float32)}

    def close(self) -> None:
        pass


class Offline(Plain):
    """Loses the connection to a server of its own."""

    def reset(self, seed: int) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        raise ConnectionResetError("the server of this environment is gone")
