"""Real processes of a run, told one by one what to do."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path

from ebrl.config.schema import RunConfig
from ebrl.engines.local.engine import LocalEngine
from ebrl.engines.local.fleet import LEARNER, Key
from ebrl.errors import RunError
from ebrl.host.meters import Usage, usage
from ebrl.host.probe import usable_cpus
from ebrl.ids import EpisodeId, GeneratorId, PolicyVersion, ShardId, SlotId, TrajectoryId
from ebrl.plan.plan import make_plan
from ebrl.resources.profile import Work
from ebrl.runtime.local import local_setup
from ebrl.scheduling import commands as c
from ebrl.scheduling import events as e
from ebrl.scheduling.plan import CpuSet

_GENERATOR = Key("generator", 0)

_SETTLE_S = 5e-5
"""After its answer a process needs a moment to fall asleep; only then its time is counted in full."""
_NOISE_S = 5e-5
"""Time off the CPU that is shorter than this is not a sleep but a clock read a little apart."""


class Rig:
    """The fleet of a run; at most one process works at a time."""

    def __init__(self, config: RunConfig, run_dir: Path) -> None:
        """Nothing is started before ``start``; ``run_dir`` takes logs and checkpoints."""
        self.config = config
        self.plan = make_plan(config, usable_cpus())
        self.engine = LocalEngine(local_setup(config, self.plan, run_dir))
        self.version = PolicyVersion(0)
        self.latencies: list[float] = []
        """Seconds that a question and its answer were under way, both together."""
        self._asked_cpu_s = 0.0
        """CPU seconds of this process for the last question and its answer."""
        self._episode = 0
        self._serials = [0] * self.plan.num_shards

    def start(self) -> float:
        """Start every process; returns the seconds until all of them were ready."""
        start = time.monotonic()
        self.engine.start()
        self.engine.begin(evaluation=False)
        missing = self.plan.num_shards
        while missing:
            event, _ = self.engine.next_event()
            if isinstance(event, e.EnvWorkerReady):
                missing -= 1
            elif isinstance(event, e.EnvWorkerLost):
                raise RunError(f"env worker {event.shard} failed while starting: {event.detail}")
        return time.monotonic() - start

    @property
    def max_episode_steps(self) -> int:
        """Time limit of an episode."""
        return self.engine.fleet.env_spec.max_episode_steps

    def usage(self, key: Key) -> Usage:
        """What a process has used so far."""
        return usage(self.engine.fleet.processes[key].pid)

    def everybody(self) -> list[Key]:
        """Every process."""
        return list(self.engine.fleet.processes)

    # One piece of work at a time.

    def reset(self, shard: int, envs: Iterable[int]) -> Work:
        """A reset of some environments of a shard, each from an initial state of its own; for each of them."""
        starts = tuple(c.EpisodeStart(env, EpisodeId(self._episode + n)) for n, env in enumerate(envs, 1))
        self._episode += len(starts)
        command = c.ResetEnv(shard=ShardId(shard), starts=starts, cpus=self._cpus(shard))
        event, used, _ = self._ask(Key("env", shard), command)
        assert isinstance(event, e.ResetDone), f"a reset was answered by {event}"
        work = _work(event.reset_s, used)
        return Work(work.cpu_s / len(starts), work.other_s / len(starts))

    def step(self, shard: int, *, chunk: int, first: int, count: int) -> tuple[e.StepsDone, Work, float]:
        """One grant of env steps; also its time by the env worker's own clock, without waiting for a CPU."""
        command = c.StepEnv(
            shard=ShardId(shard),
            slot=SlotId(shard),
            chunk=chunk,
            first_step=first,
            num_steps=count,
            cpus=self._cpus(shard),
        )
        event, used, took_s = self._ask(Key("env", shard), command)
        assert isinstance(event, e.StepsDone), f"env steps were answered by {event}"
        work = _work(event.step_s, used)
        own_s = event.step_s - used.wait_s - work.other_s
        before_s = 0.5 * max(0.0, used.run_s - own_s)  # the other half comes after the answer was sent
        self.latencies.append(max(0.0, took_s - event.step_s - self._asked_cpu_s - before_s))
        return event, work, max(0.0, event.step_s - used.wait_s)

    def generate(self, shards: list[int], *, chunk: int) -> Work:
        """One generation batch, of the first generator."""
        requests = []
        for shard in shards:
            serial = self._serials[shard]
            self._serials[shard] += 1
            requests.append(c.ChunkRequest(shard=ShardId(shard), slot=SlotId(shard), chunk=chunk, serial=serial))
        command = c.GenerateChunks(generator=GeneratorId(0), requests=tuple(requests))
        event, used, _ = self._ask(_GENERATOR, command)
        assert isinstance(event, e.ChunksReady), f"a generation batch was answered by {event}"
        return _work(event.generation_s, used)

    def update(self) -> Work:
        """One update on the trajectories that were played, each as often as it takes to fill the batch."""
        plan = self.plan
        batch = plan.batch // plan.envs_per_shard
        slots = tuple(SlotId(index % plan.num_shards) for index in range(batch))
        trajectories = tuple(TrajectoryId(index) for index in range(batch))
        command = c.Train(trajectories=trajectories, slots=slots, learner_version=self.version)
        event, used, _ = self._ask(LEARNER, command)
        assert isinstance(event, e.UpdateDone), f"an update was answered by {event}"
        self.version = event.policy_version
        return _work(event.train_s, used)

    def adopt(self) -> Work:
        """A generator takes the newest weights."""
        command = c.PublishWeights(generator=GeneratorId(0), policy_version=self.version)
        _, used, took_s = self._ask(_GENERATOR, command)
        return _work(took_s, used)

    def checkpoint(self) -> Work:
        """The learner writes a checkpoint."""
        _, used, took_s = self._ask(LEARNER, c.SaveCheckpoint(policy_version=self.version))
        return _work(took_s, used)

    def _cpus(self, shard: int) -> CpuSet:
        sets = self.plan.cpu_sets[0]
        return sets[shard % len(sets)]

    def _ask(self, key: Key, command: c.Command) -> tuple[e.Event, Usage, float]:
        before = self.usage(key)
        start, cpu = time.perf_counter(), time.thread_time()
        self.engine.execute(command)
        event, _ = self.engine.next_event()
        took_s = time.perf_counter() - start
        self._asked_cpu_s = time.thread_time() - cpu
        time.sleep(_SETTLE_S)
        if isinstance(event, e.EnvWorkerLost | e.GeneratorLost | e.LearnerLost | e.EpisodeInvalid):
            raise RunError(f"{key.label} failed while its time was taken: {event}")
        return event, self.usage(key).since(before), took_s


def _work(took_s: float, used: Usage) -> Work:
    """Work that took so long by the process's own clock; what it neither ran nor waited for was spent elsewhere."""
    other_s = took_s - used.run_s - used.wait_s
    return Work(used.run_s, other_s if other_s > _NOISE_S else 0.0)
