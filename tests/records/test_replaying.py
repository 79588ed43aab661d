from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from recorded import ONE_CPU, record_run

from ebrl.errors import UsageError
from ebrl.ids import CpuId, PolicyVersion
from ebrl.records import schema
from ebrl.records.eventlog import plan_file
from ebrl.records.replay import replay
from ebrl.scheduling import shards
from ebrl.scheduling.plan import SchedulerPlan
from ebrl.scheduling.staleness import StalenessGate
from ebrl.testing.build import make_plan


def change_plan(run_dir: Path, **changes: Any) -> None:
    path = run_dir / plan_file("")
    document = json.loads(path.read_text())
    document["scheduler"] |= changes
    path.write_text(json.dumps(document))


@pytest.mark.parametrize(
    "plan",
    [
        ONE_CPU,
        make_plan(max_updates=20, slack=0),
        make_plan(num_shards=7, slack=3, window=3, max_updates=9),
        make_plan(num_shards=3, envs_per_shard=2, batch=4, quantum=3, max_updates=9),
        make_plan(num_shards=4, whole_episodes=True, siblings=3, batch=6, max_updates=9),
        make_plan(num_shards=4, nodes=((CpuId(0), CpuId(1)), (CpuId(0), CpuId(1))), cpus_per_shard=2, max_updates=9),
    ],
)
def test_a_recorded_run_replays_without_a_difference(tmp_path: Path, plan: SchedulerPlan) -> None:
    num_events = len(record_run(tmp_path, plan=plan))
    done = replay(tmp_path)
    assert (done.num_events, done.difference) == (num_events, None)
    assert done.num_commands > plan.max_updates


def test_grants_of_whole_chunks_replay_at_the_level_chunks(tmp_path: Path) -> None:
    for quantum in (0, ONE_CPU.chunk_len, 100):
        num_events = len(record_run(tmp_path, plan=make_plan(max_updates=3, quantum=quantum), level="chunks"))
        done = replay(tmp_path)
        assert (done.num_events, done.difference) == (num_events, None)


def test_every_part_of_a_resumed_run_replays(tmp_path: Path) -> None:
    first = record_run(tmp_path, plan=make_plan(max_updates=4))
    second = record_run(
        tmp_path, plan=make_plan(max_updates=8, first_version=PolicyVersion(4), first_episode=3), part="-000004"
    )
    done = replay(tmp_path)
    assert (done.num_events, done.difference) == (len(first) + len(second), None)


def test_a_changed_control_plane_is_found_with_what_led_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = record_run(tmp_path)
    monkeypatch.setattr(shards, "PATIENCE", -8.0)  # the shortest work goes first
    done = replay(tmp_path)
    found = done.difference
    assert found is not None
    assert 1 < found.number == done.num_events < len(seen)
    assert [command["is"] for command in found.recorded] == [command["is"] for command in found.today] == ["StepEnv"]
    assert found.recorded != found.today
    subjects = {found.event["shard"], found.recorded[0]["shard"], found.today[0]["shard"]}
    assert len(subjects) > 1
    assert 0 < len(found.story) <= 12
    assert all(any(f"'shard': {s}" in line or f"'shards': [{s}]" in line for s in subjects) for line in found.story)


def test_a_difference_in_the_second_part_is_found_too(tmp_path: Path) -> None:
    first = record_run(tmp_path, plan=make_plan(max_updates=4))
    record_run(tmp_path, plan=make_plan(max_updates=8, first_version=PolicyVersion(4)), part="-000004")
    path = tmp_path / plan_file("-000004")
    path.write_text(path.read_text().replace('"max_updates": 8', '"max_updates": 7'))
    done = replay(tmp_path)
    assert done.difference is not None
    assert done.difference.event["is"] == "UpdateDone"
    assert done.num_events == len(first) + done.difference.number


def test_an_invariant_that_breaks_today_is_a_difference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record_run(tmp_path)

    def broken(gate: StalenessGate) -> None:
        raise AssertionError("the books do not balance")

    monkeypatch.setattr(StalenessGate, "take_batch", broken)
    found = replay(tmp_path).difference
    assert found is not None
    assert found.today == [{"is": "AssertionError", "says": "the books do not balance"}]


def test_a_run_without_a_log_cannot_be_replayed(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"it has no events\.jsonl\.zst \(records\.level = off\?\)"):
        replay(tmp_path)


def test_a_run_without_its_plan_cannot_be_replayed(tmp_path: Path) -> None:
    record_run(tmp_path)
    (tmp_path / plan_file("")).unlink()
    with pytest.raises(UsageError, match=r"it has no plan\.json"):
        replay(tmp_path)


def test_a_run_whose_grants_were_left_out_cannot_be_replayed(tmp_path: Path) -> None:
    record_run(tmp_path, level="chunks")
    with pytest.raises(UsageError, match=r"record with records\.level = steps"):
        replay(tmp_path)


def test_a_plan_of_another_version_cannot_be_replayed(tmp_path: Path) -> None:
    record_run(tmp_path)
    change_plan(tmp_path, slak=2)
    with pytest.raises(UsageError, match="cannot be replayed by this version of ebrl: plan: unknown field 'slak'"):
        replay(tmp_path)


def test_events_of_another_version_cannot_be_replayed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record_run(tmp_path)
    monkeypatch.delitem(schema._CLASSES, "WeightsLive")
    with pytest.raises(UsageError, match="no event or command is named 'WeightsLive'"):
        replay(tmp_path)


def test_another_plan_is_found_by_its_commands(tmp_path: Path) -> None:
    record_run(tmp_path)
    change_plan(tmp_path, quantum=2)
    found = replay(tmp_path).difference
    assert found is not None
    steps = [
        [command["num_steps"] for command in side if command["is"] == "StepEnv"]
        for side in (found.recorded, found.today)
    ]
    assert steps == [[1], [2]]
