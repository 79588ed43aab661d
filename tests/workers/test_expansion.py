"""Generator and learner serve shards of several environments as if each were a shard of its own."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor

from ebrl.algorithms.base import TrainingBatch
from ebrl.data.shared import SharedArrays
from ebrl.data.trajectory import crc, slab_layout, store_layout
from ebrl.data.weights import Weights, weights_layout
from ebrl.envs.toy import Reach
from ebrl.errors import RatioMismatch
from ebrl.policies.base import Policy, RowStreams, make_policy
from ebrl.policies.mlp import MlpPolicy
from ebrl.workers.generator import Generation
from ebrl.workers.learner import Learning

SPEC = Reach().spec
NUM_ENVS, NUM_ROWS, NUM_CHUNKS, CHUNK_LEN = 4, 6, 2, 3
POLICY: Policy = make_policy(MlpPolicy, MlpPolicy.Config(hidden=(8,), critic_hidden=(8,)), SPEC, CHUNK_LEN, seed=0)


def memory(width: int) -> tuple[SharedArrays, SharedArrays]:
    """Slabs of four environments and a store of six trajectories, in shards of ``width``."""
    slabs = slab_layout(SPEC, num_shards=NUM_ENVS // width, envs_per_shard=width, chunk_len=CHUNK_LEN)
    store = store_layout(
        SPEC,
        POLICY.record_spec(),
        num_slots=NUM_ROWS // width,
        envs_per_shard=width,
        trajectory_chunks=NUM_CHUNKS,
        num_transitions=1,
        chunk_len=CHUNK_LEN,
    )
    return SharedArrays.create("slabs", slabs), SharedArrays.create("store", store)


def weights() -> Weights:
    return Weights(SharedArrays.create("weights", weights_layout(POLICY.state_dict())))


def generated(width: int, requests: list[list[int]]) -> tuple[SharedArrays, SharedArrays]:
    slabs, store = memory(width)
    for row in range(NUM_ENVS):
        for name, value in Reach().reset(row)[0].items():
            slabs[f"obs/{name}"][row] = value
    generation = Generation(
        POLICY, seed=5, device="cpu", envs_per_shard=width, slabs=slabs, store=store, weights=weights()
    )
    generation.version = 3
    generation.serve(np.array(requests, np.int32))
    return slabs, store


def test_a_shard_of_two_is_two_shards_to_the_generator() -> None:
    pairs, pair_store = generated(2, [[1, 0, 1, 7], [0, 2, 0, 9]])
    ones, one_store = generated(1, [[2, 0, 1, 7], [3, 1, 1, 7], [0, 4, 0, 9], [1, 5, 0, 9]])
    for name, array in (ones.arrays | one_store.arrays).items():
        assert np.array_equal((pairs.arrays | pair_store.arrays)[name], array), name
    assert one_store["behavior_version"].tolist() == [[0, 3], [0, 3], [0, 0], [0, 0], [3, 0], [3, 0]]
    assert len({actions.tobytes() for actions in ones["actions"]}) == NUM_ENVS


def test_an_environments_random_numbers_are_those_of_seed_row_and_serial() -> None:
    slabs, _ = generated(2, [[1, 0, 1, 7]])
    obs = {name: torch.from_numpy(slabs[f"obs/{name}"][2:4]) for name in SPEC.observation}
    with torch.inference_mode():
        sample = POLICY.sample(obs, RowStreams([(5, 2, 7), (5, 3, 7)]))
    assert np.array_equal(slabs["actions"][2:4], sample.actions.numpy())


class Seen:
    """An algorithm that learns nothing and keeps what it was given."""

    Config: ClassVar[type] = object

    def update(self, batch: TrainingBatch, *, learner_version: int, rng: torch.Generator) -> dict[str, float]:
        self.batch = batch
        return {"skipped": 1.0}

    def state_dict(self) -> dict[str, Tensor]:
        return {}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        pass


def learning(width: int) -> tuple[Learning, Seen, SharedArrays]:
    """A store in which every chunk was executed and every number says which row it is in."""
    _, store = memory(width)
    for array in store.arrays.values():
        array[:] = np.arange(NUM_ROWS).reshape(-1, *[1] * (array.ndim - 1))
    store["num_executed"][:] = CHUNK_LEN
    for row in range(NUM_ROWS):
        store["obs_crc"][row] = [crc(store[f"obs/{name}"][row, 0]) for name in SPEC.observation]
    seen = Seen()
    setup: dict[str, Any] = {"version": 0, "seed": 0, "device": "cpu", "envs_per_worker": width}
    return Learning(setup, POLICY, seen, store, weights()), seen, store


@pytest.mark.parametrize(("width", "slots", "rows"), [(1, [4, 0], [4, 0]), (2, [2, 0], [4, 5, 0, 1])])
def test_a_slot_is_a_trajectory_of_every_environment_to_the_learner(
    width: int, slots: list[int], rows: list[int]
) -> None:
    learner, seen, _ = learning(width)
    learner.train(np.array(slots, np.int32))
    assert seen.batch.episode.dtype == torch.int64
    assert seen.batch.episode.tolist() == [[row] * NUM_CHUNKS for row in rows]
    assert seen.batch.log_prob[:, 0, 0, 0, 0].tolist() == rows
    assert seen.batch.obs["state"][:, 1, 0].tolist() == rows


def test_only_executed_chunks_must_agree_with_what_the_generator_saw() -> None:
    learner, seen, store = learning(1)
    store["obs_crc"][3, 1] = 0
    store["num_executed"][3, 1] = 0
    learner.train(np.array([3]))
    assert seen.batch.num_executed.tolist() == [[CHUNK_LEN, 0]]
    learner, _, store = learning(1)
    store["obs_crc"][3, 1, 0] = 0
    learner.train(np.array([2]))
    learner, _, store = learning(1)
    store["obs_crc"][3, 1, 0] = 0
    with pytest.raises(RatioMismatch, match="the learner reads other values of observation 'state' than"):
        learner.train(np.array([3]))
