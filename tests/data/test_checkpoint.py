from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from ebrl.algorithms.base import Algorithm, make_algorithm
from ebrl.algorithms.ppo import Ppo
from ebrl.data import checkpoint as module
from ebrl.data.checkpoint import (
    list_checkpoints,
    load_algorithm,
    load_policy,
    newest_checkpoint,
    read_state,
    save_checkpoint,
)
from ebrl.data.spec import ArraySpec, EnvSpec
from ebrl.errors import CheckpointError
from ebrl.policies.base import Policy, make_policy
from ebrl.policies.mlp import MlpPolicy

ENV = EnvSpec({"state": ArraySpec((4,), "float32")}, (-1.0,), (1.0,), 50)


def policy_of(seed: int = 0, *, hidden: int = 8) -> Policy:
    return make_policy(MlpPolicy, MlpPolicy.Config(hidden=(hidden,), critic_hidden=(8,)), ENV, 2, seed)


def save(directory: Path, version: int, *, keep: int = 3, policy: Policy | None = None, **state: Any) -> Path:
    return save_checkpoint(
        directory, policy or policy_of(version), None, {"policy_version": version, **state}, keep=keep
    )


def algorithm_of(policy: Policy) -> Algorithm:
    return make_algorithm(Ppo, Ppo.Config(), policy)


def names(directory: Path) -> list[str]:
    return [path.name for path in list_checkpoints(directory)]


def test_weights_counters_and_optimizer_come_back(tmp_path: Path) -> None:
    policy = policy_of(1)
    algorithm = algorithm_of(policy)
    algorithm.load_state_dict(algorithm.state_dict() | {"num_updates": torch.tensor(17)})
    path = save_checkpoint(tmp_path, policy, algorithm, {"policy_version": 5, "env_steps": 80}, keep=3)
    other = policy_of(2)
    again = algorithm_of(other)
    load_policy(path, other)
    load_algorithm(path, again)
    assert read_state(path) == {"policy_version": 5, "env_steps": 80}
    assert again.state_dict()["num_updates"] == 17
    assert all(torch.equal(x, policy.state_dict()[name]) for name, x in other.state_dict().items())


def test_a_half_written_checkpoint_is_never_listed_and_is_removed_by_the_next_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path, 1)
    write = module._write

    def full_disk(path: Path, data: bytes) -> None:
        write(path, data[: len(data) // 2])
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(module, "_write", full_disk)
        with pytest.raises(OSError, match="No space left"):
            save(tmp_path, 2)
    assert names(tmp_path) == ["update-000001"]
    assert newest_checkpoint(tmp_path).name == "update-000001"
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == [".update-000002"]
    save(tmp_path, 3)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["update-000001", "update-000003"]


@pytest.mark.parametrize("at_once", [True, False])
def test_saving_a_version_again_replaces_it_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: bool
) -> None:
    if not at_once:
        monkeypatch.setattr(module, "_exchange", cannot_exchange)
    save(tmp_path, 1, policy=policy_of(1), env_steps=10)
    path = save(tmp_path, 1, policy=policy_of(2), env_steps=20)
    assert names(tmp_path) == ["update-000001"]
    assert read_state(path)["env_steps"] == 20
    want = policy_of(2).state_dict()
    assert all(torch.equal(x, want[name]) for name, x in load_file(path / "policy.safetensors").items())
    assert [entry.name for entry in tmp_path.iterdir()] == ["update-000001"]


def test_while_a_version_is_replaced_one_of_the_two_is_always_in_sight(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path, 1, env_steps=10)
    seen: list[int] = []

    def look(frame: FrameType, event: str, argument: object) -> None:
        if (tmp_path / ".update-000001" / "state.json").exists():
            seen.append(int(read_state(newest_checkpoint(tmp_path))["env_steps"]))

    with monkeypatch.context() as patch:
        patch.setattr(module, "_put", watched(module._put, look))
        save(tmp_path, 1, env_steps=20)
    assert set(seen) == {10, 20}


def watched(function: Callable[..., None], look: Callable[[FrameType, str, object], None]) -> Callable[..., None]:
    """Look between any two calls that ``function`` makes."""

    def call(*arguments: Path) -> None:
        sys.setprofile(look)
        try:
            function(*arguments)
        finally:
            sys.setprofile(None)

    return call


def cannot_exchange(one: Path, other: Path) -> bool:
    return False


def test_a_checkpoint_that_cannot_be_replaced_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path, 1, policy=policy_of(1), env_steps=10)
    monkeypatch.setattr(module, "_exchange", cannot_exchange)
    rename, delete = Path.rename, shutil.rmtree
    deleted: list[str] = []

    def full_disk(path: Path, target: Path) -> Path:
        if path.name == ".update-000001":
            raise OSError(28, "No space left on device")
        return rename(path, target)

    def note(path: Path, **options: Any) -> None:
        deleted.append(path.name)
        delete(path, **options)

    monkeypatch.setattr(shutil, "rmtree", note)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", full_disk)
        with pytest.raises(OSError, match="No space left"):
            save(tmp_path, 1, policy=policy_of(2), env_steps=20)
    assert read_state(newest_checkpoint(tmp_path))["env_steps"] == 10
    assert deleted == []
    save(tmp_path, 1, policy=policy_of(2), env_steps=30)
    assert read_state(newest_checkpoint(tmp_path))["env_steps"] == 30
    assert "update-000001" not in deleted, "what has the name of a checkpoint is never deleted to make room"
    assert [path.name for path in tmp_path.iterdir()] == ["update-000001"]


def test_the_first_and_the_newest_stay(tmp_path: Path) -> None:
    for version in range(0, 50, 10):
        save(tmp_path, version, keep=2)
    assert names(tmp_path) == ["update-000000", "update-000030", "update-000040"]


def test_what_is_half_deleted_does_not_look_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for version in range(3):
        save(tmp_path, version, keep=5)

    def killed(path: Path, **options: Any) -> None:
        if (path / "policy.safetensors").exists():
            (path / "policy.safetensors").unlink()
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            save(tmp_path, 3, keep=1)
    assert all((path / "policy.safetensors").exists() for path in list_checkpoints(tmp_path))
    save(tmp_path, 4, keep=1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["update-000000", "update-000004"]


def test_order_is_by_version_beyond_six_digits(tmp_path: Path) -> None:
    for version in (999_999, 1_000_000, 1_000_001):
        save(tmp_path, version, keep=1)
    assert newest_checkpoint(tmp_path).name == "update-1000001"
    assert names(tmp_path) == ["update-999999", "update-1000001"]


def test_weights_of_another_policy_are_refused_by_name(tmp_path: Path) -> None:
    path = save(tmp_path, 1, policy=policy_of(hidden=16))
    with pytest.raises(CheckpointError, match=r"weight 'head.0.bias' has shape \[16\], the run's policy wants \[8\]"):
        load_policy(path, policy_of())
    stranger = policy_of()
    stranger.extra = torch.nn.Parameter(torch.zeros(1))
    with pytest.raises(CheckpointError, match="only the run has the weight 'extra'; is it another policy"):
        load_policy(save(tmp_path, 2), stranger)
    with pytest.raises(CheckpointError, match="only the checkpoint has the weight 'extra'"):
        load_policy(save(tmp_path, 3, policy=stranger), policy_of())


@pytest.mark.parametrize("file", ["policy.safetensors", "algorithm.safetensors", "state.json"])
@pytest.mark.parametrize("damage", ["truncated", "missing", "garbage"])
def test_a_damaged_file_is_named(tmp_path: Path, file: str, damage: str) -> None:
    policy = policy_of()
    algorithm = algorithm_of(policy)
    path = save_checkpoint(tmp_path, policy, algorithm, {"policy_version": 1}, keep=1)
    data = (path / file).read_bytes()
    if damage == "missing":
        (path / file).unlink()
    else:
        (path / file).write_bytes(data[: len(data) // 2] if damage == "truncated" else b"\xff" * 100)
    loads: dict[str, Callable[[], object]] = {
        "policy.safetensors": lambda: load_policy(path, policy),
        "algorithm.safetensors": lambda: load_algorithm(path, algorithm),
        "state.json": lambda: read_state(path),
    }
    with pytest.raises(CheckpointError, match=r"update-000001.* cannot be read"):
        loads[file]()


def test_weights_alone_are_no_run_to_go_on_with(tmp_path: Path) -> None:
    policy = policy_of()
    with pytest.raises(CheckpointError, match=r"algorithm\.safetensors cannot be read"):
        load_algorithm(save(tmp_path, 1), algorithm_of(policy))


def test_no_checkpoint_is_said_so(tmp_path: Path) -> None:
    for directory in (tmp_path, tmp_path / "nowhere"):
        assert list_checkpoints(directory) == []
        with pytest.raises(CheckpointError, match="no checkpoint in"):
            newest_checkpoint(directory)


def test_nothing_is_a_pickle(tmp_path: Path) -> None:
    policy = policy_of()
    path = save_checkpoint(tmp_path, policy, algorithm_of(policy), {"policy_version": 1}, keep=1)
    assert sorted(file.name for file in path.iterdir()) == [
        "algorithm.safetensors",
        "policy.safetensors",
        "state.json",
    ]
    json.loads((path / "state.json").read_text())
    shutil.rmtree(path)


def test_tied_weights_are_saved_and_come_back(tmp_path: Path) -> None:
    def tied(seed: int) -> Policy:
        policy = policy_of(seed)
        first = next(iter(policy.parameters()))
        policy.twin = first
        policy.register_buffer("part", first.detach().flatten()[2:5])
        return policy

    policy, other = tied(1), tied(2)
    load_policy(save(tmp_path, 1, policy=policy), other)
    wanted, found = policy.state_dict(), other.state_dict()
    assert {"twin", "part"} <= wanted.keys()
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)
