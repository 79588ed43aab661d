"""Small virtual runs and what became of them, as text: a change of control shows as a change of the story.

``NAME.toml`` describes a run: ``about`` in a sentence, ``seed``, the tables ``plan``, ``costs`` and
``faults`` with fields of ``SchedulerPlan``, ``Costs`` and ``Faults``, and ``stop_at_s`` if somebody
asks for the end; ``happens`` lists what else comes from outside and when. ``NAME.trace`` is that run, one
line per event with the commands that answered it.
``make golden`` writes the traces anew; read the difference before you commit it.
"""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter

from ebrl.engines.virtual.costs import Costs
from ebrl.engines.virtual.engine import VirtualEngine
from ebrl.engines.virtual.faults import Faults
from ebrl.errors import nearest
from ebrl.ids import CpuId
from ebrl.scheduling import commands as c
from ebrl.scheduling import events as e
from ebrl.scheduling import invariants
from ebrl.scheduling.plan import SchedulerPlan
from ebrl.scheduling.quotas import Split
from ebrl.scheduling.scheduler import Scheduler

HERE = Path(__file__).parent
NAMES = sorted(path.stem for path in HERE.glob("*.toml"))
MAX_EVENTS = 2_000

_SHORT = {
    "num_steps": "steps",
    "first_step": "from",
    "policy_version": "version",
    "learner_version": "version",
    "episode_ends": "ends",
}

_T = TypeVar("_T")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Happens:
    """Something that comes from outside: another split is asked for, or there are other CPUs."""

    at_s: float
    split: Split | None = None
    cpus: tuple[CpuId, ...] = ()

    @property
    def event(self) -> e.Event:
        return e.CpusChanged(cpus=self.cpus) if self.split is None else e.SplitRequested(split=self.split)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Golden:
    """One run, as its file describes it."""

    about: str
    seed: int = 0
    stop_at_s: float | None = None
    """When somebody asks for the end, if ever."""
    happens: tuple[Happens, ...] = ()
    plan: SchedulerPlan
    costs: Costs = dataclasses.field(default_factory=Costs)
    faults: Faults = dataclasses.field(default_factory=Faults)


def load(path: Path) -> Golden:
    """The run that a file describes.

    Raises:
        ValueError: the file names a field that does not exist, or gives one a wrong value.
    """
    document = tomllib.loads(path.read_text())
    tables: dict[str, type[Any]] = {"plan": SchedulerPlan, "costs": Costs, "faults": Faults}
    for name, cls in tables.items():
        if name in document:
            document[name] = _make(cls, document[name], f"{path.name}: {name}.")
    return _make(Golden, document, f"{path.name}: ")


def _make(cls: type[_T], table: dict[str, Any], where: str) -> _T:
    known = [field.name for field in dataclasses.fields(cls)]  # type: ignore[arg-type]  # always a dataclass
    for name in table:
        if name not in known:
            raise ValueError(f"{where}{name} does not exist; {nearest(name, known) or f'known: {known}'}")
    return TypeAdapter(cls).validate_python(table)


def play(golden: Golden) -> list[tuple[float, e.Event, list[c.Command]]]:
    """The run, its invariants checked after every event."""
    plan = golden.plan
    scheduler = Scheduler(plan)
    engine = VirtualEngine(
        num_shards=plan.num_shards,
        envs_per_shard=plan.envs_per_shard,
        chunk_len=plan.chunk_len,
        num_generators=plan.num_generators,
        costs=golden.costs,
        faults=golden.faults,
        seed=golden.seed,
    )
    if golden.stop_at_s is not None:
        engine.request_stop("enough", at=golden.stop_at_s)
    for one in golden.happens:
        engine.happen(one.event, at=one.at_s)
    lines: list[tuple[float, e.Event, list[c.Command]]] = []
    while len(lines) < MAX_EVENTS:
        event, now = engine.next_event()
        commands = scheduler.handle(event, now)
        invariants.check(scheduler)
        lines.append((now, event, commands))
        for command in commands:
            if isinstance(command, c.Stop):
                return lines
            engine.execute(command)
    raise AssertionError(f"no end after {MAX_EVENTS} events: {golden.about}")


def trace(name: str) -> str:
    """The text of ``NAME.trace``."""
    golden = load(HERE / f"{name}.toml")
    return "".join(f"{line}\n" for line in [f"# {golden.about}", *map(_line, play(golden))])


def _line(entry: tuple[float, e.Event, list[c.Command]]) -> str:
    now, event, commands = entry
    return " | ".join([f"{now:9.3f}  {tell(event)}", *map(tell, commands)])


def tell(message: e.Event | c.Command) -> str:
    """A message in a few words. Left out: durations (the clock shows them) and whatever is 0 mostly."""
    return " ".join([type(message).__name__, *_words(message)])


def _words(message: Any) -> Iterable[str]:
    for field in dataclasses.fields(message):
        value, name = getattr(message, field.name), _SHORT.get(field.name, field.name)
        if field.name in {"reset_s", "step_s", "generation_s", "train_s"} or value is None or value == "":
            continue
        if field.name in {"epoch", "first_step", "constant_frames", "repeated_frames"} and value == 0:
            continue
        if field.name == "env_steps" and value == message.num_steps:
            continue
        if isinstance(value, bool):
            yield from [name] * value
        elif isinstance(value, c.ChunkRequest | Split):
            yield f"{name}=({' '.join(_words(value))})"
        elif isinstance(value, tuple) and not value:
            continue
        elif isinstance(value, tuple):
            yield f"{name}={','.join(map(_item, value))}"
        elif isinstance(value, str):
            yield f"{name}={value!r}"
        else:
            yield f"{name}={value:g}"


def _item(value: Any) -> str:
    """One of several: a number; ``shard/slot/chunk#serial`` for a chunk, ``environment:episode`` for a start."""
    if isinstance(value, c.EpisodeStart):
        return f"{value.env}:{value.episode}"
    if isinstance(value, e.EpisodeEnd):
        return f"({' '.join(_words(value))})"
    if isinstance(value, c.ChunkRequest):
        return f"{value.shard}/{value.slot}/{value.chunk}#{value.serial}"
    if isinstance(value, tuple):
        return "+".join(map(_item, value))
    return repr(value) if isinstance(value, str) else str(value)


def main() -> None:
    """Write every trace, and say which one is another now."""
    for path in HERE.glob("*.trace"):
        if path.stem not in NAMES:
            path.unlink()
            print(f"removed {path.name}: it has no TOML file")
    for name in NAMES:
        path, text = HERE / f"{name}.trace", trace(name)
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
            print(f"written {path.name}: {len(text.splitlines())} lines")


if __name__ == "__main__":
    main()
