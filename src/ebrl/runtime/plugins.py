"""Are the plug-ins of a run there, and do they accept their sections? Asked before anything starts."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from ebrl.config.schema import RunConfig
from ebrl.errors import ConfigError, UnknownPlugin
from ebrl.host.interpreters import is_own
from ebrl.host.simulators import python_for
from ebrl.registry import load, make_config
from ebrl.runtime.emulation import emulation_of


def check_plugins(config: RunConfig, *, devices: bool = True) -> None:
    """Load the classes of environment, policy and algorithm, and make their configs.

    Args:
        config: the run.
        devices: whether it is to run on this machine, which then must have its devices.

    Raises:
        UnknownPlugin: no such plug-in, or no such task of the environment's family.
        ConfigError: a field of a plug-in's section is unknown or has an impossible value, there is
            no such device, a warm start is wanted of an environment without an expert, or siblings of
            a run without any.
        UsageError: a plug-in cannot be imported, or the environment's simulator is not installed.
    """
    env, task = load("env", config.env.name)
    python = python_for(config.env.name, config.env.python or None) if devices else sys.executable
    if is_own(python) or not getattr(env, "asks_simulator", False):  # else its first worker says it
        check_task(env, config.env.name, task, config.env.config)
    make_config(env, config.env.config, "env.config")
    if config.pretrain.enabled:
        check_expert(env, config.env.name)
    policy, _ = load("policy", config.policy.name)
    make_config(policy, config.policy.config, "policy.config")
    algorithm, _ = load("algorithm", config.algorithm.name)
    make_config(algorithm, config.algorithm.config, "algorithm.config")
    check_siblings(algorithm, config)
    if devices and not emulation_of(config, 1):
        check_device("generation.device", config.generation.device)
        check_device("training.device", config.training.device)


def check_expert(env: Any, name: str) -> None:
    """Refuse a warm start where there is nobody to learn from."""
    if not callable(getattr(env, "expert_action", None)):
        raise ConfigError("pretrain", f"env {name!r} has no scripted expert to clone (no method expert_action)")


def check_siblings(algorithm: Any, config: RunConfig) -> None:
    """Refuse an algorithm that compares siblings (its ``compares_siblings`` is true) where there are none."""
    if getattr(algorithm, "compares_siblings", False) and config.training.siblings < 2:
        raise ConfigError(
            "training.siblings",
            f"= {config.training.siblings}: algorithm {config.algorithm.name!r} compares siblings, so it wants 2 or "
            'more, and training.trajectory = "episode"',
        )


def check_device(field: str, name: str) -> None:
    """Refuse a device that torch does not know or this machine does not have."""
    import torch

    try:
        device = torch.device(name)
    except RuntimeError:
        raise ConfigError(field, f"= {name!r}: want a torch device such as cpu, cuda or cuda:0") from None
    if device.type == "cuda":  # asked without starting CUDA in this process
        number = torch.cuda.device_count()
        if (device.index or 0) >= number:
            raise ConfigError(field, f"= {name!r}: this machine has {number} CUDA devices that torch can use")
        return
    try:
        torch.zeros(1, device=device).item()
    except Exception as error:  # each kind of device has its own
        reason = str(error).splitlines()[0]
        raise ConfigError(field, f"= {name!r}: torch cannot compute there: {reason}") from None


def check_task(env: Any, name: str, task: str, section: Mapping[str, Any]) -> None:
    """Whether ``task`` is one of the family's tasks; a family that does not list all its tasks is not asked.

    That is one without ``tasks``, one whose ``lists_every_task`` is false, and one of whose options ``module`` is set,
    which registers others.

    Raises:
        UnknownPlugin: it is not; names the nearest one.
    """
    if not task or not hasattr(env, "tasks") or not getattr(env, "lists_every_task", True) or section.get("module"):
        return
    tasks = env.tasks()
    if task not in tasks:
        family = name.removesuffix(task)
        raise UnknownPlugin("env", name, [family + known for known in tasks])
