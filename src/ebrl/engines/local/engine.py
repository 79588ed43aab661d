"""Processes of this machine as an engine: env workers, generators, one learner.

Control messages travel over one socket per process, arrays through shared memory. Whatever is
waited for has a deadline and a name. A process that misses its deadline shows its stack and is
killed; a lost process comes back as an event only when it is certainly dead, so nobody writes into
memory that has been given to somebody else.
"""

from __future__ import annotations

import heapq
import json
import os
import select
import time
from array import array
from collections import deque
from collections.abc import Callable
from typing import Any, assert_never

from ebrl.data import messages as m
from ebrl.data.checkpoint import list_checkpoints
from ebrl.engines.local.ends import EpisodeEnds
from ebrl.engines.local.fleet import LEARNER, Fleet, Key
from ebrl.engines.local.process import WorkerProcess
from ebrl.engines.local.recycling import Recycling
from ebrl.engines.local.setup import LocalSetup
from ebrl.envs.base import episode_seed
from ebrl.errors import RatioMismatch, RunError
from ebrl.host.probe import usable_cpus
from ebrl.ids import CpuSet, EpisodeId, Epoch, GeneratorId, PolicyVersion, ShardId, SlotId
from ebrl.scheduling import commands as c
from ebrl.scheduling import events as e
from ebrl.scheduling.quotas import Split, Stage

_LOOK_S = 0.2
"""How often deadlines are looked at."""


class LocalEngine:
    """Drives a fleet of worker processes; see the module's docstring."""

    def __init__(
        self,
        setup: LocalSetup,
        *,
        on_metrics: Callable[[dict[str, float]], None] = lambda metrics: None,
        on_notice: Callable[[str], None] = lambda text: None,
        checkpoint_state: Callable[[], dict[str, Any]] = dict,
    ) -> None:
        """Nothing is started before ``start``.

        Args:
            setup: the run.
            on_metrics: is given the learner's metrics just before the event of their update.
            on_notice: is given a sentence whenever something is done that a user should know of.
            checkpoint_state: counters that belong into a checkpoint, asked for when one is written.
        """
        self.setup = setup
        self.fleet = Fleet(setup, self._watch)
        self._on_metrics = on_metrics
        self._on_notice = on_notice
        self._checkpoint_state = checkpoint_state
        self.recycling = Recycling(setup.limits, setup.envs_per_shard, on_notice)
        self._ends = EpisodeEnds(setup.env, on_notice)
        self._evaluation = False
        self._start = time.monotonic()
        self._pending: deque[e.Event] = deque()
        self._timers: list[tuple[float, str]] = []
        self._epochs: dict[Key, Epoch] = {}
        self._bindings: dict[Key, tuple[CpuSet, int]] = {}
        """CPUs and torch threads of generators and learner that were last said to people."""
        self._invalid: set[str] = set()
        """Fields that were not finite, as far as people were told."""
        self._gone: set[CpuSet] = set()
        """CPUs that processes were to be bound to and could not."""
        self._serving: dict[GeneratorId, tuple[ShardId, ...]] = {}
        """Whom each generator makes chunks for."""
        self._shard_of: dict[SlotId, ShardId] = {}
        """Whose trajectory a slot holds."""
        self._version = setup.first_version
        self._held = dict.fromkeys(self.fleet.generators, setup.first_version)
        """Version of the weights in each generator."""
        self._look_at = 0.0
        self._poll = select.epoll()
        self._by_fd: dict[int, Key] = {}
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._poll.register(self._wake_read, select.EPOLLIN)
        self._closed = False

    # Starting and ending.

    def start(self) -> None:
        """Start every process.

        Raises:
            EnvFailure: the first environment cannot be made; carries its traceback.
            WorkerFailure: generator or learner cannot be made.
            ConfigError: the memory that trajectories take is not there.
        """
        self.fleet.start()

    def begin(self, *, evaluation: bool) -> None:
        """Start the events of a new run on the processes that are there.

        Args:
            evaluation: take initial states from the evaluation pool.
        """
        while any(self.fleet.processes[key].owes for key in self.fleet.up):
            self._wait()  # what they say belongs to a run that is over
        self._evaluation = evaluation
        self.recycling.drop_resets()
        self._timers.clear()
        self._epochs.clear()
        old, self._pending = self._pending, deque([e.RunStarted()])  # at once: a signal may ask for a stop at any time
        stops = [event for event in old if isinstance(event, e.StopRequested)]
        envs = (Key("env", shard) for shard in range(self.setup.num_shards))
        for key in (LEARNER, *self.fleet.generators, *envs):
            if key in self.fleet.up:
                self._pending.append(self._ready_event(key))
            elif key not in self.fleet.processes:
                self._replace(key, Epoch(0))
        self._pending.extend(stops)

    def request_stop(self, reason: str, *, patient: bool = False) -> None:
        """Let the run end well; may be called from a signal handler."""
        self._pending.append(e.StopRequested(reason=reason, patient=patient))
        self._wake()

    def request_split(self, split: Split) -> None:
        """Let CPUs be shared out otherwise; may be called from a signal handler."""
        self._pending.append(e.SplitRequested(split=split))
        self._wake()

    def _wake(self) -> None:
        try:
            os.write(self._wake_write, b"x")
        except OSError:
            pass  # it is awake already, or closed

    def close(self) -> None:
        """Kill every process and give all memory back; may be called at any time, and again."""
        if self._closed:
            return
        self._closed = True
        self.fleet.close()
        self._poll.close()
        os.close(self._wake_read)
        os.close(self._wake_write)

    # The engine protocol.

    def execute(self, command: c.Command) -> None:  # noqa: C901 (one case per command)
        """See ``Engine``."""
        deadlines = self.setup.deadlines
        match command:
            case c.StepEnv():
                data = m.pack_env_command(
                    m.STEP,
                    slot=command.slot,
                    chunk=command.chunk,
                    first_step=command.first_step,
                    num_steps=command.num_steps,
                    cpus=self._bind(command),
                )
                self._ask(Key("env", command.shard), data, "env steps", deadlines.step_s)
            case c.GenerateChunks():
                self._generate(command)
            case c.ResetEnv():
                self._recycle_or_reset(command)
            case c.Train():
                self._train(command)
            case c.PublishWeights(generator=generator, policy_version=version):
                data = m.VERSION.pack(m.ADOPT, version, 0.0)
                self._ask(Key("generator", generator), data, "new weights", deadlines.generation_s)
            case c.SaveCheckpoint():
                self._save()
            case c.SetTimer():
                heapq.heappush(self._timers, (time.monotonic() + command.after_s, command.name))
            case c.StartEnvWorker():
                self._replace(Key("env", command.shard), command.epoch)
            case c.StartGenerator():
                self._replace(Key("generator", command.generator), command.epoch)
            case c.StartLearner():
                self._replace(LEARNER, command.epoch)
            case c.SetQuota():
                self._set_quota(command)
            case c.ReportWaits(lines=lines):
                self._on_notice("nothing has moved for a while: " + "; ".join(lines))
            case c.DropTrajectory() | c.Stop():
                pass
            case _:
                assert_never(command)

    def next_event(self) -> tuple[e.Event, float]:
        """See ``Engine``.

        Raises:
            RunError: nothing is in flight that could ever bring an event.
        """
        while not self._pending:
            self._wait()
        return self._pending.popleft(), time.monotonic() - self._start

    # Asking.

    def _ask(self, key: Key, data: bytes, what: str, within_s: float) -> None:
        process = self.fleet.processes.get(key)
        if process is not None:  # else its loss is an event that control has not seen yet
            process.expect(what, within_s)
            process.send(data)

    def _set_quota(self, command: c.SetQuota) -> None:
        """CPUs change at once, threads between two pieces of work; the answer is what the kernel has by then."""
        key = LEARNER if command.stage == "training" else Key("generator", command.index)
        process = self.fleet.processes.get(key)
        if process is None:
            return  # its loss is an event that control has not seen yet
        if not process.bind_every_thread(command.cpus):
            self._cpus_are_gone(command.cpus)
        data = m.THREADS_HEAD.pack(m.THREADS, command.threads, command.units)
        self._ask(key, data, "a number of threads", self._quota_s(command.stage))

    def _quota_s(self, stage: str) -> float:
        deadlines = self.setup.deadlines
        return deadlines.training_s if stage == "training" else deadlines.generation_s

    def _bind(self, command: c.StepEnv | c.ResetEnv) -> tuple[int, ...]:
        """Bind the env worker's main thread; returns where it is to bind its other threads."""
        if not self.setup.bind_cpus:
            return ()
        process = self.fleet.processes.get(Key("env", command.shard))
        if process is not None and not process.bind(command.cpus):
            self._cpus_are_gone(command.cpus)
        return command.cpus

    def _cpus_are_gone(self, cpus: CpuSet) -> None:
        """None of these may be used any more, so processes stay where the kernel has put them; said once."""
        if cpus in self._gone:
            return
        self._gone.add(cpus)
        left = usable_cpus()
        self._on_notice(f"CPUs {list(cpus)} may not be used any more; {list(left)} are left, and processes run there")
        self._pending.append(e.CpusChanged(cpus=left))

    def _recycle_or_reset(self, command: c.ResetEnv) -> None:
        key = Key("env", command.shard)
        process = self.fleet.processes.get(key)
        if process is None or not self.recycling.is_due(command, process):
            self._reset(command)
            return
        del self._by_fd[process.sock.fileno()]
        self.fleet.bury(key)
        self.fleet.launch(key, version=self._version)
        self._bind(command)

    def _reset(self, command: c.ResetEnv) -> None:
        starts = [(start.env, self._seed_of(start.episode), start.episode) for start in command.starts]
        data = m.pack_env_command(m.RESET, cpus=self._bind(command), starts=starts)
        self._ask(Key("env", command.shard), data, "a reset", self.setup.deadlines.reset_s)

    def _generate(self, command: c.GenerateChunks) -> None:
        self._serving[command.generator] = tuple(request.shard for request in command.requests)
        self._shard_of |= {request.slot: request.shard for request in command.requests}
        rows = array("i", [n for r in command.requests for n in (r.shard, r.slot, r.chunk, r.serial)])
        data = m.GENERATE_HEAD.pack(m.GENERATE, len(command.requests)) + rows.tobytes()
        self._ask(Key("generator", command.generator), data, "action chunks", self.setup.deadlines.generation_s)

    def _train(self, command: c.Train) -> None:
        # Admission follows timing; in the order of shards the same data is the same batch.
        slots = sorted(command.slots, key=lambda slot: self._shard_of[slot])
        data = m.TRAIN_HEAD.pack(m.TRAIN, command.learner_version, len(slots)) + array("i", slots).tobytes()
        self._ask(LEARNER, data, "an update", self.setup.deadlines.training_s)

    def _seed_of(self, episode: EpisodeId) -> int:
        return episode_seed(self.setup.seed, episode, evaluation=self._evaluation)

    def _save(self) -> None:
        setup = self.setup
        document = {
            "directory": str(setup.checkpoint_dir),
            "keep": setup.keep_checkpoints,
            "state": self._checkpoint_state(),
        }
        data = bytes([m.SAVE]) + json.dumps(document).encode()
        self._ask(LEARNER, data, "a checkpoint", setup.deadlines.training_s)

    def _replace(self, key: Key, epoch: Epoch) -> None:
        self._epochs[key] = epoch
        self.fleet.launch(key, version=self._version)
        source = ""
        if key == LEARNER:
            found = list_checkpoints(self.setup.checkpoint_dir)
            state = f"of {found[-1].name}" if found else "new"
            source = f"; weights of version {self._version}, optimizer state {state}"
        self._on_notice(f"{key.label} is replaced{source}")

    # Waiting.

    def _watch(self, key: Key, process: WorkerProcess) -> None:
        self._by_fd[process.sock.fileno()] = key
        self._poll.register(process.sock.fileno(), select.EPOLLIN)

    def _wait(self) -> None:
        until = min(self._look_at, self._timers[0][0]) if self._timers else self._look_at
        for fd, _ in self._poll.poll(max(0.0, until - time.monotonic())):
            if fd == self._wake_read:
                os.read(self._wake_read, 4096)
            elif fd in self._by_fd:
                self._hear(self._by_fd[fd])
        now = time.monotonic()
        while self._timers and self._timers[0][0] <= now:
            self._pending.append(e.TimerFired(name=heapq.heappop(self._timers)[1]))
        if now >= self._look_at:  # after hearing: who has answered is not late, however long nobody listened
            self._look_at = now + _LOOK_S
            self._look_at_deadlines(now)

    def _look_at_deadlines(self, now: float) -> None:
        for key, process in list(self.fleet.processes.items()):
            if process.deadline < now:
                what = process.waits_for
                self._lose(key, "deadline", f"{key.label} did not finish {what} in time", dump_stack=True)
        owing = any(process.owes for process in self.fleet.processes.values())
        if not (owing or self._timers or self._pending):
            raise RunError("the run stands still: no process owes an answer and no timer is set")

    # Hearing.

    def _hear(self, key: Key) -> None:
        process = self.fleet.processes[key]
        got, data = process.receive()
        if got == m.RAISED:
            self._lose(key, "raised", data[1:].decode(errors="replace"))
        elif got == 0:
            self._lose(key, "died", "")
        elif key not in self.fleet.up:
            if self.fleet.hear_start(key, got, data):
                self._is_up(key, data)
        else:
            process.answered()
            self._pending.append(self._answer(key, got, data))

    def _is_up(self, key: Key, data: bytes) -> None:
        held = self.recycling.release(ShardId(key.index)) if key.kind == "env" else None
        if held is not None:
            self._reset(held)
            return
        if key.kind == "generator":
            self._held[key] = m.VERSION.unpack(data)[1]
        self._pending.append(self._ready_event(key))

    def _lose(self, key: Key, reason: str, text: str, *, dump_stack: bool = False) -> None:
        """Make certain that a process is dead, then say so."""
        process = self.fleet.processes[key]
        del self._by_fd[process.sock.fileno()]
        how = self.fleet.bury(key, dump_stack=dump_stack)
        detail = text if reason == "raised" else f"{text or f'{key.label} ended: {how}'}\n{process.log_tail()}"
        epoch, detail = self._epoch(key), detail.strip()
        match key.kind:
            case "env":
                self.recycling.forget(ShardId(key.index))
                lost: e.Event = e.EnvWorkerLost(shard=ShardId(key.index), epoch=epoch, reason=reason, detail=detail)
            case "generator":
                generator = GeneratorId(key.index)
                lost = e.GeneratorLost(generator=generator, epoch=epoch, reason=reason, detail=detail)
            case "learner":
                fatal = RatioMismatch.__name__ in text and reason == "raised"
                lost = e.LearnerLost(epoch=epoch, reason=reason, detail=detail, fatal=fatal)
        self._on_notice(f"{key.label} was lost ({reason}): {detail}")
        self._pending.append(lost)

    def _epoch(self, key: Key) -> Epoch:
        return self._epochs.get(key, Epoch(0))

    def _ready_event(self, key: Key) -> e.Event:
        epoch = self._epoch(key)
        match key.kind:
            case "env":
                return e.EnvWorkerReady(shard=ShardId(key.index), epoch=epoch)
            case "generator":
                held = PolicyVersion(self._held[key])
                return e.GeneratorReady(generator=GeneratorId(key.index), epoch=epoch, policy_version=held)
            case "learner":
                return e.LearnerReady(epoch=epoch, policy_version=PolicyVersion(self._version))

    def _answer(self, key: Key, got: int, data: bytes) -> e.Event:
        if got == m.THREADS_SET:
            return self._quota_applied(key, data)
        match key.kind:
            case "env":
                return self._env_answer(ShardId(key.index), self._epoch(key), got, data)
            case "generator":
                return self._generator_answer(key, got, data)
            case "learner":
                return self._learner_answer(self._epoch(key), got, data)

    def _quota_applied(self, key: Key, data: bytes) -> e.QuotaApplied:
        stage: Stage = "training" if key == LEARNER else "generation"
        _, threads, units = m.THREADS_ANSWER.unpack(data)
        cpus = self.fleet.processes[key].cpus_of_every_thread()
        if self._bindings.get(key) != (cpus, threads):  # SMs are lent and called back in every update
            self._bindings[key] = cpus, threads
            self._on_notice(f"{key.label} runs on CPUs {list(cpus)} with {threads} torch threads")
        return e.QuotaApplied(
            stage=stage,
            index=key.index,
            epoch=self._epoch(key),
            cpus=cpus,
            threads=threads,
            units=units,
        )

    def _env_answer(self, shard: ShardId, epoch: Epoch, got: int, data: bytes) -> e.Event:
        if got == m.INVALID:
            field = data[1:].decode()
            if field not in self._invalid:
                self._invalid.add(field)
                self._on_notice(
                    f"env worker {shard}: {field} was not finite; its episode is dropped (said once, counted always)"
                )
            return e.EpisodeInvalid(shard=shard, epoch=epoch, field=field)
        answer = m.unpack_env_answer(data)
        if got == m.RESET_DONE:
            return e.ResetDone(shard=shard, epoch=epoch, reset_s=answer.seconds)
        return e.StepsDone(
            shard=shard,
            epoch=epoch,
            num_steps=answer.num_steps,
            env_steps=answer.env_steps,
            step_s=answer.seconds,
            chunk_over=bool(answer.flags & m.CHUNK_OVER),
            episode_ends=self._ends.events(answer.ends),
        )

    def _generator_answer(self, key: Key, got: int, data: bytes) -> e.Event:
        _, version, seconds = m.VERSION.unpack(data)
        self._held[key] = version
        generator, epoch = GeneratorId(key.index), self._epoch(key)
        if got == m.LIVE:
            return e.WeightsLive(generator=generator, epoch=epoch, policy_version=PolicyVersion(version))
        return e.ChunksReady(
            generator=generator,
            epoch=epoch,
            shards=self._serving[generator],
            policy_version=PolicyVersion(version),
            generation_s=seconds,
        )

    def _learner_answer(self, epoch: Epoch, got: int, data: bytes) -> e.Event:
        if got == m.SAVED:
            return e.CheckpointSaved(epoch=epoch, policy_version=PolicyVersion(m.VERSION.unpack(data)[1]))
        document = json.loads(data[1:])
        self._version = document["version"]
        self._on_metrics(document["metrics"])
        return e.UpdateDone(
            epoch=epoch,
            policy_version=PolicyVersion(self._version),
            train_s=document["seconds"],
            skipped=bool(document["metrics"]["skipped"]),
        )
