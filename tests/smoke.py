"""Does every quick bench run, end in time and answer what it should? ``make smoke``, or with names: one or a few.

    python tests/smoke.py [NAME ...]

Each is run as a user would, as a process of its own. Its answer must be JSON, have what its readers look for, and
no number in it may be infinite or not a number. How fast anything was is not judged: that is what the benches at full
length are for. Exit code 1 if one fails.
"""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from ctypes.util import find_library
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
LIMIT_S = 300
"""What a quick bench may take."""
END_S = 20
"""What it may take to end when it is asked to."""


@dataclass(frozen=True, slots=True)
class Bench:
    """A command, and what its answer must have."""

    arguments: tuple[str, ...]
    keys: tuple[str, ...]
    renders: bool = False
    """It draws pictures."""

    @property
    def name(self) -> str:
        """How to call it here."""
        return " ".join(self.arguments)


MODES = ("kind", "rows", "ratios", "geomean_over_best", "geomean_over_paper", "machine")
BENCHES = (
    Bench(("control", "--quick"), ("settings", "met", "machine")),
    Bench(("roundtrip", "--seconds", "1"), ("median_us", "policy_median_us", "machine")),
    Bench(("split", "--quick"), ("done_median_s", "env_steps_per_s", "machine")),
    Bench(("forecast", "--quick"), ("settings", "max_abs_error", "machine")),
    Bench(("allocator", "--quick"), ("worst_ratio_to_exhaustive", "virtual", "machine")),
    Bench(("simulators", "--env", "metaworld", "--quick"), ("speedup_over_lockstep", "ebrl_over_paper", "one_switch")),
    Bench(("modes", "--quick"), MODES),
    Bench(("modes", "--engine", "local", "--quick"), MODES),
    Bench(("ablation", "--quick"), ("kind", "parts", "rows", "machine")),
    Bench(("scaling", "--quick"), ("kind", "rows", "machine")),
    Bench(("staleness", "--quick"), ("kind", "rows", "machine")),
    Bench(("convergence", "--quick"), ("kind", "rows", "ratios", "curves", "machine")),
    Bench(("peers", "--quick", "--env", "metaworld", "--peer", "stable-baselines3"), ("rows", "ebrl_over", "machine")),
)


def numbers(value: Any, where: str = "") -> Iterator[tuple[str, float]]:
    """Every number of a document, with its place."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from numbers(inner, f"{where}.{key}")
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from numbers(inner, f"{where}[{index}]")
    elif isinstance(value, float):
        yield where, value


def problem_with(bench: Bench, text: str) -> str:
    """What is wrong with an answer; empty if nothing is."""
    try:
        answer = json.loads(text)
    except json.JSONDecodeError as error:
        return f"the answer is not JSON: {error}"
    missing = [key for key in bench.keys if key not in answer]
    if missing:
        return f"the answer lacks {', '.join(missing)}"
    failed = [row["failed"] for row in answer.get("rows", ()) if row.get("system") == "ebrl" and "failed" in row]
    if failed:
        return f"ebrl failed: {failed[0]}"
    odd = [where for where, number in numbers(answer) if not math.isfinite(number)]
    return f"not finite: {', '.join(odd[:5])}" if odd else ""


def skipped(bench: Bench) -> str:
    """Why it is not run here; empty if it is."""
    if bench.renders and find_library("EGL") is None:
        return "skipped: libEGL.so.1 is missing: apt-get install libegl1 libgl1-mesa-dri"
    return ""


def run(bench: Bench) -> str:
    """Run it; what went wrong, or nothing."""
    command = [str(Path(sys.executable).with_name("ebrl")), "bench", *bench.arguments, "--json"]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    ) as process:  # fmt: skip
        try:
            out, err = process.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            err = ended(process)
            return f"not done within {LIMIT_S} s; it said last:\n{err[-2000:]}"
    if process.returncode:
        return f"exit code {process.returncode}: {(err or out)[-2000:]}"
    return problem_with(bench, out)


def ended(process: subprocess.Popen[str]) -> str:
    """End a bench, which ends what it has started; what it said on standard error."""
    process.send_signal(signal.SIGINT)
    try:
        return process.communicate(timeout=END_S)[1]
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return process.communicate(timeout=END_S)[1]


def main(wanted: list[str]) -> int:
    """Run those whose name has one of the words in it, or all."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    chosen = [bench for bench in BENCHES if not wanted or any(word in bench.name for word in wanted)]
    if not chosen:
        print(f"no bench is called {' or '.join(wanted)}; there are: {', '.join(bench.name for bench in BENCHES)}")
        return 2
    failed = 0
    for number, bench in enumerate(chosen, start=1):
        began = time.monotonic()
        why_not = skipped(bench)
        problem = "" if why_not else run(bench)
        failed += bool(problem)
        took_s = time.monotonic() - began
        said = why_not or problem or "ok"
        print(f"{number}/{len(chosen)}  ebrl bench {bench.name:<34} {took_s:4.0f} s  {said}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
