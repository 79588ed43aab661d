"""A heap of future events as an engine: any run in no time, and the same again for the same seed.

Nothing waits and nothing is computed; only what control sees of a run is there: who answers what,
when, and who is lost. Events of the same moment come in a shuffled order, so nobody can lean on
one. Each process works through its commands in order. One that dies answers nothing more and is
reported lost; after that it only hears the command that replaces it.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from heapq import heappop, heappush
from typing import assert_never

from ebrl.engines.virtual.costs import CostModel, Costs
from ebrl.engines.virtual.faults import Faults
from ebrl.engines.virtual.processes import Env, EnvWorker, Generator, Process
from ebrl.errors import RunError
from ebrl.ids import Epoch, GeneratorId, PolicyVersion, ShardId
from ebrl.resources.profile import Work
from ebrl.scheduling import commands as c
from ebrl.scheduling import events as e

_LATER_S = 0.01
"""At most this much later a late answer tries again, where starting a process takes no time."""

Happening = Callable[[], e.Event | None]
"""Makes an answer when it is due."""
_Entry = tuple[float, float, int, Process | None, Epoch, e.Event | Happening | None, bool]
"""Time, tie, number, whose answer, of which epoch, the answer or what makes it, whether it is owed.

Without an answer the process dies.
"""


class VirtualEngine:
    """Carries out commands on paper; see the module's docstring."""

    def __init__(
        self,
        *,
        num_shards: int,
        chunk_len: int,
        envs_per_shard: int = 1,
        num_generators: int = 1,
        costs: CostModel | None = None,
        faults: Faults | None = None,
        seed: int = 0,
        first_version: PolicyVersion = PolicyVersion(0),
    ) -> None:
        """Every process begins to start at time 0.

        Args:
            num_shards: env workers.
            chunk_len: actions of a chunk that are executed.
            envs_per_shard: environments of each of them, which take up every chunk together.
            num_generators: generators.
            costs: how long everything takes.
            faults: what goes wrong; None is nothing.
            seed: of every draw; each process has random numbers of its own.
            first_version: of the weights that the run starts from.
        """
        self.now = 0.0
        self.num_events = 0
        """Handed out so far."""
        self._costs: CostModel = costs or Costs()
        self._faults = faults or Faults()
        self._chunk_len = chunk_len
        self._envs_per_shard = envs_per_shard
        self._seed = seed
        self._newest = first_version
        self._env_steps = 0
        self._ties = random.Random(f"{seed} ties")
        self._luck = random.Random(f"{seed} faults")
        self._heap: list[_Entry] = []
        self._count = 0
        self._owed = 0
        self._envs = [self._new_env_worker(ShardId(shard)) for shard in range(num_shards)]
        self._generators = [self._new_generator(GeneratorId(index)) for index in range(num_generators)]
        self._learner = Process(
            self._learner_lost, self._faults.learner_lost, random.Random(f"{seed} learner"), "training"
        )
        self._push(0.0, -1.0, None, e.RunStarted())
        self._start_learner()
        for generator in range(num_generators):
            self._start_generator(GeneratorId(generator))
        for shard in range(num_shards):
            self._start_env_worker(ShardId(shard))

    # The engine protocol.

    def execute(self, command: c.Command) -> None:  # noqa: C901 (one case per command)
        """See ``Engine``."""
        match command:
            case c.StepEnv():
                self._step_env(command)
            case c.GenerateChunks():
                self._generate(command)
            case c.ResetEnv():
                self._reset_env(command)
            case c.Train():
                self._train()
            case c.PublishWeights(generator=generator):
                self._work(self._generators[generator], self._costs.adoption(), lambda: self._adopt(generator))
            case c.SaveCheckpoint():
                self._work(self._learner, self._costs.checkpoint(), self._checkpoint_saved)
            case c.SetQuota():
                self._set_quota(command)
            case c.SetTimer(name=name, after_s=after_s):
                self._push(self.now + after_s, self._ties.random(), None, e.TimerFired(name=name))
            case c.StartEnvWorker(shard=shard, epoch=epoch):
                self._replace(self._envs[shard], epoch)
                self._start_env_worker(shard)
            case c.StartGenerator(generator=generator, epoch=epoch):
                self._replace(self._generators[generator], epoch)
                self._start_generator(generator)
            case c.StartLearner(epoch=epoch):
                self._replace(self._learner, epoch)
                self._start_learner()
            case c.DropTrajectory() | c.ReportWaits() | c.Stop():
                pass
            case _:
                assert_never(command)

    def next_event(self) -> tuple[e.Event, float]:
        """See ``Engine``.

        Raises:
            RunError: no process owes an answer and no timer is set.
        """
        while self._owed:
            self.now, _, _, process, epoch, what, owed = heappop(self._heap)
            self._owed -= owed
            if process is None:
                event = what() if callable(what) else what
            elif epoch != process.epoch or not process.alive:
                event = self._late(process, epoch, what)
            elif what is None:
                event = None
                self._die(process)
            else:
                event = what() if callable(what) else what
                self._perhaps_dies_later(process)
            if event is not None:
                self.num_events += 1
                return event, self.now
        raise RunError("the run stands still: no process owes an answer and no timer is set")

    def request_stop(self, reason: str, *, at: float) -> None:
        """Let somebody ask for the end of the run at that time."""
        self._push(at, self._ties.random(), None, e.StopRequested(reason=reason))

    def happen(self, event: e.Event, *, at: float) -> None:
        """Let something happen at that time that no process says: a split that is asked for, CPUs that go."""
        self._push(at, self._ties.random(), None, event)

    # Work of a process.

    def _push(
        self,
        time: float,
        tie: float,
        process: Process | None,
        what: e.Event | Happening | None,
        *,
        owed: bool = True,
    ) -> None:
        self._count += 1
        self._owed += owed
        epoch = Epoch(0) if process is None else process.epoch
        heappush(self._heap, (time, tie, self._count, process, epoch, what, owed))

    def _work(self, process: Process, work: Work, what: e.Event | Happening) -> None:
        """Let a process answer when it has done this work; a dead one never hears of it."""
        if not process.alive:
            return
        seconds = work.cpu_s + work.other_s
        start = max(self.now, process.free_at)
        end = start + seconds
        tie = self._ties.random()
        if end == process.free_at:
            tie += process.free_tie  # behind its last answer, although that comes at the same moment
        process.free_at, process.free_tie = end, tie
        self._push(end, tie, process, what)
        if self._faults.happens(process.loss_rate, self._luck):
            self._kill(process, start + self._luck.random() * seconds)

    def _perhaps_dies_later(self, process: Process) -> None:
        if self._faults.happens(self._faults.idle_lost, self._luck):
            self._kill(process, self.now + self._luck.expovariate(1.0 / self._faults.idle_lost_after_s))

    def _kill(self, process: Process, time: float) -> None:
        self._push(time, -1.0, process, None, owed=False)

    def _die(self, process: Process) -> None:
        """Everything it said before is heard before its loss."""
        process.alive = False
        heard = self.now + max(self._costs.loss_heard_s, self._costs.update_heard_s)
        lost = process.lost(process.epoch)
        self._push(heard, 2.0, None, lost)
        if self._faults.happens(self._faults.late_answer, self._luck):
            self._push(heard + self._luck.random() * self._costs.start_s, 2.5, None, lost)

    def _late(self, process: Process, epoch: Epoch, what: e.Event | Happening | None) -> e.Event | None:
        """An answer of a process that died before: mostly lost with it, sometimes heard when it was replaced."""
        if what is None or not self._faults.happens(self._faults.late_answer, self._luck):
            return None
        if epoch == process.epoch:  # not replaced yet
            later = self.now + self._luck.random() * max(self._costs.start_s, _LATER_S)
            self._push(later, 2.5, process, what, owed=False)
            return None
        if not callable(what):
            return what
        if isinstance(process, Generator):
            return e.WeightsLive(generator=GeneratorId(process.index), epoch=epoch, policy_version=self._newest)
        return e.UpdateDone(epoch=epoch, policy_version=self._newest, train_s=0.0, skipped=False)

    def _replace(self, process: Process, epoch: Epoch) -> None:
        process.alive, process.epoch = True, epoch
        process.free_at, process.free_tie = self.now, 0.0

    def _set_quota(self, command: c.SetQuota) -> None:
        """Applied between two pieces of work of the process.

        How long a piece takes is decided when it is asked for, so what is asked for from now on takes as long as it
        does under the new quota, and what was asked for before as long as under the old one.
        """
        process = self._learner if command.stage == "training" else self._generators[command.index]
        if process.alive:
            self._costs.set_quota(command.stage, command.index, len(command.cpus), command.units)
        applied = e.QuotaApplied(
            stage=command.stage,
            index=command.index,
            epoch=process.epoch,
            cpus=command.cpus,
            threads=command.threads,
            units=command.units,
        )
        self._work(process, Work(0.0), applied)

    # Env workers.

    def _new_env_worker(self, shard: ShardId) -> EnvWorker:
        def lost(epoch: Epoch) -> e.Event:
            return e.EnvWorkerLost(shard=shard, epoch=epoch, reason="died", detail="virtual")

        rng = random.Random(f"{self._seed} env worker {shard}")
        envs = [Env() for _ in range(self._envs_per_shard)]
        return EnvWorker(lost, self._faults.env_worker_lost, rng, "simulation", envs=envs)

    def _start_env_worker(self, shard: ShardId) -> None:
        worker = self._envs[shard]
        for env in worker.envs:
            env.steps_left = 0
        self._work(worker, Work(0.0, self._costs.start_s), e.EnvWorkerReady(shard=shard, epoch=worker.epoch))

    def _reset_env(self, command: c.ResetEnv) -> None:
        shard = command.shard
        worker = self._envs[shard]
        cpu_s = other_s = 0.0
        for start in command.starts:
            env = worker.envs[start.env]
            env.episode_steps, env.success = self._costs.episode(worker.rng, self._env_steps)
            env.steps_left = env.episode_steps
            one = self._costs.reset(shard, start.env, worker.rng)
            cpu_s, other_s = cpu_s + one.cpu_s, other_s + one.other_s
        if self._faults.happens(self._faults.episode_invalid, self._luck):
            done: e.Event = self._invalid(shard, "observation")
        else:
            done = e.ResetDone(shard=shard, epoch=worker.epoch, reset_s=cpu_s + other_s)
        self._work(worker, Work(cpu_s, other_s), done)

    def _step_env(self, command: c.StepEnv) -> None:
        """One environment after the other; those whose episode is over cost nothing."""
        shard = command.shard
        worker = self._envs[shard]
        cpu_s = other_s = 0.0
        num_steps = env_steps = 0
        ends: tuple[e.EpisodeEnd, ...] = ()
        over = True
        for index, env in enumerate(worker.envs):
            if not env.steps_left:
                continue
            count = min(command.num_steps, env.steps_left)
            one = self._costs.steps(shard, index, count, worker.rng)
            cpu_s, other_s = cpu_s + one.cpu_s, other_s + one.other_s
            num_steps, env_steps = max(num_steps, count), env_steps + count
            env.steps_left -= count
            if env.steps_left:
                over = False
            else:
                ends += (env.episode_end(index),)
        self._env_steps += env_steps
        if self._faults.happens(self._faults.episode_invalid, self._luck):
            self._work(worker, Work(cpu_s, other_s), self._invalid(shard, "reward"))
            return
        done = e.StepsDone(
            shard=shard,
            epoch=worker.epoch,
            num_steps=num_steps,
            env_steps=env_steps,
            step_s=cpu_s + other_s,
            chunk_over=over or command.first_step + num_steps == self._chunk_len,
            episode_ends=ends,
        )
        self._work(worker, Work(cpu_s, other_s), done)

    def _invalid(self, shard: ShardId, field: str) -> e.Event:
        return e.EpisodeInvalid(shard=shard, epoch=self._envs[shard].epoch, field=field)

    # Generators.

    def _new_generator(self, generator: GeneratorId) -> Generator:
        def lost(epoch: Epoch) -> e.Event:
            return e.GeneratorLost(generator=generator, epoch=epoch, reason="died", detail="virtual")

        rng = random.Random(f"{self._seed} generator {generator}")
        return Generator(lost, self._faults.generator_lost, rng, "generation", index=generator, version=self._newest)

    def _start_generator(self, index: GeneratorId) -> None:
        generator = self._generators[index]

        def ready() -> e.Event:
            generator.version = self._newest
            return e.GeneratorReady(generator=index, epoch=generator.epoch, policy_version=generator.version)

        self._work(generator, Work(0.0, self._costs.start_s), ready)

    def _generate(self, command: c.GenerateChunks) -> None:
        generator = self._generators[command.generator]
        work = self._costs.generation(len(command.requests) * self._envs_per_shard)
        shards = tuple(request.shard for request in command.requests)

        def done() -> e.Event:
            return e.ChunksReady(
                generator=command.generator,
                epoch=generator.epoch,
                shards=shards,
                policy_version=generator.version,
                generation_s=work.cpu_s + work.other_s,
            )

        self._work(generator, work, done)

    def _adopt(self, index: GeneratorId) -> e.Event:
        generator = self._generators[index]
        generator.version = self._newest
        return e.WeightsLive(generator=index, epoch=generator.epoch, policy_version=generator.version)

    # The learner.

    def _learner_lost(self, epoch: Epoch) -> e.Event:
        return e.LearnerLost(epoch=epoch, reason="died", detail="virtual")

    def _start_learner(self) -> None:
        learner = self._learner
        self._work(
            learner,
            Work(0.0, self._costs.start_s),
            lambda: e.LearnerReady(epoch=learner.epoch, policy_version=self._newest),
        )

    def _train(self) -> None:
        work = self._costs.update(self._learner.rng)
        skipped = self._faults.happens(self._faults.update_skipped, self._luck)
        self._work(self._learner, work, lambda: self._trained(sum(work), skipped=skipped))

    def _trained(self, seconds: float, *, skipped: bool) -> None:
        """The weights are in the buffer; control hears of it a little later."""
        if not skipped:
            self._newest = PolicyVersion(self._newest + 1)
        done = e.UpdateDone(epoch=self._learner.epoch, policy_version=self._newest, train_s=seconds, skipped=skipped)
        self._learner_says(done)

    def _checkpoint_saved(self) -> None:
        self._learner_says(e.CheckpointSaved(epoch=self._learner.epoch, policy_version=self._newest))

    def _learner_says(self, event: e.Event) -> None:
        self._push(self.now + self._costs.update_heard_s, 1.5, None, event)
