"""Charts from small documents, and what is refused before anything is run for one."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from ebrl.bench.chart_style import look_at, look_of
from ebrl.bench.charts import check_picture, draw
from ebrl.bench.documents import bench_of, read_document
from ebrl.bench.mode_studies import with_success
from ebrl.cli.bench_tables import modes_text
from ebrl.cli.main import main
from ebrl.config.modes import NAMES
from ebrl.errors import UsageError

Document = dict[str, Any]


def modes_document(kind: str = "virtual") -> Document:
    rows: list[Document] = [
        {"config": config, "mode": mode, "trajectories_per_s": [place + 1.0, place + 1.2, place + 1.1]}
        for config in ("a-long-name-of-a-configuration", "b")
        for place, mode in enumerate(("colocated", "async", "ebrl"))
    ]
    rows[4] |= {"trajectories_per_s": [], "impossible": "too few GPUs"}
    rows[2] |= {"idle": {"simulation": {"actions": 0.25, "start": 0.01}, "generation": {}, "training": {"data": 0.5}}}
    common = {"ebrl_over_best": 1.5, "ci95": [1.4, 1.6], "ebrl_over_paper": None, "roofline_share": 0.9}
    return {
        "kind": kind,
        "rows": rows,
        "ratios": [
            common | {"config": "a-long-name-of-a-configuration", "best": "async"},
            common | {"config": "b", "best": "colocated"},
        ],
        "geomean_over_best": 1.5,
        "geomean_over_best_ci95": [1.4, 1.6],
        "geomean_over_paper": 1.2,
        "geomean_over_paper_ci95": [1.1, 1.3],
        "repeats": 3,
        "targets": {"geomean_over_best": 2.3},
        "met": {"geomean_over_best": False},
    }


def ablation_document() -> Document:
    gain = {
        "geomean": 1.1,
        "ci95": [1.05, 1.15],
        "range": [0.9, 1.4],
        "by_config": {"a": 0.9, "b": 1.4},
        "by_binding": {"generation": {"geomean": 0.9, "configs": 1}, "training": {"geomean": 1.4, "configs": 1}},
        "binding_becomes": {},
    }
    parts = {
        "GPU sharing": {"removed_from_ebrl": gain, "added_to_async": None, "paper": 0.1},
        "observations": {"removed_from_ebrl": gain, "added_to_async": gain, "paper": None},
    }
    binding = {"a": {"ebrl": "generation"}, "b": {"ebrl": "training"}}
    return {"kind": "virtual", "parts": parts, "binding": binding, "rows": [], "repeats": 5}


def scaling_document() -> Document:
    rows: list[Document] = [
        {"config": f"{n} GPUs", "over": "GPUs", "mode": mode, "num_gpus": n, "num_envs": 8 * n}
        | {"trajectories_per_s": [] if mode == "async" and n == 1 else [0.3 * n]}
        for n in (1, 2, 4)
        for mode in ("async", "ebrl")
    ]
    rows += [
        {"config": f"{n} environments", "over": "environments", "mode": "ebrl", "num_gpus": 4, "num_envs": n}
        | {"trajectories_per_s": [n / 100], "binding": "simulation"}
        for n in (32, 128)
    ]
    return {"kind": "virtual", "base": "openpi", "rows": rows, "efficiency": {"1": 1.0, "4": 1.0}, "repeats": 1}


def staleness_document() -> Document:
    rows = [
        {"config": config, "mode": f"slack {slack}", "slack": slack, "trajectories_per_s": [1.0 + slack / 8]}
        | {"staleness_mean": slack / 2, "staleness_max": slack, "drop_share": 0.0}
        for config in ("first", "second")
        for slack in (0, 1, 4)
    ]
    return {"kind": "virtual", "rows": rows, "repeats": 1}


def convergence_document() -> Document:
    curve = {"at": [0.0, 10.0, 20.0], "median": [0.1, 0.5, None], "low": [0.0, 0.4, 0.8], "high": [0.2, 0.6, 1.0]}
    both = {"seconds": curve, "env_steps": curve}
    rows = [
        {"mode": "ebrl", "slack": slack, "seed": 0, "final_success": 0.9, "ess_mean": 0.8, "seconds_to_90": 20.0}
        for slack in (1, 4)
    ]
    curves = {"colocated": both, "ebrl": both, "ebrl, slack 4": both}
    return {"kind": "emulated", "task": "reach-v3", "level": 0.9, "rows": rows, "curves": curves}


DOCUMENTS = {
    "modes": (modes_document(), ["a-long-name-of-a-configuration", "b", "colocated", "ebrl", "async: not possible"]),
    "ablation": (ablation_document(), ["GPU sharing", "observations", "the paper's figure", "one configuration"]),
    "scaling": (scaling_document(), ["async", "ebrl, ideal", "4", "128"]),
    "staleness": (
        with_success(staleness_document(), convergence_document()),
        ["first", "second", "slack", "final success reach-v3 (median, range of seeds)"],
    ),
    "convergence": (convergence_document(), ["colocated", "ebrl, slack 4", "seconds", "env steps (thousands)"]),
}


@pytest.mark.parametrize("bench", DOCUMENTS)
def test_a_chart_has_its_words_and_says_that_nothing_ran_on_a_gpu(bench: str, tmp_path: Path) -> None:
    document, words = DOCUMENTS[bench]
    assert bench_of(document) == bench
    before = json.dumps(document)
    draw(document, tmp_path / "chart.svg")
    assert json.dumps(document) == before
    svg = (tmp_path / "chart.svg").read_text(encoding="utf-8")
    for word in [*words, "nothing ran on a GPU"]:
        assert f">{word}<" in svg or (word == "nothing ran on a GPU" and word in svg), word
    assert f"{document['kind']}: " in svg
    draw(document, tmp_path / "again.svg")
    assert (tmp_path / "again.svg").read_text(encoding="utf-8") == svg


@pytest.mark.parametrize(("suffix", "start"), [("png", b"\x89PNG\r\n\x1a\n"), ("pdf", b"%PDF-"), ("PNG", b"\x89PNG")])
def test_the_suffix_says_what_the_file_is(suffix: str, start: bytes, tmp_path: Path) -> None:
    draw(modes_document("emulated"), tmp_path / f"chart.{suffix}")
    assert (tmp_path / f"chart.{suffix}").read_bytes().startswith(start)


def test_modes_and_neighbouring_lines_differ_without_colour() -> None:
    assert len({look_of(mode).hatch for mode in NAMES}) == len(NAMES)
    assert len({look_of(mode).marker for mode in NAMES}) == len(NAMES)
    assert len({(look_at(index).marker, look_at(index).colour) for index in range(22)}) == 22
    assert len({look_at(index).marker for index in range(11)}) == 11


def call(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["ebrl", "bench", *arguments])
    with pytest.raises(SystemExit) as end:
        main()
    assert isinstance(end.value.code, int)
    return end.value.code


@pytest.mark.parametrize("bench", ["modes", "ablation", "scaling", "staleness"])
def test_a_plot_that_cannot_be_is_refused_before_anything_runs(
    bench: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert call(monkeypatch, bench, "--plot", "chart.jpg") == 2
    assert "--plot chart.jpg: want a file that ends in .png, .svg or .pdf" in capsys.readouterr().err
    assert call(monkeypatch, bench, "--plot", str(tmp_path / "not there" / "chart.png")) == 2
    assert "there is no folder" in capsys.readouterr().err


@pytest.mark.parametrize("bench", ["modes", "ablation", "scaling", "staleness"])
def test_a_saved_answer_becomes_a_table_and_a_plot(
    bench: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    saved, plot = tmp_path / "saved.json", tmp_path / "chart.png"
    saved.write_text(json.dumps(DOCUMENTS[bench][0]), encoding="utf-8")
    assert call(monkeypatch, bench, "--from", str(saved), "--plot", str(plot)) == 0
    text = capfd.readouterr().out
    assert text.startswith("virtual: ")
    assert f"plot  {plot}" in text
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert call(monkeypatch, bench, "--from", str(saved), "--json") == 0
    assert json.loads(capfd.readouterr().out) == DOCUMENTS[bench][0]
    assert call(monkeypatch, bench, "--from", str(saved), "--quick") == 2
    assert "nothing is run then; leave out --quick" in capfd.readouterr().err


def test_a_table_of_real_processes_has_its_forecasts() -> None:
    assert not any(line.startswith("forecast") for line in modes_text(modes_document()))
    document = modes_document("emulated") | {"max_abs_forecast_error": 0.125, "emulated": {"b": {"gpus": 2}}}
    document["ratios"][0] |= {"ebrl_over_best_forecast": 1.6, "ebrl_over_best_of_emulation": 1.75}
    document["ratios"][1] |= {"ebrl_over_best_forecast": 1.25}
    lines = modes_text(document)
    found = [line.split() for line in lines[lines.index(next(x for x in lines if "emulated times alone" in x)) + 1 :]]
    assert found[0] == ["a-long-name-of-a-configuration", "1.50", "1.60", "1.75"]
    assert found[1] == ["b", "1.50", "1.25", "–"]
    assert found[2] == ["forecast", "12.5%", "from", "the", "measured", "rate", "at", "most"]
    assert "emulated in b: gpus 2" in lines


def test_success_of_convergence_is_laid_beside_staleness(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    saved, learned = tmp_path / "staleness.json", tmp_path / "convergence.json"
    saved.write_text(json.dumps(staleness_document()), encoding="utf-8")
    learned.write_text(json.dumps(convergence_document()), encoding="utf-8")
    assert call(monkeypatch, "staleness", "--from", str(saved), "--success", str(learned), "--json") == 0
    document = json.loads(capfd.readouterr().out)
    assert document["success"]["4"]["median"] == 0.9
    assert call(monkeypatch, "staleness", "--from", str(saved), "--success", str(saved)) == 2
    assert "a document of ebrl bench staleness, want one of ebrl bench convergence" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, "cannot be read (No such file"),
        ("{", "no JSON document"),
        ("[]", "no document of a bench, want one of ebrl bench modes"),
        ('{"rows": []}', "no document of a bench"),
        (json.dumps(scaling_document()), "a document of ebrl bench scaling, want one of ebrl bench modes"),
        ('{"error": {"type": "RunError", "message": "it broke"}}', "a command that failed"),
    ],
)
def test_another_file_is_refused_with_what_was_wanted(text: str | None, says: str, tmp_path: Path) -> None:
    path = tmp_path / "some.json"
    if text is not None:
        path.write_text(text, encoding="utf-8")
    with pytest.raises(UsageError) as refused:
        read_document(path, "modes")
    assert says in str(refused.value)
    assert "ebrl bench modes --json" in str(refused.value)


def test_a_document_without_a_chart_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no chart is known"):
        draw({"rows": [{"env": "libero"}]}, tmp_path / "chart.svg")
    check_picture(tmp_path / "chart.svg")
