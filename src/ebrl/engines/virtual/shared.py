"""The virtual engine on a machine whose CPUs all processes share, the main process included.

Work has two parts: a delay (a device, a sleep), then CPU time, which the processes on a CPU share.
Control is one of them: an event is heard when the main process gets to it, and its commands leave
when it has worked for as long as a profile says. Messages take ``latency_s`` more. No faults here.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from heapq import heappop, heappush

from ebrl.engines.virtual.costs import CostModel
from ebrl.engines.virtual.engine import Happening, VirtualEngine
from ebrl.engines.virtual.host import Host, Task
from ebrl.engines.virtual.processes import Process
from ebrl.errors import RunError
from ebrl.ids import CpuId, PolicyVersion
from ebrl.resources.profile import ControlProfile, Work
from ebrl.scheduling import commands as c
from ebrl.scheduling import events as e

_LOOK_S = 0.05
"""Between the last look at a foreign load and the first of its repetition."""


@dataclass(slots=True)
class _Runner:
    """One worker process: its task, and what it has still to do."""

    task: Task
    jobs: deque[tuple[Work, e.Event | Happening]] = field(default_factory=deque)
    started: float | None = None
    """When it began its first job; None while it has none."""


class SharedEngine(VirtualEngine):
    """Carries out commands on paper and on shared CPUs; see the module's docstring."""

    def __init__(
        self,
        *,
        num_shards: int,
        chunk_len: int,
        envs_per_shard: int = 1,
        num_generators: int = 1,
        costs: CostModel,
        control: ControlProfile,
        cpus: tuple[CpuId, ...],
        tick_s: float = 0.004,
        learner_weight: float = 1.0,
        background: tuple[tuple[float, int], ...] = (),
        seed: int = 0,
        first_version: PolicyVersion = PolicyVersion(0),
    ) -> None:
        """See ``VirtualEngine``; besides:

        Args:
            num_shards: env workers.
            chunk_len: actions of a chunk that are executed.
            envs_per_shard: environments of each of them, which take up every chunk together.
            num_generators: generators.
            costs: how long everything takes.
            control: what the main process costs.
            cpus: all CPUs of the host, which is one node; env workers are pinned to them by these numbers.
            tick_s: between two looks of the kernel at who should run.
            learner_weight: of the learner beside others on its CPU (1.25 to the power of minus its niceness).
            background: since when how many foreign tasks want a CPU all the time; begins anew when it is over.
            seed: of every draw.
            first_version: of the weights that the run starts from.
        """
        self.host = Host(len(cpus), tick_s=tick_s)
        self._cpu_index = {cpu: index for index, cpu in enumerate(cpus)}
        self._control = control
        self._event_s = dict(control.event_s)
        self._any_event_s = sum(self._event_s.values()) / max(1, len(self._event_s))
        self._control_task = Task("control")
        self._heard: deque[e.Event] = deque()
        """Events that the main process has not come to yet."""
        self._at_work = False
        """Whether the main process has still to send the commands of the last event."""
        self._to_send: list[c.Command] = []
        self._last_kind = ""
        self._calls: list[tuple[float, float, int, Callable[[], None]]] = []
        self._runners: dict[int, _Runner] = {}
        self._took_s = 0.0
        """What the process that answers now needed, by its own clock."""
        self._learner_weight = learner_weight
        self._background = background
        super().__init__(
            num_shards=num_shards,
            chunk_len=chunk_len,
            envs_per_shard=envs_per_shard,
            num_generators=num_generators,
            costs=costs,
            seed=seed,
            first_version=first_version,
        )
        if background:
            self._foreign(0)

    # The engine protocol.

    def execute(self, command: c.Command) -> None:
        """See ``Engine``; the command leaves when the main process has got to it."""
        self._to_send.append(command)

    def next_event(self) -> tuple[e.Event, float]:
        """See ``Engine``.

        Raises:
            RunError: no process owes an answer and no timer is set.
        """
        if self._last_kind or self._to_send:
            self._send_commands()
        while self._at_work or not self._heard:
            self._pass()
        event = self._heard.popleft()
        self._last_kind = type(event).__name__
        self.num_events += 1
        return event, self.now

    # The main process.

    def _send_commands(self) -> None:
        """The work that the last event made; its commands leave at its end."""
        seconds = self._event_s.get(self._last_kind, self._any_event_s)
        seconds += self._control.command_s * len(self._to_send)
        self._at_work = True
        self._last_kind = ""
        self.host.submit(self._control_task, seconds, self.now)

    def _sent(self) -> None:
        self._at_work = False
        commands, self._to_send = self._to_send, []
        for command in commands:
            if isinstance(command, c.SetTimer):
                VirtualEngine.execute(self, command)
            else:
                self._after(self._control.latency_s, partial(VirtualEngine.execute, self, command))

    def _hear(self, event: e.Event | None) -> None:
        if event is not None:
            self._heard.append(event)

    # Time.

    def _after(self, seconds: float, call: Callable[[], None]) -> None:
        self._count += 1
        heappush(self._calls, (self.now + seconds, self._ties.random(), self._count, call))

    def _pass(self) -> None:
        """Go on to the next thing that happens: a call, an end of CPU work, or an entry of the heap."""
        call_at = self._calls[0][0] if self._calls else float("inf")
        entry_at = self._heap[0][0] if self._heap else float("inf")
        end_at = self.host.next_end()
        soonest = min(call_at, entry_at, end_at)
        if soonest == float("inf"):
            raise RunError("the run stands still: no process owes an answer and no timer is set")
        if call_at == soonest:
            self.now, _, _, call = heappop(self._calls)
            call()
        elif entry_at == soonest:
            self.now, _, _, _, _, what, owed = heappop(self._heap)
            self._owed -= owed
            self._hear(what() if callable(what) else what)
        else:
            task, self.now = self.host.advance()
            if task is self._control_task:
                self._sent()
            elif task is not None:
                self._finished(self._runners[id(task)])

    def _foreign(self, index: int) -> None:
        """The foreign load of one look, until the next."""
        self.host.set_background(self._background[index][1], self.now)
        after = (index + 1) % len(self._background)
        passes_s = self._background[after][0] - self._background[index][0]
        if len(self._background) > 1:
            self._after(passes_s if passes_s > 0 else _LOOK_S, partial(self._foreign, after))

    # Worker processes.

    def _runner(self, process: Process) -> _Runner:
        runner = process.runner
        if runner is None:
            weight = self._learner_weight if process.kind == "training" else 1.0
            runner = process.runner = _Runner(Task(process.kind, weight))
            self._runners[id(runner.task)] = runner
        assert isinstance(runner, _Runner)
        return runner

    def _work(self, process: Process, work: Work, what: e.Event | Happening) -> None:
        runner = self._runner(process)
        runner.jobs.append((work, what))
        if len(runner.jobs) == 1:
            self._begin(runner)

    def _begin(self, runner: _Runner) -> None:
        runner.started = self.now
        work, _ = runner.jobs[0]
        if work.other_s > 0.0:
            self._after(work.other_s, lambda: self.host.submit(runner.task, work.cpu_s, self.now))
        else:
            self.host.submit(runner.task, work.cpu_s, self.now, waker=self._control_task.last)

    def _finished(self, runner: _Runner) -> None:
        _, what = runner.jobs.popleft()
        assert runner.started is not None
        self._took_s = self.now - runner.started
        self._say(what() if callable(what) else what)
        if runner.jobs:
            self._begin(runner)

    def _say(self, event: e.Event | None) -> None:
        if event is not None:
            self._after(self._control.latency_s, partial(self._hear, _with_time(event, self._took_s)))

    def _learner_says(self, event: e.Event) -> None:
        self._say(event)

    def _step_env(self, command: c.StepEnv) -> None:
        self._pin(command)
        super()._step_env(command)

    def _reset_env(self, command: c.ResetEnv) -> None:
        self._pin(command)
        super()._reset_env(command)

    def _pin(self, command: c.StepEnv | c.ResetEnv) -> None:
        task = self._runner(self._envs[command.shard]).task
        task.pinned = tuple(self._cpu_index[cpu] for cpu in command.cpus)


def _with_time(event: e.Event, seconds: float) -> e.Event:
    """The event as a process that measured so many seconds would say it."""
    match event:
        case e.StepsDone():
            return dataclasses.replace(event, step_s=seconds)
        case e.ResetDone():
            return dataclasses.replace(event, reset_s=seconds)
        case e.ChunksReady():
            return dataclasses.replace(event, generation_s=seconds)
        case e.UpdateDone():
            return dataclasses.replace(event, train_s=seconds)
        case _:
            return event
