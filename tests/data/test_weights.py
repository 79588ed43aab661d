"""A reader sees one version, whole, whatever the writer is doing."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from drills import until
from ebrl.data.shared import SharedArrays
from ebrl.data.weights import Weights, weights_layout

NAMES = ("a", "b", "c")

WRITER = """
import json, sys
import torch
from ebrl.data.shared import SharedArrays
from ebrl.data.weights import Weights
weights = Weights(SharedArrays.attach(int(sys.argv[1]), json.loads(sys.argv[2])))
state = {"a": torch.zeros(50, 40), "bulk": torch.zeros(300_000), "b": torch.zeros(()), "c": torch.zeros(3)}
for version in range(1, 1_000_000_000):
    for tensor in state.values():
        tensor.fill_(float(version % 4096))
    weights.write(version, state)
"""


def filled(value: float) -> dict[str, Tensor]:
    return {name: torch.full((4,), float(value)) for name in NAMES}


def make_weights() -> Weights:
    return Weights(SharedArrays.create("test", weights_layout(filled(0))))


def read(weights: Weights, state: Mapping[str, Tensor] | None = None) -> tuple[int, set[float]]:
    state = filled(-7) if state is None else state
    version = weights.read_into(state)
    return version, {float(x) for tensor in state.values() for x in tensor}


def test_the_newest_version_is_read() -> None:
    weights = make_weights()
    for version in (0, 1, 2, 3, 5):
        weights.write(version, filled(version))
        assert weights.newest == version
        assert read(weights) == (version, {float(version)})


@pytest.mark.parametrize(("wanted", "got"), [(3, 3), (4, 4), (2, 3), (5, 4)])
def test_the_version_that_is_wanted_is_read_or_the_next_or_the_newest(wanted: int, got: int) -> None:
    weights = make_weights()
    for version in (2, 3, 4):
        weights.write(version, filled(version))
    state = filled(-7)
    assert weights.read_into(state, wanted=wanted) == got
    assert {float(x) for tensor in state.values() for x in tensor} == {float(got)}


def test_what_a_learner_wrote_and_could_not_say_is_forgotten_and_the_version_before_is_left_alone() -> None:
    """A copy in place would leave no weights at all if the next learner died in the middle of it."""
    weights = make_weights()
    for version in (3, 4):
        weights.write(version, filled(version))
    weights.forget_newer(3)
    assert read(weights) == (3, {3.0})
    assert weights.read_into(filled(-7), wanted=4) == 3
    weights.read_again(3, filled(-7))
    weights.forget_newer(3)
    weights.write(4, filled(40))
    assert read(weights) == (4, {40.0})


def test_every_dtype_of_a_state_dict_survives() -> None:
    state = {
        "f": torch.randn(3, 2),
        "d": torch.randn(2, dtype=torch.float64),
        "n": torch.tensor(7),
        "b": torch.tensor([True, False]),
        "h": torch.randn(4, 3).half(),
        "bf": torch.randn(4, 3).bfloat16().T,
        "scalar": torch.tensor(1.5).bfloat16(),
        "f8": torch.randn(5).to(torch.float8_e4m3fn),
    }
    weights = Weights(SharedArrays.create("test", weights_layout(state)))
    weights.write(1, state)
    copy = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
    weights.read_into(copy)
    assert all(torch.equal(copy[name].double(), state[name].double()) for name in state)


class Turns(Mapping[str, Tensor]):
    """A state whose copying stops before every tensor until somebody gives it a turn."""

    def __init__(self, state: dict[str, Tensor]) -> None:
        self.state = state
        self.may_go = threading.Semaphore(0)
        self.went = threading.Semaphore(0)

    def __iter__(self) -> Iterator[str]:
        return iter(self.state)

    def __len__(self) -> int:
        return len(self.state)

    def __getitem__(self, name: str) -> Tensor:
        self.went.release()
        assert self.may_go.acquire(timeout=20)
        return self.state[name]


class Interleaved(Mapping[str, Tensor]):
    """A state that lets the writer take some moves before each of its tensors is copied."""

    def __init__(self, state: dict[str, Tensor], moves: Iterator[int], move: Any) -> None:
        self.state, self.moves, self.move = state, moves, move

    def __iter__(self) -> Iterator[str]:
        return iter(self.state)

    def __len__(self) -> int:
        return len(self.state)

    def __getitem__(self, name: str) -> Tensor:
        for _ in range(next(self.moves, 0)):
            self.move()
        return self.state[name]


@given(moves=st.lists(st.integers(0, 12), max_size=18))
def test_any_interleaving_reads_one_whole_version(moves: list[int]) -> None:
    weights = make_weights()
    weights.write(0, filled(0))
    ending = threading.Event()
    turns = Turns(filled(1))

    def write() -> None:
        version = 1
        while not ending.is_set():
            for tensor in turns.state.values():
                tensor.fill_(float(version))
            weights.write(version, turns)
            version += 1

    def move() -> None:
        turns.may_go.release()
        assert turns.went.acquire(timeout=20)

    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    assert turns.went.acquire(timeout=20)
    try:
        started = weights.newest
        version, values = read(weights, Interleaved(filled(-7), iter(moves), move))
        assert values == {float(version)}
        assert started <= version <= weights.newest
    finally:
        ending.set()
        turns.may_go.release(len(NAMES) + 1)
        writer.join(20)
    assert not writer.is_alive()


def test_a_reader_beside_a_writing_process_never_sees_two_versions() -> None:
    state = {"a": torch.zeros(50, 40), "bulk": torch.zeros(300_000), "b": torch.zeros(()), "c": torch.zeros(3)}
    shared = SharedArrays.create("test", weights_layout(state))
    weights = Weights(shared)
    weights.write(0, state)
    command = [sys.executable, "-c", WRITER, str(shared.fd), json.dumps(shared.layout_json())]
    seen: list[int] = []
    with subprocess.Popen(command, pass_fds=[shared.fd]) as writer:
        try:
            until("the first version of the writer", lambda: weights.newest > 0, within_s=60)
            mine = {name: torch.zeros_like(tensor) for name, tensor in state.items() if name != "bulk"}
            while len(seen) < 1000 or len(set(seen)) < 30:
                version = weights.read_into(mine)
                values = {float(x) for tensor in mine.values() for x in (tensor.min(), tensor.max())}
                assert values == {float(version % 4096)}
                seen.append(version)
        finally:
            writer.kill()
    assert seen == sorted(seen)
    shared.close()


def test_a_version_torn_by_a_killed_writer_is_not_the_newest() -> None:
    weights = make_weights()
    weights.write(4, filled(4))

    class Dies(dict[str, Tensor]):
        def items(self) -> Any:
            yield "a", torch.full((4,), 5.0)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        weights.write(5, Dies())
    assert read(weights) == (4, {4.0})
    weights.write(5, filled(5))
    assert read(weights) == (5, {5.0})


def test_a_writer_that_is_always_faster_is_an_error_and_not_a_torn_read() -> None:
    weights = make_weights()
    weights.write(0, filled(0))

    def move() -> None:
        version = weights.newest + 2
        weights.write(version, filled(version))

    class Forever(Iterator[int]):
        def __next__(self) -> int:
            return 1

    with pytest.raises(RuntimeError, match="weights changed under 100 reads"):
        weights.read_into(Interleaved(filled(0), Forever(), move))
