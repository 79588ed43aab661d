"""Are the plug-ins of a run there, and do they accept their sections? Asked before anything starts."""

from __future__ import annotations

from typing import Any

from ebrl.config.schema import RunConfig
from ebrl.errors import UnknownPlugin
from ebrl.registry import load, make_config


def check_plugins(config: RunConfig) -> None:
    """Load the classes of environment, policy and algorithm, and make their configs.

    Raises:
        UnknownPlugin: no such plug-in, or no such task of the environment's family.
        ConfigError: a field of a plug-in's section is unknown or has an impossible value.
        UsageError: a plug-in cannot be imported.
    """
    env, task = load("env", config.env.name)
    check_task(env, config.env.name, task)
    make_config(env, config.env.config, "env.config")
    policy, _ = load("policy", config.policy.name)
    make_config(policy, config.policy.config, "policy.config")
    algorithm, _ = load("algorithm", config.algorithm.name)
    make_config(algorithm, config.algorithm.config, "algorithm.config")


def check_task(env: Any, name: str, task: str) -> None:
    """Whether ``task`` is one of the family's tasks; a family that does not list its tasks is not asked.

    Raises:
        UnknownPlugin: it is not; names the nearest one.
    """
    if not task or not hasattr(env, "tasks"):
        return
    tasks = env.tasks()
    if task not in tasks:
        family = name.removesuffix(task)
        raise UnknownPlugin("env", name, [family + known for known in tasks])
