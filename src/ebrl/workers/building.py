"""How the generator and the learner make the same policy from the same setup message."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from typing import Any

import torch

from ebrl.data import messages as m
from ebrl.data.spec import EnvSpec
from ebrl.policies.base import Policy, make_policy
from ebrl.registry import load, make_config
from ebrl.workers.emulation import EmulatedDevice


def build_policy(setup: Mapping[str, Any]) -> Policy:
    """The policy of a run, with the initial weights that its seed gives."""
    cls, _ = load("policy", setup["policy"])
    config = make_config(cls, setup["policy_config"], "policy.config")
    policy = make_policy(cls, config, EnvSpec.from_json(setup["env_spec"]), setup["chunk_len"], setup["seed"])
    return policy.to(setup["device"])


def emulated_device(setup: Mapping[str, Any]) -> EmulatedDevice | None:
    """The device that this process is to pretend to have; None where its device is real."""
    return EmulatedDevice(setup["emulated"]) if setup["emulated"] else None


def prepare_torch(setup: Mapping[str, Any]) -> None:
    """Threads and determinism of this process, as the run wants them."""
    torch.set_num_threads(setup["threads"])
    torch.backends.cudnn.allow_tf32 = False  # generator and learner must agree, on whatever devices they compute
    if setup["deterministic"]:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # else cuBLAS refuses
        torch.use_deterministic_algorithms(True)


def use_fast_products() -> bool:
    """Let oneDNN multiply this process's float32 matrices on an x86 CPU, where it is as exact as torch's default.

    On AMD CPUs the default, MKL, leaves out AVX-512, and oneDNN is twice as fast where there are a few hundred rows.
    The first product of a shape takes it half a millisecond more.
    torch offers it together with the leave to compute in bfloat16. oneDNN makes use of that on CPUs with matrix
    units: there nothing is changed. The setting is the whole process's, for CUDA as well.

    Returns:
        Whether it may; torch may keep to MKL all the same, where oneDNN has nothing better.
    """
    if platform.machine() != "x86_64":
        return False
    torch.set_float32_matmul_precision("medium")
    draw = torch.Generator().manual_seed(0)
    left, right = torch.rand(256, 256, generator=draw), torch.rand(256, 256, generator=draw)
    exact = left.double() @ right.double()
    if bool(((left @ right - exact).abs() < _ROUNDING * exact).all()):
        return True
    torch.set_float32_matmul_precision("highest")
    return False


_ROUNDING = 1e-5
"""Relative error of a product of positive numbers: 1e-7 in float32, 1e-3 in bfloat16."""


def set_threads(message: bytes, emulated: EmulatedDevice | None) -> bytes:
    """Use as many torch threads, and as much of an emulated device, as the engine's THREADS message says.

    Returns:
        The answer: how many threads torch uses then, and how much this process has of the device.
    """
    _, count, units = m.THREADS_HEAD.unpack(message)
    if count:
        torch.set_num_threads(count)
    if emulated is not None:
        emulated.set_units(units)
    return m.THREADS_ANSWER.pack(m.THREADS_SET, torch.get_num_threads(), 0 if emulated is None else emulated.units)
