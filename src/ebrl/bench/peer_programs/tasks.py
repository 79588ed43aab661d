"""What every peer's program shares: the request, the tasks and the clock of a window.

A program gets one JSON document as its argument and prints one, after the word that marks its answer. The rate is
taken between two ends of updates, so that whole updates are counted: the first after the warm-up, the last once the
window is over.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

from ebrl.host.leftovers import OWNER_VARIABLE
from ebrl.workers.process import die_with_parent

ANSWER = "answer: "
"""What the line with a program's answer begins with."""

_PROGRAM = "EBRL_BENCH_PROGRAM"
"""Variable that tells the processes of a program which one it is."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Request:
    """What one run is to do; every system is given the same one."""

    env: str
    """``metaworld/<task>`` or ``gym/<id>``."""
    simulator: str = "package"
    """``package``: as it comes. ``ebrl``: through ebrl's adapter of it (Meta-World only)."""
    num_processes: int
    num_envs: int
    """Of all processes together."""
    update_steps: int
    """Env steps of an update."""
    minibatch_steps: int
    epochs: int
    hidden: tuple[int, ...]
    """Layers of the actor, and of a critic of its own."""
    max_episode_steps: int
    learn: bool
    """Whether it learns from what it collects."""
    warm_up_s: float
    window_s: float
    seed: int
    learning_rate: float = 1e-10
    """So small that no policy changes: an update costs what it costs, but where a policy moves the arm decides how
    long the physics takes, by a factor of two, and no system is to gain or lose by what it has learned."""
    initial_std: float = 1.0
    """Of the actions, for the same reason."""
    chunk_len: int = 1
    """Actions of one inference; peers know 1 only."""

    @property
    def rollout(self) -> int:
        """Env steps of an update in each environment."""
        return self.update_steps // self.num_envs


def read_request() -> Request:
    """From the program's argument; from now on it dies with the bench."""
    die_with_parent(int(os.environ[OWNER_VARIABLE]))
    os.environ[_PROGRAM] = str(os.getpid())
    document = json.loads(sys.argv[1])
    return Request(**{**document, "hidden": tuple(document["hidden"])})


class Window:
    """Counts env steps between the ends of updates."""

    def __init__(self, request: Request, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._warm_up_s, self._window_s = request.warm_up_s, request.window_s
        self._first_call = self._begun = -1.0
        self._steps_before = self.steps = 0
        self._cpu_before = self._machine_before = 0.0
        self.seconds = 0.0
        self.updates = 0
        self.cpu_s = 0.0
        """That all processes of the run used within the window."""
        self.machine_cpu_s = 0.0
        """That everybody on the machine used within it."""

    @property
    def has_begun(self) -> bool:
        """Whether the warm-up is over."""
        return self._begun >= 0

    def update_ended(self, total_steps: int) -> bool:
        """Note an update's end; whether the window is over.

        Args:
            total_steps: env steps since the program started.
        """
        now = self._clock()
        if self._first_call < 0:
            self._first_call = now
        elif self._begun >= 0:
            self.updates += 1
            self.steps, self.seconds = total_steps - self._steps_before, now - self._begun
        if self._begun < 0 and now - self._first_call >= self._warm_up_s:
            self._begun, self._steps_before = now, total_steps
            self._cpu_before, self._machine_before = cpu_s_of_all(), cpu_s_of_machine()
        over = self._begun >= 0 and self.seconds >= self._window_s
        if over:
            self.cpu_s = cpu_s_of_all() - self._cpu_before
            self.machine_cpu_s = cpu_s_of_machine() - self._machine_before
        return over


def cpu_s_of_machine() -> float:
    """CPU time of everything that this machine has run so far."""
    with open("/proc/stat") as file:
        user, nice, system, _, _, irq, soft_irq, *_ = map(int, file.readline().split()[1:])
    return (user + nice + system + irq + soft_irq) / os.sysconf("SC_CLK_TCK")


def cpu_s_of_all() -> float:
    """CPU time of this process and of all below it, which have not ended, so far."""
    return sum(cpu_s_by_process().values())


def cpu_s_by_process() -> dict[int, float]:
    """CPU time of this process and of each below it."""
    parents, used = {}, {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", errors="replace") as file:
                fields = file.read().rpartition(")")[2].split()
        except OSError:
            continue  # it has ended
        parents[int(name)] = int(fields[1])
        used[int(name)] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    family, young = {os.getpid()}, {os.getpid()}
    while young:
        young = {pid for pid, parent in parents.items() if parent in young} - family
        family |= young
    return {pid: used[pid] for pid in family if pid in used}


def answer(window: Window, **more: Any) -> None:
    """Print what was measured."""
    document = {
        "env_steps": window.steps,
        "seconds": window.seconds,
        "updates": window.updates,
        "cpu_s": window.cpu_s,
        "machine_cpu_s": window.machine_cpu_s,
        **more,
    }
    say(document)


def say(document: dict[str, Any]) -> None:
    """Print the program's answer."""
    sys.stdout.flush()
    os.write(1, f"\n{ANSWER}{json.dumps(document)}\n".encode())


def die_with_program() -> None:
    """In a process that a program has started: it dies with it, also if the program is dead already."""
    program = int(os.environ.get(_PROGRAM, os.getpid()))
    if program == os.getpid():
        return
    die_with_parent(os.getppid())
    if not os.path.exists(f"/proc/{program}"):
        os._exit(1)


def make_env(request: Request, seed: int) -> Any:
    """A Gymnasium environment with float32 observations and the request's time limit."""
    die_with_program()
    suite, _, task = request.env.partition("/")
    if request.simulator == "ebrl":
        return _adapted(request, task, seed)
    import gymnasium
    import numpy as np

    options: dict[str, Any] = {"max_episode_steps": request.max_episode_steps, "disable_env_checker": True}
    if suite == "metaworld":
        import metaworld  # noqa: F401 (registers the id)

        options |= {"env_name": task, "seed": seed}
        task = "Meta-World/MT1"
    return gymnasium.wrappers.DtypeObservation(gymnasium.make(task, **options), np.float32)


def _adapted(request: Request, task: str, seed: int) -> Any:
    import gymnasium
    import numpy as np

    from ebrl.bench.peer_programs.metaworld_state import StateOnly

    inner = StateOnly(task, StateOnly.bench_config(request.max_episode_steps))

    class Adapted(gymnasium.Env):  # type: ignore[misc, type-arg, unused-ignore]
        """ebrl's adapter with Gymnasium's face."""

        observation_space = gymnasium.spaces.Box(-np.inf, np.inf, inner.spec.observation["state"].shape, np.float32)
        action_space = gymnasium.spaces.Box(-1.0, 1.0, (4,), np.float32)

        def __init__(self) -> None:
            self._episodes = np.random.default_rng(seed)
            self._steps = 0

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            self._steps = 0
            obs, info = inner.reset(int(self._episodes.integers(2**31)))
            return obs["state"], info

        def step(self, action: Any) -> Any:
            self._steps += 1
            obs, reward, terminated, _, info = inner.step(action, need_obs=True)
            assert obs is not None
            return obs["state"], reward, terminated, self._steps >= request.max_episode_steps, info

    return Adapted()
