"""Small real runs on the local engine, and a look at what the machine holds of them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ebrl.engines.local.engine import LocalEngine
from ebrl.engines.local.fleet import Key
from ebrl.engines.local.setup import Deadlines, LocalSetup
from ebrl.host.leftovers import OWNER_VARIABLE
from ebrl.host.probe import usable_cpus
from ebrl.runtime.loop import run
from ebrl.scheduling import commands as c
from ebrl.scheduling import events as e
from ebrl.scheduling import invariants
from ebrl.scheduling.plan import SchedulerPlan
from ebrl.scheduling.scheduler import Scheduler

REACH = "toy/reach-v1"
DIAL = "toy/dial-v1"
MLP = {"hidden": [32], "critic_hidden": [32]}
FLOW = {"hidden": [32], "critic_hidden": [32], "num_denoise_steps": 2}
PPO = {"epochs": 1, "minibatch_chunks": 16, "critic_warmup_updates": 0}


def until(what: str, condition: Callable[[], Any], *, within_s: float = 20.0) -> Any:
    """The first true answer of ``condition``; fails with ``what`` if there is none in time."""
    end = time.monotonic() + within_s
    while not (answer := condition()):
        assert time.monotonic() < end, f"not within {within_s} s: {what}"
        time.sleep(0.01)
    return answer


def is_alive(pid: int) -> bool:
    """Whether any thread of ``pid`` runs; a zombie does not."""
    try:
        return _state(pid) not in "ZX" or len(os.listdir(f"/proc/{pid}/task")) > 1
    except OSError:
        return False


def is_asleep(pid: int) -> bool:
    """Whether ``pid`` waits for something."""
    return _state(pid) == "S"


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "X"


def processes_of(owner: int) -> list[int]:
    """Worker processes that were started by the process ``owner``, whoever their parent is now."""
    mark = f"{OWNER_VARIABLE}={owner}".encode()
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (path / "environ").read_bytes().split(b"\0") and int(path.name) != owner:
                found.append(int(path.name))
        except OSError:
            continue
    return sorted(pid for pid in found if is_alive(pid))


def shared_memory_of(pid: int | str = "self", *, label: str = "") -> list[str]:
    """Memory of a run that ``pid`` maps or holds a descriptor of."""
    mark = f"memfd:ebrl-{label}"
    found = [line for line in Path(f"/proc/{pid}/maps").read_text().splitlines() if mark in line]
    for fd in os.listdir(f"/proc/{pid}/fd"):
        try:
            target = os.readlink(f"/proc/{pid}/fd/{fd}")
        except OSError:
            continue
        found += [target] if mark in target else []
    return found


def named_memory() -> list[str]:
    """Shared memory of ours that has a name, and so could be left behind."""
    return [name for name in os.listdir("/dev/shm") if "ebrl" in name]


def num_descriptors() -> int:
    """Open file descriptors of this process."""
    return len(os.listdir("/proc/self/fd"))


def make_setup(run_dir: Path, **changes: Any) -> LocalSetup:
    """Two environments, four slots of two chunks of four env steps, a tiny policy."""
    values: dict[str, Any] = {
        "run_dir": run_dir,
        "seed": 3,
        "num_shards": 2,
        "num_slots": 4,
        "chunk_len": 4,
        "trajectory_chunks": 2,
        "env": REACH,
        "env_config": {},
        "policy": "mlp",
        "policy_config": MLP,
        "algorithm_config": PPO,
        "deadlines": Deadlines(start_s=60.0, reset_s=10.0, step_s=10.0, generation_s=20.0, training_s=30.0),
    }
    return LocalSetup(**(values | changes))


def make_plan(setup: LocalSetup, **changes: Any) -> SchedulerPlan:
    """The control plane of ``setup``: batches of two, slack 1."""
    values: dict[str, Any] = {
        "num_shards": setup.num_shards,
        "nodes": (usable_cpus(),),
        "envs_per_shard": setup.envs_per_shard,
        "cpus_per_shard": setup.cpus_per_shard,
        "num_generators": setup.num_generators,
        "chunk_len": setup.chunk_len,
        "trajectory_chunks": setup.trajectory_chunks,
        "whole_episodes": setup.whole_episodes,
        "batch": setup.num_slots * setup.envs_per_shard // 2,
        "slack": 1,
        "drain_s": 20.0,
    }
    return SchedulerPlan(**(values | changes))


@contextmanager
def started(setup: LocalSetup, **options: Any) -> Iterator[LocalEngine]:
    """A started engine, which is closed whatever happens."""
    engine = LocalEngine(setup, **options)
    try:
        engine.start()
        yield engine
    finally:
        engine.close()


def pid_of(engine: LocalEngine, kind: Any, index: int = 0) -> int:
    """Process id of one worker."""
    return engine.fleet.processes[Key(kind, index)].pid


@dataclass
class Drill:
    """A training run that is checked after every event, and remembers them."""

    scheduler: Scheduler
    engine: LocalEngine
    hook: Callable[[Drill, e.Event, list[c.Command]], None] = lambda drill, event, commands: None
    """Sees every event with its commands before they are carried out."""
    events: list[tuple[float, e.Event]] = field(default_factory=list)
    commands: list[c.Command] = field(default_factory=list)

    def run(self) -> c.Stop:
        """To the end."""
        self.engine.begin(evaluation=False)
        return run(self.scheduler.handle, self.engine, self._record)

    def _record(self, now: float, event: e.Event, commands: list[c.Command]) -> None:
        invariants.check(self.scheduler)
        self.events.append((now, event))
        self.commands += commands
        self.hook(self, event, commands)

    @property
    def versions(self) -> list[int]:
        """Policy version after each update."""
        return [event.policy_version for event in self.all(e.UpdateDone)]

    def all(self, kind: type[Any]) -> list[Any]:
        """Every event of one kind."""
        return [event for _, event in self.events if isinstance(event, kind)]

    def assert_balanced(self) -> None:
        """Every admitted trajectory ended as exactly one thing."""
        gate = self.scheduler.gate
        assert gate.num_held_untrained == 0
        assert gate.ledger.balances(0), gate.ledger
