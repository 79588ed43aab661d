"""CPUs that move between the stages of a real run, as the kernel has it."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from drills import make_setup, started
from ebrl.engines.local.engine import LocalEngine
from ebrl.engines.local.fleet import LEARNER, Key
from ebrl.engines.local.setup import EmulatedTimes
from ebrl.host.affinity import cpus_of_threads
from ebrl.host.probe import usable_cpus
from ebrl.ids import CpuId, CpuSet
from ebrl.runtime.loop import run
from ebrl.scheduling import commands as c
from ebrl.scheduling import events as e
from ebrl.scheduling.invariants import check
from ebrl.scheduling.plan import SchedulerPlan
from ebrl.scheduling.quotas import Split
from ebrl.scheduling.scheduler import Scheduler

HERE = tuple(CpuId(cpu) for cpu in sorted(os.sched_getaffinity(0)))[:2]
GENERATOR = Key("generator", 0)

pytestmark = pytest.mark.skipif(len(HERE) < 2, reason="needs two CPUs")


def apart() -> Split:
    """Simulation on one CPU, generation and training on the other."""
    return Split(simulation=HERE[:1], generation=HERE[1:], training=HERE[1:])


def shared() -> Split:
    return Split(simulation=HERE, generation=HERE, training=HERE, generation_threads=2, training_threads=2)


@dataclass
class Story:
    """What was seen of a run, by version of the policy."""

    engine: LocalEngine
    scheduler: Scheduler
    splits: dict[int, Split]
    """To be asked for when this many updates are done."""
    affinities: list[dict[str, set[CpuSet]]] = field(default_factory=list)
    """After each move: CPUs of every thread of generator and learner."""
    granted: list[set[CpuId]] = field(default_factory=lambda: [set()])
    """Before the first and after each move: CPUs that env workers were bound to."""
    grants: dict[int, CpuSet] = field(default_factory=dict)
    """By env worker: where it was bound to last."""
    bound: list[bool] = field(default_factory=list)
    """Of every grant: whether the kernel has every thread of the env worker there."""
    was_moving: bool = True

    def see(self, now: float, event: e.Event, commands: list[c.Command]) -> None:
        check(self.scheduler)
        manager = self.scheduler.manager
        assert manager is not None
        moving = manager.quotas.moving
        if self.was_moving and not moving and manager.quotas.counts.switches == len(self.affinities) + 1:
            self.affinities.append(self.read_back())
            self.granted.append(set())
        self.was_moving = moving
        if not moving:
            self.granted[-1] |= {cpu for command in commands if isinstance(command, c.StepEnv) for cpu in command.cpus}
        if isinstance(event, e.StepsDone):
            self.bound.append(self.is_bound(event))
        self.grants |= {one.shard: one.cpus for one in commands if isinstance(one, c.StepEnv | c.ResetEnv)}
        if isinstance(event, e.UpdateDone) and event.policy_version in self.splits:
            self.engine.request_split(self.splits.pop(event.policy_version))

    def read_back(self) -> dict[str, set[CpuSet]]:
        processes = self.engine.fleet.processes
        return {
            key.label: {tuple(CpuId(cpu) for cpu in cpus) for cpus in cpus_of_threads(processes[key].pid).values()}
            for key in (GENERATOR, LEARNER)
        }

    def is_bound(self, event: e.StepsDone) -> bool:
        pid = self.engine.fleet.processes[Key("env", event.shard)].pid
        return set(cpus_of_threads(pid).values()) == {self.grants[event.shard]}


def test_cpus_move_while_the_run_goes_on(tmp_path: Path) -> None:
    plan = SchedulerPlan(
        num_shards=4,
        nodes=(apart().simulation,),
        chunk_len=4,
        trajectory_chunks=4,
        batch=8,
        max_updates=9,
        split=apart(),
    )
    setup = make_setup(tmp_path, num_shards=4, chunk_len=4, trajectory_chunks=4, num_slots=16)
    with started(setup) as engine:
        scheduler = Scheduler(plan)
        story = Story(engine, scheduler, {2: shared(), 5: apart()})
        pids = {key: process.pid for key, process in engine.fleet.processes.items()}
        engine.begin(evaluation=False)
        stop = run(scheduler.handle, engine, story.see)
        assert {key: process.pid for key, process in engine.fleet.processes.items() if key in pids} == pids
    assert not stop.failed, stop
    assert scheduler.counters.restarts == {}
    ledger = scheduler.gate.ledger
    assert ledger.balances(0)
    assert ledger.trained == 72
    assert ledger.dropped == {}
    together, alone = {HERE}, {HERE[1:]}
    assert story.affinities == [
        {"generator 0": together, "learner": together},
        {"generator 0": alone, "learner": alone},
    ]
    assert story.granted == [{HERE[0]}, set(HERE), {HERE[0]}]
    assert all(story.bound)
    manager = scheduler.manager
    assert manager is not None
    assert (manager.quotas.counts.switches, manager.quotas.counts.mismatches) == (2, 0)


def test_each_answer_says_what_the_process_had_by_then_and_people_hear_of_cpus_once(tmp_path: Path) -> None:
    """SMs of an emulated GPU are lent and called back in every update; nobody wants to read that."""
    times = EmulatedTimes(table=((48, 0.0, 0.0), (108, 0.0, 0.0)), units=48)
    setup = make_setup(tmp_path, emulated_generator=times, emulated_learner=times)
    heard: list[str] = []
    with started(setup, on_notice=heard.append) as engine:
        engine.begin(evaluation=False)
        for units in (108, 48, 108):
            engine.execute(c.SetQuota(stage="generation", index=0, cpus=HERE, threads=1, units=units))
        answers: list[e.QuotaApplied] = []
        while len(answers) < 3:
            event, _ = engine.next_event()
            if isinstance(event, e.QuotaApplied):
                answers.append(event)
        assert [answer.units for answer in answers] == [108, 48, 108]
        engine.execute(c.SetQuota(stage="generation", index=0, cpus=HERE, threads=2, units=108))
        while not isinstance(event, e.QuotaApplied) or event in answers:
            event, _ = engine.next_event()
    assert [text for text in heard if "runs on CPUs" in text] == [
        f"generator 0 runs on CPUs {list(HERE)} with {threads} torch threads" for threads in (1, 2)
    ]


def test_cpus_that_may_not_be_used_any_more_are_said_once_and_stop_nobody(tmp_path: Path) -> None:
    """As when a container is given fewer CPUs; the kernel moves everybody by itself."""
    absent = (CpuId(1023),)
    plan = SchedulerPlan(
        num_shards=2,
        nodes=(absent,),
        chunk_len=4,
        trajectory_chunks=2,
        batch=4,
        max_updates=2,
        split=Split(simulation=absent, generation=absent, training=absent),
    )
    heard: list[str] = []
    seen: list[e.Event] = []
    with started(make_setup(tmp_path, num_slots=8), on_notice=heard.append) as engine:
        engine.begin(evaluation=False)
        stop = run(Scheduler(plan).handle, engine, lambda now, event, commands: seen.append(event))
    assert not stop.failed, stop
    assert [event.cpus for event in seen if isinstance(event, e.CpusChanged)] == [usable_cpus()]
    assert len([text for text in heard if "may not be used any more" in text]) == 1
    assert not [event for event in seen if isinstance(event, e.EnvWorkerLost | e.GeneratorLost | e.LearnerLost)]
