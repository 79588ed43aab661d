"""Many environments in one env worker."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from counted_env import Counted
from driven import Starter, env_workers
from hypothesis import given, settings
from hypothesis import strategies as st

from ebrl.data import messages as m
from ebrl.data.shared import SharedArrays
from ebrl.data.trajectory import rows_of, slab_layout, store_layout
from ebrl.envs.base import Observation, comes_apart
from ebrl.envs.toy import Dial
from ebrl.workers.env_worker import Habits, NotFinite, Shard

COUNTED = "counted_env:Counted"
CHUNK_LEN = 4


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Starter]:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)
    with env_workers(tmp_path) as starter:
        yield starter


class DialInParts(Dial):
    """Also notes in which order parts were done, in a list that all have in common."""

    order: ClassVar[list[str]] = []

    def begin_step(self, action: np.ndarray) -> None:
        self.order.append("begin")
        self._action = action

    def advance(self) -> None:
        self.order.append("advance")

    def end_step(self, *, need_obs: bool) -> tuple[Observation | None, float, bool, bool, dict[str, Any]]:
        self.order.append("end")
        return self.step(self._action, need_obs=need_obs)


class Rig:
    """A shard and its memory, which has room for ``num_slots`` trajectories of every environment."""

    def __init__(
        self,
        envs: list[Any],
        *,
        shard: int = 0,
        num_shards: int = 1,
        num_slots: int = 1,
        num_chunks: int = 3,
        habits: Habits = Habits(),  # noqa: B008 (frozen)
    ) -> None:
        spec, width = envs[0].spec, len(envs)
        slabs = slab_layout(spec, num_shards=num_shards, envs_per_shard=width, chunk_len=CHUNK_LEN)
        store = store_layout(
            spec,
            {},
            num_slots=num_slots,
            envs_per_shard=width,
            trajectory_chunks=num_chunks,
            num_transitions=1,
            chunk_len=CHUNK_LEN,
        )
        self.envs = envs
        self.slabs, self.store = SharedArrays.create("slabs", slabs), SharedArrays.create("store", store)
        self.shard = Shard(envs, shard, self.slabs, self.store, habits=habits)

    def reset(self, *seeds: int) -> None:
        """Every environment, to an episode whose id is a hundred times its seed."""
        self.shard.reset([(env, seed, 100 * seed) for env, seed in enumerate(seeds)])

    def chunk(self, number: int = 0) -> tuple[int, int, int, list[m.EpisodeEnd]]:
        """All of it in one grant."""
        return self.shard.run(0, number, 0, CHUNK_LEN)


def counted(num_envs: int, config: Counted.Config | None = None) -> list[Any]:
    return [Counted(config=config) for _ in range(num_envs)]


def test_rows_of_a_shard_are_neighbours() -> None:
    assert rows_of(np.array([2, 0], np.int32), 3).tolist() == [6, 7, 8, 0, 1, 2]
    assert rows_of(np.array([2, 0], np.int32), 1).tolist() == [2, 0]


def test_where_one_episode_ends_the_others_go_on() -> None:
    rig = Rig(counted(3))
    rig.reset(3, 20, 6)
    rig.slabs["actions"][:] = np.array([0.25, 0.5, 0.75])[:, None, None]
    assert rig.shard.run(0, 0, 0, 2) == (0, 2, 6, [])
    assert rig.shard.run(0, 0, 2, 2) == (m.CHUNK_OVER, 2, 5, [m.EpisodeEnd(0, m.TERMINATED, 9.0, 3)])
    assert rig.store["num_executed"][:, 0].tolist() == [3, 4, 4]
    assert rig.store["terminated"][:, 0].tolist() == [True, False, False]
    assert not rig.store["truncated"].any()
    assert rig.store["episode"][:, 0].tolist() == [300, 2000, 600]
    assert rig.store["reward"][:, 0].tolist() == [[3, 3, 3, 0], [20] * 4, [6] * 4]
    assert rig.store["final_obs/state"][1:, 0].tolist() == [[20, 4, 0.5], [6, 4, 0.75]]
    assert rig.slabs["obs/state"].tolist() == [[3, 0, 0], [20, 4, 0.5], [6, 4, 0.75]]
    rig.shard.reset([(0, 9, 7)])
    assert rig.slabs["obs/state"].tolist() == [[9, 0, 0], [20, 4, 0.5], [6, 4, 0.75]]
    assert rig.shard.run(0, 1, 0, 3) == (0, 3, 8, [m.EpisodeEnd(2, m.TERMINATED, 36.0, 6)])
    assert rig.shard.run(0, 1, 3, 1) == (m.CHUNK_OVER, 1, 2, [])
    assert rig.store["num_executed"][:, 1].tolist() == [4, 4, 2]
    assert rig.store["episode"][:, 1].tolist() == [7, 2000, 600]


def test_a_chunk_is_over_when_every_episode_is() -> None:
    rig = Rig(counted(2))
    rig.reset(1, 2)
    ends = [m.EpisodeEnd(0, m.TERMINATED, 1.0, 1), m.EpisodeEnd(1, m.TERMINATED, 4.0, 2)]
    assert rig.chunk() == (m.CHUNK_OVER, 2, 3, ends)


def test_the_time_limit_is_each_environments_own() -> None:
    rig = Rig(counted(2), num_chunks=6)
    rig.reset(100, 2)
    rig.chunk()
    rig.shard.reset([(1, 100, 0)])
    answers = [rig.chunk(number) for number in range(1, 5)]
    assert answers[-1] == (m.CHUNK_OVER, 4, 8, [m.EpisodeEnd(0, 0, 2000.0, 20)])
    assert rig.store["truncated"][:, 4].tolist() == [True, False]


def test_an_episode_that_is_over_is_left_alone() -> None:
    rig = Rig(counted(2))
    rig.reset(2, 20)
    rig.chunk()
    rig.slabs["actions"][0] = np.nan
    rig.store["num_executed"][0, 1] = 4
    assert rig.chunk(1) == (m.CHUNK_OVER, 4, 4, [])
    assert rig.store["num_executed"][:, 1].tolist() == [0, 4]
    assert rig.envs[0].steps == 2
    rig.slabs["actions"][0] = 0.0
    rig.shard.reset([(0, 5, 0)])
    assert rig.chunk(2) == (m.CHUNK_OVER, 4, 8, [])


def test_before_its_first_reset_an_environment_is_not_stepped() -> None:
    rig = Rig(counted(2))
    assert rig.chunk() == (m.CHUNK_OVER, 0, 0, [])
    rig.shard.reset([(1, 5, 0)])
    assert rig.chunk() == (m.CHUNK_OVER, 4, 4, [])
    assert rig.envs[0].steps == 0


def test_the_first_chunk_of_a_slot_clears_what_an_older_trajectory_left() -> None:
    rig = Rig(counted(1), num_slots=2)
    rig.reset(2)
    written = ("reward", "num_executed", "terminated", "truncated")
    for name in written:
        rig.store[name][:] = 1
    rig.shard.run(1, 0, 0, 1)
    rig.shard.run(1, 0, 1, 3)
    assert [rig.store[name][0].min() for name in written] == [1] * 4
    assert [rig.store[name][1, 1:].max() for name in written] == [0] * 4
    assert rig.store["reward"][1, 0].tolist() == [2, 2, 0, 0]
    assert rig.store["num_executed"][1].tolist() == [2, 0, 0]


def test_the_chunks_of_all_environments_are_cleared_and_no_others() -> None:
    rig = Rig(counted(2), num_slots=3, shard=1, num_shards=2)
    rig.reset(20, 20)
    written = ("reward", "num_executed", "terminated", "truncated")
    for name in written:
        rig.store[name][:] = 1
    rig.chunk(1)
    for name in written:
        assert rig.store[name][:2, 0].all(), name
        assert rig.store[name][2:].all(), name
        assert not rig.store[name][:2, 2].any(), name
    assert rig.store["num_executed"][:2, 1].tolist() == [4, 4]


class Keeper(Counted):
    """Keeps the actions it is given, as they are."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[np.ndarray] = []

    def step(self, action: np.ndarray, *, need_obs: bool) -> Any:
        self.kept.append(action)
        return super().step(action, need_obs=need_obs)


def test_an_environment_may_keep_its_actions_and_sees_them_within_their_limits() -> None:
    rig = Rig([Keeper(), Keeper()])
    rig.reset(20, 6)
    for number, value in enumerate([0.25, -7.0, 7.0]):
        rig.slabs["actions"][:] = value
        rig.chunk(number)
    kept = [[float(action[0]) for action in env.kept] for env in rig.envs]
    assert kept == [[0.25] * 4 + [-1.0] * 4 + [1.0] * 4, [0.25] * 4 + [-1.0] * 2]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_the_first_environment_in_an_episode_with_a_bad_action_is_named(bad: float) -> None:
    rig = Rig(counted(4))
    rig.reset(2, 20, 20, 20)
    rig.chunk()
    rig.slabs["actions"][[0, 2, 3], 1] = bad
    with pytest.raises(NotFinite, match=r"^action of environment 2$"):
        rig.chunk(1)
    assert [env.steps for env in rig.envs] == [2, 4, 4, 4]


def test_a_later_chunk_keeps_the_earlier_ones() -> None:
    rig = Rig(counted(1))
    rig.reset(6)
    rig.chunk(0)
    rig.chunk(1)
    assert rig.store["num_executed"][0].tolist() == [4, 2, 0]
    assert rig.store["terminated"][0].tolist() == [False, True, False]


@pytest.mark.parametrize(("num_envs", "whose"), [(1, ""), (2, " of environment 1")])
@pytest.mark.parametrize("what", ["action", "reward", "observation"])
def test_what_is_not_finite_is_named_with_its_environment(what: str, num_envs: int, whose: str) -> None:
    rig = Rig(counted(num_envs, Counted.Config(nan_in=what)))
    rig.reset(*[20, 13][-num_envs:])
    rig.slabs["actions"][-1, 3] = np.inf if what == "action" else 0.0
    with pytest.raises(NotFinite) as caught:
        rig.chunk()
    assert str(caught.value) == {"observation": "observation 'state'"}.get(what, what) + whose
    rig.slabs["actions"][:] = 0.0
    rig.reset(*[20] * num_envs)
    assert rig.chunk() == (m.CHUNK_OVER, 4, 4 * num_envs, [])


def test_a_shard_writes_nothing_outside_its_rows() -> None:
    rig = Rig(counted(2), shard=1, num_shards=3, num_slots=3)
    for array in (*rig.slabs.arrays.values(), *rig.store.arrays.values()):
        array[:] = 1
    before = {name: array.copy() for name, array in (rig.slabs.arrays | rig.store.arrays).items()}
    rig.reset(5, 6)
    rig.shard.run(1, 0, 0, CHUNK_LEN)
    after = rig.slabs.arrays | rig.store.arrays
    assert rig.slabs["obs/state"][2:4, 0].tolist() == [5, 6]
    assert rig.store["episode"][2:4, 0].tolist() == [500, 600]
    assert all(np.array_equal(np.delete(after[name], [2, 3], 0), np.delete(before[name], [2, 3], 0)) for name in after)


@given(
    num_envs=st.integers(2, 4),
    quantum=st.integers(1, CHUNK_LEN),
    lengths=st.tuples(st.integers(1, 6), st.integers(0, 8)),
    seed=st.integers(0, 2**31 - 100),
    cls=st.sampled_from([Dial, DialInParts]),
)
@settings(max_examples=60)
def test_environments_of_a_shard_do_what_each_would_do_alone(
    num_envs: int, quantum: int, lengths: tuple[int, int], seed: int, cls: type[Dial]
) -> None:
    config = Dial.Config(min_episode_steps=lengths[0], max_episode_steps=sum(lengths), action_size=1)
    num_chunks = 5
    actions = np.random.default_rng(seed).uniform(-2, 2, (num_chunks, num_envs, CHUNK_LEN, 1)).astype(np.float32)

    def play(members: list[int]) -> tuple[Rig, list[tuple[int, m.EpisodeEnd]]]:
        """These environments in one shard; also what ended, with its chunk, by environment."""
        rig = Rig([cls("", config) for _ in members], num_chunks=num_chunks)
        episodes = list(members)
        over = list(range(len(members)))
        seen: list[tuple[int, m.EpisodeEnd]] = []
        for chunk in range(num_chunks):
            rig.shard.reset([(e, seed + episodes[e], episodes[e]) for e in over])
            rig.slabs["actions"][:] = actions[chunk, members]
            over, first, flags = [], 0, 0
            while not flags:
                flags, num_steps, _, ends = rig.shard.run(0, chunk, first, min(quantum, CHUNK_LEN - first))
                over += [end.env for end in ends]
                seen += [(chunk, end._replace(env=members[end.env])) for end in ends]
                first += num_steps
            for e in over:
                episodes[e] += num_envs
        return rig, seen

    together, seen = play(list(range(num_envs)))
    alone = [play([e]) for e in range(num_envs)]
    for name in together.slabs.arrays:
        assert together.slabs[name].tobytes() == b"".join(rig.slabs[name].tobytes() for rig, _ in alone), name
    for name in together.store.arrays:
        assert together.store[name].tobytes() == b"".join(rig.store[name].tobytes() for rig, _ in alone), name
    assert sorted(seen) == sorted(end for _, ends in alone for end in ends)


@pytest.mark.parametrize(("num_envs", "count", "order"), [
    (2, 1, ["begin", "begin", "advance", "advance", "end", "end"]),
    (2, 2, []),
    (1, 1, []),
])  # fmt: skip
def test_one_env_step_of_several_environments_is_done_part_by_part(num_envs: int, count: int, order: list[str]) -> None:
    rig = Rig([DialInParts("", Dial.Config(action_size=1)) for _ in range(num_envs)])
    rig.reset(*range(num_envs))
    DialInParts.order.clear()
    rig.shard.run(0, 0, 0, count)
    assert DialInParts.order == order


def test_a_step_of_ones_own_is_not_passed_over_for_inherited_parts() -> None:
    class Whole(DialInParts):
        def step(
            self, action: np.ndarray, *, need_obs: bool
        ) -> tuple[Observation | None, float, bool, bool, dict[str, Any]]:
            observation, _, *rest = super().step(action, need_obs=need_obs)
            return (observation, 7.0, *rest)  # type: ignore[return-value]

    class Ending(DialInParts):
        def end_step(self, *, need_obs: bool) -> tuple[Observation | None, float, bool, bool, dict[str, Any]]:
            return super().end_step(need_obs=need_obs)

    class WholeAndEnding(Whole):
        def end_step(self, *, need_obs: bool) -> tuple[Observation | None, float, bool, bool, dict[str, Any]]:
            return super().end_step(need_obs=need_obs)

    class NoPhysics(Dial):
        def end_step(self) -> None:
            """Something else that happens to have this name."""

    classes = (Dial, DialInParts, Whole, Ending, WholeAndEnding, NoPhysics)
    assert [comes_apart(cls) for cls in classes] == [False, True, False, True, False, False]
    rig = Rig([Whole("", Dial.Config(action_size=1)) for _ in range(2)])
    rig.reset(0, 1)
    rig.shard.run(0, 0, 0, 1)
    assert rig.store["reward"][:, 0, 0].tolist() == [7.0, 7.0]


def test_a_shard_of_three_over_the_wire(start: Starter) -> None:
    worker = start(COUNTED, num_envs=3, chunk_len=4)
    worker.send(m.RESET, starts=[(0, 3, 30), (1, 20, 31), (2, 6, 2**40)])
    assert worker.hear()[0] == m.RESET_DONE
    answer = worker.step(0, 2)
    assert answer == m.EnvAnswer(m.STEPS_DONE, 0, 2, 6, answer.seconds, ())
    answer = worker.step(0, 2, first=2)
    assert answer == m.EnvAnswer(
        m.STEPS_DONE, m.CHUNK_OVER, 2, 5, answer.seconds, (m.EpisodeEnd(0, m.TERMINATED, 9.0, 3),)
    )
    assert worker.store["episode"][:, 0].tolist() == [30, 31, 2**40]
    worker.reset(1, env=0)
    answer = worker.step(1, 4)
    ends = (m.EpisodeEnd(0, m.TERMINATED, 1.0, 1), m.EpisodeEnd(2, m.TERMINATED, 36.0, 6))
    assert answer == m.EnvAnswer(m.STEPS_DONE, m.CHUNK_OVER, 4, 7, answer.seconds, ends)


def test_one_bad_value_and_the_shard_can_begin_again(start: Starter) -> None:
    worker = start(COUNTED, num_envs=3, chunk_len=4, nan_in="reward")
    worker.send(m.RESET, starts=[(0, 20, 0), (1, 13, 1), (2, 20, 2)])
    assert worker.hear()[0] == m.RESET_DONE
    worker.send(m.STEP, count=4)
    assert worker.says(m.INVALID) == "reward of environment 1"
    worker.send(m.RESET, starts=[(env, 20, env) for env in range(3)])
    assert worker.hear()[0] == m.RESET_DONE
    assert worker.step(0, 4).env_steps == 12


# Habits of other systems, for comparisons.


@pytest.mark.parametrize(("habits", "frames"), [(Habits(), 1), (Habits(every_frame=True), 4)])
def test_only_who_is_told_to_asks_for_every_frame(habits: Habits, frames: int) -> None:
    rig = Rig(counted(1), habits=habits)
    rig.reset(20)
    rig.chunk()
    assert rig.envs[0].num_frames == frames


def test_an_episode_can_be_stepped_to_its_time_limit_for_nothing() -> None:
    rig = Rig(counted(1, Counted.Config(goes_on=True)), num_chunks=5, habits=Habits(to_horizon=True))
    rig.reset(6)
    answers = [rig.chunk(number) for number in range(5)]
    end = m.EpisodeEnd(0, m.TERMINATED, 36.0, 6)
    assert answers == [
        (m.CHUNK_OVER, 4, 4, []),
        (m.CHUNK_OVER, 4, 2, []),
        *[(m.CHUNK_OVER, 4, 0, [])] * 2,
        (m.CHUNK_OVER, 4, 0, [end]),
    ]
    assert rig.envs[0].steps == 20
    assert rig.store["num_executed"][0].tolist() == [4, 2, 0, 0, 0]
    assert rig.store["terminated"][0].tolist() == [False, True, False, False, False]
    assert rig.store["reward"][0].sum() == 36.0
    assert rig.slabs["obs/state"][0].tolist()[:2] == [6.0, 20.0]


def test_after_its_time_limit_the_next_episode_counts_again() -> None:
    rig = Rig(counted(1, Counted.Config(goes_on=True)), num_chunks=6, habits=Habits(to_horizon=True))
    rig.reset(3)
    for number in range(5):
        rig.chunk(number)
    rig.reset(9)
    assert rig.chunk(5) == (m.CHUNK_OVER, 4, 4, [])


def test_an_episode_that_ends_with_its_time_is_over_at_once() -> None:
    rig = Rig(counted(1, Counted.Config(goes_on=True)), num_chunks=5, habits=Habits(to_horizon=True))
    rig.reset(20)
    *_, last = [rig.chunk(number) for number in range(5)]
    assert last == (m.CHUNK_OVER, 4, 4, [m.EpisodeEnd(0, m.TERMINATED, 400.0, 20)])
