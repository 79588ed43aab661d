"""From a configuration and its plan to what the local engine must know."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ebrl.config.schema import RunConfig
from ebrl.engines.local.setup import Deadlines, Limits, LocalSetup, fields_of
from ebrl.errors import ConfigError
from ebrl.host.egl import egl_devices
from ebrl.host.probe import usable_cpus
from ebrl.host.simulators import python_for
from ebrl.registry import portable
from ebrl.runtime.emulation import emulation_of
from ebrl.scheduling.plan import SchedulerPlan


def render_devices(config: RunConfig, known: Mapping[int, int] | None = None) -> tuple[int, ...]:
    """EGL's numbers of the devices that env workers render on.

    Args:
        config: what the user chose.
        known: EGL's number by CUDA's; None asks EGL.

    Raises:
        ConfigError: the user chose a GPU that EGL does not know.
    """
    chosen, device = config.simulation.render_gpus, config.generation.device
    if chosen == "auto":
        if not device.startswith("cuda"):
            return ()
        known = egl_devices() if known is None else known
        number = int(device.partition(":")[2] or 0)
        return (known[number],) if number in known else ()
    known = egl_devices() if known is None else known
    missing = [gpu for gpu in chosen if gpu not in known]
    if missing:
        raise ConfigError(
            "simulation.render_gpus", f"= {chosen}: EGL does not know GPUs {missing}; it knows {sorted(known)}"
        )
    return tuple(known[gpu] for gpu in chosen)


def local_setup(
    config: RunConfig,
    plan: SchedulerPlan,
    run_dir: Path,
    *,
    checkpoint: Path | None = None,
    restore_algorithm: bool = False,
) -> LocalSetup:
    """The processes of a run.

    Args:
        config: what the user chose.
        plan: what follows from it.
        run_dir: takes logs and checkpoints.
        checkpoint: where the first weights come from; None starts from the policy's own.
        restore_algorithm: take the optimizer state from there too.
    """
    emulation = emulation_of(config, len(usable_cpus()))
    simulation, generation, training, failures = config.simulation, config.generation, config.training, config.failures
    return LocalSetup(
        **fields_of(plan),
        run_dir=run_dir.absolute(),
        seed=config.run.seed,
        deterministic=config.run.deterministic,
        bind_cpus=simulation.binding == "cpu" and not config.emulation.cpus,
        observe_every_step=simulation.observe == "every_step",
        run_to_horizon=simulation.finished_episodes == "run_to_horizon",
        env=portable("env", config.env.name),
        env_config=config.env.config,
        render_devices=render_devices(config),
        env_python=python_for(config.env.name, config.env.python or None),
        policy=config.policy.name,
        policy_config=config.policy.config,
        algorithm=config.algorithm.name,
        algorithm_config=config.algorithm.config,
        generator_device="cpu" if emulation else generation.device,
        generator_threads=generation.threads,
        learner_device="cpu" if emulation else training.device,
        emulated_generator=emulation.generation if emulation else None,
        emulated_learner=emulation.training if emulation else None,
        learner_threads=training.threads,
        learner_nice=training.nice,
        checkpoint=checkpoint.absolute() if checkpoint else None,
        restore_algorithm=restore_algorithm,
        keep_checkpoints=config.checkpoint.keep,
        deadlines=Deadlines(
            start_s=failures.start_s,
            reset_s=failures.reset_s,
            step_s=failures.step_s,
            generation_s=failures.generation_s,
            training_s=failures.training_s,
        ),
        limits=Limits(memory_bytes=int(failures.worker_memory_gib * 2**30), resets=failures.worker_resets),
    )
