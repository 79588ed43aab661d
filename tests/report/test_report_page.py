"""Pages of real runs: of one, of two, of a forecast and a run, of one that was interrupted, failed, or goes on."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from report_reading import read_page

from drills import DIAL, MLP, PPO
from ebrl.config.load import make_config, to_toml
from ebrl.config.schema import RunConfig
from ebrl.errors import EnvFailure, UsageError
from ebrl.profiling.sections import sections_of
from ebrl.records.writer import read_metrics, write_json
from ebrl.report.page import write_report
from ebrl.runtime.display import Silent
from ebrl.runtime.forecast import forecast
from ebrl.runtime.session import train
from profiles import make_profile


def config_of(directory: Path, **sections: Any) -> RunConfig:
    document: dict[str, Any] = {
        "run": {"directory": str(directory)},
        "env": {"name": DIAL},
        "policy": {"name": "mlp", "chunk_len": 4, "config": MLP},
        "algorithm": {"config": PPO},
        "simulation": {"num_envs": 4},
        "training": {"batch_trajectories": 4, "trajectory_chunks": 4, "max_updates": 25},
        "evaluation": {"episodes": 4},
    }
    for name, section in sections.items():
        document[name] = document.get(name, {}) | section
    return make_config(document)


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of the toy to its end; 1,600 env steps and more."""
    return Path(train(config_of(tmp_path_factory.mktemp("runs")), Silent())["run_dir"])


@pytest.fixture(scope="module")
def forecast_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A forecast of the same, as ``ebrl forecast`` leaves it."""
    directory = tmp_path_factory.mktemp("forecast-of-it")
    config = config_of(directory)
    document = forecast(config, make_profile(sections=sections_of(config)), updates=25, run_dir=directory)
    write_json(directory / "forecast.json", document)
    (directory / "config.toml").write_text(to_toml(config), encoding="utf-8")
    return directory


class StopsItself(Silent):
    """Presses Ctrl-C when the second update is done."""

    def __init__(self) -> None:
        self.pressed = False

    def progress(self, done: float, total: float, facts: Mapping[str, float]) -> None:
        """See ``Display``."""
        if facts.get("policy_version", 0) >= 2 and not self.pressed:
            self.pressed = True
            signal.raise_signal(signal.SIGINT)


def copy_of(run_dir: Path, tmp_path: Path, *, without: tuple[str, ...] = ()) -> Path:
    copy = tmp_path / "copy"
    shutil.copytree(
        run_dir, copy, ignore=shutil.ignore_patterns("checkpoints", "tensorboard", "logs", "report.html", *without)
    )
    return copy


def test_a_run_has_every_section_and_the_figures_of_its_records(run_dir: Path) -> None:
    report = write_report(run_dir)
    assert report.path == run_dir / "report.html"
    page = read_page(report.path)
    assert page.sections == [
        "Overview",
        "Learning",
        "Throughput",
        "Busy and idle",
        "Timeline",
        "Staleness",
        "Allocation",
        "Failures",
        "How it ended",
        "Configuration",
        "Machine",
    ]
    drawn = {figure.title for figure in page.figures if figure.drawings}
    assert drawn == {
        *(f"{what} against {x}" for what in ("Success", "Return") for x in ("env steps", "wall-clock time")),
        "Env steps per second",
        "Trajectories per second",
        "Busy and idle, by reason",
        "Busy over time",
        "Who did what when",
        "Staleness of trained trajectories",
    }
    assert "Not managed" in page.figure("CPUs of each stage").see
    assert (run_dir / "config.toml").read_text() in page.words
    [told] = report.document["runs"]
    summary = json.loads((run_dir / "summary.json").read_text())
    figures = told["figures"]
    assert (told["kind"], told["outcome"], told["missing"]) == ("run", "finished", [])
    for name in ("env_steps", "success_before", "success_after", "staleness_bound", "seconds"):
        assert figures[name] == summary[name]
    assert figures["updates"] == 25
    assert figures["staleness_max"] <= figures["staleness_bound"]
    for stage in ("simulation", "generation", "training"):
        idle = sum(share for name, share in figures.items() if name.startswith(f"idle/{stage}/"))
        assert figures[f"busy/{stage}"] + idle <= 1.0 + 1e-6
    trained = page.table("trajectories")
    assert trained["trained"] == ["100"]
    assert int(trained["admitted"][0]) == sum(int(cell) for name, [cell] in list(trained.items())[2:])
    assert summary["machine"]["kernel"] in page.words


def test_two_runs_have_both_curves_a_ratio_and_what_differs(run_dir: Path, tmp_path: Path) -> None:
    other = copy_of(run_dir, tmp_path)
    config = config_of(tmp_path, run={"seed": 7, "directory": "elsewhere"})
    (other / "config.toml").write_text(to_toml(config), encoding="utf-8")
    document = json.loads((other / "summary.json").read_text())
    write_json(other / "summary.json", document | {"seconds": 2 * document["seconds"]})
    report = write_report(run_dir, other, tmp_path / "both.html")
    page = read_page(tmp_path / "both.html")
    assert page.sections[1] == "Comparison"
    assert page.table("field")["run.seed"] == ["0", "7"]
    assert page.table("figure")["wall-clock seconds of training"][2] == "2.00 ×"
    assert page.table("figure")["updates"] == ["25", "25", "1.00 ×"]
    success = page.figure("Success against env steps").drawings[0]
    assert success.num_shapes == 2 + 4  # two lines, and an evaluation before and after each
    assert {figure.title for figure in page.figures} >= {f"Who did what when: {one.name}" for one in (run_dir, other)}
    ratios = {line["figure"]: line["ratio"] for line in report.document["comparison"]}
    assert ratios["seconds"] == pytest.approx(2.0)
    assert {line["field"] for line in report.document["config_differences"]} == {"run.directory", "run.seed"}
    assert not (other / "report.html").exists()


def test_a_forecast_is_laid_beside_the_run(run_dir: Path, forecast_dir: Path, tmp_path: Path) -> None:
    report = write_report(forecast_dir, run_dir, tmp_path / "page.html")
    page = read_page(tmp_path / "page.html")
    assert [one["kind"] for one in report.document["runs"]] == ["forecast", "run"]
    assert report.document["runs"][0]["missing"] == []
    line = page.table("figure")["trajectories/s, first update to last"]
    assert all(float(cell.split()[0].replace(",", "")) > 0 for cell in line)
    assert page.table("figure")["success after training"][0] == "–"
    speeds = page.figure("Env steps per second").drawings[0]
    assert speeds.num_shapes == 2
    assert "Limits" in page.sections


def test_a_forecast_alone_says_that_it_knows_nothing_of_learning(forecast_dir: Path) -> None:
    report = write_report(forecast_dir)
    page = read_page(report.path)
    assert "not what it learns" in page.figure("Learning curve").see
    known = json.loads((forecast_dir / "forecast.json").read_text())
    [told] = report.document["runs"]
    assert told["figures"]["trajectories_per_s"] == pytest.approx(known["trajectories_per_s"])
    assert told["figures"]["busy/training"] == pytest.approx(known["busy"]["training"])


def test_a_run_and_itself_are_told_apart(run_dir: Path, tmp_path: Path) -> None:
    write_report(run_dir, run_dir, tmp_path / "page.html")
    page = read_page(tmp_path / "page.html")
    assert f"{run_dir.name} (1)" in page.words
    assert "No field differs." in page.words


def test_an_interrupted_run_says_so(tmp_path: Path) -> None:
    config = config_of(tmp_path, env={"config": {"step_s": 0.02}}, training={"max_updates": 10_000})
    summary = train(config, StopsItself())
    assert summary["outcome"] == "interrupted"
    page = read_page(write_report(Path(summary["run_dir"])).path)
    assert "interrupted" in page.words
    assert "was not evaluated at both ends" in page.figure("Success against env steps").see


def test_a_failed_run_shows_its_error(tmp_path: Path) -> None:
    config = config_of(
        tmp_path, env={"config": {"fail_at_step": 1}}, failures={"max_env_failures": 0}, evaluation={"episodes": 0}
    )
    with pytest.raises(EnvFailure):
        train(config, Silent())
    report = write_report((tmp_path / "latest").resolve())
    page = read_page(report.path)
    assert "was told to fail here" in page.words
    assert page.table("what")["environment: raised"] == ["1"]
    assert any("no update was finished" in line for line in report.document["runs"][0]["missing"])


def test_a_run_that_goes_on_says_what_is_not_written_yet(run_dir: Path, tmp_path: Path) -> None:
    copy = copy_of(run_dir, tmp_path, without=("summary.json",))
    log = copy / "events.jsonl.zst"
    log.write_bytes(log.read_bytes()[:-10])  # of the last frame, which is being written
    report = write_report(copy)
    [line] = report.document["runs"][0]["missing"]
    assert line in read_page(report.path).words
    assert "still going on" in line


@pytest.mark.parametrize("gone", ["events*", "plan.json", "metrics.jsonl", "config.toml"])
def test_whatever_is_gone_is_named(run_dir: Path, tmp_path: Path, gone: str) -> None:
    copy = copy_of(run_dir, tmp_path, without=(gone,))
    report = write_report(copy)
    page = read_page(report.path)
    missing = " ".join(report.document["runs"][0]["missing"])
    assert {"events*": "no event log"}.get(gone, gone) in missing
    assert missing.split(". ")[0] in page.words
    if gone in ("events*", "plan.json"):
        assert "absent" in page.figure("Who did what when").classes
        assert page.figure("Busy and idle, by reason").drawings


@pytest.mark.parametrize("name", ["summary.json", "plan.json", "metrics.jsonl", "config.toml", "events.jsonl.zst"])
@pytest.mark.parametrize("content", [b"", b"[1, 2", b'{"ledger": 3, "scheduler": []}\n', b"[]\n", b"\xff\xfe\x00"])
def test_a_damaged_file_makes_no_page_impossible(run_dir: Path, tmp_path: Path, name: str, content: bytes) -> None:
    copy = copy_of(run_dir, tmp_path)
    (copy / name).write_bytes(content)
    read_page(write_report(copy).path)


def test_damaged_events_leave_what_came_before(run_dir: Path, tmp_path: Path) -> None:
    import zstandard

    copy = copy_of(run_dir, tmp_path)
    log = copy / "events.jsonl.zst"
    wrong = b'{"now": 1e9, "event": {"is": "NeverHeardOf"}, "commands": []}\n'
    log.write_bytes(log.read_bytes() + zstandard.ZstdCompressor().compress(wrong))
    report = write_report(copy)
    [line] = report.document["runs"][0]["missing"]
    assert "NeverHeardOf" in line
    assert report.document["runs"][0]["figures"]["busy/training"] > 0


def test_names_from_outside_are_text_and_never_markup(run_dir: Path, tmp_path: Path) -> None:
    hostile = "</script><script>alert(1)</script>\"'><img src=x onerror=alert(1)>&amp;"
    copy = copy_of(run_dir, tmp_path).rename(tmp_path / "<b onclick=x>&\"'")
    summary = json.loads((copy / "summary.json").read_text())
    summary |= {"env": hostile, "policy": hostile, "outcome": hostile, "reason": hostile, "error": hostile}
    summary |= {"env_failures": {hostile: 2}, "restarts": {hostile: 1}, "machine": {hostile: hostile}}
    summary["ledger"]["dropped"] = {hostile: 1}
    write_json(copy / "summary.json", summary)
    config = config_of(tmp_path, run={"name": "x"}, env={"config": {"fail_at_step": 3}})
    text = to_toml(config).replace('name = "x"', f"name = {json.dumps(hostile)}")
    (copy / "config.toml").write_text(text, encoding="utf-8")
    for other in (None, run_dir):
        page = read_page(write_report(copy, other, tmp_path / "page.html").path)
        assert page.words.count(hostile) >= 8
        assert copy.name in page.words
        assert "<script>alert" not in (tmp_path / "page.html").read_text()


def test_no_number_is_shown_that_is_none(run_dir: Path, tmp_path: Path) -> None:
    copy = copy_of(run_dir, tmp_path)
    rows = read_metrics(copy)
    rows[3]["rollout/return_mean"] = float("nan")
    rows[4]["training/trajectories_per_s"] = float("inf")
    (copy / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    text = write_report(copy).path.read_text().lower()
    assert "nan" not in text.replace("finance", "")
    assert "inf " not in text


def test_what_is_no_run_is_refused(tmp_path: Path, run_dir: Path) -> None:
    with pytest.raises(UsageError, match="neither a run nor a forecast"):
        write_report(tmp_path)
    with pytest.raises(UsageError, match="not a directory"):
        write_report(tmp_path / "nowhere")
    with pytest.raises(UsageError, match=r"cannot be written \(No such file or directory\)"):
        write_report(run_dir, output=tmp_path / "nowhere" / "page.html")
