"""Commands to a local engine, with the test in control's place, and what is heard of it."""

from __future__ import annotations

import os
import signal
from typing import Any

from drills import is_alive, pid_of, until
from ebrl.engines.local.engine import LocalEngine
from ebrl.engines.local.recycling import Recycling
from ebrl.engines.local.setup import Limits
from ebrl.host.probe import usable_cpus
from ebrl.ids import CpuId, EpisodeId, GeneratorId, PolicyVersion, ShardId, SlotId, TrajectoryId
from ebrl.scheduling import commands as c
from ebrl.scheduling import events as e

CPU = CpuId(usable_cpus()[0])


def reset(shard: int = 0, *, envs: tuple[int, ...] = (0,), episode: int = 0) -> c.ResetEnv:
    """All of ``envs`` start the same episode."""
    starts = tuple(c.EpisodeStart(env, EpisodeId(episode)) for env in envs)
    return c.ResetEnv(shard=ShardId(shard), starts=starts, cpus=(CPU,))


def step(shard: int = 0, *, slot: int = 0, chunk: int = 0, first: int = 0, count: int = 4) -> c.StepEnv:
    return c.StepEnv(
        shard=ShardId(shard), slot=SlotId(slot), chunk=chunk, first_step=first, num_steps=count, cpus=(CPU,)
    )


def generate(*requests: tuple[int, int, int], generator: int = 0) -> c.GenerateChunks:
    """A request is shard, slot, chunk; its serial is the number of the chunk."""
    return c.GenerateChunks(
        generator=GeneratorId(generator),
        requests=tuple(
            c.ChunkRequest(shard=ShardId(shard), slot=SlotId(slot), chunk=chunk, serial=chunk)
            for shard, slot, chunk in requests
        ),
    )


def train(version: int, *slots: int) -> c.Train:
    return c.Train(
        trajectories=tuple(TrajectoryId(slot) for slot in slots),
        slots=tuple(SlotId(slot) for slot in slots),
        learner_version=PolicyVersion(version),
    )


def publish(version: int, *, generator: int = 0) -> c.PublishWeights:
    return c.PublishWeights(generator=GeneratorId(generator), policy_version=PolicyVersion(version))


SAVE = c.SaveCheckpoint(policy_version=PolicyVersion(0))


def hear(engine: LocalEngine, kind: type[Any]) -> Any:
    """The next event, which must be of this kind."""
    event, _ = engine.next_event()
    assert isinstance(event, kind), event
    return event


def kill(engine: LocalEngine, kind: Any, index: int = 0) -> None:
    """Kill a process; it is dead afterwards, and the engine has not heard of it."""
    pid = pid_of(engine, kind, index)
    os.kill(pid, signal.SIGKILL)
    until(f"the death of {kind} {index}", lambda: not is_alive(pid))


def begin(engine: LocalEngine) -> list[e.Event]:
    """Every process announces itself."""
    engine.begin(evaluation=False)
    num_processes = engine.setup.num_shards + engine.setup.num_generators + 1
    return [engine.next_event()[0] for _ in range(1 + num_processes)]


def trajectory(engine: LocalEngine, slot: int, shard: int = 0) -> int:
    """Fill a slot with two chunks; returns in how many of them anything was executed: none after an episode's end."""
    executed = 0
    for chunk in range(2):
        engine.execute(generate((shard, slot, chunk)))
        hear(engine, e.ChunksReady)
        engine.execute(step(shard, slot=slot, chunk=chunk))
        executed += hear(engine, e.StepsDone).num_steps > 0
    return executed


def limit(engine: LocalEngine, *, memory_mib: int = 0, resets: int = 0) -> list[str]:
    """Give its env worker a limit from now on; returns a list of the notices that will come."""
    notices: list[str] = []
    limits = Limits(memory_bytes=memory_mib * 2**20, resets=resets)
    engine.recycling = Recycling(limits, engine.setup.envs_per_shard, notices.append)
    return notices


def pids_of_resets(engine: LocalEngine, count: int, **command: Any) -> list[int]:
    """Which process answered each of so many resets; nothing else was said."""
    pids = []
    for _ in range(count):
        engine.execute(reset(**command))
        assert hear(engine, e.ResetDone).epoch == 0
        pids.append(pid_of(engine, "env"))
    return pids
