"""The comparison with other systems: its arithmetic by hand, its programs on a small environment, its failures."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from drills import until
from ebrl.bench import peer_launch, peers
from ebrl.bench.peer_programs import tasks
from ebrl.bench.peer_programs.run_ebrl import Watcher
from ebrl.bench.peer_programs.tasks import Request, Window
from ebrl.cli import bench_peers
from ebrl.engines.local.fleet import Key
from ebrl.errors import RunError, UsageError
from ebrl.host.leftovers import find_marked, is_running
from ebrl.testing.build import update_done

SOURCE = Path(peers.__file__).parents[2]

SMALL = Request(
    env="gym/Pendulum-v1",
    num_processes=1,
    num_envs=4,
    update_steps=64,
    minibatch_steps=32,
    epochs=1,
    hidden=(8,),
    max_episode_steps=50,
    learn=True,
    warm_up_s=0.1,
    window_s=0.2,
    seed=0,
)

COSTS = {"learning": 8000.0, "collection": 10000.0}


def variant(system: str, *, chunk_len: int = 1, learn: bool = True) -> peers.Variant:
    request = dataclasses.replace(SMALL, chunk_len=chunk_len, learn=learn)
    return peers.Variant(system=system, request=request, program="", python="")


def answer(steps: int) -> dict[str, Any]:
    return {"env_steps": steps, "seconds": 2.0, "cpu_s": 3.0, "machine_cpu_s": 3.5}


def table() -> list[dict[str, Any]]:
    variants = [
        variant("ebrl"),
        variant("ebrl", chunk_len=8),
        variant("sample-factory"),
        variant("stable-baselines3"),
        variant("torchrl"),
        variant("ebrl", learn=False),
        variant("sample-factory", learn=False),
    ]
    runs = [
        [answer(8000), answer(7000), answer(9000)],
        [answer(16000)],
        [answer(4000)],
        [answer(5000)],
        [answer(100), {"failed": "it broke"}],
        [answer(6000)],
        [answer(12000)],
    ]
    return peers.rows_of("metaworld", variants, runs, {1: COSTS, 8: COSTS})


def test_a_row_has_rate_spread_and_share() -> None:
    row = table()[0]
    assert (row["env_steps_per_s"], row["repeats"]) == (4000.0, [4000.0, 3500.0, 4500.0])
    assert (row["share_of_ceiling"], row["cpus_busy"]) == (0.5, 1.5)
    assert (row["cpu_us_per_step"], row["others_cpus"]) == (375.0, [0.25] * 3)


def test_a_peer_that_failed_once_is_a_row_with_its_reason() -> None:
    assert table()[4] == {
        "env": "metaworld",
        "system": "torchrl",
        "chunk_len": 1,
        "kind": "learning",
        "failed": "it broke",
    }


def test_ratios_are_of_the_same_kind_of_run() -> None:
    found = peers.ratios(table())
    assert found["ebrl_over"] == {"sample-factory": 2.0, "stable-baselines3": 1.6}
    assert found["ebrl_over_chunk8"] == {"sample-factory": 4.0, "stable-baselines3": 3.2}
    assert found["ebrl_over_collection"] == {"sample-factory": 0.5}


def test_a_target_is_met_over_both_rivals_or_not_at_all() -> None:
    def verdicts(rows: list[dict[str, Any]]) -> dict[str, bool]:
        return peers.verdicts({"by_env": {"metaworld": peers.ratios(rows)}, "rows": rows})

    rows = table()
    both = {"ebrl_over": True, "ebrl_over_chunk8": True}
    assert verdicts(rows) == both
    neither = dict.fromkeys(both, False)
    assert verdicts([row for row in rows if row["system"] != "sample-factory"]) == neither
    assert verdicts([row for row in rows if row["system"] != "ebrl"]) == neither
    assert verdicts([row for row in rows if row["system"] in ("ebrl", "torchrl")]) == {}
    assert peers.verdicts({"by_env": {"halfcheetah": peers.ratios(rows)}, "rows": []}) == {}


def test_the_window_counts_whole_updates_after_the_warm_up() -> None:
    times = iter([100.0, 102.0, 104.0, 106.0, 108.0, 110.0])
    window = Window(dataclasses.replace(SMALL, warm_up_s=3.0, window_s=5.0), lambda: next(times))
    ended = [window.update_ended(steps) for steps in (10, 20, 30, 40, 50, 60)]
    assert ended == [False, False, False, False, False, True]
    assert (window.steps, window.seconds, window.updates) == (30, 6.0, 3)


def test_the_last_document_is_the_answer_whatever_is_printed_after_it() -> None:
    said = 'noise\nanswer: {"a": 1}\nanswer: {"b": 2}\n{"c": 3}\nanswer: {"d"'
    assert peer_launch.answer_in(said, "x", late=False) == {"b": 2}


def test_no_answer_is_told_with_the_last_words() -> None:
    with pytest.raises(RunError, match="run_sb3 ended without an answer; it said last: ImportError: no"):
        peer_launch.answer_in("one\nImportError: no\n\n", "run_sb3", late=False)


def test_every_program_gets_the_same_request() -> None:
    variants = peers.variants_of("metaworld", list(peers.PEERS), "python", {}, quick=True)
    learning = [one.request for one in variants if one.request.learn]
    same = {dataclasses.replace(one, chunk_len=1, simulator="package") for one in learning}
    assert len(same) == 1
    assert len(learning) == len(peers.CHUNKS) + len(peers.PEERS) + 1


def test_what_is_not_installed_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    found = peers.variants_of("halfcheetah", ["envpool", "torchrl"], "python", {"torchrl": "disk full"}, quick=True)
    problems = {one.system: one.problem for one in found}
    assert problems == {"ebrl": "", "envpool": "not installed; run: ebrl bench peers --install", "torchrl": "disk full"}


@pytest.mark.parametrize("name", list(peers.PEERS))
def test_pins_are_exact_and_have_torch_for_cpus(name: str) -> None:
    packages = peers.PEERS[name].private.packages
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+==\S+", one) for one in packages)
    assert "torch==2.13.0+cpu" in packages


def test_a_name_that_is_not_known_is_refused() -> None:
    with pytest.raises(UsageError, match="--peer rllib: want one of stable-baselines3"):
        peers.chosen(["rllib"], peers.PEERS, "--peer")


def test_a_program_runs_apart_and_answers(tmp_path: Path) -> None:
    (tmp_path / "ebrl").symlink_to(Path(peers.__file__).parents[1])
    found = peer_launch.launch("run_steps", SMALL, sys.executable, tmp_path)
    assert found["env_steps"] > 0
    assert found["cpu_s"] > 0


def test_nothing_counts_before_every_process_is_up() -> None:
    processes = {Key("env", index): SimpleNamespace(pid=os.getpid()) for index in (0, 1)}
    asked: list[str] = []
    fleet = SimpleNamespace(up={Key("env", 0)}, processes=processes)
    engine: Any = SimpleNamespace(fleet=fleet, request_stop=asked.append)
    scheduler: Any = SimpleNamespace(counters=SimpleNamespace(env_steps=64))
    watcher = Watcher(dataclasses.replace(SMALL, warm_up_s=0.0, window_s=0.0), scheduler, engine)
    for _ in range(3):
        watcher.record(0.0, update_done(), [])
    assert (watcher.window.has_begun, asked) == (False, [])
    fleet.up = set(processes)
    watcher.record(0.0, update_done(), [])
    fleet.up = {Key("env", 0)}  # one is lost: the window goes on
    for _ in range(2):
        watcher.record(0.0, update_done(), [])
    assert (watcher.over, asked) == (True, ["measured"])


@pytest.mark.slow
@pytest.mark.parametrize("learn", [True, False])
def test_ebrl_itself_does_what_is_asked_for(tmp_path: Path, learn: bool) -> None:
    request = dataclasses.replace(SMALL, learn=learn)
    found = peer_launch.launch("run_ebrl", request, sys.executable, tmp_path)
    assert found["env_steps"] >= SMALL.update_steps
    assert found["seconds"] >= SMALL.window_s
    assert set(found["cpu_s_by_role"]) == {"env", "generator", "learner", "control"}


def programs_with(directory: Path, **programs: str) -> Path:
    """What ``launch`` imports from, with these programs."""
    mirror(SOURCE / "ebrl", directory / "ebrl", but="bench")
    mirror(SOURCE / "ebrl" / "bench", directory / "ebrl" / "bench", but="peer_programs")
    place = directory / "ebrl" / "bench" / "peer_programs"
    mirror(SOURCE / "ebrl" / "bench" / "peer_programs", place)
    for name, text in programs.items():
        (place / f"{name}.py").write_text(text)
    return directory


def mirror(source: Path, target: Path, *, but: str = "") -> None:
    target.mkdir()
    for path in source.iterdir():
        if path.name not in (but, "__pycache__"):
            (target / path.name).symlink_to(path)


def test_what_is_late_shows_where_it_stands_and_is_killed(tmp_path: Path) -> None:
    path = programs_with(tmp_path, stuck=STUCK.format(said="note: one was lost"))
    with pytest.raises(RunError, match=r"stuck gave no answer in time(.|\n)*note: one was lost(.|\n)*in wait_forever"):
        peer_launch.launch("stuck", SMALL, sys.executable, path, within_s=3.0)
    assert not [one for one in find_marked() if one.owner == os.getpid()]


def test_what_has_answered_and_does_not_leave_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A native library may hang while its process ends."""
    monkeypatch.setattr(peer_launch, "_EXIT_S", 0.2)
    path = programs_with(tmp_path, stays=STUCK.format(said=f'{tasks.ANSWER}{{"a": 1}}'))
    assert peer_launch.launch("stays", SMALL, sys.executable, path) == {"a": 1}
    assert not [one for one in find_marked() if one.owner == os.getpid()]


LAUNCHING = """
import dataclasses, json, sys
from pathlib import Path
from ebrl.bench import peer_launch
from ebrl.bench.peer_programs.tasks import Request
peer_launch.launch("stuck", Request(**json.loads(sys.argv[2])), sys.executable, Path(sys.argv[1]))
"""


def test_a_program_dies_with_the_bench(tmp_path: Path) -> None:
    path = programs_with(tmp_path, stuck=FAMILY)
    command = [sys.executable, "-c", LAUNCHING, str(path), json.dumps(dataclasses.asdict(SMALL))]
    with subprocess.Popen(command, env=os.environ | {"PYTHONPATH": str(SOURCE)}) as bench:

        def programs() -> int:
            return sum(one.owner == bench.pid for one in find_marked())

        try:
            until("the program and its child run", lambda: programs() == 2)
        finally:
            bench.kill()
    until("both are gone", lambda: programs() == 0)


STUCK = """
import signal
def wait_forever():
    print({said!r}, flush=True)
    signal.pause()
wait_forever()
"""

FAMILY = """
import os, signal
from ebrl.bench.peer_programs.tasks import die_with_program, read_request
read_request()
if os.fork() == 0:
    die_with_program()
signal.pause()
"""


LEAVING = """
import multiprocessing, os, subprocess, sys
from multiprocessing import resource_tracker
lock = multiprocessing.get_context("spawn").Lock()
child = f"import signal; signal.signal(signal.SIGTERM, signal.{sys.argv[1]}); print(1, flush=True); signal.pause()"
worker = subprocess.Popen(
    [sys.executable, "-c", child], stdout=subprocess.PIPE, pass_fds=[resource_tracker._resource_tracker._fd]
)
worker.stdout.readline()
print(lock._semlock.name, flush=True)
os._exit(0)
"""


@pytest.mark.parametrize("answer_to_sigterm", ["SIG_DFL", "SIG_IGN"])
def test_nothing_is_left_of_a_program_that_leaves_in_a_hurry(
    monkeypatch: pytest.MonkeyPatch, answer_to_sigterm: str
) -> None:
    """No worker, even one that does not want to go; and no semaphore, unless one does not want to go."""
    monkeypatch.setattr(peer_launch, "_END_S", 1.0)
    command = [sys.executable, "-c", LEAVING, answer_to_sigterm]
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdout is not None
        semaphore = Path("/dev/shm") / f"sem.{process.stdout.readline().decode().strip().lstrip('/')}"
        process.wait(30.0)
        assert semaphore.exists()
        assert is_running(process.pid)
        peer_launch.end_all(process)
        assert not is_running(process.pid)
    if answer_to_sigterm == "SIG_DFL":
        assert not semaphore.exists()
    semaphore.unlink(missing_ok=True)


def test_the_table_says_losses_and_failures() -> None:
    rows = table()
    result = {"rows": rows, "by_env": {"metaworld": peers.ratios(rows)}}
    text = "\n".join(bench_peers._table("metaworld", result))
    assert "failed: it broke" in text
    assert "0.50×" in text
    assert "1.60× / 3.20×" in text
