"""Deliberate one-line faults of the control plane; ``tests/mutations.py`` checks that each is found.

A mutant is what somebody might really write. Its old text must be found exactly once, in its
function if one is named, else in its file.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

SHARDS, GENERATION, ESTIMATES = "shards.py", "generation.py", "estimates.py"
STALENESS, UPDATES = "staleness.py", "updates.py"
SCHEDULER, EVALUATION = "scheduler.py", "evaluation.py"
SIBLINGS, EPISODES, PLAN, ENDING = "siblings.py", "episodes.py", "plan.py", "ending.py"
QUOTAS, MANAGEMENT, RATES = "quotas.py", "management.py", "rates.py"


@dataclass(frozen=True)
class Mutant:
    """One fault."""

    name: str
    file: str
    """Below ``src/ebrl/scheduling``."""
    old: str
    new: str
    function: str = ""
    """Name of the only function that is changed."""


GATE = [
    Mutant(
        "a slot is free when its batch is taken",
        STALENESS,
        "        self._training = tuple(trajectory for trajectory, _ in members)\n",
        "        self._training = tuple(trajectory for trajectory, _ in members)\n"
        "        self.release(self._slot[trajectory] for trajectory in self._training)\n",
    ),
    Mutant(
        "a slot is free when its batch was trained, before the weights are live",
        STALENESS,
        "self._trained.append((new_version, slots))",
        "self.release(slots)",
    ),
    Mutant("the window is gone", STALENESS, "self._unconsumed[0] + self.window - 1", "self._unconsumed[-1]"),
    Mutant(
        "the window is one too wide",
        STALENESS,
        "self._unconsumed[0] + self.window - 1",
        "self._unconsumed[0] + self.window",
    ),
    Mutant(
        "one trajectory too many is admitted",
        STALENESS,
        "self.capacity = (slack + 1) * batch",
        "self.capacity = (slack + 1) * batch + 1",
    ),
    Mutant(
        "the members of a batch are in reverse order",
        STALENESS,
        "sorted(self._staged), []",
        "sorted(self._staged, reverse=True), []",
    ),
    Mutant(
        "a dropped trajectory stays at the head of the window",
        STALENESS,
        "        self._unconsumed.remove(trajectory)\n",
        "",
    ),
    Mutant(
        "the ledger counts a batch as one trajectory",
        STALENESS,
        "self.ledger.trained += len(slots)",
        "self.ledger.trained += 1",
    ),
    Mutant("live weights free only the slots of older ones", STALENESS, "[0][0] <= version", "[0][0] < version"),
    Mutant("live is the newest weights that anybody has", UPDATES, "return min((g.policy_v", "return max((g.policy_v"),
    Mutant(
        "generators that are down hold live weights back",
        UPDATES,
        " for g in generators if g.up)",
        " for g in generators)",
    ),
]

STEPS = [
    Mutant(
        "the CPU of a lost reset leaks",
        SHARDS,
        "            case Resetting(cpus=cpus):\n",
        "            case Down(cpus=cpus):\n",
    ),
    Mutant(
        "a lost shard still wants a CPU for its reset",
        SHARDS,
        "case Ready() | NeedsReset() if isinstance(phase, Down):",
        "case Ready() if isinstance(phase, Down):",
    ),
    Mutant(
        "only one CPU is given at a time",
        SHARDS,
        "            while (pair := node.next_pair()) is not None:\n",
        "            if (pair := node.next_pair()) is not None:\n",
    ),
    Mutant("the quantum is ignored", SHARDS, "else quantum or chunk_len", "else chunk_len"),
    Mutant(
        "the shortest work goes first",
        SHARDS,
        "now - PATIENCE * left_s, shard)",
        "now + PATIENCE * left_s, shard)",
    ),
    Mutant("waiting does not count", SHARDS, "now - PATIENCE * left_s, shard)", "-left_s, shard)"),
    Mutant("updates share the CPUs alike", SHARDS, "(self._rank_of(phase.place), now - P", "(0, now - P"),
    Mutant("every trajectory has a rank of its own", SIBLINGS, "number // self.gate.batch", "number"),
    Mutant(
        "a sibling that is played again goes last",
        SIBLINGS,
        "self._group_of[trajectory]\n        return number // self.gate.batch",
        "trajectory\n        return number // self.gate.batch",
    ),
    Mutant("an episode is played twice", EPISODES, "self._begun[number] += 1", "self._begun[number] += 0"),
    Mutant("the barrier is skipped", SHARDS, "if held and not self._through[group]:", "if held:"),
    Mutant(
        "the barrier waits for a shard that was lost before its step",
        SHARDS,
        "            self._barrier.leave(group)\n        self",
        "        self",
    ),
    Mutant("the barrier lets a lost shard through", SHARDS, "                self._barrier.forget(group, shard)\n", ""),
    Mutant(
        "a grant counts as one env step",
        ESTIMATES,
        "self._step[shard].add(step_s / num_steps)",
        "self._step[shard].add(step_s)",
    ),
]

CHUNKS = [
    Mutant(
        "the smallest batch is ignored",
        GENERATION,
        "return enough or self._begun[group] or not others_may_join[group]",
        "return True",
    ),
    Mutant(
        "an incomplete group waits for shards that never come",
        GENERATION,
        "return enough or self._begun[group] or not others_may_join[group]",
        "return enough or self._begun[group]",
    ),
    Mutant(
        "the rest of a group waits for another round",
        GENERATION,
        "return enough or self._begun[group] or",
        "return enough or",
    ),
    Mutant(
        "the largest batch is ignored",
        GENERATION,
        "self._min_batch[group]), self.max_batch)",
        "self._min_batch[group]))",
    ),
    Mutant("buckets are ignored", GENERATION, "if bucket <= size), default=size)", "if bucket < 0), default=size)"),
    Mutant(
        "a bucket is more than there are",
        GENERATION,
        "max((bucket for bucket in self._buckets if",
        "min((bucket for bucket in self._buckets if",
    ),
    Mutant("a generator with old weights serves", GENERATION, " and self.policy_version >= live_version", ""),
    Mutant("a busy generator is given a second batch", GENERATION, " and not self.busy_with", ""),
    Mutant(
        "the newest waiting shards are served first",
        GENERATION,
        "sorted(list(queue)[:size])",
        "sorted(list(queue)[-size:])",
    ),
    Mutant(
        "the group that was complete last is served first",
        GENERATION,
        "return min(ready)[1]",
        "return max(ready)[1]",
    ),
    Mutant("a group keeps its turn", GENERATION, "self._turn = (group + 1) %", "self._turn = group %"),
    Mutant(
        "a group that is not complete loses its turn",
        GENERATION,
        "                return None\n            if self",
        "                continue\n            if self",
    ),
    Mutant(
        "two generators write a chunk of the same shard",
        GENERATION,
        "        if shard in self._served_by:",
        "        if False:",
    ),
    Mutant(
        "a shard that waited for an old chunk to end is forgotten",
        GENERATION,
        "                self.add(shard)\n",
        "",
    ),
]

TRAJECTORIES = [
    Mutant(
        "the slot of a dropped trajectory is free while a generator writes to it",
        SCHEDULER,
        "in_use=isinstance(phase, Generating)",
        "in_use=False",
    ),
    Mutant(
        "the slot that a generator wrote to leaks",
        SCHEDULER,
        "        self.groups.release(self._written.pop(generator, ()))\n",
        "",
    ),
    Mutant(
        "the newest version of a trajectory counts",
        SCHEDULER,
        "else min(oldest, event.policy_version)",
        "else max(oldest, event.policy_version)",
    ),
    Mutant("random numbers are drawn twice", SCHEDULER, "            self.serials[shard] += 1\n", ""),
    Mutant(
        "an episode that ended is not reset",
        SCHEDULER,
        "            self._reset(shard, place, over, now)\n",
        "            self._stand(shard, place, now)\n",
    ),
    Mutant("a trajectory is one chunk too long", SCHEDULER, "place.chunk + 1 == self.plan", "place.chunk == self.plan"),
    Mutant(
        "failures far apart add up",
        SCHEDULER,
        "            self._failures[shard] = 0\n",
        "            pass\n",
    ),
    Mutant(
        "every chunk forgives failures",
        SCHEDULER,
        "if place is None or over:",
        "if True:",
    ),
    Mutant(
        "a goal cuts its last update short",
        ENDING,
        "self.begin(goal, self._plan.finish_s)",
        "self.begin(goal, self._plan.drain_s)",
    ),
    Mutant(
        "a dropped trajectory leaves its version to the next",
        SCHEDULER,
        "        self._oldest[shard] = None\n        if isinstance(phase, Generating):\n",
        "        if isinstance(phase, Generating):\n",
    ),
    Mutant(
        "shards of a lost generator wait for ever",
        SCHEDULER,
        "                self._stand(shard, phase.place, now)\n        generator.up",
        "                pass\n        generator.up",
    ),
    Mutant("nobody waits for shards that still reset", SCHEDULER, " or (preparing > 0 and may_admit)", ""),
]

VERSIONS = [
    Mutant(
        "a skipped update makes a version",
        SCHEDULER,
        "        learner.skipped_in_a_row += 1\n",
        "        learner.skipped_in_a_row += 1\n"
        "        learner.policy_version = PolicyVersion(learner.policy_version + 1)\n",
    ),
    Mutant("skipped updates far apart add up", SCHEDULER, "        learner.skipped_in_a_row = 0\n", ""),
    Mutant(
        "lost learners far apart add up", SCHEDULER, "learner.batch, learner.losses = None, 0", "learner.batch = None"
    ),
    Mutant("lost generators far apart add up", SCHEDULER, "        generator.losses = 0\n", ""),
    Mutant("weights are published to the dead", SCHEDULER, "            if generator.up\n        ]", "        ]"),
    Mutant(
        "weights are believed before their update was heard of",
        SCHEDULER,
        "heard = min(event.policy_version, self.learner.policy_version)",
        "heard = event.policy_version",
    ),
    Mutant(
        "a learner that comes back does not train its batch again",
        SCHEDULER,
        "        if learner.batch is not None:\n            return [self._train_command()]",
        "        if learner.batch is None:\n            return []",
    ),
]

ENDS = [
    Mutant(
        "one update too many is taken",
        ENDING,
        "policy_version >= self._plan.max_updates",
        "policy_version > self._plan.max_updates",
    ),
    Mutant(
        "a run that ends does not wait for work in flight",
        ENDING,
        " and not self._work_in_flight():",
        ":",
    ),
    Mutant(
        "a run ends without its checkpoint",
        ENDING,
        "        self.waits_for_checkpoint = True\n",
        '        return self._stop(self.reason or "", failed=False, detail="")\n',
    ),
    Mutant(
        "an older checkpoint ends the run",
        ENDING,
        "if not self.waits_for_checkpoint or version < self._learner.policy_version:",
        "if not self.waits_for_checkpoint:",
    ),
    Mutant("the watchdog barks at a run that moves", ENDING, "seen == self._progress, seen", "True, seen"),
    Mutant(
        "the watchdog looks only once",
        ENDING,
        "[ReportWaits(lines=tuple(lines)), *self.watch()]",
        "[ReportWaits(lines=tuple(lines))]",
    ),
    Mutant("the drain has no deadline", ENDING, 'if name == "drain" and not', 'if name == "dry" and not'),
]

MORE = [
    Mutant("the bound is one too large", STALENESS, "self.capacity + window - 2", "self.capacity + window + batch - 2"),
    Mutant(
        "live weights go back",
        SCHEDULER,
        "return max(self.gate.live_version, live_version(",
        "return max(PolicyVersion(0), live_version(",
    ),
    Mutant(
        "staleness is counted from the version before",
        UPDATES,
        "self.policy_version - oldest",
        "self.policy_version - oldest + 1",
    ),
    Mutant(
        "a generator that starts with older weights keeps them",
        SCHEDULER,
        "if event.policy_version < self.learner.policy_version:\n            return [Publish",
        "if False:\n            return [Publish",
    ),
    Mutant(
        "a generator that starts has weights of the future",
        SCHEDULER,
        "min(event.policy_version, self.learner.policy_version)\n        self.gate",
        "event.policy_version\n        self.gate",
    ),
    Mutant("a resumed run draws its first random numbers again", SCHEDULER, "[plan.first_serial] * plan", "[0] * plan"),
    Mutant("a resumed run plays its first episodes again", EPISODES, "[first] * (num", "[0] * (num"),
    Mutant(
        "a run that ends does not wait for chunks",
        ENDING,
        "if any(generator.busy_with for generator in self._chunk_level.generators):",
        "if False:",
    ),
    Mutant(
        "a run that ends waits for a batch of a lost learner",
        ENDING,
        "self._learner.batch is not None and self._learner.up:",
        "self.learner.batch is not None:",
    ),
    Mutant(
        "a run that ends writes two checkpoints",
        SCHEDULER,
        "version % every == 0 and self.ending.reason is None:",
        "version % every == 0:",
    ),
    Mutant(
        "a run that ends trains the lost batch again",
        SCHEDULER,
        "        if self.ending.reason is not None:\n            learner.batch = None",
        "        if False:\n            learner.batch = None",
    ),
    Mutant(
        "trajectories that are on their way vanish at the end",
        STALENESS,
        "        self.ledger.abandoned += self.num_held_untrained\n",
        "",
    ),
    Mutant(
        "a lost env worker's old chunk is stepped",
        SCHEDULER,
        "                continue  # its env worker",
        "                pass  # its env worker",
    ),
    Mutant(
        "an evaluation believes a replaced env worker",
        EVALUATION,
        "case StepsDone(shard=shard, epoch=epoch) if epoch == self._epochs[shard]:",
        "case StepsDone():",
    ),
    Mutant(
        "an evaluation plays one episode too many",
        EVALUATION,
        "self.result.failed >= self.num_episodes",
        "self.result.failed > self.num_episodes",
    ),
    Mutant(
        "an evaluation skips an episode that was lost",
        EVALUATION,
        "if self._tries[number] >= MAX_TRIES:",
        "if self._tries[number] >= 1:",
    ),
]

SHAPES = [
    Mutant(
        "a shard runs on another node",
        SHARDS,
        "self._node_of = [self._nodes[node] for node in node_of]",
        "self._node_of = [self._nodes[0] for node in node_of]",
    ),
    Mutant(
        "CPU sets overlap",
        PLAN,
        "for i in range(0, len(cpus), size)) for",
        "for i in range(0, len(cpus) - size + 1)) for",
    ),
    Mutant(
        "only the first environment that is over is reset",
        EPISODES,
        "        for env in envs:\n",
        "        for env in list(envs)[:1]:\n",
    ),
    Mutant(
        "an environment that ended before the chunk's last grant is forgotten",
        SCHEDULER,
        "        over += [end.env for end in event.episode_ends]\n",
        "        over[:] = [end.env for end in event.episode_ends]\n",
    ),
    Mutant(
        "environments that ended are reset again after the next chunk",
        SCHEDULER,
        "        self._over[shard] = []\n        if place is not None and",
        "        if place is not None and",
    ),
    Mutant(
        "the ledger forgets that a shard has many environments",
        STALENESS,
        "        self.ledger.admitted += self.unit\n",
        "        self.ledger.admitted += 1\n",
    ),
    Mutant(
        "env steps are counted once per shard",
        SCHEDULER,
        "self.counters.env_steps += event.env_steps",
        "self.counters.env_steps += event.num_steps",
    ),
    Mutant(
        "a whole episode ends with its first chunk",
        SCHEDULER,
        "complete = episode_over if self.plan.whole_episodes else",
        "complete = True if self.plan.whole_episodes else",
    ),
    Mutant(
        "siblings start from different states",
        SCHEDULER,
        "EpisodeId(self.plan.first_episode + begun.group)",
        "EpisodeId(self.plan.first_episode + begun.trajectory)",
    ),
    Mutant(
        "a group trains before its last sibling is complete",
        SIBLINGS,
        "        if len(group.oldest) == self.size:\n            self",
        "        if len(group.oldest) >= self.size - 1:\n            self",
    ),
    Mutant(
        "a lost sibling is not played again",
        SIBLINGS,
        "                self._with_unplayed.add(number)\n",
        "                pass\n",
    ),
    Mutant(
        "a new group begins before a lost sibling is played again",
        SIBLINGS,
        "number = min(self._with_unplayed)",
        "number = max(self._with_unplayed)",
    ),
    Mutant(
        "a sibling's slot is played again while a generator writes to it",
        SIBLINGS,
        "        if not in_use:\n",
        "        if True:\n",
    ),
    Mutant(
        "slots of a late group are free while somebody writes to them",
        SIBLINGS,
        "if group.dropped and group.written == 0:",
        "if group.dropped:",
    ),
    Mutant(
        "a group that is complete can be late",
        SIBLINGS,
        "if group is None or group.dropped or len(group.oldest) == self.size:",
        "if group is None or group.dropped:",
    ),
    Mutant(
        "a late group is not dropped",
        SCHEDULER,
        "            return self._drop_group(int(name.removeprefix(_GROUP)), now)\n",
        "            return []\n",
    ),
    Mutant(
        "a shard of a late group plays its trajectory to the end",
        SCHEDULER,
        "        if place is not None and self.groups.is_dropped(place.trajectory):\n",
        "        if False:\n",
    ),
    Mutant(
        "who waits for a chunk of a late group is served",
        SCHEDULER,
        "                self.chunk_level.remove(ShardId(shard))\n                self._stand(",
        "                pass\n                0 and self._stand(",
    ),
    Mutant(
        "an environment without a further episode is reset in evaluations",
        EVALUATION,
        "for env, number in numbers.items() if self._has_episode(number)",
        "for env, number in numbers.items() if True",
    ),
]

MOVES = [
    Mutant(
        "a stage grows before the others have left",
        QUOTAS,
        "if not self.shrinking or self.owing or not simulation_has_left:",
        "if not self.shrinking:",
    ),
    Mutant(
        "nobody waits for simulation to leave",
        QUOTAS,
        "if not self.shrinking or self.owing or not simulation_has_left:",
        "if not self.shrinking or self.owing:",
    ),
    Mutant(
        "an answer counts for the newest question",
        QUOTAS,
        "asked = self._asked[member].popleft()",
        "asked = self._asked[member].pop()",
    ),
    Mutant(
        "a lost process is waited for",
        QUOTAS,
        "        self._asked[member].clear()\n",
        "",
    ),
    Mutant(
        "the loss of a replaced process is believed",
        QUOTAS,
        "        if epoch != self._epochs[member]:\n            return\n",
        "",
        function="lost",
    ),
    Mutant(
        "a process without a CPU in between is not counted",
        QUOTAS,
        "                self.counts.overlaps += 1\n",
        "                pass\n",
    ),
    Mutant("a read-back that differs is not counted", QUOTAS, "self.counts.mismatches += 1", "pass"),
    Mutant("a process shrinks to what it will have", QUOTAS, "Quota(kept or new.cpus,", "Quota(new.cpus,"),
    Mutant("a quota of SMs grows at once", QUOTAS, "min(old.units, new.units)", "new.units"),
    Mutant("a move never ends", QUOTAS, "            self.growing = False\n", "            pass\n"),
    Mutant(
        "CPUs that simulation lost are granted again",
        SHARDS,
        "        if cpus in self.kept:\n            heappush(self.free, cpus)",
        "        if True:\n            heappush(self.free, cpus)",
    ),
    Mutant(
        "a CPU set that overlaps a busy one is free",
        SHARDS,
        "if used.isdisjoint(cpus)",
        "if cpus not in self.busy",
    ),
    Mutant(
        "what is asked for during a move is lost",
        MANAGEMENT,
        "            self._wanted = split, why\n",
        "            pass\n",
    ),
    Mutant("batches stay as they were", MANAGEMENT, "        if split.max_batch:\n", "        if False:\n"),
    Mutant(
        "an incomplete CPU set is granted",
        MANAGEMENT,
        "whole = len(cpus) - len(cpus) % size",
        "whole = len(cpus)",
    ),
    Mutant(
        "stages that wait for each other's CPUs are compared",
        MANAGEMENT,
        'chunk=None if sharing in ("all", "rollout") else ratios.chunk,',
        "chunk=ratios.chunk,",
    ),
    Mutant(
        "the learner begins before its SMs are back",
        SCHEDULER,
        "self.learner.batch is None and (self.manager is None or self.manager.may_train):",
        "self.learner.batch is None:",
    ),
    Mutant(
        "SMs are lent beside a batch that waits",
        MANAGEMENT,
        "may_lend = learner_idle and not batch_ready and not self.quotas.moving",
        "may_lend = learner_idle and not self.quotas.moving",
    ),
    Mutant("SMs of a learner at work are lent", MANAGEMENT, "may_lend = learner_idle and not", "may_lend = not"),
    Mutant(
        "what is lent counts as back before it is",
        QUOTAS,
        "return not self.lent and not any(self._asked[member] for member in self._generators)",
        "return not self.lent",
    ),
    Mutant(
        "a learner that starts again trains before it is told what it has",
        SCHEDULER,
        "commands = self.manager.handle(event, now) + commands  #",
        "commands += self.manager.handle(event, now)  #",
    ),
    Mutant(
        "the watchdog does not know of quotas",
        ENDING,
        "if self._quotas is not None and self._quotas.owing:",
        "if False:",
    ),
    Mutant("nobody looks at what the device has", QUOTAS, "or (asked.units and units != asked.units):", ":"),
    Mutant("a loan outlives a move", QUOTAS, "self.shrinking, self.lent = True, False", "self.shrinking = True"),
    Mutant(
        "batches of lent SMs are measured",
        MANAGEMENT,
        "if self.follower is not None and not (isinstance(event, ChunksReady) and self.generates_faster):",
        "if self.follower is not None:",
    ),
    Mutant("a sample does not begin anew", RATES, "sums, self._sums = self._sums, _Sums()", "sums = self._sums"),
    Mutant("a skipped update is measured", RATES, "case UpdateDone() if not event.skipped:", "case UpdateDone():"),
    Mutant(
        "one free generator takes all that wait",
        GENERATION,
        "share = -(-len(queue) // num_free)",
        "share = len(queue)",
    ),
]

_ANSWERS = (
    "EnvWorkerReady ResetDone StepsDone EpisodeInvalid EnvWorkerLost ChunksReady GeneratorReady GeneratorLost"
    " WeightsLive LearnerReady UpdateDone LearnerLost CheckpointSaved"
)

LATE = [
    Mutant(
        f"an answer of a replaced process is believed: {event}",
        SCHEDULER,
        "self._is_stale(event.epoch,",
        "(lambda *epochs: False)(event.epoch,",
        function=re.sub("([A-Z])", r"_\1", event).lower(),
    )
    for event in _ANSWERS.split()
]

MUTANTS = [*GATE, *STEPS, *CHUNKS, *TRAJECTORIES, *VERSIONS, *ENDS, *MORE, *SHAPES, *MOVES, *LATE]
