"""A finished run in words, and what to type next."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any


def training_text(summary: dict[str, Any]) -> str:
    """The summary of ``train`` for people."""
    run_dir = _short(summary["run_dir"])
    return "\n".join([*_outcome(summary), *_figures(summary), "", *_next(summary, run_dir)])


def _outcome(summary: dict[str, Any]) -> Iterator[str]:
    seconds = summary.get("seconds", 0.0)
    line = f"{summary['outcome']}: {summary['env']}, {summary.get('env_steps', 0):,} env steps, "
    line += f"{summary.get('policy_version', 0):,} updates in {_duration(seconds)}"
    reason = summary.get("reason")
    yield line + (f" ({reason})" if reason else "")
    before, after = summary.get("success_before"), summary.get("success_after")
    if before is None and after is None:
        return
    text = f"success  {_rate(before)} before → {_rate(after)} after"
    yield text + f"  ({summary['evaluation_episodes']} episodes from initial states never trained on)"


def _figures(summary: dict[str, Any]) -> Iterator[str]:
    if "busy" not in summary:
        return
    yield f"speed    {summary['env_steps_per_s']:,.0f} env steps/s, {summary['trajectories_per_s']:.2f} trajectories/s"
    yield "busy     " + ", ".join(f"{stage} {share:.0%}" for stage, share in summary["busy"].items())
    yield f"staleness  at most {summary['staleness_max']} (bound {summary['staleness_bound']})"
    ledger = summary["ledger"]
    dropped = sum(ledger["dropped"].values())
    balance = "balances" if summary["ledger_balances"] else "DOES NOT BALANCE"
    yield (
        f"trajectories  {ledger['admitted']} admitted, {ledger['trained']} trained, {dropped} dropped, "
        f"{ledger['abandoned']} unfinished at the end; the ledger {balance}"
    )
    failures = sum(summary["env_failures"].values())
    restarts = sum(summary["restarts"].values())
    if failures or restarts or summary["updates_skipped"]:
        yield f"failures  {failures} of environments, {restarts} restarts, {summary['updates_skipped']} updates skipped"


def _next(summary: dict[str, Any], run_dir: str) -> Iterator[str]:
    yield f"run directory   {run_dir}"
    if (Path(summary["run_dir"]) / "learning_curve.png").exists():
        yield f"learning curve  {run_dir}/learning_curve.png"
    if summary["outcome"] == "interrupted before training":
        yield "nothing was trained yet; start again with the same command"
        return
    yield "next:"
    if summary["outcome"] == "interrupted":
        yield f"  ebrl train --resume {run_dir}"
    yield f"  ebrl eval {run_dir} --video"
    yield f"  tensorboard --logdir {run_dir}/tensorboard"


def evaluation_text(result: dict[str, Any]) -> str:
    """The result of ``eval`` for people."""
    lines = [
        f"{result['checkpoint']}: success {_rate(result['success'])} in {result['episodes']} episodes "
        "from initial states never trained on",
        f"mean return {result['return_mean']:.3f}, mean length {result['episode_steps_mean']:.1f} env steps",
    ]
    if result["episodes_retried"]:
        lines.append(f"{result['episodes_retried']} times an episode failed and was played again")
    if result["episodes_failed"]:
        lines.append(f"{result['episodes_failed']} episodes failed and count as no success")
    if result["outcome"] != "finished":
        lines.append(f"{result['outcome']}: these are not all episodes that were asked for")
    if "video" in result:
        lines.append(f"video  {_short(result['video']['path'])}")
    return "\n".join(lines)


def _rate(value: float | None) -> str:
    return "not measured" if value is None else f"{value:.3f}"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def _short(path: str) -> str:
    """Relative to the current directory if it lies below."""
    absolute = Path(path).absolute()
    return str(absolute.relative_to(Path.cwd()) if absolute.is_relative_to(Path.cwd()) else absolute)
