"""Where observations, action chunks and trajectories lie in shared memory.

Axes: N environments, C trajectories, K chunks of a trajectory, D denoising transitions, H chunk
horizon, A action size, F observation fields.

Commands name shards and slots of W environments each; in arrays, environment ``e`` of shard ``s`` has
row ``s * W + e``, and its trajectory in slot ``k`` has row ``k * W + e``.

Every array of the store has exactly one writer:

    generator    obs/* record/* log_prob mean value behavior_version obs_crc
    env worker   final_obs/* reward num_executed terminated truncated episode

A whole episode may have fewer chunks than there is room for: those that it does not have, have
``num_executed`` 0, no reward and no end, and nothing else of them means anything. The env worker sees
to that when it begins a slot's first chunk.

The learner reads. A trajectory holds its slot until the weights trained on it are live, so nobody
writes what is being read.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping

import numpy as np

from ebrl.data.spec import ArraySpec, EnvSpec


def rows_of(units: np.ndarray, envs_per_shard: int) -> np.ndarray:
    """Rows ``[len(units) * W]`` of all environments of these shards (or slots), in this order."""
    rows: np.ndarray = (units[:, None] * envs_per_shard + np.arange(envs_per_shard)).ravel()
    return rows


def slab_layout(env: EnvSpec, *, num_shards: int, envs_per_shard: int = 1, chunk_len: int) -> dict[str, ArraySpec]:
    """Per environment: the observation it stands at, and the chunk it executes."""
    num_envs = num_shards * envs_per_shard
    layout = {f"obs/{name}": _with(spec, num_envs) for name, spec in env.observation.items()}
    layout["actions"] = ArraySpec((num_envs, chunk_len, env.action_dim), "float32")
    return layout


def store_layout(
    env: EnvSpec,
    record: Mapping[str, ArraySpec],
    *,
    num_slots: int,
    envs_per_shard: int = 1,
    trajectory_chunks: int,
    num_transitions: int,
    chunk_len: int,
) -> dict[str, ArraySpec]:
    """The ring of preallocated trajectories."""
    lead = (num_slots * envs_per_shard, trajectory_chunks)
    per_dim = ArraySpec((*lead, num_transitions, chunk_len, env.action_dim), "float32")
    layout = {f"obs/{name}": _with(spec, *lead) for name, spec in env.observation.items()}
    layout |= {f"final_obs/{name}": _with(spec, *lead) for name, spec in env.observation.items()}
    layout |= {f"record/{name}": _with(spec, *lead) for name, spec in record.items()}
    return layout | {
        "log_prob": per_dim,
        "mean": per_dim,
        "value": ArraySpec(lead, "float32"),
        "behavior_version": ArraySpec(lead, "int64"),
        "obs_crc": ArraySpec((*lead, len(env.observation)), "uint32"),
        "reward": ArraySpec((*lead, chunk_len), "float32"),
        "num_executed": ArraySpec(lead, "int64"),
        "terminated": ArraySpec(lead, "bool"),
        "truncated": ArraySpec(lead, "bool"),
        "episode": ArraySpec(lead, "int64"),
    }


def part(arrays: Mapping[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    """The arrays named ``prefix/x``, as ``{x: array}``."""
    start = prefix + "/"
    return {name.removeprefix(start): array for name, array in arrays.items() if name.startswith(start)}


def crc(array: np.ndarray) -> int:
    """Checksum of an array's bytes, to tell whether two processes see the same observation."""
    return zlib.crc32(np.ascontiguousarray(array).data)


def _with(spec: ArraySpec, *lead: int) -> ArraySpec:
    return ArraySpec((*lead, *spec.shape), spec.dtype)
