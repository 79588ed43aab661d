"""Everything that follows from a configuration and a machine: one frozen value, and how to make it."""

from __future__ import annotations

from ebrl.config.schema import RunConfig
from ebrl.errors import ConfigError
from ebrl.ids import CpuId, PolicyVersion
from ebrl.scheduling.plan import SchedulerPlan


def make_plan(
    config: RunConfig,
    usable_cpus: tuple[CpuId, ...],
    *,
    first_version: int = 0,
    first_env_step: int = 0,
    first_episode: int = 0,
    first_serial: int = 0,
) -> SchedulerPlan:
    """The control plane's plan.

    Args:
        config: what the user chose.
        usable_cpus: what the machine offers.
        first_version: policy version, and with it the following counts, of the run that is resumed.
        first_env_step: env steps behind it.
        first_episode: episodes that each environment has behind it.
        first_serial: chunks that each environment has behind it.

    Raises:
        ConfigError: the run asks for CPUs that this process may not use.
    """
    training = config.training
    return SchedulerPlan(
        num_shards=config.simulation.num_envs,
        cpus=_simulation_cpus(config, usable_cpus),
        chunk_len=config.policy.chunk_len,
        trajectory_chunks=training.trajectory_chunks,
        quantum=config.simulation.quantum,
        step_barrier=config.simulation.step_barrier,
        env_groups=config.generation.env_groups,
        round_robin=config.generation.round_robin,
        generation_buckets=tuple(config.generation.buckets),
        min_generation_batch=config.generation.min_batch,
        max_generation_batch=config.generation.max_batch,
        batch=training.batch_trajectories,
        slack=training.slack,
        window=training.window,
        max_updates=training.max_updates,
        max_env_steps=training.max_env_steps,
        checkpoint_every=config.checkpoint.every_updates,
        max_env_failures=config.failures.max_env_failures,
        drain_s=config.failures.drain_s,
        finish_s=config.failures.training_s,
        watchdog_s=config.failures.watchdog_s,
        first_version=PolicyVersion(first_version),
        first_env_step=first_env_step,
        first_episode=first_episode,
        first_serial=first_serial,
    )


def _simulation_cpus(config: RunConfig, usable: tuple[CpuId, ...]) -> tuple[CpuId, ...]:
    chosen = config.simulation.cpus
    if not isinstance(chosen, list):
        return usable
    missing = sorted(set(chosen) - set(usable))
    if missing:
        raise ConfigError(
            "simulation.cpus", f"= {chosen}: this process may not use {missing}; it may use {list(usable)}"
        )
    return tuple(CpuId(cpu) for cpu in chosen)
