"""CPUs that several processes share: each CPU serves what runs on it in equal shares.

A pinned task stays on its CPU. Any other one goes where it wakes up: to an idle CPU, else to the
least crowded one, its last one if that is as good. A CPU with two tasks fewer than another takes one
over; an idle one does so only when it has been idle for ``takeover_s``. That is what the kernel does,
with slices of a few milliseconds taken as infinitely small.
"""

from __future__ import annotations

from dataclasses import dataclass, field

_NEVER = float("inf")


@dataclass(slots=True, eq=False)
class Task:
    """What may run on one CPU at a time: a process, or its share of the kernel's time."""

    kind: str
    """Stage that its time counts for."""
    weight: float = 1.0
    """Share beside others on the same CPU."""
    pinned: int | None = None
    """CPU that it may run on; None is any."""
    cpu: int | None = None
    """Where it runs, or waits for its share."""
    last: int = 0
    finish: float = _NEVER
    """Service per unit of weight that its CPU will have given when it is done."""


@dataclass(slots=True, eq=False)
class _Cpu:
    tasks: list[Task] = field(default_factory=list)
    weight: float = 0.0
    service: float = 0.0
    """Seconds per unit of weight given so far."""
    idle_since: float = 0.0


class Host:
    """A set of CPUs; times are those of the engine."""

    def __init__(self, num_cpus: int, *, takeover_s: float = 0.0) -> None:
        self.now = 0.0
        self._takeover_s = takeover_s
        self.busy_s: dict[str, float] = {}
        """CPU seconds given, by kind of task."""
        self._cpus = [_Cpu() for _ in range(num_cpus)]
        self._foreign: list[Task] = []

    def submit(self, task: Task, cpu_s: float, now: float) -> None:
        """Let a task that is not running have so many seconds of CPU from now on."""
        self._pass_to(now)
        assert task.cpu is None, f"{task} has not finished what it does"
        self._place(task, self._choose(task), cpu_s)
        self._balance()

    def set_background(self, num_tasks: int, now: float) -> None:
        """Let so many foreign tasks want a CPU from now on, without end."""
        self._pass_to(now)
        while len(self._foreign) < num_tasks:
            task = Task("background")
            self._foreign.append(task)
            self._place(task, self._choose(task), _NEVER)
        while len(self._foreign) > num_tasks:
            self._remove(self._foreign.pop())
        self._balance()

    def next_end(self) -> float:
        """When the next task will be done or changes its CPU, if nothing else happens; infinity if none runs."""
        end = min((self._end_on(cpu) for cpu in self._cpus if cpu.tasks), default=_NEVER)
        return min(end, self._next_takeover())

    def finish_next(self) -> tuple[Task | None, float]:
        """Go on to the next end; returns the task that is done, if it is one, with the time."""
        takeover = self._next_takeover()
        running = [cpu for cpu in self._cpus if cpu.tasks]
        cpu = min(running, key=self._end_on)
        end = self._end_on(cpu)
        if takeover < end:
            self._pass_to(takeover)
            self._take_over()
            return None, takeover
        self._pass_to(end)
        task = min(cpu.tasks, key=lambda one: one.finish)
        cpu.service = max(cpu.service, task.finish)
        self._remove(task)
        self._balance()
        return task, end

    def _next_takeover(self) -> float:
        """When an idle CPU will take a task over; infinity if there is none to take."""
        idle_since = min((cpu.idle_since for cpu in self._cpus if not cpu.tasks), default=_NEVER)
        if idle_since == _NEVER or not any(
            len(cpu.tasks) > 1 and any(task.pinned is None for task in cpu.tasks) for cpu in self._cpus
        ):
            return _NEVER
        return max(self.now, idle_since + self._takeover_s)

    def _take_over(self) -> None:
        """The CPU that has been idle longest takes a task from the most crowded one."""
        idle = min((cpu for cpu in self._cpus if not cpu.tasks), key=lambda cpu: cpu.idle_since)
        donor = max(
            (cpu for cpu in self._cpus if any(task.pinned is None for task in cpu.tasks)),
            key=lambda cpu: len(cpu.tasks),
        )
        self._move(donor, idle)

    def _end_on(self, cpu: _Cpu) -> float:
        first = min(task.finish for task in cpu.tasks)
        return self.now + max(0.0, first - cpu.service) * cpu.weight

    def _pass_to(self, now: float) -> None:
        passed = now - self.now
        if passed <= 0.0:
            return
        for cpu in self._cpus:
            if cpu.tasks:
                share = passed / cpu.weight
                cpu.service += share
                for task in cpu.tasks:
                    self.busy_s[task.kind] = self.busy_s.get(task.kind, 0.0) + share * task.weight
        self.now = now

    def _choose(self, task: Task) -> int:
        if task.pinned is not None:
            return task.pinned
        return min(range(len(self._cpus)), key=lambda index: (self._cpus[index].weight, index != task.last, index))

    def _place(self, task: Task, index: int, cpu_s: float) -> None:
        cpu = self._cpus[index]
        task.cpu = task.last = index
        task.finish = cpu.service + cpu_s / task.weight
        cpu.tasks.append(task)
        cpu.weight += task.weight

    def _remove(self, task: Task) -> None:
        assert task.cpu is not None
        cpu = self._cpus[task.cpu]
        cpu.tasks.remove(task)
        cpu.weight = sum(one.weight for one in cpu.tasks)
        if not cpu.tasks:
            cpu.idle_since = self.now
        task.cpu = None

    def _balance(self) -> None:
        """No busy CPU has two tasks fewer than another that could spare one."""
        while True:
            busy = [cpu for cpu in self._cpus if cpu.tasks]
            if len(busy) < 2:
                return
            donor = max(busy, key=lambda cpu: len(cpu.tasks))
            taker = min(busy, key=lambda cpu: len(cpu.tasks))
            if len(donor.tasks) - len(taker.tasks) < 2 or all(task.pinned is not None for task in donor.tasks):
                return
            self._move(donor, taker)

    def _move(self, donor: _Cpu, taker: _Cpu) -> None:
        task = [one for one in donor.tasks if one.pinned is None][-1]
        left_s = (task.finish - donor.service) * task.weight
        self._remove(task)
        self._place(task, self._cpus.index(taker), left_s)
