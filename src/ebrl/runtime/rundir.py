"""The run directory: what is in it, and how a new one is made."""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import os
import tomllib
import warnings
from collections.abc import Iterator
from pathlib import Path

from ebrl.config.load import differences, load_config, make_config, to_toml
from ebrl.config.schema import RunConfig
from ebrl.data.checkpoint import list_checkpoints
from ebrl.errors import CheckpointError, ConfigError, UsageError

MAY_CHANGE = (
    "training.max_",
    "evaluation.",
    "checkpoint.",
    "failures.",
    "records.",
    "run.directory",
    "resources.profile",
)
"""Beginnings of the fields in which a resumed run may differ from the one it resumes."""


def with_whole_paths(config: RunConfig) -> RunConfig:
    """The same, with whole paths of the files that it names: a run is resumed from anywhere."""
    resources, emulation = config.resources, config.emulation
    files = {name: getattr(emulation, name) for name in ("workload", "machine")}
    whole = {name: str(Path(file).absolute()) for name, file in files.items() if Path(file).is_file()}
    changes: dict[str, object] = {"emulation": emulation.model_copy(update=whole)}
    if resources.allocation == "planned":
        profile = str(Path(resources.profile).absolute())
        changes["resources"] = resources.model_copy(update={"profile": profile})
    return config.model_copy(update=changes)


def make_run_dir(config: RunConfig) -> Path:
    """Make ``<directory>/<name>-<date>-<time>`` with the configuration in it, and point ``latest`` at it.

    Raises:
        ConfigError: the directory cannot be written to.
    """
    parent = Path(config.run.directory)
    stamp = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    try:
        parent.mkdir(parents=True, exist_ok=True)
        path = _make_own(parent, f"{config.run.name}-{stamp}")
        write_config(path, config)
        link = parent / f".latest-{path.name}"
        link.symlink_to(path.name)
        link.replace(parent / "latest")
    except OSError as error:
        raise ConfigError(
            "run.directory", f"= {config.run.directory!r}: cannot write there: {error.strerror}"
        ) from error
    return path


def _make_own(parent: Path, name: str) -> Path:
    """Make ``parent/name``, or the first of ``name-2``, ``name-3``, … that is not there: also beside others who do."""
    number, path = 1, parent / name
    while True:
        try:
            path.mkdir()
        except FileExistsError:  # asking first would leave another process time to make it
            number += 1
            path = parent / f"{name}-{number}"
        else:
            return path


def write_config(path: Path, config: RunConfig) -> None:
    """Store the whole configuration in a run directory, and make sure that it can be read again."""
    text = to_toml(config)
    assert make_config(tomllib.loads(text)) == config, f"a configuration that cannot be stored: {text}"
    temporary = path / f".config.toml.{os.getpid()}"
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path / "config.toml")


def open_run_dir(path: Path) -> RunConfig:
    """The configuration of an existing run directory.

    Raises:
        UsageError: this is not a run directory.
    """
    if not (path / "config.toml").is_file():
        raise UsageError(f"{path} is not a run directory: it has no config.toml")
    return load_config(path / "config.toml")


def check_writable(path: Path) -> None:
    """Refuse to work in a run directory that is somebody else's.

    Raises:
        UsageError: it cannot be written to.
    """
    if not os.access(path, os.W_OK | os.X_OK):
        raise UsageError(f"{path} cannot be written to; want a run directory of yours, or a copy of this one")


@contextlib.contextmanager
def held(path: Path) -> Iterator[None]:
    """A run directory is this process's while inside; the kernel takes it back from a dead one.

    Raises:
        UsageError: another process trains there, or it cannot be written to.
    """
    check_writable(path)
    with (path / ".lock").open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            raise UsageError(
                f"{path}: process {file.read().strip() or '?'} trains there; wait for it, or stop it"
            ) from None
        except OSError as error:  # some network file systems have no locks
            warnings.warn(f"{path} cannot be locked ({error.strerror}): let only one process train there", stacklevel=2)
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


def check_resumable(path: Path, stored: RunConfig, wanted: RunConfig) -> None:
    """Refuse to resume a run as another one.

    Raises:
        UsageError: the configurations differ where they must not; names each difference.
        CheckpointError: the run has no checkpoint.
    """
    wrong = [line for line in differences(stored, wanted) if not line.startswith(MAY_CHANGE)]
    if wrong:
        raise UsageError("the run that is resumed has another configuration:\n  " + "\n  ".join(wrong))
    if not list_checkpoints(path / "checkpoints"):
        raise CheckpointError(f"{path} cannot be resumed: it has no checkpoint")
