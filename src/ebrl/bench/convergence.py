"""``ebrl bench convergence``: how soon a policy succeeds in nine episodes of ten, by execution mode and by slack.

Simulation is real, on the real CPUs; learning is real; generation and training take the time of GPUs that are not
there. Every run starts from the same clone of a few demonstrations, whose time is not counted, and ends after so many
env steps. The runs are interleaved: seed by seed, mode by mode. Each is said when it is finished, and kept in a file
if one is named, from which a bench that was stopped goes on.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any

from ebrl.bench.convergence_figures import band, crossing, difference_interval, sooner, spaced
from ebrl.bench.convergence_runs import Evaluator, Learned, learn
from ebrl.bench.convergence_settings import (
    Settings,
    Variant,
    config_of,
    emulated_workload,
    evaluation_config,
    in_full,
    pretrain_config,
)
from ebrl.config.modes import Mode
from ebrl.errors import RunError, UsageError
from ebrl.host.probe import machine
from ebrl.records.writer import write_json
from ebrl.runtime.display import Silent
from ebrl.runtime.management import run_plan
from ebrl.runtime.plugins import check_plugins
from ebrl.runtime.pretrain import pretrain

LEVEL = 0.9
"""Success that is to be reached."""
TARGETS = {"sooner_than_synchronous": 2.5, "final_success_points": 1.0}
"""Over ``colocated`` (DESIGN.md section 14); by how many points of 100 final success may be lower."""
SYNCHRONOUS: Mode = "colocated"

Document = dict[str, Any]
Row = dict[str, Any]
Say = Callable[[str], None]


def measure(
    settings: Settings,
    chosen: Sequence[Variant],
    *,
    num_seeds: int,
    kept: Path | None = None,
    say: Say = lambda text: None,
) -> Document:
    """Every variant with every seed, interleaved.

    Args:
        settings: the task.
        chosen: modes, and ebrl with other slacks.
        num_seeds: runs of each.
        kept: file of finished runs, one a line; those in it are not run again, new ones are added to it.
        say: is told each result as soon as there is one.

    Raises:
        ConfigError: a mode cannot run on what is emulated.
        UsageError: ``kept`` holds runs of other settings.
        RunError: a run failed, or there is nothing to learn.
    """
    check_plugins(pretrain_config(settings))
    rows = _kept_rows(kept, settings)
    with tempfile.TemporaryDirectory(prefix="ebrl-bench-convergence-") as name:
        bench = _Bench(settings, Path(name), say)
        for variant in chosen:
            bench.check(variant)
        for seed in range(num_seeds):
            for variant in chosen:
                if _find(rows, variant, seed) is None:
                    row = bench.row(variant, seed)
                    rows.append(row)
                    _keep(kept, settings, row)
                    say(said(row))
    wanted = [_find(rows, variant, seed) for variant in chosen for seed in range(num_seeds)]
    return document_of(settings, [row for row in wanted if row is not None], num_seeds)


def said(row: Row) -> str:
    """One finished run in words, its whole curve included."""
    after = "not reached" if row["seconds_to_90"] is None else f"after {row['seconds_to_90']:.1f} s"
    steps = "" if row["env_steps_to_90"] is None else f" and {row['env_steps_to_90']:,.0f} env steps"
    curve = ", ".join(
        f"{at_s:.0f} s {100 * success:.0f}" for at_s, success in zip(row["at_s"], row["success"], strict=True)
    )
    return (
        f"{row['name']}, seed {row['seed']}: 90 % {after}{steps}; at the end {100 * row['final_success']:.1f} %, "
        f"{row['updates']} updates, {row['env_steps']:,} env steps, {row['seconds']:.0f} s, "
        f"{row['training_overruns']} overruns of training, generation took "
        f"{100 * row['generation_stretch_fraction']:+.1f} %, others kept {row['others_cpus']:.2f} CPUs busy; "
        f"success {curve}"
    )


class _Bench:
    """Clones once, then makes one row after the other."""

    def __init__(self, settings: Settings, directory: Path, say: Say) -> None:
        self._settings = settings
        self._directory = directory
        self._say = say
        self._clone: Path | None = None
        self._clone_success = 0.0
        self._workload = directory / f"{settings.document['emulation']['workload']}.json"
        write_json(self._workload, emulated_workload(settings).to_json())

    def check(self, variant: Variant) -> None:
        """Say what is impossible before anything is made."""
        run_plan(config_of(self._settings, variant, 0, workload=self._workload))

    def row(self, variant: Variant, seed: int) -> Row:
        """One run, and the success of its checkpoints."""
        clone = self._clone or self._make_clone()
        self._clone = clone
        with tempfile.TemporaryDirectory(dir=self._directory) as name:
            config = config_of(self._settings, variant, seed, workload=self._workload)
            learned = learn(config, Path(name) / "run", clone=clone, say=self._say)
            with self._evaluator(Path(name), clone) as evaluator:
                return row_of(
                    self._settings, variant, seed, learned, clone_success=self._clone_success, play=evaluator.success
                )

    def _evaluator(self, directory: Path, clone: Path) -> Evaluator:
        return Evaluator(evaluation_config(self._settings), directory / "evaluation", clone=clone)

    def _make_clone(self) -> Path:
        settings, directory = self._settings, self._directory / "clone"
        directory.mkdir()
        clone, facts = pretrain(pretrain_config(settings), directory, Silent())
        with self._evaluator(directory, clone) as evaluator:
            self._clone_success = evaluator.success(clone, settings.final_episodes)
        self._say(
            f"{settings.name}: the clone of {facts['demonstrations']} demonstrations succeeds in "
            f"{100 * self._clone_success:.1f} % of {settings.final_episodes} episodes"
        )
        check_clone(settings, self._clone_success)
        return clone


def check_clone(settings: Settings, success: float) -> None:
    """Refuse a start at the goal.

    Raises:
        RunError: the clone succeeds too often already.
    """
    if success >= LEVEL:
        raise RunError(
            f"{settings.name}: the clone succeeds in {100 * success:.1f} % already, so there is nothing to learn up to "
            f"{100 * LEVEL:.0f} %; want fewer or noisier demonstrations"
        )


def row_of(
    settings: Settings,
    variant: Variant,
    seed: int,
    learned: Learned,
    *,
    clone_success: float,
    play: Callable[[Path, int], float],
) -> Row:
    """One row: what the run cost, and the success of the checkpoints that are looked at.

    Args:
        settings: say how often to look, and how long.
        variant: what was run.
        seed: of the run.
        learned: the run.
        clone_success: where every curve begins.
        play: success of a checkpoint in so many episodes.
    """
    reached = [learned.reached[i] for i in spaced([r.env_steps for r in learned.reached], settings.every_env_steps)]
    if not reached:
        raise RunError(f"{variant.name}, seed {seed}: no checkpoint was written")
    at_s, at_env_steps = [0.0, *(r.at_s for r in reached)], [0, *(r.env_steps for r in reached)]
    success = [clone_success, *(play(r.checkpoint, settings.episodes) for r in reached[:-1])]
    success.append(play(reached[-1].checkpoint, settings.final_episodes))
    return {
        "name": variant.name,
        "mode": variant.mode,
        "slack": variant.slack,
        "seed": seed,
        "seconds_to_90": crossing(at_s, success, LEVEL),
        "env_steps_to_90": crossing(at_env_steps, success, LEVEL),
        "final_success": success[-1],
        "success": success,
        "at_s": at_s,
        "at_env_steps": at_env_steps,
        **learned.facts,
    }


def document_of(settings: Settings, rows: Sequence[Row], num_seeds: int) -> Document:
    """The answer: rows, what they say together, curves."""
    by_name: dict[str, list[Row]] = {}
    for row in rows:
        by_name.setdefault(row["name"], []).append(row)
    ratios = {name: _against_ebrl(by_name["ebrl"], of) for name, of in by_name.items() if _is_compared(name, by_name)}
    return {
        "kind": "emulated",
        "task": settings.name,
        "emulated": settings.document["emulation"] | {"padding": settings.padding},
        "level": LEVEL,
        "settings": in_full(settings),
        "rows": list(rows),
        "summary": {name: _summary(of) for name, of in by_name.items()},
        "ratios": ratios,
        "curves": {name: _curves(of) for name, of in by_name.items()},
        "targets": TARGETS,
        "met": _met(ratios),
        "repeats": num_seeds,
        "machine": machine(),
    }


def _is_compared(name: str, by_name: Mapping[str, list[Row]]) -> bool:
    return name != "ebrl" and "ebrl" in by_name


def _summary(rows: Sequence[Row]) -> Document:
    """Of the seeds of one variant; a median that a censored run would decide is None."""
    times, steps = ([row[f"{what}_to_90"] for row in rows] for what in ("seconds", "env_steps"))
    finals = [row["final_success"] for row in rows]
    return {
        "mode": rows[0]["mode"],
        "slack": rows[0]["slack"],
        "runs": len(rows),
        "censored": times.count(None),
        "seconds_to_90": _median(times),
        "env_steps_to_90": _median(steps),
        "final_success": fmean(finals),
        "final_success_low": min(finals),
        "final_success_high": max(finals),
        "staleness_mean": fmean(row["staleness_mean"] for row in rows),
        "staleness_max": max(row["staleness_max"] for row in rows),
        "ess_mean": fmean(row["ess_mean"] for row in rows),
    }


def _median(values: Sequence[float | None]) -> float | None:
    found = median(float("inf") if value is None else value for value in values)
    return None if found == float("inf") else found


def _against_ebrl(ebrl: Sequence[Row], other: Sequence[Row]) -> Document:
    times = [row["seconds_to_90"] for row in other]
    ratio, interval = sooner([row["seconds_to_90"] for row in ebrl], times, [row["at_s"][-1] for row in other])
    steps = [row["env_steps_to_90"] for row in other]
    ends = [row["at_env_steps"][-1] for row in other]
    fewer, fewer_interval = sooner([row["env_steps_to_90"] for row in ebrl], steps, ends)
    finals, others = [row["final_success"] for row in ebrl], [row["final_success"] for row in other]
    low, high = difference_interval(finals, others)
    return {
        "ebrl_sooner": ratio,
        "ci95": interval,
        "at_least": None in times,
        "ebrl_fewer_env_steps": fewer,
        "ebrl_fewer_env_steps_ci95": fewer_interval,
        "final_success_difference": fmean(finals) - fmean(others),
        "final_success_difference_ci95": (low, high),
    }


def _curves(rows: Sequence[Row]) -> Document:
    return {
        "seconds": band([(row["at_s"], row["success"]) for row in rows]),
        "env_steps": band([(row["at_env_steps"], row["success"]) for row in rows]),
    }


def _met(ratios: Mapping[str, Document]) -> dict[str, bool]:
    if SYNCHRONOUS not in ratios:
        return {}
    ratio = ratios[SYNCHRONOUS]
    return {
        "sooner_than_synchronous": ratio["ebrl_sooner"] >= TARGETS["sooner_than_synchronous"],
        "final_success_points": 100 * ratio["final_success_difference"] >= -TARGETS["final_success_points"],
    }


def _find(rows: Iterable[Row], variant: Variant, seed: int) -> Row | None:
    wanted = (variant.mode, variant.slack, seed)
    return next((row for row in rows if (row["mode"], row["slack"], row["seed"]) == wanted), None)


def _keep(kept: Path | None, settings: Settings, row: Row) -> None:
    if kept is not None:
        with kept.open("a") as file:
            file.write(json.dumps({"settings": in_full(settings), "row": row}) + "\n")


def _kept_rows(kept: Path | None, settings: Settings) -> list[Row]:
    if kept is None or not kept.exists():
        return []
    try:
        lines = [json.loads(line) for line in kept.read_text().splitlines()]
        rows = [line["row"] for line in lines]
        same = all(line["settings"] == in_full(settings) for line in lines)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"--rows {kept}: cannot be read ({error}); want a file that this bench wrote") from error
    if not same:
        raise UsageError(f"--rows {kept}: holds runs of other settings; want another file, or the same settings")
    return rows
