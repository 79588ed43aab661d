"""Real processes of a run, told one by one what to do."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from ebrl.config.schema import RunConfig
from ebrl.engines.local.engine import LocalEngine
from ebrl.engines.local.fleet import LEARNER, Key
from ebrl.engines.local.setup import LocalSetup
from ebrl.errors import RunError
from ebrl.host.meters import Usage, usage
from ebrl.host.probe import usable_cpus
from ebrl.ids import CpuSet, EpisodeId, Epoch, GeneratorId, PolicyVersion, ShardId, SlotId, TrajectoryId
from ebrl.plan.plan import make_plan
from ebrl.profiling.memory import forget_peak, peak_own_bytes
from ebrl.resources.profile import Work
from ebrl.runtime.local import local_setup
from ebrl.scheduling import commands as c
from ebrl.scheduling import events as e

GENERATOR = Key("generator", 0)
"""The one that is measured."""

_SETTLE_S = 5e-5
"""After its answer a process needs a moment to fall asleep; only then its time is counted in full."""
_NOISE_S = 5e-5
"""Time off the CPU that is shorter than this is not a sleep but a clock read a little apart."""


class Done(NamedTuple):
    """A piece of work of generator or learner."""

    work: Work
    seconds: float
    """Without waiting for a CPU, where there is one thread. Of several it is not known who waited for whom, so by
    their process's own clock."""


class Rig:
    """The fleet of a run; at most one process works at a time."""

    def __init__(self, config: RunConfig, run_dir: Path, *, micro_batch: int | None = None) -> None:
        """Nothing is started before ``start``.

        Args:
            config: the run.
            run_dir: takes logs and checkpoints.
            micro_batch: of the first learner, in chunks; None takes the run's.
        """
        self.config = config
        self.plan = make_plan(config, usable_cpus())
        self.metrics: dict[str, float] = {}
        """Of the last update."""
        self.micro_batch = micro_batch
        self._setup = local_setup(config, self.plan, run_dir)
        self.engine = LocalEngine(_with_micro_batch(self._setup, micro_batch), on_metrics=self._see)
        self.version = PolicyVersion(0)
        self._threads = {GENERATOR: config.generation.threads, LEARNER: config.training.threads}
        self._epoch = 0
        self.latencies: list[float] = []
        """Seconds that a question and its answer were under way, both together."""
        self._asked_cpu_s = 0.0
        """CPU seconds of this process for the last question and its answer."""
        self._episode = 0
        self._serials = [0] * self.plan.num_shards

    def start(self) -> float:
        """Start every process and environment; returns the seconds until all of them were ready.

        The first reset of an environment belongs to its start: it makes what later ones keep, such as a renderer or a
        compiled scene, and may take ten times as long.
        """
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
        for shard in range(self.plan.num_shards):
            self.reset(shard, range(self.plan.envs_per_shard))
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

    def env_worker_bytes(self) -> int:
        """Memory of the largest env worker that it shares with nobody."""
        return max(process.own_bytes for key, process in self.engine.fleet.processes.items() if key.kind == "env")

    def forget_peak(self, key: Key) -> None:
        """Begin to look for a process's peak of memory."""
        forget_peak(self.engine.fleet.processes[key].pid)

    def peak_bytes(self, key: Key) -> int:
        """The peak since then, of what it shares with nobody."""
        return peak_own_bytes(self.engine.fleet.processes[key].pid)

    def own_threads(self, key: Key) -> int:
        """Torch threads that the run gives to generator or learner."""
        section = self.config.generation if key == GENERATOR else self.config.training
        return section.threads

    def set_threads(self, key: Key, count: int) -> None:
        """Let generator or learner use so many torch threads, on all CPUs of this process."""
        command = c.SetQuota(
            stage="training" if key == LEARNER else "generation",
            index=key.index,
            cpus=usable_cpus(),
            threads=count,
            units=0,
        )
        event, _, _ = self._ask(key, command)
        assert isinstance(event, e.QuotaApplied), f"a number of threads was answered by {event}"
        self._threads[key] = count

    def restart_learner(self, micro_batch: int | None) -> None:
        """Replace the learner by one with another micro-batch; it goes on from the last checkpoint.

        Args:
            micro_batch: in chunks; None takes the run's.
        """
        self.engine.fleet.bury(LEARNER)
        self.engine.fleet.setup = _with_micro_batch(self._setup, micro_batch)
        self._epoch += 1
        self.engine.execute(c.StartLearner(epoch=Epoch(self._epoch)))
        event, _ = self.engine.next_event()
        if not isinstance(event, e.LearnerReady):
            raise RunError(f"the learner failed while starting with micro-batches of {micro_batch}: {event}")
        self.micro_batch = micro_batch
        self._threads[LEARNER] = self.own_threads(LEARNER)

    def _see(self, metrics: dict[str, float]) -> None:
        self.metrics = metrics

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

    def generate(self, shards: list[int], *, chunk: int) -> Done:
        """One generation batch, of the first generator."""
        requests = []
        for shard in shards:
            serial = self._serials[shard]
            self._serials[shard] += 1
            requests.append(c.ChunkRequest(shard=ShardId(shard), slot=SlotId(shard), chunk=chunk, serial=serial))
        command = c.GenerateChunks(generator=GeneratorId(0), requests=tuple(requests))
        event, used, _ = self._ask(GENERATOR, command)
        assert isinstance(event, e.ChunksReady), f"a generation batch was answered by {event}"
        return self._done(GENERATOR, event.generation_s, used)

    def update(self) -> Done:
        """One update on the trajectories that were played, each as often as it takes to fill the batch."""
        plan = self.plan
        batch = plan.batch // plan.envs_per_shard
        slots = tuple(SlotId(index % plan.num_shards) for index in range(batch))
        trajectories = tuple(TrajectoryId(index) for index in range(batch))
        command = c.Train(trajectories=trajectories, slots=slots, learner_version=self.version)
        event, used, _ = self._ask(LEARNER, command)
        assert isinstance(event, e.UpdateDone), f"an update was answered by {event}"
        self.version = event.policy_version
        return self._done(LEARNER, event.train_s, used)

    def adopt(self) -> Work:
        """A generator takes the newest weights."""
        command = c.PublishWeights(generator=GeneratorId(0), policy_version=self.version)
        _, used, took_s = self._ask(GENERATOR, command)
        return _work(took_s, used)

    def checkpoint(self) -> Work:
        """The learner writes a checkpoint."""
        _, used, took_s = self._ask(LEARNER, c.SaveCheckpoint(policy_version=self.version))
        return _work(took_s, used)

    def _done(self, key: Key, took_s: float, used: Usage) -> Done:
        work = _work(took_s, used)
        return Done(work, took_s if self._threads[key] > 1 else work.cpu_s + work.other_s)

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


def _with_micro_batch(setup: LocalSetup, micro_batch: int | None) -> LocalSetup:
    if micro_batch is None:
        return setup
    return replace(setup, algorithm_config={**setup.algorithm_config, "micro_batch_chunks": micro_batch})
