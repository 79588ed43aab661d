"""A profile with round numbers, for tests."""

from __future__ import annotations

from dataclasses import replace

from ebrl.resources.profile import (
    BatchCost,
    BatchTime,
    ControlProfile,
    GenerationProfile,
    Grant,
    Memory,
    PlayedEpisode,
    Profile,
    SimulationProfile,
    TrainingProfile,
    Work,
    summarise,
)

_PROFILE = Profile(
    hardware={"usable_cpus": 2},
    sections={},
    chunk_len=4,
    quantum=0,
    batch_trajectories=4,
    trajectory_chunks=2,
    taken_s=1.0,
    tick_s=0.004,
    nice_works=True,
    simulation=SimulationProfile(
        env_step_s=summarise([0.002]),
        reset_s=summarise([0.004]),
        within_env_correlation=0.0,
        tapes=((Grant(4, 0.008, 0.0),),),
        resets=(Work(0.004),),
        episodes=(PlayedEpisode(20, True, True), PlayedEpisode(30, False, True)),
        max_episode_steps=30,
        own_bytes=50_000_000,
    ),
    generation=GenerationProfile(
        table=(BatchCost(1, 0.002, 0.0), BatchCost(4, 0.005, 0.0)),
        adopt=Work(0.001),
        by_threads=(BatchTime(1, 1, 0.002, 0.01, 30), BatchTime(1, 4, 0.005, 0.01, 30)),
        memory=Memory(200_000_000, 1_000_000),
    ),
    training=TrainingProfile(
        updates=(Work(0.02),),
        checkpoint=Work(0.01),
        epochs=2,
        micro_batch=8,
        by_threads=(BatchTime(1, 2, 0.032, 0.01, 5), BatchTime(1, 8, 0.02, 0.01, 5)),
        memory=Memory(300_000_000, 2_000_000),
    ),
    control=ControlProfile(event_s=(("StepsDone", 1e-4),), command_s=1e-5, latency_s=2e-5),
    cost_s=(("start", 0.5), ("training", 0.5)),
    stopped_early=("training",),
)


def make_profile(**changes: object) -> Profile:
    """The profile of this module with these fields changed."""
    return replace(_PROFILE, **changes)  # type: ignore[arg-type]  # a wrong name is a TypeError
