"""What a sample says of the stages: seconds measured over seconds predicted."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ebrl.ids import Epoch, GeneratorId, PolicyVersion, ShardId
from ebrl.resources.allocation import Prediction
from ebrl.resources.rebalance import Ratios
from ebrl.resources.workload import BatchCosts, SimulationCosts, Workload
from ebrl.scheduling import events as e
from ebrl.scheduling.rates import StageMeter
from ebrl.testing.build import episode_end, steps_done

PREDICTION = Prediction(
    trajectories_per_s=1.0,
    binding="training",
    limits={},
    chunk_s=0.5,
    generation_fixed_s=0.1,
    generation_item_s=0.01,
    update_s=2.0,
)
WORKLOAD = Workload(
    name="small",
    num_envs=4,
    chunk_len=4,
    trajectory_chunks=2.5,
    batch_trajectories=4,
    slack=1,
    epochs=1,
    unit="cpu",
    simulation=SimulationCosts(chunk_s=0.5),
    generation=BatchCosts(fixed_s=0.1, item_s=0.0),
    training=BatchCosts(fixed_s=0.1, item_s=0.0),
)


def meter(*, envs_per_shard: int = 1, whole_episodes: bool = False) -> StageMeter:
    return StageMeter(envs_per_shard=envs_per_shard, chunk_len=4, whole_episodes=whole_episodes)


def ratios_of(subject: StageMeter, *events: e.Event) -> Ratios:
    for event in events:
        subject.see(event, PREDICTION)
    return subject.take(PREDICTION, WORKLOAD)


def chunks_ready(num_shards: int, seconds: float) -> e.ChunksReady:
    return e.ChunksReady(
        generator=GeneratorId(0),
        epoch=Epoch(0),
        shards=tuple(ShardId(shard) for shard in range(num_shards)),
        policy_version=PolicyVersion(0),
        generation_s=seconds,
    )


def update_done(seconds: float, *, skipped: bool = False) -> e.UpdateDone:
    return e.UpdateDone(epoch=Epoch(0), policy_version=PolicyVersion(1), train_s=seconds, skipped=skipped)


def test_where_nothing_happened_nothing_is_said() -> None:
    assert ratios_of(meter()) == Ratios()
    assert ratios_of(meter(), e.RunStarted()).is_empty


def test_a_chunk_is_all_of_its_grants_and_its_share_of_resets() -> None:
    first = replace(steps_done(0), chunk_over=False, step_s=0.3)
    last = replace(steps_done(0), chunk_over=True, step_s=0.2)
    reset = e.ResetDone(shard=ShardId(0), epoch=Epoch(0), reset_s=0.25)
    assert ratios_of(meter(), first, last, reset).chunk == pytest.approx(1.5)
    assert ratios_of(meter(envs_per_shard=3), first, last, reset).chunk == pytest.approx(0.5)


def test_a_batch_is_compared_with_one_of_its_size() -> None:
    found = ratios_of(meter(), chunks_ready(4, 0.28), chunks_ready(1, 0.22))
    assert found.generation == pytest.approx(0.5 / (0.14 + 0.11))
    assert ratios_of(meter(envs_per_shard=2), chunks_ready(2, 0.28)).generation == pytest.approx(2.0)


def test_an_update_that_was_skipped_is_none() -> None:
    assert ratios_of(meter(), update_done(9.0, skipped=True)) == Ratios()
    assert ratios_of(meter(), update_done(3.0), update_done(1.0), update_done(9.0, skipped=True)).update == 1.0


def test_the_length_of_trajectories_is_that_of_whole_episodes() -> None:
    ends = (replace(episode_end(), num_steps=4), replace(episode_end(), num_steps=5))
    done = replace(steps_done(0), episode_ends=ends)
    assert ratios_of(meter(), done).trajectory is None
    assert ratios_of(meter(whole_episodes=True), done).trajectory == pytest.approx(1.5 / 2.5)


def test_a_sample_begins_anew() -> None:
    subject = meter()
    subject.see(steps_done(0), PREDICTION)
    assert subject.num_chunks == 1
    subject.take(PREDICTION, WORKLOAD)
    assert subject.num_chunks == 0
    assert subject.take(PREDICTION, WORKLOAD) == Ratios()
