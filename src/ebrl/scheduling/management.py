"""Resources while a run goes on: samples rates, asks for another split when it pays, and carries the move out.

Sees every event after the scheduler; its commands follow the scheduler's.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ebrl.ids import CpuSet, Epoch
from ebrl.resources.allocation import Allocation
from ebrl.resources.hardware import Cpu
from ebrl.resources.placing import place
from ebrl.resources.rebalance import Decision, Ratios, Rebalancer
from ebrl.resources.workload import Workload
from ebrl.scheduling.commands import Command, SetQuota, SetTimer
from ebrl.scheduling.events import (
    ChunksReady,
    CpusChanged,
    Event,
    GeneratorLost,
    GeneratorReady,
    LearnerLost,
    LearnerReady,
    QuotaApplied,
    RunStarted,
    SplitRequested,
    TimerFired,
)
from ebrl.scheduling.generation import ChunkLevel
from ebrl.scheduling.plan import Management, SchedulerPlan
from ebrl.scheduling.quotas import Member, Quota, Quotas, Split
from ebrl.scheduling.rates import StageMeter
from ebrl.scheduling.shards import StepLevel

SAMPLE = "sample"
"""Name of the timer between two samples."""


def split_of(allocation: Allocation, management: Management) -> Split:
    """The split that an allocation stands for."""
    stages = place(allocation, management.cpus)
    threads = {"generation": 0, "training": 0}
    if management.workload.unit == "cpu":
        threads = {
            "generation": _threads(management.workload, "generation", allocation),
            "training": _threads(management.workload, "training", allocation),
        }
    return Split(
        simulation=stages["simulation"],
        generation=stages["generation"],
        training=stages["training"],
        generation_threads=threads["generation"],
        training_threads=threads["training"],
        generation_units=allocation.generation_units,
        training_units=allocation.training_units,
        min_batch=allocation.min_batch,
        max_batch=allocation.max_batch,
    )


def split_of_sms(allocation: Allocation, *, simulation: CpuSet, host: CpuSet) -> Split:
    """The split of GPUs that an allocation stands for, where CPUs and threads stay as they are.

    Args:
        allocation: who has which SMs.
        simulation: CPUs of env workers.
        host: CPUs of the processes that drive GPUs.
    """
    return Split(
        simulation=simulation,
        generation=host,
        training=host,
        generation_threads=0,
        training_threads=0,
        generation_units=allocation.generation_units,
        training_units=allocation.training_units,
    )


def _threads(workload: Workload, stage: str, allocation: Allocation) -> int:
    """Of each process: as many as help, of the CPUs that its stage has."""
    generation = stage == "generation"
    costs = workload.generation if generation else workload.training
    cpus = allocation.generation_cpus if generation else allocation.training_cpus
    processes = allocation.num_generators if generation else allocation.num_learners
    return max(1, min(cpus // processes, round(costs.saturation)))


@dataclass(slots=True, kw_only=True)
class Move:
    """One move of CPUs and SMs between stages; times in seconds since the engine started."""

    asked_s: float
    left_s: float = 0.0
    """When the last stage had left what it gave up."""
    done_s: float = 0.0
    """When the last process worked under its new quota; 0 until then."""
    why: str


class Follower:
    """Lets a run's split follow its rates: one sample after the other, and a decision now and then."""

    def __init__(self, plan: SchedulerPlan, management: Management) -> None:
        self.rebalancer = Rebalancer(
            management.workload, management.shape, management.allocation, switch_s=management.switch_s
        )
        self.decisions: list[Decision] = []
        self.sample_s = management.sample_s
        self._management = management
        self._num_shards = plan.num_shards
        self._meter = StageMeter(
            envs_per_shard=plan.envs_per_shard, chunk_len=plan.chunk_len, whole_episodes=plan.whole_episodes
        )

    def see(self, event: Event) -> None:
        """Count what an event tells of the rates."""
        self._meter.see(event, self.rebalancer.prediction)

    def sample(self) -> Split | None:
        """Take a sample; the split to move to, if there is one."""
        if self._meter.num_chunks < self._num_shards:
            return None  # a round of chunks is longer than the time between two samples
        ratios = self._meter.take(self.rebalancer.prediction, self.rebalancer.workload)
        decision = self.rebalancer.sample(comparable(ratios, self.rebalancer.allocation, self._management.workload))
        return None if decision is None else self._decided(decision)

    def cpus_changed(self, cpus: CpuSet) -> Split | None:
        """The split for the CPUs that there are now."""
        known = {cpu.id: cpu for cpu in self._management.cpus}
        here = tuple(known.get(cpu, Cpu(id=cpu, core=int(cpu))) for cpu in cpus)
        self._management = replace(self._management, cpus=here)
        return self._decided(self.rebalancer.set_num_cpus(len(here)))

    @property
    def why(self) -> str:
        """Of the last decision; empty before the first."""
        return self.decisions[-1].reason if self.decisions else ""

    def _decided(self, decision: Decision) -> Split | None:
        self.decisions.append(decision)
        return split_of(decision.allocation, self._management) if decision.accepted else None


def comparable(ratios: Ratios, allocation: Allocation, workload: Workload) -> Ratios:
    """Without stages that wait for each other's CPUs: how long they take says nothing of what they cost."""
    if workload.unit == "gpu":
        return ratios
    sharing = allocation.cpu_sharing
    return replace(
        ratios,
        chunk=None if sharing in ("all", "rollout") else ratios.chunk,
        generation=None if sharing != "none" else ratios.generation,
        update=None if sharing in ("all", "compute") else ratios.update,
    )


class Manager:
    """Resources of one run whose plan has a split."""

    def __init__(self, plan: SchedulerPlan, step_level: StepLevel, chunk_level: ChunkLevel) -> None:
        assert plan.split is not None
        self.quotas = Quotas(plan.split, num_generators=plan.num_generators)
        self.moves: list[Move] = []
        self.follower = None if plan.management is None else Follower(plan, plan.management)
        """None where the split does not follow rates."""
        self._plan = plan
        self._step_level = step_level
        self._chunk_level = chunk_level
        self._wanted: tuple[Split, str] | None = None
        """Asked for while another move was going on, and why."""

    def handle(self, event: Event, now: float) -> list[Command]:
        """Take an event in, after the scheduler has."""
        commands = self._learn(event, now)
        self._note_end(now)
        return commands

    def _learn(self, event: Event, now: float) -> list[Command]:
        if self.follower is not None and not (isinstance(event, ChunksReady) and self.generates_faster):
            self.follower.see(event)
        match event:
            case GeneratorReady(generator=index, epoch=epoch):
                return self._started(Member("generation", index), epoch)
            case LearnerReady(epoch=epoch):
                return self._started(Member("training"), epoch)
            case GeneratorLost(generator=index, epoch=epoch):
                self.quotas.lost(Member("generation", index), epoch)
            case LearnerLost(epoch=epoch):
                self.quotas.lost(Member("training"), epoch)
            case QuotaApplied(stage=stage, index=index, epoch=epoch, cpus=cpus, units=units):
                self.quotas.applied(Member(stage, index), epoch, cpus, units)
            case SplitRequested(split=split):
                return self._move_or_wait(split, "asked for", now)
            case _ if self.follower is not None:
                return self._follow(event, self.follower, now)
        return []

    @property
    def generates_faster(self) -> bool:
        """Whether a batch may have been made with more than generation's own SMs, and says nothing of its cost."""
        return self._plan.lend and not self.quotas.returned

    def lend_or_call_back(self, *, learner_idle: bool, batch_ready: bool) -> list[Command]:
        """Lend what the learner does not use, or call it back for the batch that it could train now."""
        if not self._plan.lend:
            return []
        if self.quotas.lent:
            return _commands(self.quotas.call_back()) if batch_ready else []
        may_lend = learner_idle and not batch_ready and not self.quotas.moving
        return _commands(self.quotas.lend()) if may_lend else []

    @property
    def may_train(self) -> bool:
        """Whether the learner has what is its own."""
        return not self._plan.lend or self.quotas.returned

    def advance(self, now: float) -> list[Command]:
        """Go on with a move, if everybody has given up what was to be given up."""
        commands = self._grow(now)
        if self._wanted is not None and not self.quotas.moving:
            (split, why), self._wanted = self._wanted, None
            self._note_end(now)
            commands += self._move(split, why, now) + self._grow(now)
        self._note_end(now)
        return commands

    def _note_end(self, now: float) -> None:
        if self.moves and not self.moves[-1].done_s and not self.quotas.moving:
            self.moves[-1].done_s = now

    def _follow(self, event: Event, follower: Follower, now: float) -> list[Command]:
        match event:
            case RunStarted():
                return [SetTimer(name=SAMPLE, after_s=follower.sample_s)]
            case TimerFired(name=name) if name == SAMPLE:
                again = SetTimer(name=SAMPLE, after_s=follower.sample_s)
                return [again, *self._move_or_wait(follower.sample(), follower.why, now)]
            case CpusChanged(cpus=cpus):
                return self._move_or_wait(follower.cpus_changed(cpus), follower.why, now)
            case _:
                return []

    def _grow(self, now: float) -> list[Command]:
        left = all(self._step_level.has_left(node) for node in range(len(self._plan.nodes)))
        tell = self.quotas.grow(simulation_has_left=left)
        if tell is None:
            return []
        self.moves[-1].left_s = now
        split = self.quotas.split
        self._set_simulation(split.simulation)
        width = self._plan.envs_per_shard
        if split.max_batch:
            self._chunk_level.set_max_batch(max(1, split.max_batch // width))
        if split.min_batch:
            self._chunk_level.set_min_batch(-(-split.min_batch // width))
        return _commands(tell)

    def _started(self, member: Member, epoch: Epoch) -> list[Command]:
        return _commands({member: self.quotas.started(member, epoch)})

    def _move_or_wait(self, split: Split | None, why: str, now: float) -> list[Command]:
        """Nothing is lost because of a move that goes on; of what is wanted meanwhile, the newest counts."""
        if split is None:
            return []
        if self.quotas.moving:
            self._wanted = split, why
            return []
        return self._move(split, why, now)

    def _move(self, split: Split, why: str, now: float) -> list[Command]:
        self.moves.append(Move(asked_s=now, why=why))
        old = self.quotas.split.simulation
        tell = self.quotas.ask(split)
        self._set_simulation(tuple(cpu for cpu in old if cpu in split.simulation))
        return _commands(tell)

    def _set_simulation(self, cpus: CpuSet) -> None:
        size = self._plan.cpus_per_shard
        whole = len(cpus) - len(cpus) % size
        for node in range(len(self._plan.nodes)):
            self._step_level.set_cpus(node, tuple(cpus[i : i + size] for i in range(0, whole, size)))


def _commands(tell: dict[Member, Quota]) -> list[Command]:
    return [
        SetQuota(stage=member.stage, index=member.number, cpus=quota.cpus, threads=quota.threads, units=quota.units)
        for member, quota in tell.items()
    ]
