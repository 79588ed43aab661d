"""Tables for people of ``ebrl bench modes``, ``ablation``, ``scaling`` and ``staleness``, from their documents."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from statistics import median
from typing import Any

Document = dict[str, Any]

_NAME = 30
"""Width of a configuration's name."""
_LEAST = 0.005
"""Share of time that is worth a word."""
_STAGES = ("simulation", "generation", "training")


def modes_text(result: Document) -> list[str]:
    """Every configuration in every mode, what is compared, and what ebrl's stages wait for."""
    rates = {(row["config"], row["mode"]): row["trajectories_per_s"] for row in result["rows"]}
    names = list(dict.fromkeys(row["mode"] for row in result["rows"]))
    lines = [f"{result['kind']}: trajectories/s, median of {result['repeats']} repeats"]
    lines.append(f"{'':<{_NAME}}" + "".join(f"{name:>15}" for name in names) + f"{'over best':>20}{'over paper':>12}")
    for ratio in result["ratios"]:
        cells = [rates[ratio["config"], name] for name in names]
        figures = "".join(f"{median(cell):>15.3f}" if cell else f"{'–':>15}" for cell in cells)
        low, high = ratio["ci95"]
        over = f"{ratio['ebrl_over_best']:.2f} ({low:.2f}–{high:.2f})"
        paper = f"{ratio['ebrl_over_paper']:.2f}" if ratio["ebrl_over_paper"] else "–"
        lines.append(f"{ratio['config']:<{_NAME}}{figures}{over:>20}{paper:>12}")
    for name in ("geomean_over_best", "geomean_over_paper"):
        if result[name] is None:
            continue  # no configuration has room for that mode
        low, high = result[f"{name}_ci95"]
        lines.append(f"{name}  {result[name]:.2f} (95 % interval {low:.2f}–{high:.2f})")
    shares = [ratio["roofline_share"] for ratio in result["ratios"] if "roofline_share" in ratio]
    if shares:
        lines.append(f"share of the roofline  {min(shares):.2f} at least, {median(shares):.2f} median")
    lines += [*_waits(result["rows"]), *_forecasts(result)]
    if result.get("padding") == "masked":
        lines.append("masked padding: chunks that were never executed take training's time")
    for name, emulation in result.get("emulated", {}).items():
        lines.append(f"emulated in {name}: {', '.join(f'{key} {value}' for key, value in emulation.items())}")
    lines += [f"{name} was left out: {reason}" for name, reason in result.get("left_out", {}).items()]
    lines += [
        f"{name}  target {result['targets'][name]}: {'met' if ok else 'missed'}" for name, ok in result["met"].items()
    ]
    return lines


def _waits(rows: Sequence[Document]) -> Iterator[str]:
    """One line per configuration: for what each stage of ebrl waits most, with the share of its time."""
    told = [row for row in rows if row["mode"] == "ebrl" and row.get("idle")]
    if not told:
        return
    yield f"{'in ebrl, waits most for':<{_NAME}}" + "".join(f"  {stage:<36}" for stage in _STAGES).rstrip()
    for row in told:
        cells = [f"  {_longest_wait(row['idle'].get(stage, {})):<36}" for stage in _STAGES]
        yield f"{row['config']:<{_NAME}}" + "".join(cells).rstrip()


def _forecasts(result: Document) -> Iterator[str]:
    """What forecasts made of the same; of emulated runs also with nothing but the emulated times."""
    told = [ratio for ratio in result["ratios"] if "ebrl_over_best_forecast" in ratio]
    if not told:
        return
    yield f"{'ebrl over best':<{_NAME}}{'measured':>12}{'forecast':>12}{'emulated times alone':>24}"
    for ratio in told:
        alone = ratio.get("ebrl_over_best_of_emulation")
        figures = f"{ratio['ebrl_over_best']:>12.2f}{ratio['ebrl_over_best_forecast']:>12.2f}"
        yield f"{ratio['config']:<{_NAME}}{figures}{'–' if alone is None else f'{alone:.2f}':>24}"
    yield f"forecast  {result['max_abs_forecast_error']:.1%} from the measured rate at most"


def _longest_wait(reasons: dict[str, float]) -> str:
    reason = max(reasons, key=lambda one: reasons[one], default="")
    return f"{reason} {reasons[reason]:.0%}" if reasons and reasons[reason] >= _LEAST else "–"


def ablation_text(result: Document) -> list[str]:
    """Every mechanism in both directions beside the paper, and what ebrl is limited by."""
    parts = result["parts"]
    lines = [
        f"{result['kind']}: trajectories/s with a mechanism over without it; geometric mean (95 % interval), "
        f"smallest–largest configuration; {result['repeats']} repeats",
        f"{'':<{_NAME}}{'ebrl / ebrl without':>21}{'range':>13}{'async with / without':>24}{'range':>13}{'paper':>8}",
    ]
    for part, found in parts.items():
        line = f"{part:<{_NAME}}"
        for name, width in (("removed_from_ebrl", 21), ("added_to_async", 24)):
            mean, spread = _gain_text(found[name])
            line += f"{mean:>{width}}{spread:>13}"
        paper = f"{1 + found['paper']:.2f}" if found["paper"] else "–"
        lines.append(f"{line}{paper:>8}")
    return lines + list(_by_binding(parts)) + list(_limits(result.get("binding", {})))


def _gain_text(gain: Document | None) -> tuple[str, str]:
    if gain is None:
        return "–", "–"
    low, high = gain["ci95"]
    least, most = gain["range"]
    return f"{gain['geomean']:.2f} ({low:.2f}–{high:.2f})", f"{least:.2f}–{most:.2f}"


def _by_binding(parts: Document) -> Iterator[str]:
    """What each mechanism brings to ebrl, by what ebrl is limited by."""
    found = {part: (gains["removed_from_ebrl"] or {}).get("by_binding", {}) for part, gains in parts.items()}
    counts: dict[str, int] = {}
    for by_stage in found.values():
        for stage, cell in by_stage.items():
            counts[stage] = max(cell["configs"], counts.get(stage, 0))
    if not counts:
        return
    heads = "".join(f"{f'{stage} ({count})':>19}" for stage, count in counts.items())
    yield f"{'ebrl limited by (how many)':<{_NAME}}{heads}"
    for part, by_stage in found.items():
        cells = [f"{by_stage[stage]['geomean']:.2f}" if stage in by_stage else "–" for stage in counts]
        yield f"{part:<{_NAME}}" + "".join(f"{cell:>19}" for cell in cells)


def _limits(binding: Document) -> Iterator[str]:
    by_stage: dict[str, list[str]] = {}
    for name, limits in binding.items():
        by_stage.setdefault(limits.get("ebrl", "nothing: not possible"), []).append(name)
    for stage, names in by_stage.items():
        yield f"ebrl is limited by {stage} in {', '.join(names)}"


def scaling_text(result: Document) -> list[str]:
    """One line per number of GPUs with a column per mode, then one per number of environments."""
    sized = [row for row in result["rows"] if row["over"] == "GPUs"]
    names = list(dict.fromkeys(row["mode"] for row in sized))
    rates = {(row["num_gpus"], row["mode"]): row["trajectories_per_s"] for row in sized}
    lines = [
        f"{result['kind']}: {result['base']} on other numbers of GPUs, with CPUs, environments and trajectories in "
        f"proportion; trajectories/s, median of {result['repeats']} repeats",
        f"{'GPUs':>12}" + "".join(f"{name:>12}" for name in names) + f"{'ebrl, share of ideal':>24}",
    ]
    for gpus in dict.fromkeys(row["num_gpus"] for row in sized):
        share = result["efficiency"].get(str(gpus))
        cells = "".join(f"{_rate(rates.get((gpus, name))):>12}" for name in names)
        lines.append(f"{gpus:>12}{cells}{f'{share:.2f}' if share else '–':>24}")
    lines.append(f"{'environments':>12}{'ebrl':>12}  limited by, on {result['base']}")
    for row in result["rows"]:
        if row["over"] == "environments":
            what = row.get("binding") or row.get("impossible", "")
            lines.append(f"{row['num_envs']:>12}{_rate(row['trajectories_per_s']):>12}  {what}")
    return lines


def _rate(rates: Sequence[float] | None) -> str:
    return f"{median(rates):.3f}" if rates else "–"


def staleness_text(result: Document) -> list[str]:
    """Rate, rate over slack 1, and age of data: one line per configuration, one column per slack."""
    rows = result["rows"]
    lines = [
        *_by_slack(rows, f"{result['kind']}: trajectories/s, median of {result['repeats']} repeats", _rate_of),
        *_by_slack(rows, "over slack 1", lambda row: _over_slack_1(row, rows)),
        *_by_slack(rows, "staleness, mean (largest), in versions", _age_of),
    ]
    if any("effective_per_s" in row for row in rows):
        lines += _by_slack(rows, "effective trajectories/s: × ESS / n", lambda row: _number(row.get("effective_per_s")))
    dropped = max((row.get("drop_share", 0.0) for row in rows), default=0.0)
    lines.append(f"dropped trajectories  {dropped:.1%} at most; they are in no rate")
    success = result.get("success")
    if not success:
        return [
            *lines,
            "What old data is worth takes a policy: effective sample size and success for slack 1 to 8",
            "come from ebrl bench convergence --slacks; --success FILE.json lays them beside this.",
        ]
    where = f" on {result['success_task']}" if result.get("success_task") else ""
    lines.append(f"final success{where}, by ebrl bench convergence: median (range of seeds)")
    for slack, found in success.items():
        ess = f", ESS / n {found['ess_mean']:.3f}" if "ess_mean" in found else ""
        middle, spread = f"{found['median']:.3f}", f"{found['low']:.3f}–{found['high']:.3f}"
        lines.append(f"  slack {slack}  {middle} ({spread}), {found['repeats']} seeds{ess}")
    return lines


def _by_slack(rows: Sequence[Document], title: str, cell: Callable[[Document], str]) -> list[str]:
    slacks = sorted({row["slack"] for row in rows})
    lines = [title, f"{'slack':<{_NAME}}" + "".join(f"{slack:>11}" for slack in slacks)]
    for name in dict.fromkeys(row["config"] for row in rows):
        cells = {row["slack"]: cell(row) for row in rows if row["config"] == name}
        lines.append(f"{name:<{_NAME}}" + "".join(f"{cells.get(slack, '–'):>11}" for slack in slacks))
    return lines


def _rate_of(row: Document) -> str:
    return _rate(row["trajectories_per_s"])


def _over_slack_1(row: Document, rows: Sequence[Document]) -> str:
    base = next((one for one in rows if one["config"] == row["config"] and one["slack"] == 1), None)
    if base is None or not base["trajectories_per_s"] or not row["trajectories_per_s"]:
        return "–"
    return f"{median(row['trajectories_per_s']) / median(base['trajectories_per_s']):.2f}"


def _age_of(row: Document) -> str:
    return f"{row['staleness_mean']:.2f} ({row['staleness_max']})" if "staleness_mean" in row else "–"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"
