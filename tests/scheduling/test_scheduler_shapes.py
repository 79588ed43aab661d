"""Shards of several environments, sets of CPUs, nodes, whole episodes and sibling groups."""

from __future__ import annotations

from test_scheduler import answer, generate, reset, step, train

from ebrl.ids import CpuId, EpisodeId, ShardId, SlotId, TrajectoryId
from ebrl.scheduling import events as e
from ebrl.scheduling.commands import DropTrajectory, EpisodeStart, ResetEnv, SetTimer
from ebrl.scheduling.transitions import Idle
from ebrl.testing.build import (
    all_ready,
    chunks_ready,
    env_worker_lost,
    env_worker_ready,
    episode_end,
    episode_invalid,
    make_plan,
    reset_done,
    resets,
    scheduler_with,
    steps_done,
    update_done,
    weights_live,
)

WIDE = make_plan(num_shards=1, envs_per_shard=3, batch=3, num_cpus=1)
"""One shard of three environments; each of its trajectories is three."""

EPISODES = make_plan(whole_episodes=True, siblings=2, batch=2, slack=0, min_generation_batch=1)
"""Groups of two, one per update, on two shards."""


def starts(*pairs: tuple[int, int], shard: int = 0, cpu: int = 0) -> ResetEnv:
    """A reset of these environments to these episodes."""
    chosen = tuple(EpisodeStart(env, EpisodeId(episode)) for env, episode in pairs)
    return ResetEnv(shard=ShardId(shard), starts=chosen, cpus=(CpuId(cpu),))


def late(trajectory: int, slot: int) -> DropTrajectory:
    return DropTrajectory(trajectory=TrajectoryId(trajectory), slot=SlotId(slot), reason="group_deadline")


# Shards of several environments.


def test_a_new_env_worker_resets_all_of_its_environments() -> None:
    assert answer(scheduler_with(plan=WIDE), env_worker_ready(0)) == [starts((0, 0), (1, 1), (2, 2))]


def test_only_environments_that_are_over_are_reset_and_only_at_the_end_of_the_chunk() -> None:
    plan = make_plan(num_shards=1, envs_per_shard=3, batch=3, num_cpus=1, quantum=2)
    scheduler = scheduler_with(all_ready(plan), resets(plan), [chunks_ready([0])], plan=plan)
    early = steps_done(0, num_steps=2, env_steps=5, chunk_over=False, ends=(episode_end(2),))
    assert answer(scheduler, early) == [step(0, slot=0, chunk=0, cpu=0, first_step=2, num_steps=2)]
    last = steps_done(0, num_steps=2, env_steps=4, ends=(episode_end(0),))
    assert answer(scheduler, last) == [starts((2, 5), (0, 3))]
    assert answer(scheduler, reset_done(0)) == [generate((0, 0, 1, 1))]
    assert (scheduler.counters.env_steps, scheduler.counters.episodes) == (9, 2)


def test_the_ledger_counts_every_environments_trajectory() -> None:
    whole: list[e.Event] = [chunks_ready([0]), steps_done(0, env_steps=12)] * 2
    scheduler = scheduler_with(all_ready(WIDE), resets(WIDE), whole[:-1], plan=WIDE)
    assert answer(scheduler, whole[-1]) == [generate((0, 1, 0, 2)), train((0, 0))]
    answer(scheduler, update_done(1))
    ledger = scheduler.gate.ledger
    assert (ledger.admitted, ledger.trained, scheduler.learner.staleness_counts) == (6, 3, {0: 3})


def test_a_value_that_is_not_finite_costs_the_shards_trajectory_and_resets_everybody() -> None:
    scheduler = scheduler_with(all_ready(WIDE), resets(WIDE), [chunks_ready([0])], plan=WIDE)
    [dropped, again] = answer(scheduler, episode_invalid(0))
    assert isinstance(dropped, DropTrajectory)
    assert again == starts((0, 3), (1, 4), (2, 5))
    assert scheduler.gate.ledger.dropped == {"invalid": 3}


# CPUs.


def test_a_grant_occupies_a_set_of_cpus() -> None:
    plan = make_plan(num_shards=2, num_cpus=4, cpus_per_shard=2)
    scheduler = scheduler_with(all_ready(plan)[:-2], plan=plan)
    both = [command for shard in (0, 1) for command in answer(scheduler, env_worker_ready(shard))]
    assert [command.cpus for command in both if isinstance(command, ResetEnv)] == [(0, 1), (2, 3)]


def test_a_node_binds_its_own_shards_to_its_own_cpus() -> None:
    plan = make_plan(num_shards=4, nodes=((CpuId(0),), (CpuId(0),)))
    scheduler = scheduler_with(all_ready(plan)[:-4], plan=plan)
    assert answer(scheduler, env_worker_ready(0)) == [reset(0, episode=0, cpu=0)]
    assert answer(scheduler, env_worker_ready(1)) == []
    assert answer(scheduler, env_worker_ready(2)) == [reset(2, episode=2, cpu=0)]
    assert answer(scheduler, reset_done(0)) == [reset(1, episode=1, cpu=0)]


# Whole episodes and sibling groups.


def test_siblings_start_from_the_same_state_and_only_with_a_trajectory() -> None:
    scheduler = scheduler_with(all_ready(EPISODES)[:-2], plan=EPISODES)
    assert answer(scheduler, env_worker_ready(0)) == [reset(0, episode=0, cpu=0)]
    assert answer(scheduler, env_worker_ready(1)) == [reset(1, episode=0, cpu=1)]


def test_a_trajectory_lasts_as_long_as_its_episode() -> None:
    chunk: list[e.Event] = [chunks_ready([0]), steps_done(0)]
    scheduler = scheduler_with(all_ready(EPISODES), [reset_done(0)], chunk * 5, plan=EPISODES)
    assert answer(scheduler, chunks_ready([0])) == [step(0, slot=0, chunk=5, cpu=0)]
    assert answer(scheduler, steps_done(0, num_steps=1, end=episode_end())) == []
    assert scheduler.step_level.phases[0] == Idle()


def test_a_group_trains_when_all_siblings_are_complete_and_then_the_next_begins() -> None:
    first: list[e.Event] = [
        reset_done(0),
        chunks_ready([0]),
        steps_done(0, end=episode_end()),
        reset_done(1),
        chunks_ready([1]),
    ]
    scheduler = scheduler_with(all_ready(EPISODES), first, plan=EPISODES)
    assert answer(scheduler, steps_done(1, end=episode_end())) == [train((0, 0), (1, 1))]
    answer(scheduler, update_done(1))
    assert answer(scheduler, weights_live(1)) == [reset(0, episode=1, cpu=0), reset(1, episode=1, cpu=1)]
    assert scheduler.episodes_begun == 2


def test_a_resumed_run_begins_groups_that_were_not_begun_before() -> None:
    plan = make_plan(whole_episodes=True, siblings=2, batch=2, first_episode=7)
    scheduler = scheduler_with(all_ready(plan)[:-2], plan=plan)
    assert answer(scheduler, env_worker_ready(0)) == [reset(0, episode=7, cpu=0)]
    assert scheduler.episodes_begun == 8


def test_a_lost_sibling_is_played_again_from_the_same_state() -> None:
    scheduler = scheduler_with(all_ready(EPISODES), [reset_done(0), chunks_ready([0])], plan=EPISODES)
    answer(scheduler, env_worker_lost(0))
    assert scheduler.counters.env_failures == {"died": 1}
    assert answer(scheduler, env_worker_ready(0, epoch=1)) == [reset(0, episode=0, cpu=0)]
    assert scheduler.counters.siblings_replaced == 1


def test_a_late_group_is_dropped_and_its_shards_go_on_when_their_process_has_answered() -> None:
    plan = make_plan(num_shards=3, num_cpus=3, whole_episodes=True, siblings=3, batch=3, slack=0, group_deadline_s=9.0)
    scheduler = scheduler_with(all_ready(plan)[:-3], plan=plan)
    timer, begun = answer(scheduler, env_worker_ready(0))
    assert (timer, begun) == (SetTimer(name="group 0", after_s=9.0), reset(0, episode=0, cpu=0))
    for event in (env_worker_ready(1), env_worker_ready(2), reset_done(0), reset_done(1), chunks_ready([0, 1])):
        answer(scheduler, event)
    answer(scheduler, steps_done(0))  # waits for its second chunk; shard 1 runs, shard 2 resets
    assert answer(scheduler, e.TimerFired(name="group 0")) == [late(0, 0), late(1, 1), late(2, 2)]
    assert scheduler.step_level.phases[0] == Idle()
    assert answer(scheduler, steps_done(1)) == []
    assert answer(scheduler, reset_done(2)) == [
        SetTimer(name="group 1", after_s=9.0),
        *[reset(shard, episode=1, cpu=cpu) for shard, cpu in ((0, 0), (1, 1), (2, 2))],
    ]
    assert scheduler.gate.ledger.dropped == {"group_deadline": 3}


def test_a_group_that_was_complete_in_time_is_not_dropped() -> None:
    plan = make_plan(whole_episodes=True, siblings=1, batch=1, slack=0, group_deadline_s=9.0, min_generation_batch=1)
    played: list[e.Event] = [reset_done(0), chunks_ready([0]), steps_done(0, end=episode_end())]
    scheduler = scheduler_with(all_ready(plan), played, plan=plan)
    assert answer(scheduler, e.TimerFired(name="group 0")) == []


def test_a_sibling_of_a_late_group_whose_env_worker_dies_is_not_dropped_twice() -> None:
    plan = make_plan(num_shards=3, num_cpus=3, whole_episodes=True, siblings=3, batch=3, slack=0, group_deadline_s=9.0)
    scheduler = scheduler_with(all_ready(plan), [reset_done(0)], [e.TimerFired(name="group 0")], plan=plan)
    assert not [one for one in answer(scheduler, env_worker_lost(1)) if isinstance(one, DropTrajectory)]
    assert scheduler.gate.ledger.dropped == {"group_deadline": 3}


def test_episodes_of_one_environment_each_are_counted_by_who_has_begun_most() -> None:
    plan = make_plan()
    scheduler = scheduler_with(all_ready(plan), resets(plan), [chunks_ready([0, 1])], plan=plan)
    assert scheduler.episodes_begun == 1
    answer(scheduler, steps_done(0, end=episode_end()))
    assert scheduler.episodes_begun == 2
