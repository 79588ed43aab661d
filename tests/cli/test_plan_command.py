"""``ebrl plan``: what it prints, and what it says where it cannot plan."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from calling import TINY, call_here

from ebrl.cli import main
from ebrl.cli import plan as command
from ebrl.config.load import load_config
from ebrl.plan.workloads import load_workload
from ebrl.profiling.sections import sections_of
from profiles import make_profile

DOCS = Path(__file__).parents[2] / "docs"
ROBOCASA = ["plan", "--hardware", "8xa100", "--profile", "openpi-robocasa"]


@pytest.fixture(autouse=True)
def _in_an_empty_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(main._COMMANDS, "plan", command.plan)
    monkeypatch.chdir(tmp_path)
    Path("run.toml").write_text(TINY)


def test_a_plan_for_people(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert call_here(monkeypatch, *ROBOCASA) == 0
    text = capsys.readouterr().out
    assert text.startswith("openpi-robocasa on 8xa100: ")
    for part in ("allocation: ", "limits, in", "memory\n", "more, with\n", "other ways", "how far to trust it"):
        assert part in text
    assert text.count("◀ binds") == 1
    assert "Not measured here" in text
    assert "is assumed: 8xa100 is a description" in text


def test_a_plan_for_programs(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    assert call_here(monkeypatch, *ROBOCASA, "--json") == 0
    document = json.loads(capfd.readouterr().out)
    assert document["kind"] == "plan"
    assert sum(len(cpus) for cpus in document["cpus"].values()) == 56
    assert document["rivals"][0]["reason"]
    assert min(document["prediction"]["limits"].values()) == document["prediction"]["trajectories_per_s"]


def test_the_list(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert call_here(monkeypatch, "plan", "--list") == 0
    text = capsys.readouterr().out
    assert "8xa100" in text
    assert "dreamzero-behavior" in text


def test_this_machine_is_the_default(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert call_here(monkeypatch, "plan", "--profile", "mlp-metaworld") == 0
    assert "mlp-metaworld on " in capsys.readouterr().out


def test_a_workload_file(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    Path("mine.json").write_text(json.dumps(load_workload("mlp-metaworld").to_json() | {"name": "mine"}))
    assert call_here(monkeypatch, "plan", "--hardware", "2-cpu-laptop", "--profile", "mine.json") == 0
    assert capsys.readouterr().out.startswith("mine on 2-cpu-laptop")


def test_the_impossible_is_an_error_with_numbers(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    arguments = ["plan", "--hardware", "rtx4090", "--profile", "openpi-libero"]
    assert call_here(monkeypatch, *arguments) == 2
    error = capfd.readouterr().err
    assert re.search(r"openpi-libero does not fit rtx4090\. device memory of each GPU: [\d.]+ GiB needed, 21\.5", error)
    assert "instead of 224 environments" in error
    assert call_here(monkeypatch, *arguments, "--json") == 2
    document = json.loads(capfd.readouterr().out)
    assert document["infeasible"]["needed"] > document["infeasible"]["available"]
    assert document["error"]["type"] == "UsageError"


def test_the_profile_of_a_run_is_found_where_ebrl_profile_leaves_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = load_config(Path("run.toml"), [])
    taken = replace(
        make_profile(),
        sections=sections_of(config),
        chunk_len=config.policy.chunk_len,
        batch_trajectories=config.training.batch_trajectories,
        trajectory_chunks=config.training.trajectory_chunks,
    )
    Path("profile.json").write_text(json.dumps(taken.to_json()))
    assert call_here(monkeypatch, "plan", "run.toml", "--hardware", "2-cpu-laptop") == 0
    assert capsys.readouterr().out.startswith("tiny on 2-cpu-laptop")
    assert call_here(monkeypatch, "plan", "run.toml", "--set", "policy.chunk_len=8", "--hardware", "2-cpu-laptop") == 2
    assert "profile again" in capsys.readouterr().err


WRONG = {
    "nothing named": ([], "want RUN.toml, whose profile is read, or --profile NAME"),
    "no profile yet": (
        ["run.toml"],
        "no profile.json here, and nobody knows what run.toml costs; take a profile with ebrl profile run.toml",
    ),
    "unknown workload": (["--profile", "openpi-liber"], "did you mean 'openpi-libero'?"),
    "unknown machine": (["--profile", "mlp-metaworld", "--hardware", "8xa10"], "did you mean '8xa100'?"),
    "a run and a workload": (
        ["run.toml", "--profile", "mlp-metaworld"],
        "mlp-metaworld is a workload, which says itself how many environments there are",
    ),
    "a profile without its run": (["--profile", "other.json"], "other.json is a profile; name the run that it is of"),
    "neither": (["run.toml", "--profile", "other.json"], "other.json is neither a profile nor a workload"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_request_says_what_was_wanted(
    case: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments, message = WRONG[case]
    Path("other.json").write_text("{}")
    assert call_here(monkeypatch, "plan", *arguments) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(("numbers", "text"), [((), ""), ((3,), "3"), ((0, 1, 2), "0-2"), ((0, 2, 3, 9), "0,2-3,9")])
def test_ranges(numbers: tuple[int, ...], text: str) -> None:
    assert command.ranges(numbers) == text


def test_the_page_shows_what_the_command_prints() -> None:
    page = [sys.executable, str(DOCS / "make_plans.py"), "--check"]
    result = subprocess.run(page, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
