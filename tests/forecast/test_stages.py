"""How measuring goes on: until enough is known, or until time is over; and what it looks at."""

from __future__ import annotations

import dataclasses
import math
import mmap
import os
import statistics
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebrl.config.load import make_config
from ebrl.profiling.alone import observation_s
from ebrl.profiling.learning import learning_of
from ebrl.profiling.measure import SHARES, threads_to_try
from ebrl.profiling.memory import forget_peak, peak_own_bytes
from ebrl.profiling.stages import ENOUGH, FEWEST, Estimate, Stage, Stages, batch_time


def nothing(done: float, total: float, facts: object) -> None:
    pass


@given(st.lists(st.floats(1e-3, 1e3), min_size=FEWEST, max_size=30))
def test_an_estimate_is_the_mean_and_its_standard_error(values: list[float]) -> None:
    estimate = Estimate()
    for value in values:
        estimate.add(value)
    mean = statistics.fmean(values)
    assert estimate.mean == pytest.approx(mean)
    assert sum(value < estimate.undisturbed for value in values) <= len(values) // 5
    wanted = statistics.stdev(values) / math.sqrt(len(values)) / mean
    assert estimate.relative_error == pytest.approx(wanted, rel=1e-6, abs=1e-9)


def test_of_few_samples_nothing_is_known() -> None:
    estimate = Estimate()
    for _ in range(FEWEST - 1):
        estimate.add(1.0)
        assert estimate.relative_error == math.inf
    assert batch_time(2, 8, estimate) == (2, 8, 1.0, 1.0, FEWEST - 1)
    estimate.add(1.0)
    assert estimate.relative_error == 0.0


def test_what_never_varies_is_known_at_once_and_the_stage_stops_early() -> None:
    stages = Stages(lambda text: None, nothing)
    with stages.stage("calm", 1000.0, may_stop=True) as stage:
        assert stage.repeat(lambda: 2.0, shares=1).count == FEWEST
    with stages.stage("wild", 1000.0, may_stop=True) as stage:
        values = iter([1.0, 9.0] * 100)
        assert stage.repeat(lambda: next(values), shares=1, most=20).count == 20
    with stages.stage("unlimited", 1000.0):
        pass
    assert stages.stopped_early == ["calm"]
    assert list(stages.cost_s) == ["calm", "wild", "unlimited"]
    assert all(0.0 <= cost < 100.0 for cost in stages.cost_s.values())


def test_when_time_is_over_only_the_fewest_calls_are_made() -> None:
    stage = Stage(0.0, nothing)
    values = iter([1.0, 9.0] * 100)
    assert stage.repeat(lambda: next(values), shares=1, fewest=3).count == 3
    assert not stage.known
    assert not stage.goes_on([])


def test_a_stage_goes_on_until_its_worst_mean_is_known() -> None:
    stage = Stage(1000.0, nothing)
    calm, wild = Estimate(), Estimate()
    for number in range(FEWEST):
        calm.add(1.0)
        wild.add(1.0 + number)
    assert stage.goes_on([calm, wild])
    assert wild.relative_error > ENOUGH
    assert not stage.goes_on([calm])
    assert stage.known


def test_every_stage_shows_its_end() -> None:
    shown: list[tuple[float, float]] = []
    said: list[str] = []
    stages = Stages(said.append, lambda done, total, facts: shown.append((done, total)))
    with stages.stage("one", 5.0) as stage:
        with stage.uncounted():
            pass
        assert stage.left_s > 4.0
    ((done, total),) = shown
    assert done == total == pytest.approx(5.0, abs=1.0)
    assert said == ["profile: one"]
    assert sum(SHARES.values()) == pytest.approx(1.0)


def test_threads_to_try(monkeypatch: pytest.MonkeyPatch) -> None:
    for count, wanted in ((1, (1,)), (2, (1, 2)), (6, (1, 2, 4, 6)), (8, (1, 2, 4, 8))):
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid, count=count: set(range(count)))
        assert threads_to_try(1, "cpu") == wanted
        assert threads_to_try(3, "cpu") == tuple(sorted({*wanted, 3}))
    assert threads_to_try(3, "cuda") == (3,)


class Plain:
    """An algorithm that has neither minibatches nor epochs."""

    @dataclasses.dataclass(frozen=True)
    class Config:
        """No options."""


@pytest.mark.parametrize(
    ("algorithm", "epochs", "sizes"),
    [
        ({"name": "ppo"}, 8, (16, 64)),
        ({"name": "ppo", "config": {"minibatch_chunks": 32, "epochs": 2}}, 2, (8, 32)),
        ({"name": "ppo", "config": {"micro_batch_chunks": 4}}, 8, (16, 64, 4)),
        ({"name": "ppo", "config": {"micro_batch_chunks": 16}}, 8, (64, 16)),
        ({"name": "ppo", "config": {"minibatch_chunks": 1}}, 8, (1,)),
        ({"name": "test_stages:Plain"}, 1, (64,)),
    ],
)
def test_micro_batches_that_are_measured(algorithm: dict[str, Any], epochs: int, sizes: tuple[int, ...]) -> None:
    document = {
        "env": {"name": "toy/dial-v1"},
        "algorithm": algorithm,
        "training": {"batch_trajectories": 8, "trajectory_chunks": 8},
    }
    learning = learning_of(make_config(document))
    assert (learning.epochs, learning.sizes) == (epochs, sizes)
    assert learning.setting(sizes[-1]) is None
    assert [learning.setting(size) for size in sizes[:-1]] == list(sizes[:-1])


def test_what_reading_an_observation_costs() -> None:
    assert observation_s([[0.1, 0.1, 0.5], [0.1, 0.3, 0.5], [0.9]], 3) == pytest.approx((0.4 + 0.3) / 2)
    assert observation_s([[0.5, 0.1]], 2) == 0.0
    assert observation_s([[0.5]], 1) == 0.0
    assert observation_s([], 4) == 0.0


def test_the_peak_of_a_process_is_what_it_had_though_it_has_given_it_back() -> None:
    forget_peak(os.getpid())
    before = peak_own_bytes(os.getpid())
    memory = mmap.mmap(-1, 1 << 26, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    for page in range(0, 1 << 26, mmap.PAGESIZE):
        memory[page] = 1
    memory.close()
    assert peak_own_bytes(os.getpid()) - before > 1 << 25
    assert peak_own_bytes(2**30) == 0
