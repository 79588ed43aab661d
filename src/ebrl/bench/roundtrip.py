"""Chunk round trip: from an observation in the env worker to the first action of the next chunk there.

Measured with the real local engine, scheduler, generator and one env worker. The environment itself
takes the time, on the clock that all processes share: when the last env step of a chunk returns, and
when the first of the next one is called. What lies between is two messages each way, control, and
the policy; the generator reports how long the policy took, and that is taken off.
"""

from __future__ import annotations

import dataclasses
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from ebrl.data.spec import ArraySpec, EnvSpec
from ebrl.errors import RunError

CHUNK_LEN = 8
_CHUNKS = 4096
"""Of the one trajectory that may be held. Nothing is trained while it is measured."""
_WARM_UP = 200
"""Round trips at the start that are not counted."""
_FEWEST = 2 * _WARM_UP
"""Round trips that a figure needs; a machine that is too slow for them goes on for a while."""
_PATIENCE_S = 30.0
"""For how long, at most."""
_MARKS = 1 << 20
"""Chunks that the file of times has room for."""


class StampEnv:
    """Does nothing, and writes down when."""

    @dataclasses.dataclass(frozen=True)
    class Config:
        """Options of the bench's environment."""

        times: str = ""
        """A file of pairs of nanoseconds, ``[chunks, 2] int64``: first call and last return of each chunk."""

    def __init__(self, task: str = "", config: Config | None = None) -> None:
        assert config is not None
        assert config.times
        self._times_K2 = np.memmap(config.times, np.int64, "r+").reshape(-1, 2)
        self._state = np.zeros(8, np.float32)
        self._chunk = self._index = 0

    @property
    def spec(self) -> EnvSpec:
        """A small state, and an episode that does not end."""
        return EnvSpec({"state": ArraySpec((8,), "float32")}, (-1.0,) * 4, (1.0,) * 4, 2**30)

    def reset(self, seed: int) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Always the same."""
        return {"state": self._state}, {}

    def step(
        self, action: np.ndarray, *, need_obs: bool
    ) -> tuple[dict[str, np.ndarray] | None, float, bool, bool, dict[str, Any]]:
        """Note the time of the first call and of the last return of a chunk."""
        if self._index == 0:
            self._times_K2[self._chunk, 0] = time.monotonic_ns()
        self._index += 1
        if self._index == CHUNK_LEN:
            self._index = 0
            self._chunk = min(self._chunk + 1, len(self._times_K2) - 1)
            self._times_K2[self._chunk - 1, 1] = time.monotonic_ns()
        return ({"state": self._state} if need_obs else None), 0.0, False, False, {}

    def close(self) -> None:
        """Nothing to release."""


def measure(seconds: float) -> dict[str, Any]:
    """Measure for so long.

    Args:
        seconds: how long the chunks go round, or until there are enough of them; starting the processes comes on top.

    Raises:
        RunError: too few round trips; the run stood still or the time was too short.
    """
    from ebrl.host.probe import machine

    with tempfile.TemporaryDirectory(prefix="ebrl-bench-") as name:
        directory = Path(name)
        times = directory / "times"
        with times.open("wb") as file:
            file.truncate(_MARKS * 16)
        policy_s = _run(directory, times, seconds)
        times_K2 = np.fromfile(times, np.int64).reshape(-1, 2)
    return _figures(times_K2, np.asarray(policy_s)) | {"machine": machine()}


def _figures(times_K2: np.ndarray, policy_s: np.ndarray) -> dict[str, Any]:
    """Chunk k + 1 begins with the policy's call k + 1; its own time is what is taken off."""
    finished = int(np.count_nonzero(times_K2[:, 1]))
    count = min(finished, len(policy_s)) - 1
    if count <= _FEWEST:
        raise RunError(f"only {max(count, 0)} round trips; measure for longer")
    gaps_us = (times_K2[1 : count + 1, 0] - times_K2[:count, 1]) / 1e3
    trips_us = (gaps_us - policy_s[1 : count + 1] * 1e6)[_WARM_UP:]
    median, p95, p99 = np.percentile(trips_us, [50, 95, 99])
    return {
        "median_us": float(median),
        "p95_us": float(p95),
        "p99_us": float(p99),
        "count": len(trips_us),
        "policy_median_us": float(np.median(policy_s[_WARM_UP : count + 1]) * 1e6),
        "chunk_len": CHUNK_LEN,
        "seconds": float(times_K2[count, 1] - times_K2[0, 0]) / 1e9,
    }


def _run(directory: Path, times: Path, seconds: float) -> list[float]:
    """Let chunks go round; returns how long the policy took for each."""
    from ebrl.config.load import make_config
    from ebrl.engines.local.engine import LocalEngine
    from ebrl.host.probe import usable_cpus
    from ebrl.plan.plan import make_plan
    from ebrl.runtime.local import local_setup
    from ebrl.runtime.loop import run
    from ebrl.scheduling.commands import Command
    from ebrl.scheduling.events import ChunksReady, Event
    from ebrl.scheduling.scheduler import Scheduler

    config = make_config(
        {
            "env": {"name": "ebrl.bench.roundtrip:StampEnv", "config": {"times": str(times)}},
            "policy": {"name": "mlp", "chunk_len": CHUNK_LEN},
            "simulation": {"num_envs": 1, "cpus": [usable_cpus()[0]]},
            "training": {
                "batch_trajectories": 64,
                "trajectory_chunks": _CHUNKS,
                "slack": 1,
                "max_env_steps": 2**31 - 1,
            },
        }
    )
    plan = make_plan(config, usable_cpus())
    scheduler = Scheduler(plan)
    policy_s: list[float] = []
    engine = LocalEngine(local_setup(config, plan, directory))
    until = float("inf")

    def record(now: float, event: Event, commands: list[Command]) -> None:
        nonlocal until
        if isinstance(event, ChunksReady):
            if not policy_s:
                until = now + seconds
            policy_s.append(event.generation_s)
            late_s = now - until
            if late_s >= _PATIENCE_S or (late_s >= 0 and len(policy_s) > _FEWEST + 2):
                until = float("inf")
                engine.request_stop("measured")

    try:
        engine.start()
        engine.begin(evaluation=False)
        run(scheduler.handle, engine, record)
    finally:
        engine.close()
    return policy_s
