"""The manager: which events it answers, and with what."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, get_args

from ebrl.ids import CpuId, CpuSet, Epoch, GeneratorId, PolicyVersion
from ebrl.resources.allocation import Allocation, CpuSharing, Shape
from ebrl.resources.hardware import Cpu
from ebrl.resources.rebalance import Ratios
from ebrl.resources.workload import BatchCosts, SimulationCosts, Workload
from ebrl.scheduling import commands as c
from ebrl.scheduling import events as e
from ebrl.scheduling.management import SAMPLE, comparable, split_of, split_of_sms
from ebrl.scheduling.plan import Management, SchedulerPlan
from ebrl.scheduling.quotas import Split, Stage
from ebrl.scheduling.scheduler import Scheduler
from ebrl.testing.build import (
    chunks_ready,
    env_worker_ready,
    generator_lost,
    generator_ready,
    learner_lost,
    learner_ready,
    reset_done,
    steps_done,
    update_done,
)

WORKLOAD = Workload(
    name="small",
    num_envs=4,
    chunk_len=4,
    trajectory_chunks=2,
    batch_trajectories=4,
    slack=1,
    epochs=1,
    unit="cpu",
    simulation=SimulationCosts(chunk_s=0.2),
    generation=BatchCosts(fixed_s=0.02, item_s=0.02, saturation=2.6),
    training=BatchCosts(fixed_s=0.01, item_s=0.02, saturation=4.0),
)
SHAPE = Shape(num_nodes=1, num_cpus=6, memory_bytes=2**40)
ALLOCATION = Allocation(
    cpu_sharing="none",
    gpu_sharing="none",
    simulation_cpus=2,
    generation_cpus=3,
    training_cpus=1,
    num_generators=1,
    num_learners=1,
    generation_units=0,
    training_units=0,
    min_batch=1,
    max_batch=4,
    micro_batch=8,
)
CPUS = tuple(Cpu(id=CpuId(cpu), core=cpu) for cpu in range(6))
MANAGEMENT = Management(workload=WORKLOAD, shape=SHAPE, allocation=ALLOCATION, cpus=CPUS)


def cpus(*numbers: int) -> CpuSet:
    return tuple(CpuId(number) for number in numbers)


def scheduler(management: Management | None = MANAGEMENT, split: Split | None = None, **changes: Any) -> Scheduler:
    chosen = split or split_of(ALLOCATION, MANAGEMENT)
    plan = SchedulerPlan(
        num_shards=4, nodes=(chosen.simulation,), chunk_len=4, split=chosen, management=management, batch=4
    )
    return Scheduler(replace(plan, **changes))


def test_every_stage_has_cpus_of_its_own_and_threads_that_help() -> None:
    split = split_of(ALLOCATION, MANAGEMENT)
    assert sorted(split.simulation + split.generation + split.training) == [0, 1, 2, 3, 4, 5]
    assert (len(split.simulation), len(split.generation), len(split.training)) == (2, 3, 1)
    assert (split.generation_threads, split.training_threads) == (3, 1)
    assert (split.min_batch, split.max_batch) == (1, 4)


def test_on_a_gpu_threads_stay_as_they_are() -> None:
    management = replace(MANAGEMENT, workload=replace(WORKLOAD, unit="gpu"))
    assert split_of(ALLOCATION, management).generation_threads == 0


def test_where_only_sms_are_split_cpus_and_threads_stay_as_they_are() -> None:
    allocation = replace(ALLOCATION, generation_units=48, training_units=60)
    assert split_of_sms(allocation, simulation=cpus(0, 1), host=cpus(2)) == Split(
        simulation=cpus(0, 1),
        generation=cpus(2),
        training=cpus(2),
        generation_threads=0,
        training_threads=0,
        generation_units=48,
        training_units=60,
    )


def test_a_process_that_starts_is_told_its_quota() -> None:
    subject = scheduler()
    commands = subject.handle(
        e.GeneratorReady(generator=GeneratorId(0), epoch=Epoch(0), policy_version=PolicyVersion(0)), 1.0
    )
    split = split_of(ALLOCATION, MANAGEMENT)
    assert c.SetQuota(stage="generation", index=0, cpus=split.generation, threads=3, units=0) in commands


def test_samples_are_taken_again_and_again() -> None:
    subject = scheduler()
    again = c.SetTimer(name=SAMPLE, after_s=1.0)
    assert again in subject.handle(e.RunStarted(), 0.0)
    assert again in subject.handle(e.TimerFired(name=SAMPLE), 1.0)


def test_a_sample_is_of_a_whole_round_of_chunks() -> None:
    subject = scheduler(num_shards=1, min_generation_batch=1)
    assert subject.manager is not None
    assert subject.manager.follower is not None
    meter = subject.manager.follower._meter
    for event in (generator_ready(), env_worker_ready(), reset_done(), chunks_ready([0])):
        subject.handle(event, 0.0)
    subject.handle(e.TimerFired(name=SAMPLE), 1.0)
    assert meter._sums.generation_s > 0  # no chunk is over yet: it goes on counting
    subject.handle(steps_done(), 1.5)
    subject.handle(e.TimerFired(name=SAMPLE), 2.0)
    assert meter._sums.generation_s == meter.num_chunks == 0


def test_a_generator_that_is_lost_is_not_waited_for() -> None:
    start = Split(simulation=cpus(0), generation=cpus(1, 2), training=cpus(3))
    subject = scheduler(management=None, split=start)
    subject.handle(generator_ready(), 0.0)
    subject.handle(e.SplitRequested(split=replace(start, generation=cpus(1), simulation=cpus(0, 2))), 1.0)
    assert subject.step_level.cpu_sets(0) == {cpus(0)}  # the generator has not left CPU 2 yet
    subject.handle(generator_lost(), 2.0)
    assert subject.step_level.cpu_sets(0) == {cpus(0), cpus(2)}


def test_without_management_nothing_is_sampled_and_cpus_stay() -> None:
    subject = scheduler(management=None)
    assert not [
        one for one in subject.handle(e.RunStarted(), 0.0) if isinstance(one, c.SetTimer) and one.name == SAMPLE
    ]
    assert subject.handle(e.CpusChanged(cpus=cpus(0)), 1.0) == []


def test_a_move_is_timed_and_has_a_reason() -> None:
    subject = scheduler()
    subject.handle(e.CpusChanged(cpus=cpus(0, 1, 2, 3)), 3.0)
    assert subject.manager is not None
    [move] = subject.manager.moves
    assert (move.asked_s, move.left_s, move.done_s) == (3.0, 3.0, 3.0)  # no process is up, nobody is waited for
    assert move.why.startswith("4 CPUs instead of 6")


def test_cpus_that_were_not_known_can_be_used() -> None:
    subject = scheduler()
    subject.handle(e.CpusChanged(cpus=cpus(0, 1, 2, 3, 4, 5, 6, 7)), 3.0)
    assert subject.manager is not None
    split = subject.manager.quotas.split
    assert {6, 7} <= {*split.simulation, *split.generation, *split.training}


def test_batches_change_with_the_split() -> None:
    start = Split(simulation=cpus(0), generation=cpus(1), training=cpus(1))
    subject = scheduler(management=None, split=start)
    subject.handle(e.SplitRequested(split=replace(start, min_batch=3, max_batch=3)), 1.0)
    assert subject.chunk_level.max_batch == 3
    for shard in range(4):
        subject.handle(e.EnvWorkerReady(shard=shard, epoch=Epoch(0)), 1.0)  # type: ignore[arg-type]
    assert subject.manager is not None
    assert subject.manager.quotas.counts.switches == 1


def test_simulation_moves_on_every_node() -> None:
    start = Split(simulation=cpus(0), generation=cpus(1), training=cpus(1))
    subject = scheduler(management=None, split=start, nodes=(cpus(0), cpus(0)))
    subject.handle(e.SplitRequested(split=replace(start, simulation=cpus(2, 3))), 1.0)
    assert [subject.step_level.cpu_sets(node) for node in (0, 1)] == [{cpus(2), cpus(3)}] * 2


def test_env_groups_wait_for_all_of_their_members_whatever_the_split() -> None:
    start = Split(simulation=cpus(0), generation=cpus(1), training=cpus(1))
    subject = scheduler(management=None, split=start, env_groups=2)
    subject.handle(e.SplitRequested(split=replace(start, min_batch=1)), 1.0)
    assert subject.chunk_level._min_batch == [2, 2]


def test_cpu_sets_of_a_split_are_whole() -> None:
    start = Split(simulation=cpus(0, 1), generation=cpus(5), training=cpus(5))
    subject = scheduler(management=None, split=start, cpus_per_shard=2)
    subject.handle(e.SplitRequested(split=replace(start, simulation=cpus(0, 1, 2, 3, 4))), 1.0)
    assert subject.step_level.cpu_sets(0) == {cpus(0, 1), cpus(2, 3)}


def test_of_what_is_asked_for_during_a_move_the_newest_counts() -> None:
    start = Split(simulation=cpus(0), generation=cpus(1), training=cpus(2, 3))
    subject = scheduler(management=None, split=start)
    subject.handle(e.LearnerReady(epoch=Epoch(0), policy_version=PolicyVersion(0)), 0.0)
    asked = [replace(start, training=cpus(last)) for last in (3, 2, 1)]
    for split in asked:
        subject.handle(e.SplitRequested(split=split), 1.0)
    for told in (cpus(2, 3), cpus(3), cpus(1)):
        subject.handle(e.QuotaApplied(stage="training", index=0, epoch=Epoch(0), cpus=told, threads=1, units=0), 2.0)
    assert subject.manager is not None
    assert subject.manager.quotas.split == asked[2]
    assert [move.why for move in subject.manager.moves] == ["asked for", "asked for"]


def test_stages_that_wait_for_each_others_cpus_are_not_compared() -> None:
    ratios = Ratios(chunk=2.0, generation=3.0, update=4.0, trajectory=0.5)
    measured = {
        sharing: comparable(ratios, replace(ALLOCATION, cpu_sharing=sharing), WORKLOAD)
        for sharing in get_args(CpuSharing)
    }
    assert measured["none"] == ratios
    assert measured["all"] == Ratios(trajectory=0.5)
    assert measured["rollout"] == Ratios(update=4.0, trajectory=0.5)
    assert measured["compute"] == Ratios(chunk=2.0, trajectory=0.5)
    assert comparable(ratios, ALLOCATION, replace(WORKLOAD, unit="gpu")) == ratios


SMS = Split(simulation=cpus(0, 1, 2, 3), generation=cpus(4), training=cpus(5), generation_units=48, training_units=60)


def lending(management: Management | None = None, **more: Any) -> Scheduler:
    """One shard, trajectories of one chunk, updates of one trajectory; all but the learner are up."""
    subject = scheduler(
        management,
        SMS,
        lend=True,
        num_shards=1,
        trajectory_chunks=1,
        batch=1,
        **more,
    )
    subject.handle(e.RunStarted(), 0.0)
    subject.handle(generator_ready(), 0.0)
    subject.handle(quota_applied("generation", 48), 0.0)
    subject.handle(env_worker_ready(), 0.0)
    subject.handle(reset_done(), 0.0)
    return subject


def quota_applied(stage: Stage, units: int) -> e.QuotaApplied:
    own = SMS.generation if stage == "generation" else SMS.training
    return e.QuotaApplied(stage=stage, index=0, epoch=Epoch(0), cpus=own, threads=1, units=units)


def quota(units: int) -> c.SetQuota:
    """Of the generator."""
    return c.SetQuota(stage="generation", index=0, cpus=SMS.generation, threads=1, units=units)


def play_a_trajectory(subject: Scheduler, at: float) -> list[c.Command]:
    """What is said when its only chunk is over."""
    subject.handle(chunks_ready([0]), at)
    return subject.handle(steps_done(), at)


def test_a_learner_without_a_batch_lends_its_sms_and_begins_when_it_has_them_again() -> None:
    subject = lending()
    assert quota(108) in subject.handle(learner_ready(), 1.0)
    assert subject.handle(quota_applied("training", 60), 1.0) == []
    assert subject.handle(quota_applied("generation", 108), 1.0) == []
    commands = play_a_trajectory(subject, 2.0)
    assert quota(48) in commands
    assert not [one for one in commands if isinstance(one, c.Train)]
    [train] = subject.handle(quota_applied("generation", 48), 3.0)
    assert isinstance(train, c.Train)
    assert quota(108) in subject.handle(update_done(1), 4.0)
    assert subject.manager is not None
    assert subject.manager.quotas.counts.loans == 2


def test_a_learner_whose_next_batch_waits_lends_nothing() -> None:
    subject = lending()
    play_a_trajectory(subject, 1.0)
    assert isinstance(subject.handle(learner_ready(), 1.0)[-1], c.Train)  # of what was there before it
    play_a_trajectory(subject, 2.0)
    assert isinstance(subject.handle(update_done(1), 3.0)[-1], c.Train)


def test_nothing_is_lent_while_a_move_goes_on() -> None:
    subject = lending()
    subject.handle(e.SplitRequested(split=replace(SMS, generation_units=24, training_units=84)), 1.0)
    assert subject.handle(learner_ready(), 1.0)[-1] == c.SetQuota(
        stage="training", index=0, cpus=SMS.training, threads=1, units=60
    )
    subject.handle(quota_applied("training", 60), 1.0)
    subject.handle(quota_applied("generation", 24), 2.0)
    assert quota(108) in subject.handle(quota_applied("training", 84), 3.0)


def test_batches_that_were_made_with_lent_sms_say_nothing_of_what_generation_costs() -> None:
    gpu = replace(MANAGEMENT, workload=replace(WORKLOAD, unit="gpu"))
    subject = lending(gpu)
    assert subject.manager is not None
    assert subject.manager.follower is not None
    meter = subject.manager.follower._meter
    subject.handle(learner_ready(), 1.0)
    play_a_trajectory(subject, 2.0)
    assert (meter._sums.generation_s, meter._sums.chunks) == (0.0, 1)
    subject.handle(quota_applied("generation", 108), 2.0)
    subject.handle(quota_applied("generation", 48), 2.0)
    play_a_trajectory(subject, 3.0)
    assert meter._sums.generation_s > 0


def test_a_learner_that_starts_again_has_its_quota_before_it_trains() -> None:
    """It starts with what learners have at first, and generators may have grown into the rest since."""
    subject = lending()
    subject.handle(learner_ready(), 1.0)
    subject.handle(quota_applied("training", 60), 1.0)
    subject.handle(quota_applied("generation", 108), 1.0)
    play_a_trajectory(subject, 2.0)
    subject.handle(quota_applied("generation", 48), 2.0)  # the learner trains
    subject.handle(e.SplitRequested(split=replace(SMS, generation_units=84, training_units=24)), 3.0)
    assert quota(84) in subject.handle(learner_lost(), 4.0)
    subject.handle(quota_applied("generation", 84), 4.0)
    first, second = subject.handle(learner_ready(epoch=1), 5.0)
    assert first == c.SetQuota(stage="training", index=0, cpus=SMS.training, threads=1, units=24)
    assert isinstance(second, c.Train)


def test_a_generator_that_does_not_give_sms_back_is_named_and_waited_for() -> None:
    """Its own deadline decides, as for every other answer; the run does not stand still before that."""
    subject = lending(slack=0, watchdog_s=30.0)
    subject.handle(learner_ready(), 1.0)
    subject.handle(quota_applied("training", 60), 1.0)
    subject.handle(quota_applied("generation", 108), 1.0)
    play_a_trajectory(subject, 2.0)
    for time in (30.0, 60.0):
        commands = subject.handle(e.TimerFired(name="watchdog"), time)
    [report, _] = commands
    assert isinstance(report, c.ReportWaits)
    assert "the learner waits for SMs that generators have to give back" in report.lines
    assert "generator 0 has still to take its new CPUs, threads or SMs" in report.lines
