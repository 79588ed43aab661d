"""Everything that follows from a configuration and a machine: one frozen value, and how to make it."""

from __future__ import annotations

from ebrl.config.schema import RunConfig
from ebrl.errors import ConfigError
from ebrl.ids import CpuId, CpuSet, PolicyVersion
from ebrl.scheduling.plan import SchedulerPlan
from ebrl.scheduling.quotas import Split


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
        first_episode: episodes that each environment (sibling groups that the run) has behind it.
        first_serial: chunks that each environment has behind it.

    Raises:
        ConfigError: the run asks for CPUs that this process may not use, or cannot share them out.
    """
    training, generation = config.training, config.generation
    width = config.simulation.envs_per_worker
    simulation = _simulation_cpus(config, usable_cpus)
    return SchedulerPlan(
        num_shards=config.simulation.num_envs // width,
        nodes=(simulation,),
        split=_split(config, usable_cpus, simulation),
        envs_per_shard=width,
        cpus_per_shard=config.simulation.cpus_per_worker,
        num_generators=generation.num_generators,
        chunk_len=config.policy.chunk_len,
        trajectory_chunks=training.trajectory_chunks,
        whole_episodes=training.trajectory == "episode",
        siblings=training.siblings,
        group_deadline_s=training.group_deadline_s,
        quantum=config.simulation.quantum,
        step_barrier=config.simulation.step_barrier,
        env_groups=generation.env_groups,
        round_robin=generation.round_robin,
        generation_buckets=tuple(sorted({bucket // width for bucket in generation.buckets} - {0})),
        min_generation_batch=-(-generation.min_batch // width),
        max_generation_batch=generation.max_batch // width,
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


def _split(config: RunConfig, usable: CpuSet, simulation: CpuSet) -> Split | None:
    """None where generators and the learner run where the kernel puts them."""
    generation, training = config.generation, config.training
    if generation.cpus == "all" and training.cpus == "all":
        return None
    return Split(
        simulation=simulation,
        generation=_chosen("generation.cpus", generation.cpus, usable),
        training=_chosen("training.cpus", training.cpus, usable),
        generation_threads=generation.threads,
        training_threads=training.threads,
    )


def _chosen(field: str, chosen: list[int] | str, usable: CpuSet) -> CpuSet:
    if isinstance(chosen, str):
        return usable
    missing = sorted(set(chosen) - set(usable))
    if missing or not chosen:
        what = f"this process may not use {missing}; it may use" if missing else "want at least one of"
        raise ConfigError(field, f"= {chosen}: {what} {list(usable)}")
    return tuple(CpuId(cpu) for cpu in chosen)


def _simulation_cpus(config: RunConfig, usable: CpuSet) -> CpuSet:
    together = config.simulation.cpus_per_worker
    cpus = _chosen("simulation.cpus", config.simulation.cpus, usable)
    if len(cpus) % together:
        raise ConfigError(
            "simulation.cpus_per_worker",
            f"= {together}: want a divisor of {len(cpus)}, the number of CPUs that simulation has (simulation.cpus)",
        )
    return cpus
