"""Which interpreter an environment runs under, and what is refused before anything starts."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from bare_python import bare_python
from ebrl.errors import ConfigError, UnknownPlugin, UsageError
from ebrl.host.interpreters import command, environment
from ebrl.host.simulators import Installed, installed, python_for, simulator_named, simulator_of, simulators
from ebrl.host.simulators import write_complete as declare


@pytest.fixture(autouse=True)
def nothing_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def put(tmp_path: Path, name: str, *, tag: str = "") -> Installed:
    """A private environment as ``ebrl install`` leaves it."""
    path = tmp_path / "cache" / "ebrl" / "envs" / (tag or simulator_named(name).tag)
    python = path / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.symlink_to(sys.executable)
    found = Installed(
        simulator=name, path=str(path), python=str(python), version="3.11.7", megabytes=3, seconds=1.5, notes=("a",)
    )
    declare(found)
    return found


@pytest.mark.parametrize(
    ("env", "simulator"),
    [
        ("libero/libero_spatial/0", "libero"),
        ("libero/libero_10", "libero"),
        ("maniskill/PickCube-v1", "maniskill"),
        ("robosuite/Lift", "robosuite"),
        ("metaworld/reach-v3", "metaworld"),
        ("gym/FetchPush-v4", "gymnasium-robotics"),
        ("gym/gym_pusht/PushT-v0", "gym-pusht"),
        ("gym/CartPole-v1", None),
        ("toy/reach-v1", None),
        ("libero.of.mine:Env", None),
    ],
)
def test_the_name_of_an_environment_tells_its_simulator(env: str, simulator: str | None) -> None:
    found = simulator_of(env)
    assert (found.name if found else None) == simulator


@pytest.mark.parametrize("name", simulators())
def test_every_package_is_pinned(name: str) -> None:
    simulator = simulator_named(name)
    names = [package.partition("==")[0] for package in simulator.packages]
    assert all(package.count("==") == 1 for package in simulator.packages)
    assert len({one.lower() for one in names}) == len(names)
    assert {one for one, _ in simulator.indexes} | set(simulator.from_source) <= set(names)
    compile(simulator.smoke, name, "exec")


def test_an_unknown_simulator_gets_the_nearest() -> None:
    with pytest.raises(UnknownPlugin, match="no simulator named 'libreo'; did you mean 'libero'"):
        simulator_named("libreo")


def test_an_environment_without_a_simulator_runs_here() -> None:
    assert python_for("toy/reach-v1") == sys.executable


def test_a_simulator_that_is_nowhere_says_how_to_get_it() -> None:
    with pytest.raises(UsageError) as caught:
        python_for("libero/libero_spatial/0")
    assert str(caught.value) == "environment 'libero/libero_spatial/0' is not installed; run: ebrl install libero"


def test_a_simulator_that_is_here_runs_here_until_it_has_an_environment_of_its_own(tmp_path: Path) -> None:
    assert python_for("metaworld/reach-v3") == sys.executable
    private = put(tmp_path, "metaworld")
    assert python_for("metaworld/reach-v3") == private.python


def test_a_private_environment_is_found_with_all_that_is_known_of_it(tmp_path: Path) -> None:
    assert installed(simulator_named("libero")) is None
    assert put(tmp_path, "libero") == installed(simulator_named("libero"))


def test_one_with_other_packages_or_without_its_interpreter_is_not_taken(tmp_path: Path) -> None:
    libero = simulator_named("libero")
    put(tmp_path, "libero", tag=replace(libero, packages=("libero==0",)).tag)
    assert installed(libero) is None
    Path(put(tmp_path, "libero").python).unlink()
    assert installed(libero) is None


def test_the_interpreter_that_was_named_comes_first(tmp_path: Path) -> None:
    put(tmp_path, "libero")
    python = bare_python(tmp_path / "mine")
    assert python_for("libero/libero_spatial/0", python) == python


def script(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("echo 3 9", "it is Python 3.9; want 3.10 or newer"),
        ("echo hello", "want a Python interpreter; this did not run as one"),
        ("exit 1", "want a Python interpreter; this did not run as one"),
    ],
)
def test_an_interpreter_that_cannot_run_env_workers_is_refused(tmp_path: Path, text: str, problem: str) -> None:
    python = script(tmp_path / "python", text)
    with pytest.raises(ConfigError) as caught:
        python_for("toy/reach-v1", python)
    assert str(caught.value) == f"env.python: = {python!r}: {problem}"


def test_an_interpreter_that_is_not_there_is_refused() -> None:
    with pytest.raises(ConfigError) as caught:
        python_for("toy/reach-v1", "/no/python", field="--python")
    wanted = "want the path of a Python interpreter; there is no such program"
    assert str(caught.value) == f"--python: = '/no/python': {wanted}"


def test_an_interpreter_without_numpy_is_refused_with_what_to_do(tmp_path: Path) -> None:
    python = bare_python(tmp_path / "bare", with_numpy=False)
    with pytest.raises(ConfigError) as caught:
        python_for("toy/reach-v1", python)
    assert str(caught.value) == (
        f"env.python: = {python!r}: env workers need numpy there: No module named 'numpy'; "
        f"run: {python} -m pip install numpy"
    )


def test_another_interpreter_sees_ebrl_and_nothing_else_of_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "here"
    here.mkdir()
    (here / "ours.py").write_text("")
    monkeypatch.setenv("PYTHONPATH", str(here))
    python = bare_python(tmp_path / "bare")
    result = subprocess.run(
        command(python, "site"), capture_output=True, text=True, env=environment(python), cwd=tmp_path, check=True
    )
    site_packages = [line for line in result.stdout.splitlines() if "site-packages" in line and "USER" not in line]
    assert site_packages == [f"    {next((tmp_path / 'bare').glob('lib/*/site-packages')).as_posix()!r},"]
    assert str(here) not in result.stdout
    assert "ENABLE_USER_SITE: False" in result.stdout


def test_our_own_interpreter_keeps_what_it_has() -> None:
    assert command(sys.executable, "ebrl.workers.env_worker") == [sys.executable, "-m", "ebrl.workers.env_worker"]
    assert environment(sys.executable) == dict(os.environ)


def test_robosuite_is_tried_without_a_log_file_that_another_user_may_own() -> None:
    """It appends to a file of a fixed name for all users; the second user of a machine may not write it."""
    with_robosuite = {
        one.name: one.smoke for one in simulators().values() if any("robosuite" in p for p in one.packages)
    }
    assert set(with_robosuite) == {"libero", "robosuite"}
    for smoke in with_robosuite.values():
        private, first_import = (
            smoke.index("robosuite.macros_private"),
            min(smoke.find(text) for text in ("import robosuite\n", "from libero") if text in smoke),
        )
        assert private < smoke.index("FILE_LOGGING_LEVEL") < first_import
