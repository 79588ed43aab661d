"""Checkpoints: directories that are either complete or not there.

    checkpoints/update-000120/policy.safetensors      weights and normalisation
                              algorithm.safetensors   optimizer state
                              state.json              version and counters

A checkpoint is written beside its final place, forced to disk, and then renamed; a crash leaves at
most a directory that starts with a dot, which the next save removes. Nothing here is a pickle.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ebrl.errors import CheckpointError

if TYPE_CHECKING:
    from torch import Tensor

    from ebrl.algorithms.base import Algorithm
    from ebrl.policies.base import Policy

_PREFIX = "update-"

_AT_FDCWD, _RENAME_EXCHANGE = -100, 2
"""Of Linux, for ``renameat2``."""


def list_checkpoints(directory: Path) -> list[Path]:
    """Complete checkpoints of a run's checkpoint directory, oldest first."""
    if not directory.is_dir():
        return []
    found = (path for path in directory.iterdir() if _version(path) >= 0 and path.is_dir())
    return sorted(found, key=_version)


def newest_checkpoint(directory: Path) -> Path:
    """The newest complete checkpoint.

    Raises:
        CheckpointError: there is none.
    """
    found = list_checkpoints(directory)
    if not found:
        raise CheckpointError(f"no checkpoint in {directory}")
    return found[-1]


def read_state(checkpoint: Path) -> dict[str, Any]:
    """The counters saved with a checkpoint."""
    try:
        state: dict[str, Any] = json.loads((checkpoint / "state.json").read_text())
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{checkpoint} cannot be read: {error}") from error
    return state


def save_checkpoint(
    directory: Path, policy: Policy, algorithm: Algorithm | None, state: Mapping[str, Any], *, keep: int
) -> Path:
    """Write a checkpoint atomically, then delete old ones.

    Args:
        directory: the run's checkpoint directory; made if it is not there.
        policy: whose ``state_dict`` is saved.
        algorithm: whose optimizer state is saved; None saves weights only.
        state: counters; must hold ``policy_version``.
        keep: how many of the newest to keep; the very first always stays, for comparison.
    """
    from safetensors.torch import save

    final = directory / f"{_PREFIX}{state['policy_version']:06d}"
    temporary = directory / f".{final.name}"
    for left_over in directory.glob(f".{_PREFIX}*"):
        shutil.rmtree(left_over, ignore_errors=True)
    temporary.mkdir(parents=True)
    _write(temporary / "policy.safetensors", save(_apart(policy.state_dict())))
    if algorithm is not None:
        _write(temporary / "algorithm.safetensors", save(algorithm.state_dict()))
    _write(temporary / "state.json", json.dumps(dict(state), indent=1).encode())
    _sync(temporary)
    _put(temporary, final)
    for old in list_checkpoints(directory)[1:-keep]:
        hidden = old.rename(old.with_name(f".{old.name}"))  # what is half deleted must not look complete
        shutil.rmtree(hidden)
    return final


def _apart(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors that share no memory, as safetensors wants them: of tied weights each has its values."""
    found: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, tensor in state.items():
        own = tensor.contiguous()
        memory = own.untyped_storage().data_ptr()
        found[name] = own.clone() if memory in seen else own
        seen.add(memory)
    return found


def load_policy(checkpoint: Path, policy: Policy) -> None:
    """Load weights into ``policy``.

    Raises:
        CheckpointError: the file is missing, or holds another policy's weights.
    """
    tensors = _load(checkpoint / "policy.safetensors")
    own = policy.state_dict()
    for name in sorted(own.keys() | tensors.keys()):
        if name not in tensors or name not in own:
            where = "the run" if name in own else "the checkpoint"
            raise CheckpointError(f"{checkpoint}: only {where} has the weight {name!r}; is it another policy?")
        if own[name].shape != tensors[name].shape:
            have, want = list(tensors[name].shape), list(own[name].shape)
            raise CheckpointError(f"{checkpoint}: weight {name!r} has shape {have}, the run's policy wants {want}")
    policy.load_state_dict(tensors)


def load_algorithm(checkpoint: Path, algorithm: Algorithm) -> None:
    """Load optimizer state; a checkpoint of weights only is an error."""
    algorithm.load_state_dict(_load(checkpoint / "algorithm.safetensors"))


def _load(path: Path) -> dict[str, Any]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error


def _put(new: Path, final: Path) -> None:
    """Give ``new`` the name ``final``; what had it before is deleted only then.

    Where the file system cannot exchange two names at once, a crash in between leaves neither of the two in sight.
    """
    if not final.exists():
        new.rename(final)
        _sync(final.parent)
        return
    if _exchange(new, final):
        _sync(final.parent)
        shutil.rmtree(new)
        return
    aside = new.with_name(f"{new.name}.old")
    final.rename(aside)
    try:
        new.rename(final)
    except OSError:
        aside.rename(final)
        raise
    _sync(final.parent)
    shutil.rmtree(aside)


def _exchange(one: Path, other: Path) -> bool:
    """Let two directories have each other's names, in one step; False where that cannot be done."""
    try:
        renameat2 = ctypes.CDLL(None).renameat2
    except AttributeError:
        return False
    return bool(renameat2(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) == 0)


def _version(path: Path) -> int:
    """Policy version in a checkpoint's name; -1 for anything else."""
    number = path.name.removeprefix(_PREFIX)
    return int(number) if path.name.startswith(_PREFIX) and number.isdecimal() else -1


def _write(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
