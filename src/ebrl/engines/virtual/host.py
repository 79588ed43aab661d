"""CPUs that several processes share, one at a time on each, as Linux gives them out.

A task goes where it wakes up: to the CPU it ran on last if that is idle, else to another idle one, else
to the least crowded; a pinned one only to CPUs of its set, and there it stays until it is done. Whoever
wakes it is still there when that is decided, so it may be left to wait beside a CPU that is idle a moment
later. Tasks on a CPU are compared by the CPU seconds they have had there; who slept counts as having had
as much as whoever has had least, so that sleep saves nothing up. Who wakes up takes the CPU from a task
that has had no less; else that task runs on for a timer tick, and then whoever has had least. An idle CPU
takes over a task that waits elsewhere, but only after it has been idle for a tick, since it is on ticks
that the kernel looks for such work. A busy CPU with two tasks fewer does so at once. Neither takes a
pinned task.
"""

from __future__ import annotations

from dataclasses import dataclass, field

_NEVER = float("inf")


@dataclass(slots=True, eq=False)
class Task:
    """What may run on one CPU at a time: a process."""

    kind: str
    """Stage that its time counts for."""
    weight: float = 1.0
    """Share beside others on the same CPU."""
    pinned: tuple[int, ...] | None = None
    """CPUs that it may run on; None is any."""
    cpu: int | None = None
    """Where it runs or waits; None while it wants no CPU."""
    last: int = 0
    """Where it ran last."""
    left_s: float = 0.0
    """CPU seconds until it is done."""
    had_s: float = 0.0
    """CPU seconds per unit of weight that count when it is compared with others on its CPU."""


@dataclass(slots=True, eq=False)
class _Cpu:
    running: Task | None = None
    since: float = 0.0
    """When the slice or the idleness began."""
    waiting: list[Task] = field(default_factory=list)
    least_s: float = 0.0
    """What whoever had least here had had, when that was last looked at."""

    def least(self) -> float:
        """CPU seconds of the task here that has had least."""
        if self.running is not None:
            self.least_s = min(self.running.had_s, *(one.had_s for one in self.waiting), _NEVER)
        return self.least_s

    @property
    def crowd(self) -> int:
        """Tasks that run or wait here."""
        return (self.running is not None) + len(self.waiting)


class Host:
    """A set of CPUs; times are those of the engine."""

    def __init__(self, num_cpus: int, *, tick_s: float) -> None:
        """Nothing runs.

        Args:
            num_cpus: CPUs, numbered from 0.
            tick_s: between two looks of the kernel at who should run.
        """
        self.now = 0.0
        self.busy_s: dict[str, float] = {}
        """CPU seconds given, by kind of task."""
        self.wait_s: dict[str, float] = {}
        """Seconds waited for a CPU, by kind of task."""
        self._tick_s = tick_s
        self._cpus = [_Cpu() for _ in range(num_cpus)]
        self._foreign: list[Task] = []

    def submit(self, task: Task, cpu_s: float, now: float, *, waker: int | None = None) -> None:
        """Let a task that wants no CPU yet have so many seconds of one from now on.

        Args:
            task: what wakes up.
            cpu_s: CPU seconds until it is done.
            now: the time.
            waker: CPU of the task that wakes it, which is still there when a CPU is chosen.
        """
        self._pass_to(now)
        assert task.cpu is None, f"{task} has not finished what it does"
        task.left_s = cpu_s
        self._put(task, self._choose(task, waker))
        self._balance()

    def set_background(self, num_tasks: int, now: float) -> None:
        """Let so many foreign tasks want a CPU from now on, without end."""
        self._pass_to(now)
        while len(self._foreign) < num_tasks:
            task = Task("background", left_s=_NEVER)
            self._foreign.append(task)
            self._put(task, self._choose(task))
        while len(self._foreign) > num_tasks:
            self._remove(self._foreign.pop())
        self._balance()

    def next_end(self) -> float:
        """When something changes of itself; infinity if nothing runs."""
        return min(self._next()[0], self._next_takeover())

    def advance(self) -> tuple[Task | None, float]:
        """Go on to ``next_end``; returns the task that is done, if that is what happens, and the time."""
        at, cpu, done = self._next()
        takeover = self._next_takeover()
        if takeover < at:
            self._pass_to(takeover)
            self._take_over()
            return None, takeover
        self._pass_to(at)
        assert cpu is not None, "nothing runs"
        task = cpu.running
        assert task is not None, "nothing runs there"
        if done:
            self._remove(task)
            self._balance()
            return task, at
        cpu.waiting.append(task)
        self._pick(cpu)
        return None, at

    def _next(self) -> tuple[float, _Cpu | None, bool]:
        """Next end of a task or of a slice: when, on which CPU, and whether the task is done."""
        found: tuple[float, _Cpu | None, bool] = (_NEVER, None, False)
        for cpu in self._cpus:
            if cpu.running is None:
                continue
            end, done = self.now + cpu.running.left_s, True
            if cpu.waiting and (over := max(self.now, cpu.since + self._tick_s)) < end:
                end, done = over, False
            if end < found[0]:
                found = (end, cpu, done)
        return found

    def _pass_to(self, now: float) -> None:
        passed = now - self.now
        if passed <= 0.0:
            return
        for cpu in self._cpus:
            task = cpu.running
            if task is None:
                continue
            task.left_s = max(0.0, task.left_s - passed)
            task.had_s += passed / task.weight
            self.busy_s[task.kind] = self.busy_s.get(task.kind, 0.0) + passed
            for one in cpu.waiting:
                self.wait_s[one.kind] = self.wait_s.get(one.kind, 0.0) + passed
        self.now = now

    def _choose(self, task: Task, waker: int | None = None) -> int:
        allowed = range(len(self._cpus)) if task.pinned is None else task.pinned

        def crowd(index: int) -> int:
            return self._cpus[index].crowd + (index == waker)

        return min(allowed, key=lambda index: (crowd(index), index != task.last, index))

    def _put(self, task: Task, index: int) -> None:
        cpu = self._cpus[index]
        running, least_s = cpu.running, cpu.least()
        ahead_s = task.had_s - least_s if index == task.last else 0.0
        task.had_s = least_s + max(0.0, min(ahead_s, self._tick_s))
        task.cpu = task.last = index
        if running is None:
            cpu.running, cpu.since = task, self.now
            return
        if task.had_s <= running.had_s and task.left_s < _NEVER:
            cpu.waiting.append(running)
            cpu.running, cpu.since = task, self.now
        else:
            cpu.waiting.append(task)

    def _remove(self, task: Task) -> None:
        assert task.cpu is not None, f"{task} is on no CPU"
        cpu = self._cpus[task.cpu]
        cpu.least()
        task.cpu = None
        if cpu.running is task:
            self._pick(cpu)
        else:
            cpu.waiting.remove(task)

    def _pick(self, cpu: _Cpu) -> None:
        """Whoever has had least runs next."""
        cpu.running = min(cpu.waiting, key=lambda one: one.had_s, default=None)
        if cpu.running is not None:
            cpu.waiting.remove(cpu.running)
        cpu.since = self.now

    # Tasks that change their CPU.

    def _next_takeover(self) -> float:
        """When an idle CPU will look for work; infinity if it would find none."""
        idle_since = min((cpu.since for cpu in self._cpus if cpu.running is None), default=_NEVER)
        if idle_since == _NEVER or not any(_movable(cpu) for cpu in self._cpus):
            return _NEVER
        return max(self.now, idle_since + self._tick_s)

    def _take_over(self) -> None:
        idle = min((cpu for cpu in self._cpus if cpu.running is None), key=lambda cpu: cpu.since)
        self._move(max((cpu for cpu in self._cpus if _movable(cpu)), key=lambda cpu: cpu.crowd), idle)

    def _balance(self) -> None:
        """No busy CPU has two tasks fewer than another that could spare one."""
        while True:
            busy = [cpu for cpu in self._cpus if cpu.running is not None]
            if len(busy) < 2:
                return
            donor, taker = max(busy, key=lambda cpu: cpu.crowd), min(busy, key=lambda cpu: cpu.crowd)
            if donor.crowd - taker.crowd < 2 or not _movable(donor):
                return
            self._move(donor, taker)

    def _move(self, donor: _Cpu, taker: _Cpu) -> None:
        task = _movable(donor)[-1]
        self._remove(task)
        self._put(task, self._cpus.index(taker))


def _movable(cpu: _Cpu) -> list[Task]:
    """Tasks that wait here and may run anywhere."""
    return [task for task in cpu.waiting if task.pinned is None]
