"""The virtual engine answers like one with processes, and the scripted one like its script."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, field

import pytest

from ebrl.engines.virtual.costs import Costs, spread
from ebrl.engines.virtual.engine import VirtualEngine
from ebrl.engines.virtual.faults import Faults
from ebrl.engines.virtual.shared import SharedEngine
from ebrl.errors import RunError
from ebrl.ids import CpuId, EpisodeId, Epoch, GeneratorId, PolicyVersion, ShardId, SlotId
from ebrl.resources.profile import ControlProfile, Work
from ebrl.runtime.loop import run
from ebrl.scheduling import commands as c
from ebrl.scheduling import events as e
from ebrl.scheduling.quotas import Split, Stage
from ebrl.scheduling.scheduler import Scheduler
from ebrl.testing.build import (
    checkpoint_saved,
    chunks_ready,
    env_worker_ready,
    generator_ready,
    learner_ready,
    make_plan,
    reset_done,
    weights_live,
)
from ebrl.testing.scripted import ScriptedEngine

GENERATOR = GeneratorId(0)
TRAIN = c.Train(trajectories=(), slots=(), learner_version=PolicyVersion(0))
PUBLISH = c.PublishWeights(generator=GENERATOR, policy_version=PolicyVersion(1))


def reset(shard: int = 0, *, envs: Iterable[int] = (0,)) -> c.ResetEnv:
    starts = tuple(c.EpisodeStart(env, EpisodeId(0)) for env in envs)
    return c.ResetEnv(shard=ShardId(shard), starts=starts, cpus=(CpuId(0),))


def step(num_steps: int = 4, *, first_step: int = 0, shard: int = 0) -> c.StepEnv:
    return c.StepEnv(
        shard=ShardId(shard), slot=SlotId(0), chunk=0, first_step=first_step, num_steps=num_steps, cpus=(CpuId(0),)
    )


def generate(*shards: int) -> c.GenerateChunks:
    requests = tuple(c.ChunkRequest(shard=ShardId(shard), slot=SlotId(0), chunk=0, serial=0) for shard in shards)
    return c.GenerateChunks(generator=GENERATOR, requests=requests)


@dataclass(frozen=True, kw_only=True)
class Lengths(Costs):
    """Episodes that take these numbers of env steps, in the order in which they are begun."""

    lengths: list[int] = field(default_factory=list)

    def episode(self, rng: random.Random, env_steps: int) -> tuple[int, bool]:
        return self.lengths.pop(0), False


def engine(
    *,
    num_shards: int = 1,
    envs_per_shard: int = 1,
    costs: Costs | None = None,
    faults: Faults | None = None,
    seed: int = 0,
) -> VirtualEngine:
    """Chunks of four env steps."""
    return VirtualEngine(
        num_shards=num_shards, chunk_len=4, envs_per_shard=envs_per_shard, costs=costs, faults=faults, seed=seed
    )


def events(virtual: VirtualEngine, count: int) -> list[e.Event]:
    return [virtual.next_event()[0] for _ in range(count)]


def ready(virtual: VirtualEngine, *, num_shards: int = 1) -> VirtualEngine:
    """Past the start of every process."""
    events(virtual, 3 + num_shards)
    return virtual


def after(virtual: VirtualEngine, *commands: c.Command) -> list[tuple[e.Event, float]]:
    """One event for each command, with the time since then."""
    start = virtual.now
    for command in commands:
        virtual.execute(command)
    answers = [virtual.next_event() for _ in commands]
    return [(event, round(now - start, 9)) for event, now in answers]


def test_at_first_everything_starts() -> None:
    virtual = engine(num_shards=2)
    assert virtual.next_event() == (e.RunStarted(), 0.0)
    started = [virtual.next_event() for _ in range(4)]
    assert {now for _, now in started} == {1.0}
    assert {event for event, _ in started} == {
        learner_ready(),
        generator_ready(),
        env_worker_ready(0),
        env_worker_ready(1),
    }
    assert virtual.num_events == 5


def test_where_nothing_is_owed_the_run_stands_still() -> None:
    with pytest.raises(RunError, match="stands still"):
        ready(engine()).next_event()


def test_events_of_one_moment_come_in_no_particular_order() -> None:
    orders = {tuple(map(str, events(engine(num_shards=3, seed=seed), 6))) for seed in range(20)}
    assert len(orders) > 10


def test_answers_of_one_process_come_in_order() -> None:
    free = Costs(generation_alpha_s=0.0, generation_beta_s=0.0, publish_s=0.0)
    for seed in range(20):
        virtual = ready(engine(costs=free, seed=seed))
        told: list[c.Command] = [
            generate(0),
            c.PublishWeights(generator=GENERATOR, policy_version=PolicyVersion(0)),
            generate(0),
        ]
        assert [event for event, _ in after(virtual, *told)] == [
            chunks_answer(0, virtual),
            weights_live(0),
            chunks_answer(0, virtual),
        ]


def chunks_answer(version: int, virtual: VirtualEngine, *, num_chunks: int = 1) -> e.ChunksReady:
    return e.ChunksReady(
        generator=GENERATOR,
        epoch=Epoch(0),
        shards=tuple(ShardId(shard) for shard in range(num_chunks)),
        policy_version=PolicyVersion(version),
        generation_s=sum(virtual._costs.generation(num_chunks)),
    )


def test_each_kind_of_work_takes_its_time() -> None:
    virtual = ready(engine(num_shards=3, costs=Costs(shard_factors=(1.0, 5.0))), num_shards=3)
    assert [now for _, now in after(virtual, reset(1))] == [0.05]
    assert [now for _, now in after(virtual, step(shard=1))] == [0.2]
    assert [now for _, now in after(virtual, generate(0, 1, 2))] == [0.013]
    assert [now for _, now in after(virtual, TRAIN)] == [0.1]
    assert after(virtual, PUBLISH) == [(weights_live(1), 0.005)]
    assert after(virtual, c.SaveCheckpoint(policy_version=PolicyVersion(1))) == [(checkpoint_saved(1), 0.05)]
    assert after(virtual, c.SetTimer(name="drain", after_s=3.0)) == [(e.TimerFired(name="drain"), 3.0)]


def test_spread_keeps_the_mean() -> None:
    rng = random.Random(0)
    drawn = [spread(2.0, 1.0, rng) for _ in range(40_000)]
    assert sum(drawn) / len(drawn) == pytest.approx(2.0, rel=0.05)
    assert max(drawn) > 20.0


def test_an_episode_ends_inside_a_chunk() -> None:
    virtual = ready(engine(costs=Costs(episode_steps=(6,), success_share=1.0)))
    end = e.EpisodeEnd(terminated=True, success=True, episode_return=1.0, num_steps=6)
    after(virtual, reset())
    seen = [event for command in (step(3), step(1, first_step=3), step(4)) for event, _ in after(virtual, command)]
    assert [(s.num_steps, s.env_steps, s.chunk_over, s.episode_ends) for s in seen if isinstance(s, e.StepsDone)] == [
        (3, 3, False, ()),
        (1, 1, True, ()),
        (2, 2, True, (end,)),
    ]


def answer(virtual: VirtualEngine, command: c.StepEnv) -> tuple[int, int, bool, list[int]]:
    """Steps in lock-step, of all environments, whether the chunk is over, and which environments' episodes."""
    [(event, passed)] = after(virtual, command)
    assert isinstance(event, e.StepsDone)
    assert passed == round(event.step_s, 9) == round(0.01 * event.env_steps, 9)
    return event.num_steps, event.env_steps, event.chunk_over, [end.env for end in event.episode_ends]


def test_environments_of_a_shard_step_together_until_the_last_of_them_is_over() -> None:
    virtual = ready(engine(envs_per_shard=3, costs=Lengths(lengths=[2, 6, 7])))
    assert after(virtual, reset(envs=range(3))) == [(reset_done(reset_s=0.05 * 3), 0.15)]
    assert answer(virtual, step(1)) == (1, 3, False, [])
    assert answer(virtual, step(3, first_step=1)) == (3, 7, True, [0])
    assert answer(virtual, step(4)) == (3, 5, True, [1, 2])


def test_an_environment_whose_episode_is_over_waits_for_its_own_reset() -> None:
    virtual = ready(engine(envs_per_shard=2, costs=Lengths(lengths=[2, 9, 5])))
    after(virtual, reset(envs=range(2)))
    assert answer(virtual, step(4)) == (4, 6, True, [0])
    assert answer(virtual, step(4)) == (4, 4, True, [])
    assert after(virtual, reset(envs=[0])) == [(reset_done(reset_s=0.05), 0.05)]
    assert answer(virtual, step(4)) == (4, 5, True, [1])


def test_a_chunk_for_a_shard_is_one_for_each_of_its_environments() -> None:
    virtual = ready(engine(num_shards=2, envs_per_shard=3), num_shards=2)
    assert [now for _, now in after(virtual, generate(0, 1))] == [0.016]


def test_a_replaced_env_worker_has_no_episode() -> None:
    virtual = ready(engine(envs_per_shard=2, costs=Lengths(lengths=[9, 9])))
    after(virtual, reset(envs=range(2)))
    after(virtual, c.StartEnvWorker(shard=ShardId(0), epoch=Epoch(1)))
    assert answer(virtual, step(4)) == (0, 0, True, [])


def test_a_generator_adopts_the_newest_weights_between_two_batches() -> None:
    virtual = ready(engine(costs=Costs(training_s=0.001)))
    for command in (generate(0), TRAIN, PUBLISH, generate(0)):
        virtual.execute(command)
    made = [event.policy_version for event in events(virtual, 4) if isinstance(event, e.ChunksReady)]
    assert made == [0, 1]


def test_control_may_hear_of_weights_before_their_update() -> None:
    virtual = ready(engine(costs=Costs(update_heard_s=1.0)))
    virtual.execute(TRAIN)
    virtual.execute(c.SetTimer(name="tea", after_s=0.5))
    virtual.next_event()
    assert [type(event) for event, _ in after(virtual, PUBLISH)] == [e.WeightsLive]
    assert isinstance(virtual.next_event()[0], e.UpdateDone)


def test_a_skipped_update_makes_no_weights() -> None:
    virtual = ready(engine(faults=Faults(update_skipped=1.0)))
    assert [event for event, _ in after(virtual, TRAIN)] == [
        e.UpdateDone(epoch=Epoch(0), policy_version=PolicyVersion(0), train_s=0.1, skipped=True)
    ]


@pytest.mark.parametrize("command", [reset(), step()])
def test_a_number_that_is_not_finite_is_the_answer(command: c.Command) -> None:
    virtual = ready(engine(faults=Faults(episode_invalid=1.0)))
    assert [type(event) for event, _ in after(virtual, command)] == [e.EpisodeInvalid]


def start_again(lost: e.Event) -> c.Command:
    match lost:
        case e.EnvWorkerLost(shard=shard):
            return c.StartEnvWorker(shard=shard, epoch=Epoch(1))
        case e.GeneratorLost(generator=generator):
            return c.StartGenerator(generator=generator, epoch=Epoch(1))
        case _:
            return c.StartLearner(epoch=Epoch(1))


@pytest.mark.parametrize(
    ("faults", "orders", "lost"),
    [
        (Faults(env_worker_lost=1.0), [reset()], e.EnvWorkerLost),
        (Faults(generator_lost=1.0), [generate(0), PUBLISH], e.GeneratorLost),
        (Faults(learner_lost=1.0), [TRAIN, c.SaveCheckpoint(policy_version=PolicyVersion(0))], e.LearnerLost),
    ],
)
def test_a_lost_process_is_silent_until_it_is_replaced(faults: Faults, orders: list[c.Command], lost: type) -> None:
    virtual = engine()
    ready(virtual)
    virtual._faults = faults
    for process in (*virtual._envs, *virtual._generators, virtual._learner):
        process.loss_rate = 1.0
    for order in orders:
        virtual.execute(order)
    event, _ = virtual.next_event()
    assert isinstance(event, lost)
    for order in orders:
        virtual.execute(order)
    for process in (*virtual._envs, *virtual._generators, virtual._learner):
        process.loss_rate = 0.0
    virtual.execute(start_again(event))
    again = virtual.next_event()[0]
    assert again in (env_worker_ready(epoch=1), generator_ready(epoch=1), learner_ready(epoch=1))
    with pytest.raises(RunError):
        virtual.next_event()


def test_what_it_said_before_is_heard_before_its_loss() -> None:
    virtual = ready(engine(costs=Costs(update_heard_s=5.0)))
    virtual.execute(TRAIN)
    virtual._kill(virtual._learner, virtual.now + 1.0)
    assert [type(event) for event in events(virtual, 2)] == [e.UpdateDone, e.LearnerLost]


def run_with(faults: Faults, *, seed: int = 0, costs: Costs | None = None) -> tuple[Scheduler, list[e.Event]]:
    plan = make_plan(num_shards=6, batch=2, max_updates=30, max_env_failures=50)
    scheduler, seen = Scheduler(plan), list[e.Event]()
    virtual = engine(num_shards=6, costs=costs, faults=faults, seed=seed)
    run(scheduler.handle, virtual, lambda now, event, commands: seen.append(event))
    return scheduler, seen


def test_the_same_seed_is_the_same_run() -> None:
    costs = Costs(env_step_sigma=1.0, episode_steps=(5, 50))
    assert run_with(Faults(), costs=costs)[1] == run_with(Faults(), costs=costs)[1]
    assert run_with(Faults(), costs=costs)[1] != run_with(Faults(), costs=costs, seed=1)[1]


def test_late_answers_of_replaced_processes_are_heard_and_ignored() -> None:
    faults = Faults(env_worker_lost=0.05, generator_lost=0.02, learner_lost=0.05, late_answer=0.9)
    late = set[type]()
    for seed in range(5):
        scheduler, seen = run_with(faults, seed=seed, costs=Costs(loss_heard_s=0.2 * (seed % 2)))
        epochs: dict[tuple[str, int], int] = {}
        num_late = 0
        for event in seen:
            epoch, process = getattr(event, "epoch", 0), ("", 0)
            if isinstance(event, e.EnvWorkerLost | e.EnvWorkerReady | e.StepsDone | e.ResetDone):
                process = "env", event.shard
            elif isinstance(event, e.ChunksReady | e.GeneratorReady | e.GeneratorLost | e.WeightsLive):
                process = "generator", event.generator
            elif isinstance(event, e.LearnerReady | e.LearnerLost | e.UpdateDone | e.CheckpointSaved):
                process = "learner", 0
            known = epochs.get(process, 0)
            if epoch < known:
                late.add(type(event))
                num_late += 1
            replaced = isinstance(event, e.EnvWorkerLost | e.GeneratorLost | e.LearnerLost) and epoch == known
            epochs[process] = known + replaced
        assert num_late == scheduler.counters.ignored_answers > 0
    assert late >= {e.EnvWorkerLost, e.StepsDone, e.GeneratorLost, e.WeightsLive, e.LearnerLost, e.UpdateDone}


def test_idle_processes_die_too() -> None:
    scheduler, seen = run_with(Faults(idle_lost=0.01))
    assert {"env_worker"} <= set(scheduler.counters.restarts)
    assert any(isinstance(event, e.EnvWorkerLost) for event in seen)


def test_somebody_asks_for_the_end() -> None:
    virtual = engine()
    virtual.request_stop("enough", at=0.5)
    assert events(virtual, 2) == [e.RunStarted(), e.StopRequested(reason="enough")]
    virtual.execute(c.Stop(reason="enough", failed=False))


@dataclass(frozen=True, kw_only=True)
class Priced(Costs):
    """Remembers what generators were given, and with what each batch was priced."""

    given: list[int] = field(default_factory=lambda: [0])
    priced: list[int] = field(default_factory=list)

    def set_quota(self, stage: Stage, index: int, num_cpus: int, units: int) -> None:
        if stage == "generation":
            self.given.append(units)

    def generation(self, num_chunks: int) -> Work:
        self.priced.append(self.given[-1])
        return Work(1.0 / max(1, self.given[-1]))


@pytest.mark.parametrize("shares_cpus", [False, True])
def test_a_batch_takes_as_long_as_with_the_sms_that_were_given_before_it(shares_cpus: bool) -> None:
    """Lent SMs are given and called back at the very moment at which batches begin."""
    here = (CpuId(0),)
    split = Split(simulation=here, generation=here, training=here, generation_units=48, training_units=60)
    plan = make_plan(num_shards=6, batch=2, max_updates=20, nodes=(here,), split=split, lend=True)
    costs = Priced()
    if shares_cpus:
        control = ControlProfile(event_s=(("StepsDone", 0.0001),), command_s=0.00001, latency_s=0.0001)
        virtual: VirtualEngine = SharedEngine(
            num_shards=6, chunk_len=plan.chunk_len, costs=costs, control=control, cpus=here
        )
    else:
        virtual = VirtualEngine(num_shards=6, chunk_len=plan.chunk_len, costs=costs)
    told, expected = 0, list[int]()

    def see(now: float, event: e.Event, commands: list[c.Command]) -> None:
        nonlocal told
        for command in commands:
            if isinstance(command, c.SetQuota) and command.stage == "generation":
                told = command.units
            if isinstance(command, c.GenerateChunks):
                expected.append(told)

    run(Scheduler(plan).handle, virtual, see)
    assert set(expected) == {48, 108}
    assert costs.priced == expected


def script(*lines: e.Event) -> Iterable[tuple[e.Event, float]]:
    return ((event, float(number)) for number, event in enumerate(lines))


def test_a_scripted_engine_keeps_what_it_was_told() -> None:
    scripted = ScriptedEngine(script(learner_ready(), e.StopRequested(reason="enough"), checkpoint_saved()))
    stop = run(Scheduler(make_plan()).handle, scripted, lambda now, event, commands: None)
    assert stop == c.Stop(reason="enough", failed=False)
    assert scripted.executed == [
        c.SetTimer(name="drain", after_s=10.0),
        c.SetTimer(name="checkpoint", after_s=10.0),
        c.SaveCheckpoint(policy_version=PolicyVersion(0)),
    ]


def test_a_script_ends_with_an_error() -> None:
    with pytest.raises(RunError, match="script is over"):
        run(Scheduler(make_plan()).handle, ScriptedEngine(script(chunks_ready([]))), lambda now, event, commands: None)
