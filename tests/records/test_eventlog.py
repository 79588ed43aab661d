from __future__ import annotations

from pathlib import Path

from recorded import ONE_CPU, record_run

from ebrl.records import eventlog
from ebrl.records.eventlog import EventLog, event_file, parts, read_events
from ebrl.records.schema import to_json
from ebrl.scheduling.commands import SetTimer
from ebrl.scheduling.events import StepsDone
from ebrl.testing.build import env_worker_ready, make_plan, steps_done

TIMER = SetTimer(name="tea", after_s=0.1)
FRAME = eventlog._LINES_PER_FRAME


def write(path: Path, num_lines: int) -> bytes:
    """A log of so many lines, closed; returns the file."""
    log = EventLog(path, level="steps")
    for number in range(num_lines):
        log.write(number / 7, env_worker_ready(number), [TIMER])
    log.close()
    return path.read_bytes()


def num_read(path: Path) -> int:
    """Lines that can be read, which must be the first ones."""
    events = [event for _, event, _ in read_events(path)]
    assert events == [env_worker_ready(number) for number in range(len(events))]
    return len(events)


def test_lines_come_back_exactly(tmp_path: Path) -> None:
    write(tmp_path / "log", 2 * FRAME + 3)
    assert list(read_events(tmp_path / "log")) == [
        (number / 7, env_worker_ready(number), [to_json(TIMER)]) for number in range(2 * FRAME + 3)
    ]


def test_a_run_that_was_killed_has_written_its_full_frames(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "log", level="steps")
    for number in range(FRAME + 1):
        log.write(0.0, env_worker_ready(number), [])
    assert num_read(tmp_path / "log") == FRAME
    log.close()
    log.close()
    assert num_read(tmp_path / "log") == FRAME + 1


def test_wherever_a_log_is_cut_off_it_is_read_up_to_the_last_whole_frame(tmp_path: Path) -> None:
    path = tmp_path / "log"
    first = len(write(path, FRAME))
    second = len(write(path, 2 * FRAME))
    whole = write(path, 2 * FRAME + 5)
    for length in (0, 1, first - 1, first, first + 1, first + 20, second - 1, second, second + 9, len(whole)):
        path.write_bytes(whole[:length])
        frames = (length >= first) + (length >= second)
        assert num_read(path) == frames * FRAME + 5 * (length == len(whole)), f"cut off after {length} bytes"


def test_a_damaged_frame_ends_the_log_and_spoils_nothing_before_it(tmp_path: Path) -> None:
    path = tmp_path / "log"
    first = len(write(path, FRAME))
    whole = write(path, 3 * FRAME)
    path.write_bytes(whole[:first] + b"this is no frame" + whole[first:])
    assert num_read(path) == FRAME


def test_the_level_chunks_leaves_grants_inside_chunks_out_and_counts_them(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "log", level="chunks")
    inside, last = steps_done(num_steps=1, chunk_over=False), steps_done(num_steps=1)
    for event in (inside, inside, last, env_worker_ready()):
        log.write(0.0, event, [])
    log.close()
    assert [event for _, event, _ in read_events(tmp_path / "log")] == [last, env_worker_ready()]
    assert log.num_left_out == 2


def test_the_level_chunks_of_a_run_is_all_but_the_grants_inside_chunks(tmp_path: Path) -> None:
    seen = record_run(tmp_path, plan=ONE_CPU, level="chunks")
    wanted = [event for event in seen if not isinstance(event, StepsDone) or event.chunk_over]
    assert [event for _, event, _ in read_events(tmp_path / event_file(""))] == wanted
    assert len(wanted) < len(seen)


def test_without_a_level_nothing_is_written(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "log", level="off")
    log.write(0.0, env_worker_ready(), [])
    log.close()
    assert list(tmp_path.iterdir()) == []


def test_parts_of_a_run_are_in_the_order_in_which_they_ran(tmp_path: Path) -> None:
    for part in ("-000120", "", "-000007"):
        record_run(tmp_path, plan=make_plan(max_updates=1), part=part)
    assert parts(tmp_path) == ["", "-000007", "-000120"]
