"""How the generator and the learner make the same policy from the same setup message."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from ebrl.data import messages as m
from ebrl.data.spec import EnvSpec
from ebrl.policies.base import Policy, make_policy
from ebrl.registry import load, make_config


def build_policy(setup: Mapping[str, Any]) -> Policy:
    """The policy of a run, with the initial weights that its seed gives."""
    cls, _ = load("policy", setup["policy"])
    config = make_config(cls, setup["policy_config"], "policy.config")
    policy = make_policy(cls, config, EnvSpec.from_json(setup["env_spec"]), setup["chunk_len"], setup["seed"])
    return policy.to(setup["device"])


def prepare_torch(setup: Mapping[str, Any]) -> None:
    """Threads and determinism of this process, as the run wants them."""
    torch.set_num_threads(setup["threads"])
    if setup["deterministic"]:
        torch.use_deterministic_algorithms(True)


def set_threads(message: bytes) -> int:
    """Use as many torch threads as the engine's THREADS message says, 0 changes nothing; how many torch then uses."""
    _, count = m.THREADS_HEAD.unpack(message)
    if count:
        torch.set_num_threads(count)
    return torch.get_num_threads()
