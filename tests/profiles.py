"""A profile with round numbers, for tests."""

from __future__ import annotations

from dataclasses import replace

from ebrl.resources.profile import (
    BatchCost,
    ControlProfile,
    GenerationProfile,
    Grant,
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
    ),
    generation=GenerationProfile(table=(BatchCost(1, 0.002, 0.0), BatchCost(4, 0.005, 0.0)), adopt=Work(0.001)),
    training=TrainingProfile(updates=(Work(0.02),), checkpoint=Work(0.01)),
    control=ControlProfile(event_s=(("StepsDone", 1e-4),), command_s=1e-5, latency_s=2e-5),
)


def make_profile(**changes: object) -> Profile:
    """The profile of this module with these fields changed."""
    return replace(_PROFILE, **changes)  # type: ignore[arg-type]  # a wrong name is a TypeError
