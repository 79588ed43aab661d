"""The same environment, networks and batch under other systems and under ours, on this machine.

Every run is a program of its own (``bench/peer_programs``, started by ``bench/peer_launch.py``), in the peer's private
environment. The runs are interleaved. A peer that is not installed, or fails, is a row with its reason.

``share_of_ceiling`` is a rate over what the CPUs would do without any system: as many env steps as fit if each costs
only its own simulation, inference and learning, each measured alone.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from ebrl.bench.peer_launch import DEADLINE_S, QUICK_DEADLINE_S, importable, launch
from ebrl.bench.peer_programs.tasks import Request
from ebrl.errors import EbrlError, RunError, UsageError
from ebrl.host import simulators
from ebrl.host.installing import install
from ebrl.host.probe import machine, usable_cpus

TARGETS = {"ebrl_over": 1.5, "ebrl_over_chunk8": 2.0}
"""Over the better of ``RIVALS`` on Meta-World state, with learning (DESIGN.md section 14)."""

RIVALS = ("sample-factory", "stable-baselines3")

CHUNKS = (1, 8)
"""Actions of one inference under ebrl; peers have one."""

INSTALL_S = 1800.0

Document = dict[str, Any]
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One environment that all systems step."""

    env: str
    max_episode_steps: int
    has_adapter: bool
    """Whether ebrl brings an adapter of its own that does more than pass on."""


TASKS = {
    "metaworld": Task(env="metaworld/drawer-open-v3", max_episode_steps=500, has_adapter=True),
    "halfcheetah": Task(env="gym/HalfCheetah-v5", max_episode_steps=1000, has_adapter=False),
}
"""By the name that ``--env`` takes; state only. Both run in the private environment of Meta-World."""


def _pins(peer: str) -> tuple[str, ...]:
    lines = (Path(simulators.__file__).parent / "pins" / f"peer-{peer}.txt").read_text().splitlines()
    return tuple(line for line in lines if line and not line.startswith("#"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """Another system."""

    name: str
    program: str
    module: str
    """Importable where the peer is installed."""
    disk_mb: int
    licence: str
    from_source: tuple[str, ...] = ()

    @property
    def private(self) -> simulators.Simulator:
        """Its private environment, made and found like that of a simulator."""
        return simulators.Simulator(
            name=f"peer-{self.name}",
            covers=(),
            packages=_pins(self.name),
            module=self.module,
            smoke=f"import {self.module}, torch\n",
            disk_mb=self.disk_mb,
            licence=self.licence,
            pythons=((3, 11),),
            from_source=self.from_source,
            indexes=(("torch", "https://download.pytorch.org/whl/cpu"),),
        )


PEERS = {
    peer.name: peer
    for peer in (
        Peer(name="stable-baselines3", program="run_sb3", module="stable_baselines3", disk_mb=1300, licence="MIT"),
        Peer(
            name="sample-factory",
            program="run_sample_factory",
            module="sample_factory",
            disk_mb=1700,
            licence="MIT",
        ),
        Peer(name="envpool", program="run_envpool", module="envpool", disk_mb=1900, licence="Apache-2.0"),
        Peer(name="torchrl", program="run_torchrl", module="torchrl", disk_mb=1300, licence="MIT"),
    )
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One line of the table."""

    system: str
    request: Request
    program: str
    python: str
    problem: str = ""
    """Why it cannot run."""


def install_missing(names: Sequence[str], *, say: Say) -> dict[str, str]:
    """Make the private environments that are missing; what went wrong, by peer."""
    problems = {}
    for name in names:
        try:
            install(PEERS[name].private, within_s=INSTALL_S, report=say)
        except EbrlError as error:
            problems[name] = str(error)
            say(str(error))
    return problems


def measure(
    names: Sequence[str], envs: Sequence[str], *, quick: bool, say: Say = lambda text: None, problems: Document
) -> Document:
    """The table.

    Args:
        names: peers.
        envs: of ``TASKS``.
        quick: one short repeat with fewer environments and with learning alone, for a look and no verdict; else three.
        say: is told how it goes.
        problems: by peer, why it could not be installed.

    Raises:
        UsageError: the simulator is not installed.
        RunError: the ceiling cannot be measured; a system that cannot is a row that says why.
    """
    simulator = simulators.python_for("metaworld/any")
    document: Document = {"rows": [], "by_env": {}, "targets": TARGETS, "quick": quick, "machine": machine()}
    with importable() as path:
        for env in envs:
            ceilings = ceilings_of(TASKS[env], simulator, path, quick=quick)
            variants = variants_of(env, names, simulator, problems, quick=quick)
            runs = _interleaved(variants, path, quick=quick, say=say)
            rows = rows_of(env, variants, runs, ceilings)
            document["rows"] += rows
            document["by_env"][env] = {"ceilings": ceilings} | ratios(rows)
    first = document["by_env"].get("metaworld") or document["by_env"][envs[0]]
    shown = {name: first[name] for name in ("ebrl_over", "ebrl_over_chunk8")}
    return document | shown | {"settings": _settings(envs[0], quick=quick), "met": {} if quick else verdicts(document)}


def request_of(task: Task, *, chunk_len: int = 1, learn: bool = True, quick: bool, seed: int = 0) -> Request:
    """What every system is asked for."""
    processes = min(2, len(usable_cpus()))
    return Request(
        env=task.env,
        num_processes=processes,
        num_envs=(4 if quick else 32) * processes,
        update_steps=2048,
        minibatch_steps=512,
        epochs=4,
        hidden=(256, 256),
        max_episode_steps=task.max_episode_steps,
        learn=learn,
        warm_up_s=1.0 if quick else 5.0,
        window_s=2.0 if quick else 12.0,
        seed=seed,
        chunk_len=chunk_len,
    )


def _settings(env: str, *, quick: bool) -> Document:
    return dataclasses.asdict(request_of(TASKS[env], quick=quick))


def variants_of(env: str, names: Sequence[str], simulator: str, problems: Document, *, quick: bool) -> list[Variant]:
    """ebrl with each chunk length and each peer, and what a peer makes of our adapter.

    With learning, and unless it is for a quick look without it too.
    """
    task, found = TASKS[env], []
    for learn in (True,) if quick else (True, False):
        for length in CHUNKS:
            request = request_of(task, chunk_len=length, learn=learn, quick=quick)
            found.append(Variant(system="ebrl", request=request, program="run_ebrl", python=simulator))
        for name in names:
            peer, problem = PEERS[name], problems.get(name, "")
            there = simulators.installed(peer.private)
            if there is None and not problem:
                problem = "not installed; run: ebrl bench peers --install"
            request = request_of(task, learn=learn, quick=quick)
            python = there.python if there is not None else ""
            variant = Variant(system=name, request=request, program=peer.program, python=python, problem=problem)
            found.append(variant)
            if task.has_adapter and name == "stable-baselines3" and learn:
                ours = dataclasses.replace(request, simulator="ebrl")
                found.append(dataclasses.replace(variant, system=f"{name} on ebrl's adapter", request=ours))
    return found


def _interleaved(variants: Sequence[Variant], path: Path, *, quick: bool, say: Say) -> list[list[Document]]:
    """Answers of each variant, in order of repeats; one that fails is not tried again."""
    answers: list[list[Document]] = [[] for _ in variants]
    for repeat in range(1 if quick else 3):
        for index, variant in enumerate(variants):
            before = answers[index]
            if before and "failed" in before[-1]:
                continue
            before.append(_try(variant, path, seed=repeat, within_s=QUICK_DEADLINE_S if quick else DEADLINE_S))
            say(f"{title(variant)}: {_told(before[-1])}")
    return answers


def title(variant: Variant) -> str:
    """A variant in words."""
    request = variant.request
    chunks = f", chunks of {request.chunk_len}" if variant.system == "ebrl" else ""
    return f"{request.env}, {variant.system}{chunks}, {'with learning' if request.learn else 'collection alone'}"


def _told(answer: Document) -> str:
    return answer.get("failed") or f"{answer['env_steps'] / answer['seconds']:,.0f} env steps/s"


def _try(variant: Variant, path: Path, *, seed: int, within_s: float) -> Document:
    if variant.problem:
        return {"failed": variant.problem}
    request = dataclasses.replace(variant.request, seed=1000 * (seed + 1))
    try:
        return launch(variant.program, request, variant.python, path, within_s=within_s)
    except RunError as error:
        return {"failed": str(error)}


def ceilings_of(task: Task, simulator: str, path: Path, *, quick: bool) -> dict[int, Document]:
    """By chunk length: env steps per second if the CPUs did nothing but simulate, infer and learn, and what each costs.

    Raises:
        RunError: one of them cannot be measured.
    """
    request = dataclasses.replace(request_of(task, quick=quick), window_s=1.0 if quick else 3.0)
    steps = {"package_step_s": _step_s(request, simulator, path)}
    steps["step_s"] = steps["package_step_s"]
    if task.has_adapter:
        steps["step_s"] = _step_s(dataclasses.replace(request, simulator="ebrl"), simulator, path)
    found = {}
    for length in CHUNKS:
        parts = dataclasses.replace(request, chunk_len=length)
        costs = steps | launch("run_parts", parts, simulator, path, within_s=QUICK_DEADLINE_S)
        collecting = costs["step_s"] + costs["inference_s"]
        num = request.num_processes
        rates = {"learning": num / (collecting + costs["learning_s"]), "collection": num / collecting}
        found[length] = costs | rates
    return found


def _step_s(request: Request, python: str, path: Path) -> float:
    found = launch("run_steps", request, python, path, within_s=QUICK_DEADLINE_S)
    return float(found["cpu_s"] / found["env_steps"])


def rows_of(
    env: str, variants: Sequence[Variant], runs: Sequence[Sequence[Document]], ceilings: dict[int, Document]
) -> list[Document]:
    """The table's rows: rate, spread and share of the ceiling of each variant, or why there is none."""
    rows = []
    for variant, answers in zip(variants, runs, strict=True):
        kind = "learning" if variant.request.learn else "collection"
        length = variant.request.chunk_len
        row: Document = {"env": env, "system": variant.system, "chunk_len": length, "kind": kind}
        failed = [answer["failed"] for answer in answers if "failed" in answer]
        if failed:
            rows.append(row | {"failed": failed[0]})
            continue
        rates = [answer["env_steps"] / answer["seconds"] for answer in answers]
        limit = ceilings[length][kind]
        row |= {"env_steps_per_s": median(rates), "repeats": rates, "share_of_ceiling": median(rates) / limit}
        row["cpus_busy"] = median(a["cpu_s"] / a["seconds"] for a in answers)
        row["cpu_us_per_step"] = median(1e6 * a["cpu_s"] / a["env_steps"] for a in answers)
        row["others_cpus"] = [(a["machine_cpu_s"] - a["cpu_s"]) / a["seconds"] for a in answers]
        rows.append(row | {"runs": list(answers)})
    return rows


def ratios(rows: Sequence[Document]) -> Document:
    """ebrl's rate with learning over each peer's, and of collection alone, by chunk length."""
    found: Document = {}
    for kind, end in (("learning", ""), ("collection", "_collection")):
        rates = {
            (row["system"], row["chunk_len"]): row["env_steps_per_s"]
            for row in rows
            if row["kind"] == kind and "failed" not in row
        }
        for length in CHUNKS:
            name = "ebrl_over" + ("" if length == 1 else f"_chunk{length}") + end
            ours = rates.get(("ebrl", length))
            found[name] = {
                system: ours / rate for (system, _), rate in rates.items() if ours is not None and system != "ebrl"
            }
    return found


def verdicts(document: Document) -> dict[str, bool]:
    """Whether each target is met: not without a rate of every rival; no verdict where no rival was measured."""
    found = document["by_env"].get("metaworld")
    rows = [row for row in document["rows"] if row["env"] == "metaworld" and row["system"] in RIVALS]
    if found is None or all("failed" in row for row in rows):
        return {}
    return {name: all(found[name].get(rival, 0.0) >= target for rival in RIVALS) for name, target in TARGETS.items()}


def chosen(names: Sequence[str] | None, known: dict[str, Any], option: str) -> list[str]:
    """What the user named, or everything.

    Raises:
        UsageError: there is no such thing.
    """
    for name in names or ():
        if name not in known:
            raise UsageError(f"{option} {name}: want one of {', '.join(known)}")
    return list(names or known)
