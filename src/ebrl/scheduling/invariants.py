"""Truths that hold between any two events, over all parts of the control plane."""

from __future__ import annotations

from ebrl.ids import ShardId
from ebrl.scheduling.management import Manager
from ebrl.scheduling.scheduler import Scheduler
from ebrl.scheduling.transitions import Generating, Idle, Resetting, Running, Waiting


def check(scheduler: Scheduler) -> None:
    """Raise ``AssertionError`` naming the first truth that does not hold."""
    _check_cpus(scheduler)
    _check_chunk_level(scheduler)
    _check_trajectories(scheduler)
    _check_versions(scheduler)
    if scheduler.stopping is None and not scheduler.stopped:
        _check_work_conserving(scheduler)


def _check_cpus(scheduler: Scheduler) -> None:
    step_level = scheduler.step_level
    node_of = scheduler.plan.node_of()
    for node in range(len(scheduler.plan.nodes)):
        used = [
            phase.cpus
            for shard, phase in enumerate(step_level.phases)
            if isinstance(phase, Running | Resetting) and node_of[shard] == node
        ]
        cpus = [cpu for cpu_set in used for cpu in cpu_set]
        assert len(set(cpus)) == len(cpus), f"node {node}: a CPU is used twice: {used}"
        kept, free = step_level.cpu_sets(node), step_level.free_cpus(node)
        unused = sorted(cpu_set for cpu_set in kept if not set(cpu_set) & set(cpus))
        assert unused == list(free), f"node {node}: CPUs used {used}, free {free}, of {sorted(kept)}"
    if scheduler.manager is not None:
        _check_split(scheduler, scheduler.manager)


def _check_split(scheduler: Scheduler, manager: Manager) -> None:
    """While nothing moves, simulation runs where the split says; nobody trains with what is lent."""
    trains = scheduler.learner.batch is not None
    assert not (trains and manager.quotas.lent), "the learner trains while its SMs are lent"
    if manager.quotas.moving or scheduler.stopping is not None:
        return
    nodes = range(len(scheduler.plan.nodes))
    kept = {cpu for node in nodes for cpu_set in scheduler.step_level.cpu_sets(node) for cpu in cpu_set}
    used = {
        cpu for phase in scheduler.step_level.phases if isinstance(phase, Running | Resetting) for cpu in phase.cpus
    }
    allowed = set(manager.quotas.split.simulation)
    assert kept <= allowed, f"simulation has CPUs {kept}, of {allowed}"
    assert used <= allowed, f"simulation runs on CPUs {used}, of {allowed}"


def _check_chunk_level(scheduler: Scheduler) -> None:
    phases = scheduler.step_level.phases
    waiting = sorted(shard for shard, phase in enumerate(phases) if isinstance(phase, Waiting))
    queued = sorted(scheduler.chunk_level.waiting())
    assert queued == waiting, f"queue {queued}, but {waiting} wait"
    for shard, phase in enumerate(phases):
        if isinstance(phase, Generating):
            served = scheduler.chunk_level.generators[phase.generator].busy_with
            assert shard in served, f"shard {shard} is in {phase}, but the generator serves {served}"
    group_of = scheduler.plan.group_of()
    moving = [0] * (max(group_of) + 1)
    preparing = [0] * (max(group_of) + 1)
    for group, phase in zip(group_of, phases, strict=True):
        placed = getattr(phase, "place", None) is not None
        moving[group] += placed and not isinstance(phase, Waiting)
        preparing[group] += not placed and not isinstance(phase, Idle)
    counted = (scheduler.step_level.num_moving, scheduler.step_level.num_preparing)
    assert counted == (moving, preparing), f"counted {counted}: {phases}"


def _check_trajectories(scheduler: Scheduler) -> None:
    gate = scheduler.gate
    places = [p for phase in scheduler.step_level.phases if (p := getattr(phase, "place", None)) is not None]
    trajectories = [place.trajectory for place in places]
    slots = [place.slot for place in places]
    assert len(set(trajectories)) == len(trajectories), f"a trajectory in two shards: {places}"
    assert len(set(slots)) == len(slots), f"a slot in two shards: {places}"
    assert 0 <= gate.num_held <= gate.capacity, f"{gate.num_held} held of {gate.capacity}"
    untrained, held = gate.num_held_untrained, gate.num_held * scheduler.plan.unit
    assert untrained <= held, f"{untrained} untrained of {held} held"
    assert gate.ledger.balances(gate.num_held_untrained), f"{gate.ledger} with {gate.num_held_untrained} held"


def _check_versions(scheduler: Scheduler) -> None:
    learner, gate = scheduler.learner, scheduler.gate
    assert gate.live_version <= learner.policy_version, f"live {gate.live_version}, made {learner.policy_version}"
    assert learner.staleness_max <= gate.bound, f"staleness {learner.staleness_max}, bound {gate.bound}"
    for generator in scheduler.chunk_level.generators:
        made, held = learner.policy_version, generator.policy_version
        assert held <= made, f"a generator holds version {held}, but only {made} were made"


def _check_work_conserving(scheduler: Scheduler) -> None:
    phases = scheduler.step_level.phases
    node_of = scheduler.plan.node_of()
    wanting = [shard for shard in range(len(phases)) if scheduler.step_level.wants_cpu(ShardId(shard))]
    beside = [shard for shard in wanting if scheduler.step_level.free_cpus(node_of[shard])]
    assert not beside, f"CPUs of nodes {[node_of[shard] for shard in beside]} are free beside shards {beside}"
    idle = [shard for shard, phase in enumerate(phases) if isinstance(phase, Idle)]
    assert not (idle and scheduler.groups.may_begin), f"shards {idle} are idle though a trajectory may begin"
    usable = [g for g in scheduler.chunk_level.generators if g.may_serve(scheduler.gate.live_version)]
    group = scheduler.chunk_level.servable(scheduler.others_may_join())
    assert not (usable and group is not None), f"env group {group} can be served beside a free generator"
