from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import numpy as np
import pytest

from ebrl.data import messages as m
from ebrl.data.spec import ArraySpec, EnvSpec
from ebrl.data.trajectory import crc, part, slab_layout, store_layout

ENV = EnvSpec(
    {"state": ArraySpec((4,), "float32"), "image": ArraySpec((8, 8, 3), "uint8")}, (-1.0, -2.0), (1.0, 2.0), 50
)

GENERATOR = {"obs", "record", "log_prob", "mean", "value", "behavior_version", "obs_crc"}
ENV_WORKER = {"final_obs", "reward", "num_executed", "terminated", "truncated", "episode"}


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        yield ours, theirs


Pair = tuple[socket.socket, socket.socket]


def test_every_array_of_the_store_has_exactly_one_writer() -> None:
    store = store_layout(
        ENV,
        {"path": ArraySpec((3, 4, 2), "float32")},
        num_slots=3,
        envs_per_shard=2,
        trajectory_chunks=5,
        num_transitions=3,
        chunk_len=4,
    )
    kinds = {name.partition("/")[0] for name in store}
    assert kinds == GENERATOR | ENV_WORKER
    assert not GENERATOR & ENV_WORKER
    assert all(spec.shape[:2] == (6, 5) for spec in store.values())
    assert store["log_prob"] == store["mean"] == ArraySpec((6, 5, 3, 4, 2), "float32")
    assert store["final_obs/image"] == ArraySpec((6, 5, 8, 8, 3), "uint8")
    assert store["obs_crc"] == ArraySpec((6, 5, 2), "uint32")
    assert store["episode"] == ArraySpec((6, 5), "int64")


@pytest.mark.parametrize(("num_shards", "envs_per_shard"), [(3, 1), (1, 3)])
def test_slabs_hold_one_observation_and_one_chunk_per_environment(num_shards: int, envs_per_shard: int) -> None:
    assert slab_layout(ENV, num_shards=num_shards, envs_per_shard=envs_per_shard, chunk_len=7) == {
        "obs/state": ArraySpec((3, 4), "float32"),
        "obs/image": ArraySpec((3, 8, 8, 3), "uint8"),
        "actions": ArraySpec((3, 7, 2), "float32"),
    }


def test_a_part_is_what_carries_its_whole_prefix() -> None:
    one, two = np.zeros(1), np.ones(1)
    assert part({"obs/a": one, "final_obs/a": two, "obs": two}, "obs") == {"a": one}


def test_a_checksum_sees_one_bit_and_not_the_memory_order() -> None:
    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    other = array.copy()
    other.view(np.uint8)[2, 3] ^= 1
    assert crc(array) == crc(np.asfortranarray(array)) != crc(other)


def test_specs_survive_a_message(pair: Pair) -> None:
    ours, theirs = pair
    m.send_json(ours, m.BUILT, ENV.to_json())
    kind, document, fds = m.receive_with_fds(theirs)
    assert (kind, EnvSpec.from_json(document), fds) == (m.BUILT, ENV, [])


def test_descriptors_travel_with_a_message(pair: Pair) -> None:
    ours, theirs = pair
    fd = os.memfd_create("ebrl-test")
    os.write(fd, b"hello")
    m.send_json(ours, m.ATTACH, {"a": 1}, (fd,))
    kind, document, fds = m.receive_with_fds(theirs)
    assert (kind, document, len(fds)) == (m.ATTACH, {"a": 1}, 1)
    assert os.pread(fds[0], 5, 0) == b"hello"
    for each in (fd, *fds):
        os.close(each)


def test_numbers_survive_a_message(pair: Pair) -> None:
    ours, theirs = pair
    rows = np.array([[1, 2, 3, 2**31 - 1]], dtype=np.int32)
    ours.send(m.GENERATE_HEAD.pack(m.GENERATE, 1) + rows.tobytes())
    kind, data = m.receive(theirs)
    assert (kind, list(m.integers(data, m.GENERATE_HEAD.size))) == (m.GENERATE, rows.ravel().tolist())


@pytest.mark.parametrize(
    "command",
    [
        m.EnvCommand(m.STEP, 2**31 - 1, 3, 4, 5, (6,), ()),
        m.EnvCommand(m.RESET, 0, 0, 0, 0, (7, 2), ((0, 2**31 - 1, 2**40), (3, 1, 0))),
    ],
)
def test_env_commands_survive_a_message(pair: Pair, command: m.EnvCommand) -> None:
    ours, theirs = pair
    ours.send(
        m.pack_env_command(
            command.kind,
            slot=command.slot,
            chunk=command.chunk,
            first_step=command.first_step,
            num_steps=command.num_steps,
            cpus=command.cpus,
            starts=command.starts,
        )
    )
    kind, data = m.receive(theirs)
    assert (kind, m.unpack_env_command(data)) == (command.kind, command)


@pytest.mark.parametrize(
    "answer",
    [
        m.EnvAnswer(m.RESET_DONE, 0, 0, 0, 0.25, ()),
        m.EnvAnswer(
            m.STEPS_DONE,
            m.CHUNK_OVER,
            3,
            7,
            1e-9,
            (m.EpisodeEnd(0, m.SUCCESS, -0.1, 500), m.EpisodeEnd(2**20, m.TERMINATED, 1e300, 1, 9, 8, 7)),
        ),
    ],
)
def test_env_answers_survive_a_message(pair: Pair, answer: m.EnvAnswer) -> None:
    ours, theirs = pair
    ours.send(
        m.pack_env_answer(
            answer.kind,
            flags=answer.flags,
            num_steps=answer.num_steps,
            env_steps=answer.env_steps,
            seconds=answer.seconds,
            ends=answer.ends,
        )
    )
    kind, data = m.receive(theirs)
    assert (kind, m.unpack_env_answer(data)) == (answer.kind, answer)


def test_a_long_text_keeps_its_end(pair: Pair) -> None:
    ours, theirs = pair
    m.send_text(ours, m.RAISED, "é" * 200_000 + "ValueError: the reason")
    kind, data = m.receive(theirs)
    assert kind == m.RAISED
    assert len(data) == m.MAX_BYTES
    assert data.decode(errors="replace").endswith("ValueError: the reason")


def test_a_message_that_would_be_cut_is_an_error(pair: Pair) -> None:
    with pytest.raises(ValueError, match=f"message {m.SETUP} has .* bytes, more than {m.MAX_BYTES}"):
        m.send_json(pair[0], m.SETUP, "x" * m.MAX_BYTES)


def test_a_closed_socket_is_kind_0(pair: Pair) -> None:
    pair[0].close()
    assert m.receive(pair[1]) == (0, b"")
    assert m.receive_with_fds(pair[1]) == (0, None, [])


def test_kinds_of_messages_are_all_different() -> None:
    assert m.TERMINATED & m.SUCCESS == 0
    commands = [m.SETUP, m.ATTACH, m.RESET, m.STEP, m.GENERATE, m.ADOPT, m.TRAIN, m.SAVE]
    answers = [m.BUILT, m.READY, m.STEPS_DONE, m.RESET_DONE, m.INVALID, m.RAISED, m.CHUNKS_DONE]
    answers += [m.LIVE, m.UPDATED, m.SAVED]
    assert len({*commands, *answers}) == len(commands) + len(answers) == 18
    assert 0 not in commands + answers
