"""Processes that share CPUs: one runs at a time, everybody gets his share, and control is one of them."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from ebrl.engines.virtual.costs import Costs, ProfiledCosts
from ebrl.engines.virtual.host import Host, Task
from ebrl.engines.virtual.shared import SharedEngine
from ebrl.errors import RunError
from ebrl.ids import CpuId, EpisodeId, GeneratorId, PolicyVersion, ShardId, SlotId
from ebrl.resources.profile import ControlProfile, Grant, PlayedEpisode, Work
from ebrl.runtime.loop import run
from ebrl.scheduling import commands as c
from ebrl.scheduling import events as e
from ebrl.scheduling.scheduler import Scheduler
from ebrl.testing.build import make_plan
from profiles import make_profile


def ends(host: Host, count: int) -> list[tuple[str, float]]:
    """The next tasks that are done, and when."""
    found: list[tuple[str, float]] = []
    while len(found) < count:
        task, now = host.advance()
        if task is not None:
            found.append((task.kind, round(now, 9)))
    return found


def test_a_task_alone_has_the_cpu_to_itself() -> None:
    host = Host(2, tick_s=0.004)
    host.submit(Task("a"), 0.5, 0.0)
    host.submit(Task("b"), 0.25, 0.0)
    assert ends(host, 2) == [("b", 0.25), ("a", 0.5)]
    assert host.next_end() == float("inf")
    assert host.wait_s == {}


def test_two_tasks_take_turns_on_one_cpu() -> None:
    host = Host(1, tick_s=0.01)
    host.submit(Task("a"), 0.03, 0.0)
    host.submit(Task("b"), 0.03, 0.0)
    assert ends(host, 2) == [("b", 0.05), ("a", 0.06)]
    assert host.busy_s == pytest.approx({"a": 0.03, "b": 0.03})


def test_who_has_had_less_takes_the_cpu_on_waking() -> None:
    host = Host(1, tick_s=0.01)
    host.submit(Task("hog"), 1.0, 0.0)
    host.submit(Task("short"), 0.001, 0.005)
    assert ends(host, 1) == [("short", 0.006)]


def test_who_has_had_more_waits_for_the_next_tick() -> None:
    host = Host(1, tick_s=0.01)
    host.submit(Task("hog"), 1.0, 0.0)
    greedy = Task("greedy")
    host.submit(greedy, 0.003, 0.005)
    assert ends(host, 1) == [("greedy", 0.008)]
    host.submit(greedy, 0.001, 0.009)  # the hog has run for a millisecond since, which is less than three
    assert ends(host, 1) == [("greedy", 0.019)]


def test_weights_are_shares() -> None:
    host = Host(1, tick_s=0.001)
    host.submit(Task("light", weight=0.25), 0.1, 0.0)
    host.submit(Task("heavy"), 0.1, 0.0)
    [(first, end), _] = ends(host, 2)
    assert first == "heavy"
    assert end == pytest.approx(0.125, abs=0.002)


def test_an_idle_cpu_takes_over_after_a_slice() -> None:
    host = Host(2, tick_s=0.01)
    host.submit(Task("pinned", pinned=(0,)), 0.1, 0.0)
    host.submit(Task("short", pinned=(1,)), 0.001, 0.0)
    host.submit(Task("free", last=0), 0.1, 0.0)
    assert ends(host, 1) == [("short", 0.001)]
    # "free" preempted "pinned" or waits for it until CPU 1 has been idle for a slice.
    assert max(end for _, end in ends(host, 2)) < 0.2


def test_a_pinned_task_is_never_moved() -> None:
    host = Host(2, tick_s=0.01)
    host.submit(Task("a", pinned=(0,)), 0.1, 0.0)
    host.submit(Task("b", pinned=(0,)), 0.1, 0.0)
    assert ends(host, 2)[-1][1] == pytest.approx(0.2)


def test_a_task_that_is_pinned_to_several_cpus_wakes_up_on_an_idle_one_of_them() -> None:
    host = Host(3, tick_s=0.01)
    host.submit(Task("a", pinned=(1, 2)), 0.1, 0.0)
    host.submit(Task("b", pinned=(1, 2)), 0.1, 0.0)
    host.submit(Task("c", pinned=(1, 2)), 0.1, 0.0)  # CPU 0 stays idle
    assert [end for _, end in ends(host, 3)] == pytest.approx([0.1, 0.2, 0.2], abs=0.011)


def test_who_is_woken_counts_the_waker_as_still_there() -> None:
    host = Host(2, tick_s=0.004)
    host.submit(Task("busy", last=1, pinned=(1,)), 0.1, 0.0)
    host.submit(Task("woken", last=1), 0.003, 0.01, waker=0)  # both CPUs look alike, so it stays where it was
    assert ends(host, 1) == [("woken", 0.013)]
    host.submit(Task("alone", last=1), 0.003, 0.02)
    assert host.busy_s == pytest.approx({"busy": 0.017, "woken": 0.003})
    assert ends(host, 1) == [("alone", 0.023)]
    assert host.busy_s == pytest.approx({"busy": 0.02, "woken": 0.003, "alone": 0.003})


def test_foreign_tasks_take_their_share() -> None:
    host = Host(1, tick_s=0.001)
    host.set_background(3, 0.0)
    host.submit(Task("a"), 0.1, 0.0)
    [(_, end)] = ends(host, 1)
    assert end == pytest.approx(0.4, abs=0.005)
    host.set_background(0, end)
    assert host.next_end() == float("inf")


def shared(
    *,
    control: ControlProfile | None = None,
    costs: Costs | None = None,
    num_shards: int = 1,
    envs_per_shard: int = 1,
) -> SharedEngine:
    """One or two shards on two CPUs, chunks of four env steps."""
    free = ControlProfile(event_s=(), command_s=0.0, latency_s=0.0)
    return SharedEngine(
        num_shards=num_shards,
        chunk_len=4,
        envs_per_shard=envs_per_shard,
        costs=costs or Costs(start_s=0.0),
        control=control or free,
        cpus=(CpuId(0), CpuId(1)),
    )


def ready(engine: SharedEngine, *, num_shards: int = 1) -> SharedEngine:
    for _ in range(3 + num_shards):
        engine.next_event()
    return engine


def grant(shard: int = 0, *cpus: int) -> c.StepEnv:
    chosen = tuple(CpuId(cpu) for cpu in cpus or (0,))
    return c.StepEnv(shard=ShardId(shard), slot=SlotId(0), chunk=0, first_step=0, num_steps=4, cpus=chosen)


def reset(shard: int = 0, cpu: int = 0, *, num_envs: int = 1) -> c.ResetEnv:
    starts = tuple(c.EpisodeStart(env, EpisodeId(env)) for env in range(num_envs))
    return c.ResetEnv(shard=ShardId(shard), starts=starts, cpus=(CpuId(cpu),))


def after(engine: SharedEngine, *commands: c.Command) -> list[tuple[e.Event, float]]:
    start = engine.now
    for command in commands:
        engine.execute(command)
    answers = [engine.next_event() for _ in commands]
    return [(event, round(now - start, 9)) for event, now in answers]


def test_commands_leave_when_control_has_worked_and_answers_take_a_message() -> None:
    control = ControlProfile(event_s=(("GeneratorReady", 0.001),), command_s=0.002, latency_s=0.01)
    engine = ready(shared(control=control))
    engine._last_kind = "GeneratorReady"
    [(event, passed)] = after(engine, reset())
    assert isinstance(event, e.ResetDone)
    assert passed == pytest.approx(0.001 + 0.002 + 0.01 + 0.05 + 0.01)
    assert event.reset_s == pytest.approx(0.05)


def test_two_environments_on_one_cpu_share_it_and_say_so() -> None:
    engine = ready(shared(num_shards=2), num_shards=2)
    after(engine, reset(0, 0), reset(1, 1))
    answers = after(engine, grant(0, 0), grant(1, 0))
    assert [round(now, 3) for _, now in answers] == [pytest.approx(0.08, abs=0.005), 0.08]
    assert all(isinstance(event, e.StepsDone) and event.step_s > 0.07 for event, _ in answers)


def test_environments_of_a_shard_run_one_after_the_other() -> None:
    engine = ready(shared(envs_per_shard=3))
    assert [now for _, now in after(engine, reset(num_envs=3))] == [0.15]
    [(event, passed)] = after(engine, grant())
    assert isinstance(event, e.StepsDone)
    assert (event.env_steps, passed) == (12, 0.12)


def test_a_grant_of_two_cpus_goes_to_the_one_that_is_idle() -> None:
    engine = ready(shared(num_shards=2), num_shards=2)
    after(engine, reset(0, 0), reset(1, 1))
    assert [now for _, now in after(engine, grant(0, 0), grant(1, 0, 1))] == [0.04, 0.04]


def test_time_off_the_cpu_does_not_stretch() -> None:
    profile = make_profile()
    simulation = profile.simulation
    sleepy = type(simulation)(
        **{f: getattr(simulation, f) for f in simulation.__dataclass_fields__} | {"tapes": ((Grant(4, 0.0, 0.5),),)}
    )
    costs = ProfiledCosts(make_profile(simulation=sleepy), num_shards=2)
    free = ControlProfile(event_s=(), command_s=0.0, latency_s=0.0)
    engine = SharedEngine(num_shards=2, chunk_len=4, costs=costs, control=free, cpus=(CpuId(0),))
    ready(engine, num_shards=2)
    after(engine, reset(0), reset(1))
    assert [now for _, now in after(engine, grant(0), grant(1))] == [0.5, 0.5]


def test_the_learner_and_the_generator_say_how_long_they_took() -> None:
    engine = ready(shared())
    train = c.Train(trajectories=(), slots=(), learner_version=PolicyVersion(0))
    [(event, _)] = after(engine, train)
    assert isinstance(event, e.UpdateDone)
    assert (event.policy_version, round(event.train_s, 9)) == (1, 0.1)
    publish = c.PublishWeights(generator=GeneratorId(0), policy_version=PolicyVersion(1))
    assert [type(event) for event, _ in after(engine, publish)] == [e.WeightsLive]
    assert after(engine, c.SetTimer(name="tea", after_s=3.0)) == [(e.TimerFired(name="tea"), 3.0)]


def test_where_nothing_happens_the_run_stands_still() -> None:
    with pytest.raises(RunError, match="stands still"):
        ready(shared()).next_event()


def test_the_same_seed_is_the_same_run_and_foreign_load_slows_it_down() -> None:
    profile = make_profile()

    def play(background: tuple[tuple[float, int], ...]) -> tuple[list[e.Event], float]:
        plan = make_plan(num_shards=4, min_generation_batch=2, batch=4, max_updates=20)
        engine = SharedEngine(
            num_shards=4,
            chunk_len=4,
            costs=ProfiledCosts(profile, num_shards=4),
            control=profile.control,
            cpus=plan.nodes[0],
            background=background,
        )
        seen: list[e.Event] = []
        run(Scheduler(plan).handle, engine, lambda now, event, commands: seen.append(event))
        return seen, engine.now

    assert play(()) == play(())
    assert play(((0.0, 2), (0.05, 1)))[1] > 1.3 * play(())[1]


def test_episodes_shorten_as_the_policy_improves() -> None:
    profile = make_profile()
    simulation = profile.simulation
    fields = {f: getattr(simulation, f) for f in simulation.__dataclass_fields__}
    fields |= {"length_scale": ((0, 1.0), (1000, 0.5)), "episodes": (PlayedEpisode(20, True, True),)}
    costs = ProfiledCosts(make_profile(simulation=type(simulation)(**fields)), num_shards=1)
    engine = ready(SharedEngine(num_shards=1, chunk_len=4, costs=costs, control=profile.control, cpus=(CpuId(0),)))
    lengths = [costs.episode(engine._envs[0].rng, steps)[0] for steps in (0, 500, 1000, 9000)]
    assert lengths == [20, 15, 10, 10]
    assert costs.generation(2) == Work(0.003)


def test_every_environment_of_a_shard_follows_a_tape_of_its_own() -> None:
    simulation = replace(
        make_profile().simulation, tapes=(tuple(Grant(2, float(number), 0.0) for number in range(100)),)
    )
    costs = ProfiledCosts(make_profile(simulation=simulation), num_shards=2, envs_per_shard=2)
    rng = random.Random(0)

    def grants(env: int, count: int) -> list[float]:
        return [costs.steps(ShardId(1), env, 2, rng).cpu_s for _ in range(count)]

    first, other = grants(0, 2), grants(1, 1)
    costs.reset(ShardId(1), 1, rng)
    assert grants(0, 2) == [(first[1] + 1) % 100, (first[1] + 2) % 100]
    assert grants(1, 1) != [(other[0] + 1) % 100]
