"""Private environments: complete or not there at all, whatever happens on the way. No network is used."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
import sys
import threading
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pip
import pytest

from ebrl.errors import EbrlError, RunError, UsageError
from ebrl.host.installing import _tidy, install
from ebrl.host.simulators import Simulator, SystemLibrary, directory, half_made, installed, lock_of

TINY = Simulator(
    name="tiny",
    covers=("tiny/*",),
    packages=("tinysim==1.0",),
    module="tinysim",
    smoke="import tinysim; assert tinysim.step() == 1",
    disk_mb=30,
    licence="none",
    pythons=(sys.version_info[:2],),
)

SLOW = "import tinysim, time\nprint('begun', flush=True)\ntime.sleep(120)"

HERE = """
import dataclasses, sys
from test_installing import TINY, SLOW, install
install(dataclasses.replace(TINY, smoke=SLOW), python=sys.argv[1], report=lambda text: print(text, flush=True))
"""

QUICK = f"""#!/bin/sh
test "$2" = venv || exec {sys.executable} "$@"
{sys.executable} -m venv --without-pip "$3"
cd "$3"/lib/python*/site-packages && ln -s {Path(pip.__file__).parent} pip
"""
"""An interpreter that lends its environments the pip of this one, since installing pip takes seconds."""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache directory, and a registry with one package."""
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    info = "tinysim-1.0.dist-info"
    with zipfile.ZipFile(wheels / "tinysim-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("tinysim.py", "def step():\n    return 1\n")
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tinysim\nVersion: 1.0\n")
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/RECORD", "")
    for name, value in {
        "XDG_CACHE_HOME": tmp_path / "cache",
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": wheels,
    }.items():
        monkeypatch.setenv(name, str(value))
    (tmp_path / "python").write_text(QUICK)
    (tmp_path / "python").chmod(0o755)
    return tmp_path / "cache"


def quick() -> str:
    """The interpreter to make environments from."""
    return str(Path(os.environ["XDG_CACHE_HOME"]).with_name("python"))


def left() -> list[str]:
    """What lies where private environments are, without locks."""
    return sorted(path.name for path in directory().iterdir() if not path.name.endswith(".lock"))


def make(simulator: Simulator = TINY, **options: Any) -> Any:
    settings: dict[str, Any] = {"python": quick(), "report": lambda text: None} | options
    return install(simulator, **settings)


def fails(simulator: Simulator = TINY, **options: Any) -> str:
    with pytest.raises(EbrlError) as caught:
        make(simulator, **options)
    return str(caught.value)


def test_a_simulator_is_installed_once_and_stays_where_it_was_made() -> None:
    said: list[str] = []
    found, new = install(TINY, report=said.append)
    assert new
    assert said[0].startswith("tiny: making a virtual environment with Python ")
    told = [text for text in said if " s, " not in text]  # how it goes, every ten seconds
    assert told[1:] == ["tiny: fetching 1 packages", "tiny: trying it"]
    assert left() == [TINY.tag]
    assert installed(TINY) == found
    assert found.notes == ()
    assert 5 < found.megabytes < 100
    code = "import sys, tinysim; print(sys.prefix, tinysim.step())"
    result = subprocess.run([found.python, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout == f"{found.path} 1\n"
    assert make() == (found, False)
    Path(found.path, "mark").touch()
    renewed, new = make(force=True, python=None)
    assert new
    assert renewed.path == found.path
    assert not Path(found.path, "mark").exists()
    assert left() == [TINY.tag]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"packages": ("nosuchsim==2.0",)},
            "fetching 1 packages: nosuchsim==2.0 is not to be had for this machine and interpreter; ",
        ),
        ({"smoke": "import tinysim; raise ValueError('no table')"}, "trying it: ValueError: no table; the log is "),
        (
            {"smoke": "raise ImportError('libX.so.6: cannot open shared object file: No such file')"},
            "trying it: the system library libX.so.6 is missing; ",
        ),
        ({"smoke": "input('download? [y/n] ')"}, "trying it: EOFError: EOF when reading a line; "),
        ({"smoke": "import os; os.abort()"}, "trying it: exit code -6; "),
        ({"smoke": "raise OSError(28, 'No space left on device')"}, "trying it: the disk is full; free some space"),
    ],
    ids=["package", "exception", "library", "question", "crash", "disk"],
)
def test_a_failure_names_its_cause_and_leaves_a_log_only(change: dict[str, Any], words: str) -> None:
    simulator = replace(TINY, **change)
    message = fails(simulator)
    assert message.startswith(f"tiny is not installed: {words}")
    assert message.endswith(f"the log is {directory() / 'tiny.log'}")
    assert left() == ["tiny.log"]
    assert installed(simulator) is None


def test_what_was_there_stays_if_its_successor_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    found, _ = make()
    monkeypatch.delenv("PIP_FIND_LINKS")
    assert "tinysim==1.0 is not to be had" in fails(force=True)
    assert installed(TINY) == found
    assert left() == [TINY.tag, "tiny.log"]


def test_a_package_of_another_registry_is_asked_for_there_only_if_the_usual_one_has_none() -> None:
    said: list[str] = []
    with pytest.raises(RunError, match=r"nosuchsim==2\.0 is not to be had"):
        make(
            replace(
                TINY,
                packages=("tinysim==1.0", "nosuchsim==2.0"),
                indexes=(("tinysim", "http://one"), ("nosuchsim", "http://two")),
            ),
            report=said.append,
        )
    assert said[1:] == [
        "tiny: fetching tinysim==1.0",
        "tiny: fetching nosuchsim==2.0",
        "tiny: fetching nosuchsim==2.0 from http://two",
    ]


@pytest.mark.parametrize(
    ("change", "options", "words"),
    [
        ({"pythons": ((3, 3), (3, 4))}, {"python": None}, "tiny wants Python 3.3 or 3.4: "),
        (
            {},
            {"python": "/no/python"},
            "tiny wants Python 3.11: /no/python is none that runs; name another with --python",
        ),
        (
            {"system": (SystemLibrary("libnothing.so.1", "libnothing1", required=True),)},
            {},
            "tiny needs the system library libnothing.so.1; run: apt-get install --no-install-recommends libnothing1",
        ),
        ({"disk_mb": 10**9}, {}, "tiny needs 1,500,000,000 MB in "),
    ],
    ids=["version", "interpreter", "library", "room"],
)
def test_what_cannot_work_is_refused_before_anything_is_made(
    change: dict[str, Any], options: dict[str, Any], words: str
) -> None:
    assert fails(replace(TINY, **change), **options).startswith(words)
    assert left() == []


def test_a_library_that_only_cameras_need_is_a_note() -> None:
    found, _ = make(replace(TINY, system=(SystemLibrary("libnothing.so.1", "libnothing1"),)))
    assert found.notes == ("cameras need libnothing.so.1; run: apt-get install --no-install-recommends libnothing1",)


def test_a_cache_that_cannot_be_written_to_is_named(cache: Path) -> None:
    cache.write_text("a file")
    with pytest.raises(UsageError, match=r"envs cannot be written to .*; set XDG_CACHE_HOME to a directory that can"):
        make()


def test_a_python_that_cannot_make_environments_says_what_to_do(tmp_path: Path) -> None:
    python = tmp_path / "lacking"
    python.write_text(f"""#!/bin/sh
if [ "$1" = -c ]; then exec {sys.executable} "$@"; fi
echo "The virtual environment was not created successfully because ensurepip is not available."
exit 1
""")
    python.chmod(0o755)
    assert "this Python cannot make virtual environments; run: apt-get install python3-venv" in fails(
        python=str(python)
    )


def test_a_deadline_ends_it() -> None:
    message = fails(within_s=0.05)
    assert "it was not done in time; a slow network wants more --deadline-minutes" in message
    assert left() == ["tiny.log"]


def killed_while_trying(number: signal.Signals) -> None:
    """Start an installation in a process of its own, and end that once the simulator is being tried."""
    process = subprocess.Popen(
        [sys.executable, "-c", HERE, quick()], stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parent
    )
    assert process.stdout is not None
    with process.stdout as said:
        assert "tiny: trying it\n" in iter(said.readline, "")
        assert half_made(min_age_s=0) == []  # it goes on
        process.send_signal(number)
        process.wait(10)
    with lock_of(directory() / TINY.tag).open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # its children have ended too


def test_an_interrupt_leaves_nothing_but_the_log() -> None:
    killed_while_trying(signal.SIGINT)
    assert left() == ["tiny.log"]


def test_what_a_killed_one_leaves_is_never_taken_and_is_removed_by_the_next() -> None:
    killed_while_trying(signal.SIGKILL)
    assert installed(TINY) is None
    assert half_made(min_age_s=3600) == []
    assert half_made(min_age_s=0) == [directory() / TINY.tag]
    assert make()[1]
    assert left() == [TINY.tag]


def test_the_rest_of_what_was_replaced_does_not_cost_its_successor() -> None:
    """Killed while it removed the old one, whose successor was whole by then."""
    found, _ = make()
    rest = directory() / f"{TINY.tag}.old"
    (rest / "bin").mkdir(parents=True)
    _tidy(directory() / TINY.tag)
    assert installed(TINY) == found
    assert left() == [TINY.tag]


def test_a_second_one_waits_for_the_first_and_has_nothing_left_to_do() -> None:
    said: list[str] = []
    results: list[Any] = []
    begun, go_on = threading.Event(), threading.Event()

    def report(text: str) -> None:
        begun.set()
        go_on.wait(60)

    def report_waiting(text: str) -> None:
        said.append(text)
        go_on.set()

    first = threading.Thread(target=lambda: results.append(make(report=report)))
    first.start()
    assert begun.wait(60)
    second = make(report=report_waiting)
    first.join(60)
    assert said == [f"tiny: waiting for process {os.getpid()}, which is installing it"]
    assert [results[0][1], second[1]] == [True, False]
    assert second[0] == results[0][0]


def test_without_locks_installing_goes_on_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(file: Any, kind: int) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    said: list[str] = []
    assert make(report=said.append)[1]
    assert any("cannot be locked (Function not implemented); let only one process install it" in text for text in said)
    unfinished = directory() / "tiny-0000000000"
    unfinished.mkdir()
    assert half_made(min_age_s=0) == []  # nobody can tell
