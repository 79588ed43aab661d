"""Foreign systems that the back-ends talk to, with the rules that matter: a GPU with its driver, torch, MPS, a kernel.

The GPU keeps time: work on a stream runs after what the stream was given before and after the events that it
waits for, and every piece of work is noted with its SMs, its beginning and its end. So an overlap shows
even where several launches are queued and the host has long gone on.
"""

from __future__ import annotations

import enum
import itertools
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any


class Code(enum.IntEnum):
    """Results of driver calls."""

    SUCCESS = 0
    INVALID_VALUE = 1
    INVALID_DEVICE = 101
    INVALID_CONTEXT = 201
    INVALID_RESOURCE_CONFIGURATION = 914


@dataclass(frozen=True)
class Run:
    """One piece of work that the device did."""

    owner: str
    sms: frozenset[int]
    begin: float
    end: float


@dataclass
class Resource:
    """Some SMs; those of one cut have nothing in common."""

    ids: tuple[int, ...]
    step: int
    cut: int = 0
    """Which cut it came from; 0 for the whole device."""
    is_remainder: bool = False

    @property
    def sm(self) -> SimpleNamespace:
        return SimpleNamespace(smCount=len(self.ids), minSmPartitionSize=self.step, smCoscheduledAlignment=self.step)


class Gpu:
    """A device whose host clock stands still unless somebody waits for the device."""

    def __init__(self, num_sms: int = 132, step: int = 8) -> None:
        self.num_sms = num_sms
        self.step = step
        self.now = 0.0
        self.runs: list[Run] = []
        self.complaints: list[str] = []

    def overlaps(self) -> list[tuple[Run, Run]]:
        """Work of different owners that used one SM at one time."""
        return [
            (one, two)
            for one, two in itertools.combinations(self.runs, 2)
            if one.owner != two.owner and one.sms & two.sms and one.begin < two.end and two.begin < one.end
        ]

    def disorders(self) -> list[tuple[Run, Run]]:
        """Work of one owner that began before what it had given earlier was done."""
        return [
            (one, two)
            for one, two in itertools.combinations(self.runs, 2)
            if one.owner == two.owner and two.begin < one.end
        ]


class FakeStream:
    """Work in order, on some SMs."""

    def __init__(self, gpu: Gpu, sms: frozenset[int], priority: int = 0) -> None:
        self.gpu, self.sms, self.priority = gpu, sms, priority
        self.busy_until = 0.0

    def launch(self, owner: str, duration: float) -> None:
        begin = max(self.busy_until, self.gpu.now)
        self.busy_until = begin + duration
        self.gpu.runs.append(Run(owner, self.sms, begin, self.busy_until))

    def record_event(self) -> float:
        return max(self.busy_until, self.gpu.now)

    def wait_event(self, event: float) -> None:
        self.busy_until = max(self.busy_until, event)

    def synchronize(self) -> None:
        self.gpu.now = max(self.gpu.now, self.busy_until)


class Cuda:
    """Like ``torch.cuda``, as far as the back-ends use it."""

    def __init__(self, gpu: Gpu) -> None:
        self.gpu = gpu
        self.external: dict[int, FakeStream] = {}
        self.default = FakeStream(gpu, frozenset(range(gpu.num_sms)))
        self.current = self.default

    def init(self) -> None:
        pass

    def get_device_properties(self, device: int) -> SimpleNamespace:
        return SimpleNamespace(multi_processor_count=self.gpu.num_sms)

    def Stream(self, *, device: int, priority: int) -> FakeStream:
        return FakeStream(self.gpu, frozenset(range(self.gpu.num_sms)), priority)

    def ExternalStream(self, pointer: int, *, device: int) -> FakeStream:
        return self.external[pointer]

    @contextmanager
    def stream(self, stream: FakeStream) -> Iterator[None]:
        before, self.current = self.current, stream
        try:
            yield
        finally:
            self.current = before

    def synchronize(self) -> None:
        self.gpu.now = max(self.gpu.now, self.current.busy_until)


@dataclass
class Context:
    """A green context."""

    sms: frozenset[int]
    step: int
    streams: set[int] = field(default_factory=set)


class DriverModule:
    """Like ``cuda.bindings.driver``: every function returns a tuple that begins with a code."""

    CUdevResourceType = SimpleNamespace(CU_DEV_RESOURCE_TYPE_SM="SM")
    CUgreenCtxCreate_flags = SimpleNamespace(CU_GREEN_CTX_DEFAULT_STREAM=1)
    CUstream_flags = SimpleNamespace(CU_STREAM_NON_BLOCKING=1)
    CUdevice_attribute = SimpleNamespace(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT=16)

    def __init__(self, cuda: Cuda, *, version: int = 13000, remainder: str = "joins") -> None:
        """``remainder``: joins others, is refused by the descriptor, or is refused by the context."""
        self.cuda, self.gpu = cuda, cuda.gpu
        self.version, self.remainder = version, remainder
        self.num_cuts = self.num_contexts = self.primary = 0
        self.calls: list[str] = []
        self.contexts: list[Context] = []
        self._pointers = itertools.count(1000)

    def cuDriverGetVersion(self) -> tuple[Any, ...]:
        return Code.SUCCESS, self.version

    def cuInit(self, flags: int) -> tuple[Any, ...]:
        return (Code.SUCCESS,)

    def cuDeviceGet(self, index: int) -> tuple[Any, ...]:
        return (Code.SUCCESS, index) if index == 0 else (Code.INVALID_DEVICE, None)

    def cuDeviceGetAttribute(self, attribute: int, device: int) -> tuple[Any, ...]:
        return Code.SUCCESS, self.gpu.num_sms

    def cuDevicePrimaryCtxRetain(self, device: int) -> tuple[Any, ...]:
        self.primary += 1
        return Code.SUCCESS, "primary"

    def cuDevicePrimaryCtxRelease(self, device: int) -> tuple[Any, ...]:
        self.primary -= 1
        return (Code.SUCCESS,)

    def cuDeviceGetDevResource(self, device: int, kind: str) -> tuple[Any, ...]:
        return Code.SUCCESS, Resource(tuple(range(self.gpu.num_sms)), self.gpu.step)

    def cuDevSmResourceSplitByCount(self, count: int, whole: Resource, flags: int, minimum: int) -> tuple[Any, ...]:
        if whole.cut:
            return Code.INVALID_RESOURCE_CONFIGURATION, None, 0, None
        self.num_cuts += 1
        step = 2 if flags & 1 else whole.step
        size = -(-minimum // step) * step
        count = min(count, len(whole.ids) // size)
        parts = [Resource(whole.ids[size * n : size * (n + 1)], step, self.num_cuts) for n in range(count)]
        rest = Resource(whole.ids[size * count :], step, self.num_cuts, is_remainder=True)
        return Code.SUCCESS, parts, count, rest

    def cuDevResourceGenerateDesc(self, parts: Sequence[Resource], count: int) -> tuple[Any, ...]:
        ids = [sm for part in parts for sm in part.ids]
        wrong = not parts or len(parts) != count or len({part.cut for part in parts}) != 1 or len(set(ids)) != len(ids)
        if wrong or (self.remainder == "descriptor" and any(part.is_remainder for part in parts)):
            return Code.INVALID_RESOURCE_CONFIGURATION, None
        return Code.SUCCESS, list(parts)

    def cuGreenCtxCreate(self, descriptor: Sequence[Resource], device: int, flags: int) -> tuple[Any, ...]:
        late = any(part.is_remainder for part in descriptor) and self.num_contexts > 0
        if self.remainder == "context" and any(part.is_remainder for part in descriptor):
            return Code.INVALID_RESOURCE_CONFIGURATION, None
        if self.remainder == "later" and late:
            return Code.INVALID_RESOURCE_CONFIGURATION, None
        if not self.primary or flags != 1:
            return Code.INVALID_CONTEXT, None
        self.num_contexts += 1
        context = Context(frozenset(sm for part in descriptor for sm in part.ids), descriptor[0].step)
        self.contexts.append(context)
        return Code.SUCCESS, context

    def cuGreenCtxGetDevResource(self, context: Context, kind: str) -> tuple[Any, ...]:
        return Code.SUCCESS, Resource(tuple(sorted(context.sms)), context.step)

    def cuGreenCtxStreamCreate(self, context: Context, flags: int, priority: int) -> tuple[Any, ...]:
        if flags != 1:
            return Code.INVALID_VALUE, None
        pointer = next(self._pointers)
        self.cuda.external[pointer] = FakeStream(self.gpu, context.sms, priority)
        context.streams.add(pointer)
        return Code.SUCCESS, pointer

    def cuStreamDestroy(self, pointer: int) -> tuple[Any, ...]:
        if self.cuda.external[pointer].busy_until > self.gpu.now:
            self.gpu.complaints.append(f"stream {pointer} destroyed at work")
        self.calls.append("cuStreamDestroy")
        for context in self.contexts:
            context.streams.discard(pointer)
        return (Code.SUCCESS,)

    def cuGreenCtxDestroy(self, context: Context) -> tuple[Any, ...]:
        if context.streams:
            self.gpu.complaints.append("context destroyed before its stream")
        if context not in self.contexts:
            self.gpu.complaints.append("context destroyed twice")
        self.calls.append("cuGreenCtxDestroy")
        self.contexts = [one for one in self.contexts if one is not context]
        return (Code.SUCCESS,)


class FakeKernel:
    """Processes with threads, each of which may run on some CPUs."""

    def __init__(self, num_cpus: int) -> None:
        self.all = frozenset(range(num_cpus))
        self.processes: dict[int, dict[int, frozenset[int]]] = {}
        self.births: dict[int, list[int]] = {}
        """Threads that each come up while their process is being bound."""

    def start(self, pid: int, num_threads: int) -> None:
        self.processes[pid] = {pid * 100 + n: self.all for n in range(num_threads)}

    def usable(self) -> set[int]:
        return set(self.all)

    def threads(self, pid: int) -> list[int]:
        return list(self.processes.get(pid, {}))

    def bind(self, thread: int, cpus: frozenset[int]) -> None:
        for pid, threads in self.processes.items():
            if thread in threads:
                if fresh := self.births.get(pid):
                    threads[fresh.pop()] = threads[thread]  # a new thread takes its maker's CPUs, as they are now
                threads[thread] = cpus
                return
        raise ProcessLookupError

    def bound(self, pid: int, thread: int) -> frozenset[int]:
        return self.processes.get(pid, {}).get(thread, frozenset())


MPS_CONTROL = """#!{python} -SE
import json, os, signal, sys
from pathlib import Path

mode = os.environ.get("FAKE_MPS", "")
pipe = Path(os.environ["CUDA_MPS_PIPE_DIRECTORY"])
state = pipe / "state.json"
if mode == "hang" or mode == "hang later" and sys.argv[1:] != ["-d"]:
    signal.pause()
if sys.argv[1:] == ["-d"]:
    if mode == "refuse":
        sys.exit("An instance of this daemon is already running")
    state.write_text(json.dumps({{"uid": os.getuid() + (mode == "wrong user"), "servers": {{}}}}))
    if mode == "stays":
        os.mkfifo(pipe / "end")
        if os.fork() == 0:
            (pipe / "end").read_bytes()
    sys.exit()
if not state.exists() or json.loads(state.read_text())["uid"] != os.getuid():
    sys.exit("Cannot find MPS control daemon process")
servers = json.loads(state.read_text())["servers"]
wordy = mode == "wordy"
for line in sys.stdin:
    command, *rest = line.split()
    if command == "get_server_list":
        for pid in servers:
            print(f"Server on device 0 has PID {{pid}}" if wordy else pid)
    elif command == "get_server_status":
        print(f"Status of server {{rest[0]}}: {{servers[rest[0]]['status']}}" if wordy else servers[rest[0]]["status"])
    elif command == "get_client_list":
        for pid in servers[rest[0]]["clients"]:
            print(f"Client PID: {{pid}}" if wordy else pid)
    elif command == "quit":
        state.unlink()
        if mode == "stays":
            (pipe / "end").write_bytes(b"")
    else:
        sys.exit(f"Unknown command {{command}}")
"""


class FakeMps:
    """The two programs of MPS, in a directory that has to be put on PATH."""

    def __init__(self, directory: Path) -> None:
        self.programs = directory / "bin"
        self.home = directory / "mps"
        self.programs.mkdir()
        for name in ("nvidia-cuda-mps-control", "nvidia-cuda-mps-server"):
            (self.programs / name).write_text(MPS_CONTROL.format(python=sys.executable))
            (self.programs / name).chmod(0o755)

    @property
    def state(self) -> Path:
        """Of the daemon; there is none unless it runs."""
        return self.home / "pipe" / "state.json"

    def serve(self, clients: Sequence[int], *, server: int = 700, status: str = "ACTIVE") -> None:
        """Let one server have these clients."""
        state = json.loads(self.state.read_text())
        state["servers"] = {server: {"clients": list(clients), "status": status}}
        self.state.write_text(json.dumps(state))


def listing(*profiles: str, card: str = "NVIDIA H200") -> str:
    """What ``nvidia-smi -L`` prints for one card."""
    lines = [f"GPU 0: {card} (UUID: GPU-0)"]
    lines += [f"  MIG {profile.ljust(12)} Device {n:2}: (UUID: MIG-{n:08x})" for n, profile in enumerate(profiles)]
    return "\n".join(lines) + "\n"
