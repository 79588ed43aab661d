from __future__ import annotations

import json

import pytest
from calling import call_here

from ebrl.bench import control


def test_bench_control_counts_events_of_each_size_and_quantum(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(control, "SIZES", (control.Size(8, 3, 4), control.Size(16, 6, 8)))
    monkeypatch.setattr(control, "QUICK", (2, 500))
    assert call_here(monkeypatch, "bench", "control", "--quick") == 0
    text = capsys.readouterr().out
    assert "events_per_s_1024" in text
    assert "16/6 whole chunk" in text
    document = control.measure(quick=True)
    json.dumps(document)
    assert [(s["num_shards"], s["quantum"]) for s in document["settings"]] == [
        (8, "one step"),
        (8, "whole chunk"),
        (16, "one step"),
        (16, "whole chunk"),
    ]
    for setting in document["settings"]:
        for figures in (setting["control"], setting["control_wall"], setting["control_and_virtual_engine"]):
            assert 0 < figures["min"] <= figures["median"] <= figures["max"]
    assert document["events_per_s"] == min(s["control"]["median"] for s in document["settings"][:2])
    assert document["events_per_s_1024"] == min(s["control"]["median"] for s in document["settings"][2:])
