from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from ebrl.data.shared import SharedArrays
from ebrl.data.trajectory import slab_layout, store_layout
from ebrl.workers.env_worker import Shard

sys.path.insert(0, str(Path(__file__).parents[1] / "envs"))
from vector_worlds import Drift, DriftVector


@pytest.mark.parametrize("num_chunks", [12])
def test_worlds_stepped_at_once_leave_what_single_ones_leave(num_chunks: int) -> None:
    width, chunk_len = 5, 4
    rng = np.random.default_rng(0)
    shards = []
    vector = DriftVector(width)
    for envs, worlds in (([Drift() for _ in range(width)], None), ([vector] * width, vector)):
        spec = envs[0].spec
        slabs = SharedArrays.create("slabs", slab_layout(spec, num_shards=1, envs_per_shard=width, chunk_len=chunk_len))
        layout = store_layout(
            spec,
            {},
            num_slots=1,
            envs_per_shard=width,
            trajectory_chunks=num_chunks,
            num_transitions=1,
            chunk_len=chunk_len,
        )
        store = SharedArrays.create("store", layout)
        shards.append((Shard(envs, 0, slabs, store, vector=worlds), slabs, store))
    over = set(range(width))
    for chunk in range(num_chunks):
        starts = [(env, 10 * chunk + env, 100 + chunk) for env in sorted(over) if rng.random() < 0.7]
        actions = rng.uniform(-1.5, 1.5, (width, chunk_len, 1)).astype(np.float32)
        answers = []
        for shard, slabs, _ in shards:
            shard.reset(starts)
            slabs["actions"][:] = actions
            answers.append([shard.run(0, chunk, 0, 3), shard.run(0, chunk, 3, 1)])
        assert answers[0] == answers[1]
        over = {env for env, episode in enumerate(shards[0][0].episodes) if episode.over}
    (_, slabs, store), (_, other_slabs, other_store) = shards
    for name, array in store.arrays.items():
        assert np.array_equal(array, other_store[name]), name
    assert np.array_equal(slabs["obs/state"], other_slabs["obs/state"])
    assert store["terminated"].any()
    assert store["truncated"].any()
