"""Take the profile of a run: each stage alone, then briefly all of them together.

Alone means that one process works while all others sleep, so a stage's time is its own. What can
only be seen in company is measured in a short run of the real thing: what an event costs the main
process, and by how much the same work needs more CPU when caches and memory are shared (``corun``).
Times are CPU seconds as the kernel counts them, so that a busy machine does not spoil them.

Where an env worker steps several environments, what is measured is a grant or reset of all of them; what
is noted is their mean share, so all figures are of single environments.
"""

from __future__ import annotations

import tempfile
import time
from contextlib import AbstractContextManager
from pathlib import Path
from statistics import fmean

from ebrl.config.schema import RunConfig
from ebrl.errors import ConfigError
from ebrl.host.hardware import probe_hardware
from ebrl.host.meters import nice_works
from ebrl.host.probe import machine, usable_cpus
from ebrl.profiling.alone import Alone
from ebrl.profiling.company import Company, together
from ebrl.profiling.learning import Learning, TrainingAlone, learning_of
from ebrl.profiling.rig import Rig
from ebrl.profiling.sections import sections_of
from ebrl.profiling.stages import Progress, Say, Stage, Stages
from ebrl.profiling.ticks import tick_s
from ebrl.resources.profile import (
    ControlProfile,
    GenerationProfile,
    Profile,
    SimulationProfile,
    TrainingProfile,
    lag_correlation,
    summarise,
)

SHARES = {"simulation and generation": 0.4, "generation by threads": 0.08, "training": 0.2, "all stages together": 0.32}
"""Of the time that measuring may take; starting the processes comes on top."""


def take_profile(
    config: RunConfig,
    *,
    seconds: float,
    say: Say = lambda text: None,
    progress: Progress = lambda done, total, facts: None,
) -> Profile:
    """Measure what a run costs on this machine.

    A stage ends before its time when all of its means are known to 2 %; what is left is not given to others.

    Args:
        config: the run; it is measured from the policy's own weights, without warm start.
        seconds: about how long to measure, besides starting processes and finishing what was begun.
        say: is told which stage begins.
        progress: is told how far it is.

    Raises:
        ConfigError: the run is of a kind whose costs cannot be measured so.
        RunError: a process failed.
    """
    _check(config)
    start = time.monotonic()
    stages, learning = Stages(say, progress), learning_of(config)
    with tempfile.TemporaryDirectory(prefix="ebrl-profile-") as name:
        rig = Rig(config, Path(name), micro_batch=learning.setting(learning.sizes[0]))
        alone = Alone(rig)
        training = TrainingAlone(rig, learning, threads_to_try(config.training.threads, config.training.device))
        try:
            with stages.stage("starting processes"):
                rig.start()
            with _timed(stages, "simulation and generation", seconds) as stage:
                alone.play(stage)
                own_bytes = rig.env_worker_bytes()
            with _timed(stages, "generation by threads", seconds) as stage:
                counts = threads_to_try(config.generation.threads, config.generation.device)
                alone.generate_by_threads(stage, counts)
            with _timed(stages, "training", seconds) as stage:
                training.measure(stage)
                adopt = rig.adopt()
            measured_s = SHARES["all stages together"] * seconds
            with stages.stage("all stages together", measured_s) as stage:
                company = together(rig, Path(name), seconds=measured_s, show=stage.show)
        finally:
            rig.engine.close()
    with stages.stage("ticks of the kernel"):
        tick = tick_s(rig.plan.nodes[0][-1])
    ratios = company.ratios(
        env_step_s=alone.env_step_cpu_s(),
        table=alone.table(),
        update_s=fmean(w.cpu_s for w in training.updates),
        adopt_s=adopt.cpu_s,
        num_generators=config.generation.num_generators,
        checkpoint_s=training.checkpoint.cpu_s,
    )
    return Profile(
        hardware=machine() | _gpu(config),
        sections=sections_of(config),
        chunk_len=config.policy.chunk_len,
        quantum=config.simulation.quantum,
        batch_trajectories=config.training.batch_trajectories,
        trajectory_chunks=config.training.trajectory_chunks,
        taken_s=time.monotonic() - start,
        tick_s=tick,
        nice_works=nice_works(),
        simulation=_simulation(rig, alone, company, ratios["simulation"], own_bytes),
        generation=GenerationProfile(
            table=alone.table(),
            adopt=adopt,
            corun=ratios["generation"],
            by_threads=tuple(alone.by_threads),
            memory=alone.memory(),
        ),
        training=_training(training, learning, ratios["training"]),
        control=ControlProfile(
            event_s=tuple(sorted(company.event_s.items())),
            command_s=company.command_s,
            latency_s=_low(rig.latencies) / 2,
        ),
        cost_s=tuple(stages.cost_s.items()),
        stopped_early=tuple(stages.stopped_early),
        notes=(*alone.notes, *training.notes, company.note),
    )


def threads_to_try(own: int, device: str) -> tuple[int, ...]:
    """1, 2, 4 … up to the CPUs of this process, and the run's own number; that alone where a GPU does the work."""
    if device != "cpu":
        return (own,)
    num_cpus = len(usable_cpus())
    return tuple(sorted({2**power for power in range(num_cpus.bit_length())} | {num_cpus, own}))


def _timed(stages: Stages, name: str, seconds: float) -> AbstractContextManager[Stage]:
    return stages.stage(name, SHARES[name] * seconds, may_stop=True)


def _simulation(rig: Rig, alone: Alone, company: Company, corun: float, own_bytes: int) -> SimulationProfile:
    return SimulationProfile(
        env_step_s=summarise([s for series in alone.steps for s in series]),
        reset_s=summarise([w.cpu_s + w.other_s for w in alone.resets]),
        within_env_correlation=lag_correlation(alone.steps),
        tapes=tuple(tuple(tape) for tape in alone.tapes if tape),
        resets=tuple(alone.resets),
        episodes=tuple(alone.all_episodes() + company.episodes),
        max_episode_steps=rig.max_episode_steps,
        corun=corun,
        own_bytes=own_bytes,
        observation_s=alone.observation_s(),
    )


def _training(training: TrainingAlone, learning: Learning, corun: float) -> TrainingProfile:
    return TrainingProfile(
        updates=tuple(training.updates),
        checkpoint=training.checkpoint,
        corun=corun,
        epochs=learning.epochs,
        micro_batch=learning.micro_batch,
        by_threads=tuple(sorted(training.table)),
        memory=training.memory(),
    )


def _gpu(config: RunConfig) -> dict[str, str]:
    """The name of the GPU that training works on, as its driver has it."""
    device = config.training.device
    if not device.startswith("cuda"):
        return {}
    index = int(device.partition(":")[2] or 0)
    names = {gpu.index: gpu.name for gpu in probe_hardware().nodes[0].gpus}
    return {"gpu": names[index]} if index in names else {}


def _check(config: RunConfig) -> None:
    trajectory, cpus = config.training.trajectory, config.simulation.cpus_per_worker
    if trajectory != "segment":
        raise ConfigError(
            "training.trajectory",
            f'= {trajectory!r}: profiles and forecasts want "segment": what an update on whole episodes costs depends '
            "on how long they are and which siblings differ, and that changes as the policy learns",
        )
    if cpus != 1:
        raise ConfigError(
            "simulation.cpus_per_worker",
            f"= {cpus}: profiles and forecasts want 1, since they take CPU seconds for seconds",
        )


def _low(values: list[float]) -> float:
    """The fifth of the values that is undisturbed ends here."""
    return sorted(values)[len(values) // 5] if values else 0.0
