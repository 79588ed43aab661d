"""``ebrl bench ablation``, ``scaling`` and ``staleness`` on the virtual engine.

All of them play cells as ``ebrl bench modes`` does. Where a mechanism brings little, the ablation says what limits
the run: work that is taken off a stage that waits anyway is no gain.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean, median
from typing import Any

from ebrl.bench.matrix import Configuration, configurations
from ebrl.bench.modes import Cell, Document, Row, Say, chosen, play_all
from ebrl.bench.playing import switches_of
from ebrl.bench.statistics import geomean_interval, geometric_mean
from ebrl.errors import UsageError
from ebrl.host.probe import machine

OVERLAP = "overlap with training"
SHARING = "GPU sharing"
LENDING = "lending of SMs"
"""Where GPUs are split by SMs; ``async`` has whole ones."""
SEGMENTS = "segments"
"""Instead of whole episodes. In ``async`` both are as long as the time limit."""

PARTS: dict[str, dict[str, Any]] = {
    "observations": {"observe_every_step": False},
    "finished episodes": {"run_to_horizon": False},
    "step barrier and env groups": {"step_barrier": False, "env_groups": 0, "round_robin": False},
    OVERLAP: {"slack": 1},
    SHARING: {"gpu_use": "best"},
    LENDING: {"lend": True},
    SEGMENTS: {"whole_episodes": False},
}
"""Mechanisms, as the switches that have them; ``async`` with all of them is ``ebrl``."""

WITHOUT: dict[str, dict[str, Any]] = {OVERLAP: {"slack": 0}, SEGMENTS: {"whole_episodes": True}}
"""How a part is taken away that ``async`` has, too; any other has the switches of ``async`` then."""

PAPER_SHARES = {SHARING: 0.10, "step barrier and env groups": 0.31, OVERLAP: 0.26}
"""Gains that the paper's ablation reports for elastic allocation, group pipelining and overlap (its figure 16, as the
review has it)."""

Table = Mapping[tuple[str, str], Row]
"""Configuration and name of a cell → its row; only those that could be played."""


def measure_ablation(*, quick: bool, names: Iterable[str] = (), say: Say = lambda text: None) -> Document:
    """What each mechanism brings: taken from ``ebrl``, and given to ``async``.

    The second overlaps with training already; there, this is taken from it. Where GPUs are not shared nothing can be
    lent, so what sharing brings is measured without lending.
    """
    matrix = chosen(quick, names)
    ebrl, other = switches_of("ebrl"), switches_of("async")
    cells = []
    for one in matrix:
        cells += [Cell(one, "ebrl", ebrl), Cell(one, "async", other)]
        for part, switches in PARTS.items():
            without = WITHOUT.get(part) or {name: getattr(other, name) for name in switches}
            cells.append(Cell(one, f"ebrl without {part}", replace(ebrl, **without)))
            changed = without if part == OVERLAP else switches
            if part not in (LENDING, SEGMENTS):
                cells.append(Cell(one, _changed_async(part), replace(other, **changed)))
    repeats = 2 if quick else 5
    rows = play_all(cells, repeats=repeats, say=say)
    table = {(row.cell.configuration.name, row.cell.name): row for row in rows if row.played}
    order = [one.name for one in matrix]
    parts: Document = {
        part: {
            "removed_from_ebrl": _gain(table, order, *_both_ebrl(part), base="ebrl"),
            "added_to_async": _gain(table, order, *_both_async(part), base="async"),
            "paper": PAPER_SHARES.get(part),
        }
        for part in PARTS
    }
    limits = {
        name: {mode: _binding(table[name, mode]) for mode in ("ebrl", "async") if (name, mode) in table}
        for name in order
    }
    document = {"kind": "virtual", "parts": parts, "binding": limits, "rows": [row.to_json() for row in rows]}
    return document | {"repeats": repeats, "machine": machine()}


def _both_ebrl(part: str) -> tuple[str, str]:
    """``ebrl`` with a part, and without it."""
    return f"ebrl without {LENDING}" if part == SHARING else "ebrl", f"ebrl without {part}"


def _changed_async(part: str) -> str:
    return f"async without {part}" if part == OVERLAP else f"async with {part}"


def _both_async(part: str) -> tuple[str, str]:
    """``async`` with a part, and without it."""
    return ("async", _changed_async(part)) if part == OVERLAP else (_changed_async(part), "async")


def _gain(table: Table, order: Sequence[str], above: str, below: str, *, base: str) -> Document | None:
    """Rates of one cell over those of another, with what limits the base cell; ``None`` if no machine runs both."""
    pairs = {
        name: (table[name, above], table[name, below])
        for name in order
        if (name, above) in table and (name, below) in table
    }
    if not pairs:
        return None
    ratios = {name: median(a.rates) / median(b.rates) for name, (a, b) in pairs.items()}
    by_binding: dict[str, list[float]] = {}
    for name, ratio in ratios.items():
        by_binding.setdefault(_binding(table[name, base]), []).append(ratio)
    changed = above if base == below else below
    return {
        "geomean": geometric_mean(list(ratios.values())),
        "ci95": geomean_interval([(a.rates, b.rates) for a, b in pairs.values()]),
        "range": [min(ratios.values()), max(ratios.values())],
        "by_config": ratios,
        "by_binding": {
            stage: {"geomean": geometric_mean(found), "configs": len(found)} for stage, found in by_binding.items()
        },
        "binding_becomes": {
            name: after for name in pairs if (after := _binding(table[name, changed])) != _binding(table[name, base])
        },
    }


def _binding(row: Row) -> str:
    return row.played[0].binding


def measure_scaling(*, quick: bool, say: Say = lambda text: None) -> Document:
    """From few GPUs and environments to many: one workload, CPUs and environments in proportion to GPUs."""
    base = next(one for one in configurations() if one.shape.num_gpus * one.shape.num_nodes >= 8)
    cells = []
    for gpus in (1, 2, 4, 8, 16) if not quick else (1, 4):
        cells += [Cell(_sized(base, gpus), mode, switches_of(mode)) for mode in ("colocated", "async", "paper", "ebrl")]
    num_sized = len(cells)
    for envs in (32, 64, 128, 256, 512, 1024) if not quick else (32, 128):
        sized = replace(base, name=f"{envs} environments", workload=replace(base.workload, num_envs=envs))
        cells.append(Cell(sized, "ebrl", switches_of("ebrl")))
    repeats = 1 if quick else 3
    played = play_all(cells, repeats=repeats, say=say)
    rows = [
        row.to_json() | {"over": "GPUs" if index < num_sized else "environments"} | _size(row.cell.configuration)
        for index, row in enumerate(played)
    ]
    document = {"kind": "virtual", "base": base.name, "rows": rows, "efficiency": efficiency(rows), "repeats": repeats}
    return document | {"machine": machine()}


def _size(one: Configuration) -> Document:
    return {"num_gpus": one.shape.num_gpus * one.shape.num_nodes, "num_envs": one.workload.num_envs}


def efficiency(rows: Sequence[Document]) -> dict[str, float]:
    """Number of GPUs → what ebrl makes per GPU, over what it makes per GPU with the fewest."""
    found = {
        row["num_gpus"]: median(row["trajectories_per_s"]) / row["num_gpus"]
        for row in rows
        if row["over"] == "GPUs" and row["mode"] == "ebrl" and row["trajectories_per_s"]
    }
    return {str(gpus): rate / found[min(found)] for gpus, rate in sorted(found.items())}


def _sized(base: Configuration, gpus: int) -> Configuration:
    """The configuration on so many GPUs, with CPUs, memory, environments and trajectories in proportion."""
    had = base.shape.num_gpus * base.shape.num_nodes
    nodes = max(1, gpus // 8)
    per_gpu = max(1, base.shape.num_cpus * base.shape.num_nodes // had)
    shape = replace(
        base.shape,
        num_nodes=nodes,
        num_gpus=gpus // nodes,
        num_cpus=per_gpu * (gpus // nodes),
        memory_bytes=base.shape.memory_bytes * base.shape.num_nodes // had * (gpus // nodes),
    )
    groups = max(1, base.siblings)
    workload = base.workload
    envs = max(groups, workload.num_envs * gpus // had)
    batch = max(groups, workload.batch_trajectories * gpus // had // groups * groups)
    return replace(
        base, name=f"{gpus} GPUs", shape=shape, workload=replace(workload, num_envs=envs, batch_trajectories=batch)
    )


def measure_staleness(*, quick: bool, say: Say = lambda text: None) -> Document:
    """Throughput of ebrl and the age of its data for slack 0 to 8.

    What old data is worth takes a policy: success and effective sample size are measured by ``ebrl bench
    convergence``, and ``with_success`` lays them beside this.
    """
    matrix = chosen(quick)
    slacks = (0, 1, 4) if quick else (0, 1, 2, 3, 4, 6, 8)
    cells = [
        Cell(one, f"slack {slack}", replace(switches_of("ebrl"), slack=slack)) for one in matrix for slack in slacks
    ]
    repeats = 1 if quick else 3
    rows = [row.to_json() | _ages(row) for row in play_all(cells, repeats=repeats, say=say)]
    return {"kind": "virtual", "rows": rows, "repeats": repeats, "machine": machine()}


def _ages(row: Row) -> Document:
    """Slack, and how old data was: means over repeats, and the oldest of all."""
    slack: Document = {"slack": row.cell.switches.slack}
    if not row.played:
        return slack
    return slack | {
        "drop_share": fmean(one.drop_share for one in row.played),
        "staleness_mean": fmean(one.staleness_mean for one in row.played),
        "staleness_max": max(one.staleness_max for one in row.played),
    }


def with_success(document: Document, convergence: Document) -> Document:
    """The study of staleness with what ebrl learned by slack, from a document of convergence.

    Where its rows have ``ess_mean``, every rate gets its effective one beside it: as if the policy of that document
    were as patient with old data as this workload's. Trajectories that were dropped are in no rate.

    Raises:
        UsageError: it has no final success of ebrl.
    """
    runs: dict[int, list[Document]] = {}
    for row in convergence["rows"]:
        if row["mode"] == "ebrl" and row.get("final_success") is not None:
            runs.setdefault(row["slack"], []).append(row)
    if not runs:
        raise UsageError("--success: no run of ebrl in it has a final success; make it with ebrl bench convergence")
    success = {str(slack): _learned(found) for slack, found in sorted(runs.items())}
    rows = [row | _effective(row, success) for row in document["rows"]]
    return document | {"success": success, "success_task": convergence.get("task", ""), "rows": rows}


def _learned(runs: Sequence[Document]) -> Document:
    """Of the seeds of one slack."""
    finals = [run["final_success"] for run in runs]
    found = {"median": median(finals), "low": min(finals), "high": max(finals), "repeats": len(finals)}
    if all("ess_mean" in run for run in runs):
        return found | {"ess_mean": fmean(run["ess_mean"] for run in runs)}
    return found


def _effective(row: Document, success: Document) -> Document:
    ess = success.get(str(row["slack"]), {}).get("ess_mean")
    if ess is None or not row["trajectories_per_s"]:
        return {}
    return {"effective_per_s": median(row["trajectories_per_s"]) * ess}
