"""``ebrl plan``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ebrl.cli.answer import Answer
from ebrl.cli.options import Json, Sets
from ebrl.errors import UsageError

if TYPE_CHECKING:
    from ebrl.plan.planner import ResourcePlan
    from ebrl.resources.hardware import Hardware
    from ebrl.resources.pool import Infeasible
    from ebrl.resources.workload import Workload

_GIB = 2**30
_BAR = 20
"""Characters of the bar of a limit that is twice the lowest, or more."""

_LIFT = {
    "simulation": "more CPUs, or cheaper env steps",
    "generation": "more of the GPUs or CPUs for it, which training must spare, or a cheaper policy",
    "training": "more of the GPUs or CPUs for it, which generation must spare, or fewer epochs",
    "simulation with generation": "more environments; each waits for a CPU and for a generator in turn",
    "staleness": "more slack or larger batches; trajectories wait for a place",
    "shared CPUs": "more CPUs, or cheaper env steps",
}
"""By limit, what lifts it."""

Hw = Annotated[
    str,
    typer.Option("--hardware", metavar="NAME|FILE", help="A machine that comes with ebrl, or a file; else this one."),
]
Costs = Annotated[
    str,
    typer.Option(
        "--profile",
        metavar="NAME|FILE",
        help="A workload that comes with ebrl, a workload file, or what ebrl profile wrote of RUN.toml; "
        "./profile.json by default.",
    ),
]


def plan(
    run_file: Annotated[
        Path | None, typer.Argument(metavar="[RUN.toml]", help="The run that was profiled; not for workloads.")
    ] = None,
    sets: Sets = None,
    hardware: Hw = "",
    profile: Costs = "",
    show: Annotated[bool, typer.Option("--list", help="List machines and workloads that come with ebrl.")] = False,
    json: Json = False,
) -> Answer:
    """Divide a machine: who gets which CPUs and how much of each GPU, how fast that will be, and what limits it.

    Starts nothing and changes nothing. The machine may be one that you do not have.
    """
    if show:
        return _listing()
    from ebrl.host.hardware import probe_hardware
    from ebrl.host.sharing.choose import probe_device
    from ebrl.plan.hardware import load_hardware
    from ebrl.plan.planner import ResourcePlan, plan_resources

    workload = _workload(run_file, sets or [], profile)
    machine = load_hardware(hardware) if hardware else probe_hardware(sharing=probe_device)
    found = plan_resources(workload, machine)
    if isinstance(found, ResourcePlan):
        return Answer(found.to_json(), "\n".join(plan_text(found)))
    error = _impossible(workload, machine, found)
    if not json:
        raise error
    kind, budget = type(error).__name__, {"budget": found.budget, "needed": found.needed, "available": found.available}
    return Answer({"error": {"type": kind, "message": str(error)}, "infeasible": budget}, "", error.exit_code)


def _workload(run_file: Path | None, sets: list[str], name: str) -> Workload:
    """What the run costs, from wherever the user has it."""
    from ebrl.plan.workloads import load_workload, read_document, read_workload

    if not name and run_file is None:
        raise UsageError(
            "want RUN.toml, whose profile is read, or --profile NAME for a workload that comes with ebrl; "
            "ebrl plan --list names them"
        )
    path = Path(name or "profile.json")
    if name and not (("." in path.name or "/" in name) and path.is_file()):
        workload = load_workload(name)
    elif not path.is_file():
        raise UsageError(
            f"no {path} here, and nobody knows what {run_file} costs; take a profile with ebrl profile {run_file}, "
            "or name one with --profile FILE"
        )
    else:
        document = read_document(path)
        if document.get("kind") != "workload":
            return _profiled(document, path, run_file, sets)
        workload = read_workload(document, path)
    if run_file is not None or sets:
        raise UsageError(
            f"{name} is a workload, which says itself how many environments there are and how large a batch is; "
            "leave RUN.toml and --set out, or take a profile of the run (ebrl profile RUN.toml)"
        )
    return workload


def _profiled(document: dict[str, Any], path: Path, run_file: Path | None, sets: list[str]) -> Workload:
    """The workload of a run, from its profile."""
    from ebrl.config.load import load_config
    from ebrl.profiling.workload import workload_of
    from ebrl.resources.profile import Profile

    if run_file is None:
        raise UsageError(f"{path} is a profile; name the run that it is of too: ebrl plan RUN.toml --profile {path}")
    config = load_config(run_file, sets)
    try:
        profile = Profile.from_json(document)
    except (ValueError, KeyError) as error:
        raise UsageError(f"{path} is neither a profile nor a workload: {error}") from error
    return workload_of(profile, config)


def _impossible(workload: Workload, machine: Hardware, short: Infeasible) -> UsageError:
    return UsageError(f"{workload.name} does not fit {machine.name}. {short}")


def _listing() -> Answer:
    from ebrl.plan.hardware import shipped_hardware
    from ebrl.plan.workloads import kinds_of_sources, load_workload, shipped_workloads

    workloads = {name: load_workload(name) for name in shipped_workloads()}
    document = {"machines": list(shipped_hardware()), "workloads": list(workloads)}
    lines = ["machines (--hardware)", *(f"  {name}" for name in document["machines"]), "workloads (--profile)"]
    for name, one in workloads.items():
        times = f"times of {one.device}" if one.device else "times of CPUs"
        lines.append(f"  {name:20} {one.num_envs:3} environments, {times}; {_counts(kinds_of_sources(one))}")
    return Answer(document, "\n".join(lines))


def _counts(kinds: dict[str, int]) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in kinds.items())


# A plan for people.


def plan_text(found: ResourcePlan) -> Iterator[str]:
    """A plan in lines for people."""
    from ebrl.plan.planner import figure

    rate = found.prediction.trajectories_per_s
    chunks = rate * found.workload.trajectory_chunks
    yield (
        f"{found.workload.name} on {found.hardware}: {figure(rate)} trajectories/s predicted "
        f"({figure(chunks)} chunks/s, {figure(chunks * found.workload.chunk_len)} env steps/s)"
    )
    yield ""
    yield from _allocation_lines(found)
    yield from _limit_lines(found)
    yield from _memory_lines(found)
    yield from _more_lines(found)
    yield from _rival_lines(found)
    yield from _trust_lines(found)


def _row(label: str, text: str) -> str:
    return f"  {label:33}{text}"


def _allocation_lines(found: ResourcePlan) -> Iterator[str]:
    one, shape = found.allocation, found.shape
    nodes = f", the same on each of {shape.num_nodes} nodes" if shape.num_nodes > 1 else ""
    yield f"allocation: {found.sharing}{nodes}"
    for stages, cpus in found.cpus.items():
        yield _row(f"CPUs of {stages}" if len(found.cpus) > 1 else "CPUs", f"{len(cpus)} ({ranges(cpus)})")
    match one.gpu_sharing:
        case "split":
            yield _row(
                "each GPU",
                f"{one.generation_units} of {shape.num_sms} SMs for generation, {one.training_units} for training",
            )
        case "turns" if one.generation_units == one.training_units == 100:
            yield _row("each GPU", "all of it for one stage after the other")
        case "turns":
            yield _row(
                "each GPU", f"{one.generation_units} % of its time for generation, {one.training_units} % for training"
            )
        case "whole":
            yield _row("GPUs", f"{one.num_generators} for generation, {one.num_learners} for training")
        case "none":
            pass
    workers = -(-found.workload.num_envs // shape.num_nodes)
    wait = f", from {one.min_batch}" if one.min_batch > 1 else ""
    yield _row("env workers", f"{workers}")
    yield _row("generators", f"{one.num_generators}, batches of up to {_count(one.max_batch, 'chunk')}{wait}")
    yield _row("learners", f"{one.num_learners}, micro-batches of {_count(one.micro_batch, 'chunk')}")
    yield ""


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"


def _limit_lines(found: ResourcePlan) -> Iterator[str]:
    from ebrl.plan.planner import figure, lowest_limit

    lowest = lowest_limit(found.prediction)
    rate = found.prediction.limits[lowest]
    yield "limits, in trajectories/s"
    for name, limit in sorted(found.prediction.limits.items(), key=lambda item: item[1]):
        bar = "█" * max(1, min(_BAR, round(limit / rate * _BAR / 2)))
        mark = " ◀ binds" if name == lowest else "" if limit < 2 * rate else "…"
        yield _row(name, f"{figure(limit):>8}  {bar}{mark}")
    yield f"  To lift the lowest: {_LIFT[lowest]}."
    yield ""


def _memory_lines(found: ResourcePlan) -> Iterator[str]:
    need, shape = found.memory, found.shape
    yield "memory"
    if shape.num_gpus and found.workload.unit == "gpu":
        rollout = {"generation": need.generation_device_bytes, "rendering": need.rendering_device_bytes}
        training = {"training": need.training_device_bytes}
        if found.allocation.gpu_sharing == "whole":
            yield _memory_row("GPUs of generation", rollout, shape.device_memory_bytes)
            yield _memory_row("GPUs of training", training, shape.device_memory_bytes)
        else:
            yield _memory_row("each GPU", rollout | training, shape.device_memory_bytes)
    yield _memory_row("each node", {"all processes": need.host_bytes}, shape.memory_bytes)
    yield ""


def _memory_row(label: str, parts: dict[str, int], available: int) -> str:
    total = sum(parts.values())
    used = " + ".join(f"{name} {part / _GIB:.1f}" for name, part in parts.items() if part)
    return _row(label, f"{used} = {total / _GIB:.1f} of {available / _GIB:.1f} GiB ({total / available:.0%})")


def _more_lines(found: ResourcePlan) -> Iterator[str]:
    from ebrl.plan.planner import figure

    rate = found.prediction.trajectories_per_s
    yield "trajectories/s more, with"
    for name, value in found.more.items():
        sign = "+" if value > 0 else ""
        text = "nothing" if abs(value) < 5e-4 * rate else f"{sign}{figure(value)} ({value / rate:+.1%})"
        yield _row(f"{name} more" if name[0].isdigit() else f"one more {name}", text)
    yield ""


def _rival_lines(found: ResourcePlan) -> Iterator[str]:
    from ebrl.plan.planner import figure

    if found.rivals or found.refused:
        yield "other ways to share, best first"
        for rival in found.rivals:
            yield f"  {figure(rival.trajectories_per_s):>8}  {rival.name}"
            yield f"            {rival.reason}"
        for name, short in found.refused:
            yield f"  {'no':>8}  {name}"
            yield f"            {short}"
        yield ""


def _trust_lines(found: ResourcePlan) -> Iterator[str]:
    from ebrl.plan.workloads import kinds_of_sources

    kinds = kinds_of_sources(found.workload)
    yield "how far to trust it"
    if found.moved_from:
        yield f"  Times are of {found.moved_from}, moved to {found.workload.device} by data sheets."
    if kinds and set(kinds) != {"measured"}:
        yield f"  The workload's numbers: {_counts(kinds)}. Not measured here: ebrl profile RUN.toml does that."
    elif found.workload.unit == "cpu":
        yield "  CPU seconds are those of the machine that was profiled."
    if found.splitting == "assumed":
        yield f"  That GPUs can be split by SMs is assumed: {found.splitting_how}."
    elif found.splitting == "probed":
        yield f"  GPUs can be split by SMs here: {found.splitting_how}, probed."
    elif found.splitting == "impossible":
        yield f"  GPUs cannot be split by SMs here ({found.splitting_how or 'no back-end works'})."
    yield "  Rates are upper limits by formulas; ebrl forecast RUN.toml plays the run itself."


def ranges(numbers: Sequence[int]) -> str:
    """Ascending numbers as ``0-3,8``."""
    runs = groupby(enumerate(numbers), key=lambda item: item[1] - item[0])
    spans = [[number for _, number in run] for _, run in runs]
    return ",".join(f"{span[0]}-{span[-1]}" if len(span) > 1 else f"{span[0]}" for span in spans)
