"""Simulators on the command line: what is installed, what is not, and what to do about it. No network is used."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest
from calling import Result, call

from bare_python import bare_python
from ebrl.host.simulators import Installed, directory, installed, simulator_named, simulators, write_complete


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"XDG_CACHE_HOME": str(tmp_path), "PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)


def put(name: str) -> Installed:
    """A private environment as ``ebrl install`` leaves it."""
    path = directory() / simulator_named(name).tag
    python = path / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.symlink_to(sys.executable)
    found = Installed(
        simulator=name,
        path=str(path),
        python=str(python),
        version="3.11.7",
        megabytes=1279,
        seconds=41.5,
        notes=("cameras need libEGL.so.1",),
    )
    write_complete(found)
    return found


def refused(result: Result) -> str:
    assert (result.code, result.out) == (2, "")
    return result.err


def test_list_shows_what_can_be_installed_and_what_is(tmp_path: Path) -> None:
    found = put("robosuite")
    document = call("install", "--list", "--json", cwd=tmp_path).document
    assert document["directory"] == str(directory())
    assert [entry["name"] for entry in document["simulators"]] == list(simulators())
    there = {entry["name"]: entry["installed"] for entry in document["simulators"] if entry["installed"]}
    assert {name: (facts["path"], facts["megabytes"]) for name, facts in there.items()} == {
        "robosuite": (found.path, 1279)
    }
    text = call("install", "--list", cwd=tmp_path).out
    assert f"robosuite           1,279 MB in {found.path}\n" in text
    assert "note: cameras need libEGL.so.1\n" in text
    assert "libero              not installed; 2,140 MB\n" in text


def test_what_is_there_is_not_installed_again(tmp_path: Path) -> None:
    found = put("robosuite")
    result = call("install", "robosuite", "--json", cwd=tmp_path)
    assert result.code == 0
    assert {key: result.document[key] for key in ("simulator", "new", "path", "python", "megabytes")} == {
        "simulator": "robosuite",
        "new": False,
        "path": found.path,
        "python": found.python,
        "megabytes": 1279,
    }


def test_a_failed_installation_exits_1_and_says_what_and_where(tmp_path: Path) -> None:
    result = call("install", "gym-pusht", "--json", cwd=tmp_path)
    message = result.document["error"]["message"]
    assert result.code == 1
    assert message.startswith("gym-pusht is not installed: fetching 12 packages: cffi==2.1.1 is not to be had")
    assert installed(simulator_named("gym-pusht")) is None
    assert [path.name for path in directory().glob("gym-pusht*")] == ["gym-pusht.log"]


def test_a_wrong_request_is_refused(tmp_path: Path) -> None:
    assert "nothing to install: name one of libero, maniskill, " in refused(call("install", cwd=tmp_path))
    assert "no simulator named 'libreo'; did you mean 'libero'?" in refused(call("install", "libreo", cwd=tmp_path))


def test_an_environment_whose_simulator_is_nowhere_cannot_be_checked(tmp_path: Path) -> None:
    message = refused(call("check", "env", "libero/libero_spatial/0", cwd=tmp_path))
    assert "environment 'libero/libero_spatial/0' is not installed; run: ebrl install libero\n" in message


def test_an_environment_is_checked_under_the_interpreter_that_was_named(tmp_path: Path) -> None:
    python = bare_python(tmp_path / "bare")
    result = call("check", "env", "toy/dial-v1", "--python", python, "--json", cwd=tmp_path)
    assert (result.code, result.document["passed"], result.document["python"]) == (0, True, python)


def test_list_envs_names_the_interpreter(tmp_path: Path) -> None:
    found = put("metaworld")
    entries = {entry["name"]: entry for entry in call("list", "envs", "--json", cwd=tmp_path).document["envs"]}
    assert entries["metaworld/*"]["python"] == found.python
    assert entries["toy/reach-v1"]["python"] == sys.executable


def test_clean_removes_what_a_killed_installation_left(tmp_path: Path) -> None:
    found = put("robosuite")
    half = directory() / simulator_named("libero").tag
    half.mkdir()
    options = ("clean", "--owner", "0", "--json")
    assert call(*options, cwd=tmp_path).document["unfinished"] == []  # it is too young
    past = time.time() - 600
    os.utime(half, (past, past))
    assert call(*options, cwd=tmp_path).document["unfinished"] == [str(half)]
    assert not half.exists()
    assert Path(found.python).exists()
