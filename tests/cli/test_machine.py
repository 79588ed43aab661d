"""Commands about the machine and what is installed on it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from calling import call

from ebrl.host import doctor
from ebrl.host.leftovers import OWNER_VARIABLE, Marked, find_marked, find_unfinished

SLEEPER = [sys.executable, "-c", "import time; time.sleep(120)"]


@pytest.mark.parametrize(
    ("what", "some"),
    [("envs", "toy/reach-v1"), ("policies", "mlp"), ("algorithms", "ppo"), ("devices", "cpu")],
)
def test_list_names_and_describes(what: str, some: str, tmp_path: Path) -> None:
    document = call("list", what, "--json", cwd=tmp_path).document
    entry = next(entry for entry in document[what] if entry["name"] == some)
    assert entry["available"]
    assert len(entry["description"]) > 2


def test_list_envs_knows_all_tasks_of_metaworld(tmp_path: Path) -> None:
    document = call("list", "envs", "--json", cwd=tmp_path).document
    tasks = next(entry["tasks"] for entry in document["envs"] if entry["name"] == "metaworld/*")
    assert len(tasks) == 50
    assert "metaworld/drawer-open-v3" in tasks


def test_check_env_passes_a_good_one(tmp_path: Path) -> None:
    result = call("check", "env", "toy/reach-v1", "--set", "config.image_size=16", "--json", cwd=tmp_path)
    document = result.document
    assert (result.code, document["passed"]) == (0, True)
    assert next(c for c in document["checks"] if c["name"] == "spec")["detail"].count("image [16, 16, 3] uint8") == 1


def test_check_env_exits_1_for_a_bad_one(tmp_path: Path) -> None:
    result = call("check", "env", "toy/dial-v1", "--set", "config.fail_at_step=1", cwd=tmp_path)
    assert result.code == 1
    assert "FAILED" in result.out
    assert "breaks the contract" in result.out


def test_doctor_says_something_about_everything(tmp_path: Path) -> None:
    result = call("doctor", "--json", cwd=tmp_path)
    document = result.document
    assert (result.code, document["usable"]) == (0, True)
    names = [finding["name"] for finding in document["findings"]]
    for name in ("cpus", "memory", "disk", "shared memory", "python", "packages", "gpu", "rendering", "orphans"):
        assert name in names
    assert {finding["status"] for finding in document["findings"]} <= {"ok", "missing", "note"}


def test_doctor_says_which_system_library_is_missing(tmp_path: Path) -> None:
    pytest.importorskip("mujoco")
    document = call("doctor", "--json", cwd=tmp_path, MUJOCO_GL="glfw").document
    finding = next(finding for finding in document["findings"] if finding["name"] == "rendering")
    assert finding["status"] == "missing"
    assert "MUJOCO_GL = 'glfw'" in finding["text"]


def test_doctor_survives_a_strange_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def broken(code: str) -> list[str]:
        raise OSError("no more processes")

    monkeypatch.setattr(doctor, "_probe", broken)
    findings = {finding.name: finding for finding in doctor.examine(tmp_path)}
    assert findings["torch"].text == "could not be looked at: OSError: no more processes"
    assert findings["python"].status == "ok"


def test_clean_kills_an_orphan_and_nobody_else(tmp_path: Path) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    orphan = subprocess.Popen(SLEEPER, env=os.environ | {OWNER_VARIABLE: str(gone.pid)})
    ours = subprocess.Popen(SLEEPER, env=os.environ | {OWNER_VARIABLE: str(os.getpid())})
    try:
        _until_marked({orphan.pid, ours.pid})
        options = ("clean", "--owner", str(gone.pid), "--json")
        dry = call(*options, "--dry-run", cwd=tmp_path).document
        assert ([o["pid"] for o in dry["orphans"]], orphan.poll()) == ([orphan.pid], None)
        done = call(*options, cwd=tmp_path).document
        assert [o["pid"] for o in done["orphans"]] == [orphan.pid]
        assert orphan.wait(10) == -9
        assert ours.poll() is None
    finally:
        for process in (orphan, ours):
            process.kill()
            process.wait()


def test_clean_removes_what_was_never_finished(tmp_path: Path) -> None:
    run_dir = tmp_path / "runs" / "run-1"
    half = run_dir / "checkpoints" / ".update-000003"
    whole = run_dir / "checkpoints" / "update-000002"
    young = run_dir / "checkpoints" / ".update-000004"
    for directory in (half, whole, young):
        directory.mkdir(parents=True)
    files = [run_dir / name for name in (".summary.json.77", ".plan.json.77", ".plan-000003.json.77")]
    files += [run_dir / ".demonstrations.npz.77.part", run_dir / ".config.toml.77"]
    kept = [run_dir / name for name in ("summary.json", "plan.json", "demonstrations.npz", "config.toml")]
    link = tmp_path / "runs" / ".latest-77"
    for path in (*files, *kept):
        path.write_text("{")
    link.symlink_to("run-1")
    (tmp_path / "runs" / "latest").symlink_to("run-1")
    past = time.time() - 600
    for path in (half, *files, *kept, link):
        os.utime(path, (past, past), follow_symlinks=False)
    document = call("clean", "--owner", "0", "--json", cwd=tmp_path, XDG_CACHE_HOME=str(tmp_path)).document
    assert document["unfinished"] == sorted(map(str, (half, *files, link)))
    assert [path.exists() for path in (half, whole, young)] == [False, True, True]
    assert [path.exists() for path in (*files, *kept)] == [False] * 5 + [True] * 4
    assert not link.is_symlink()


def test_files_of_a_run_that_goes_on_are_left_alone(tmp_path: Path) -> None:
    half = tmp_path / "run-1" / "checkpoints" / ".update-000003"
    half.mkdir(parents=True)
    output = str(tmp_path / "run-1" / "logs" / "learner.log")
    learner = Marked(pid=1, owner=1, command="", output=output, orphaned=False)
    assert find_unfinished(tmp_path, [learner], min_age_s=-10) == []
    assert find_unfinished(tmp_path, [], min_age_s=-10) == [half]


def _until_marked(pids: set[int]) -> None:
    """Until both show their own command line, which they do once they have started."""
    end = time.monotonic() + 20
    while not pids <= {process.pid for process in find_marked()}:
        assert time.monotonic() < end, "the processes did not start"
        time.sleep(0.01)
