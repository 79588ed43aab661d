from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from driven import Starter, env_workers

from drills import DIAL, REACH, is_alive, is_asleep, processes_of, until
from ebrl.data import messages as m
from ebrl.envs.toy import Reach
from ebrl.host.probe import usable_cpus
from ebrl.workers.env_worker import Pin

PLAIN = "hostile_envs:Plain"


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Starter]:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)
    with env_workers(tmp_path) as starter:
        yield starter


def reach(seed: int) -> Reach:
    env = Reach()
    env.reset(seed)
    return env


def test_a_chunk_is_the_environment_itself(start: Starter) -> None:
    worker = start(REACH)
    env = reach(5)
    worker.reset(5, episode=2**40)
    assert np.array_equal(worker.here, env._observation()["state"])
    actions = np.random.default_rng(0).uniform(-2, 2, (8, 2)).astype(np.float32)
    worker.actions(actions)
    answer = worker.step(0, 8)
    rewards = []
    for action in actions:
        obs, reward, terminated, _, _ = env.step(np.clip(action, -1, 1), need_obs=True)
        rewards.append(reward)
        assert not terminated
    assert obs is not None
    assert answer == m.EnvAnswer(m.STEPS_DONE, m.CHUNK_OVER, 8, 8, answer.seconds, ())
    assert np.array_equal(worker.here, obs["state"])
    assert np.array_equal(worker.store["final_obs/state"][0, 0], obs["state"])
    assert np.array_equal(worker.store["reward"][0, 0], np.array(rewards, np.float32))
    assert worker.store["num_executed"][0, 0] == 8
    assert worker.store["episode"][0, 0] == 2**40
    assert not worker.store["terminated"][0, 0]
    assert not worker.store["truncated"][0, 0]


def test_an_episode_that_ends_inside_a_chunk_ends_there(start: Starter) -> None:
    worker = start(REACH, radius=0.05, speed=1.0)
    worker.reset(7)
    before = worker.here.copy()
    worker.store["reward"][0, 1] = 99.0
    worker.actions(worker.here[:2] / 3)  # at the goal in the third step
    answer = worker.step(1, 8)
    assert (answer.flags, answer.num_steps, answer.env_steps) == (m.CHUNK_OVER, 3, 3)
    assert answer.ends == (m.EpisodeEnd(0, m.TERMINATED | m.SUCCESS, 1.0, 3),)
    assert worker.store["reward"][0, 1].tolist() == [0, 0, 1, 0, 0, 0, 0, 0]
    assert worker.store["num_executed"][0, 1] == 3
    assert worker.store["terminated"][0, 1]
    assert not worker.store["truncated"][0, 1]
    assert np.array_equal(worker.here, before)  # the next observation is that of the next reset
    worker.reset(8)
    assert np.array_equal(worker.here, reach(8)._observation()["state"])


def test_the_time_limit_truncates_and_keeps_the_true_last_observation(start: Starter) -> None:
    worker = start(PLAIN)
    worker.reset()
    worker.actions([[0.25]] * 8)
    assert worker.step(0, 8).ends == ()
    worker.actions([[-0.5]] * 8)
    answer = worker.step(1, 8)
    assert (answer.flags, answer.num_steps, answer.ends) == (m.CHUNK_OVER, 2, (m.EpisodeEnd(0, m.SUCCESS, 10.0, 10),))
    assert worker.store["truncated"][0, 1]
    assert not worker.store["terminated"][0, 1]
    assert worker.store["final_obs/state"][0, 1].tolist() == [10.0, -0.5]
    assert worker.store["reward"][0, 1].tolist() == [1, 1, 0, 0, 0, 0, 0, 0]


def test_success_once_counts_for_the_episode_and_not_for_the_next(start: Starter) -> None:
    worker = start(PLAIN, chunk_len=4, truncate_at=3, succeed_once=True)
    worker.reset()
    assert worker.step(0, 4).ends == (m.EpisodeEnd(0, m.SUCCESS, 3.0, 3),)
    worker.reset()
    assert worker.step(0, 4).ends == (m.EpisodeEnd(0, 0, 3.0, 3),)


def test_an_environment_may_truncate_by_itself(start: Starter) -> None:
    worker = start(PLAIN, truncate_at=3)
    worker.reset()
    answer = worker.step(0, 8)
    assert (answer.flags, answer.num_steps, answer.ends) == (m.CHUNK_OVER, 3, (m.EpisodeEnd(0, m.SUCCESS, 3.0, 3),))
    assert worker.store["truncated"][0, 0]
    assert worker.store["final_obs/state"][0, 0, 0] == 3


def test_actions_are_clipped_to_the_limits(start: Starter) -> None:
    worker = start(PLAIN, chunk_len=1)
    worker.reset()
    for chunk, (action, executed) in enumerate([(7.0, 0.5), (-7.0, -1.0), (0.25, 0.25)]):
        worker.actions(action)
        worker.step(chunk, 1)
        assert worker.here[1] == executed


def test_actions_that_choose_are_not_clipped(start: Starter) -> None:
    """Two numbers above the limit would be equal, and the first of them would always be chosen."""
    worker = start(PLAIN, chunk_len=1, chooses=True)
    worker.reset()
    for chunk, action in enumerate((7.0, -7.0, 0.25)):
        worker.actions(action)
        worker.step(chunk, 1)
        assert worker.here[1] == action


def test_two_grants_are_one(start: Starter) -> None:
    actions = np.random.default_rng(1).uniform(-1, 1, (8, 2))
    seen = []
    for grants in ([8], [3, 5]):
        worker = start(REACH)
        worker.reset(11)
        worker.actions(actions)
        answers, first = [], 0
        for count in grants:
            answers.append(worker.step(0, count, first=first))
            first += count
        assert [answer.flags for answer in answers] == [0] * (len(grants) - 1) + [m.CHUNK_OVER]
        assert [answer.num_steps for answer in answers] == grants
        arrays = {**worker.store.arrays, "here": worker.here}
        seen.append({name: array.tobytes() for name, array in arrays.items()})
    assert seen[0] == seen[1]


@pytest.mark.parametrize(
    ("env", "config", "named"),
    [
        (DIAL, {"fail_at_step": 8, "fail_kind": "nan_obs"}, "observation 'state'"),
        (DIAL, {"fail_at_step": 2, "fail_kind": "nan_reward"}, "reward"),
        (PLAIN, {"reward": np.inf}, "reward"),
        (PLAIN, {"reward": 1e39}, "reward"),
        (PLAIN, {"reward": -1e39}, "reward"),
        (DIAL, {}, "action"),
    ],
)
def test_what_is_not_finite_is_named_and_the_worker_lives(
    start: Starter, env: str, config: dict[str, object], named: str
) -> None:
    worker = start(env, **config)
    worker.reset()
    if named == "action":
        worker.slabs["actions"][0, 5, 1] = np.inf
    worker.send(m.STEP, count=8)
    assert worker.says(m.INVALID) == named
    worker.actions(0.0)
    worker.reset(2)
    if env == DIAL:
        assert worker.step(0, 1).num_steps == 1


def test_the_largest_reward_is_a_reward(start: Starter) -> None:
    most = float(np.finfo(np.float32).max)
    worker = start(PLAIN, reward=-most, truncate_at=2)
    worker.reset()
    assert worker.step(0, 2).ends == (m.EpisodeEnd(0, m.SUCCESS, -2 * most, 2),)
    assert worker.store["reward"][0, 0, :2].tolist() == [-most, -most]


def test_a_wrong_shape_is_raised_with_both_shapes(start: Starter) -> None:
    worker = start(DIAL, fail_at_step=8, fail_kind="bad_shape")
    worker.reset()
    worker.send(m.STEP, count=8)
    assert "ValueError: observation 'state' is float32 [7], want float32 [8]" in worker.says(m.RAISED)
    assert worker.hear() == (0, b"")


def test_what_an_environment_raises_arrives_with_its_own_traceback(start: Starter) -> None:
    worker = start(DIAL, fail_at_step=3)
    worker.reset()
    worker.send(m.STEP, count=8)
    text = worker.says(m.RAISED)
    assert text.startswith("Traceback")
    assert "toy.py" in text
    assert text.rstrip().endswith("RuntimeError: toy/dial-v1 was told to fail here")
    assert worker.hear() == (0, b"")
    assert worker.process.kill() == "exit code 1"
    assert "told to fail here" in worker.process.log_tail()


def test_an_environment_may_lose_a_connection_of_its_own(start: Starter) -> None:
    worker = start("hostile_envs:Offline")
    worker.send(m.RESET)
    assert "ConnectionResetError: the server of this environment is gone" in worker.says(m.RAISED)


def test_last_words_are_heard_though_a_question_stayed_unread(start: Starter) -> None:
    worker = start(DIAL, fail_at_step=3)
    worker.reset()
    worker.send(m.STEP, count=8)
    worker.send(m.RESET)
    until("the end of the worker", lambda: not is_alive(worker.process.pid))
    assert "told to fail here" in worker.says(m.RAISED)
    assert worker.hear() == (0, b"")


def test_a_native_crash_leaves_its_stack_in_the_log(start: Starter) -> None:
    worker = start(PLAIN)
    os.kill(worker.process.pid, signal.SIGSEGV)
    assert worker.hear() == (0, b"")
    assert worker.process.kill() == "killed by SIGSEGV"
    assert "Fatal Python error: Segmentation fault" in worker.process.log_tail()


def test_stdin_is_empty(start: Starter) -> None:
    worker = start(PLAIN, read_stdin=True)
    worker.reset()


def affinities(pid: int) -> list[str]:
    """Allowed CPUs of every thread."""
    statuses = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/status")]
    return [line.split()[1] for text in statuses for line in text.splitlines() if "Cpus_allowed_list" in line]


@pytest.mark.skipif(len(usable_cpus()) < 2, reason="needs two CPUs")
def test_every_thread_goes_where_it_is_told(start: Starter) -> None:
    worker = start(PLAIN, num_threads=3)
    first, second = usable_cpus()[:2]
    for cpus, allowed in [
        ((second,), str(second)),
        ((first,), str(first)),
        ((first, second), f"{first}{'-' if second == first + 1 else ','}{second}"),
        ((second,), str(second)),
    ]:
        worker.reset(cpus=cpus)
        assert affinities(worker.process.pid) == [allowed] * 4
    worker.step(0, 1, cpus=(first,))
    assert affinities(worker.process.pid) == [str(first)] * 4


def test_a_thread_that_ends_meanwhile_does_not_stop_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    before = os.sched_getaffinity(0)
    threads = os.listdir("/proc/self/task")
    monkeypatch.setattr(os, "listdir", lambda path: ["4194303", *threads])
    try:
        Pin().move((usable_cpus()[0],))
        assert os.sched_getaffinity(0) == {usable_cpus()[0]}
    finally:
        os.sched_setaffinity(0, before)


def test_it_ends_when_the_engine_closes_its_socket(start: Starter) -> None:
    worker = start(PLAIN)
    worker.process.sock.close()
    until("the end of the worker", lambda: not is_alive(worker.process.pid))
    assert worker.process.kill() == "exit code 0"


PARENT = """
import sys, time
from pathlib import Path
from driven import env_workers
from ebrl.data import messages as m
with env_workers(Path(sys.argv[1])) as start:
    worker = start("toy/dial-v1", fail_at_step=1, fail_kind="hang")
    worker.reset()
    worker.send(m.STEP, count=8)
    print(worker.process.pid, flush=True)
    sys.stdin.read()
"""


def test_it_dies_with_its_parent_even_while_it_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)
    command = [sys.executable, "-c", PARENT, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        try:
            assert parent.stdout is not None
            pid = int(parent.stdout.readline())
            assert processes_of(parent.pid) == [pid]
        finally:
            parent.kill()
    until("the death of the worker", lambda: not is_alive(pid), within_s=5)
    assert processes_of(parent.pid) == []


def test_it_ignores_ctrl_c_which_is_the_parents_business(start: Starter) -> None:
    worker = start(PLAIN)
    os.kill(worker.process.pid, signal.SIGINT)
    worker.reset()
    assert worker.step(0, 1).num_steps == 1


def test_a_hanging_worker_shows_where_before_it_is_killed(start: Starter) -> None:
    worker = start(DIAL, fail_at_step=1, fail_kind="hang")
    worker.reset()
    worker.send(m.STEP, count=8)
    until("the hang", lambda: worker.has_heard() and is_asleep(worker.process.pid))
    assert worker.process.kill(dump_stack=True) == "killed by SIGKILL"
    assert "_fail_hard" in worker.process.log_tail()


@pytest.mark.parametrize("dump_stack", [False, True])
@pytest.mark.parametrize("end", ["none", "its own", "killed", "by its dump", "crashed"])
def test_what_an_environment_started_dies_with_its_worker(
    start: Starter, tmp_path: Path, end: str, dump_stack: bool
) -> None:
    fate = {"dies_of_its_dump": end == "by its dump", "segfault_at": int(end == "crashed")}
    worker = start(PLAIN, child_pid_file=str(tmp_path / "pid"), **fate)
    pid = int((tmp_path / "pid").read_text())
    if end == "its own":
        worker.process.sock.shutdown(socket.SHUT_RDWR)
    elif end == "killed":
        os.kill(worker.process.pid, signal.SIGKILL)
    elif end == "crashed":
        worker.reset()
        worker.send(m.STEP, count=1)
    if end in ("its own", "killed", "crashed"):
        until("the end of the worker", lambda: not is_alive(worker.process.pid))
    assert is_alive(pid)
    worker.process.kill(dump_stack=dump_stack)
    until("the death of the grandchild", lambda: not is_alive(pid), within_s=5)


def test_the_end_of_another_process_is_not_in_the_log_tail(start: Starter, tmp_path: Path) -> None:
    (tmp_path / "0.log").write_text("an older story\n")
    worker = start(PLAIN)
    worker.process.kill()
    assert worker.process.log_tail() == ""


def test_what_a_worker_shares_is_not_its_own_memory(start: Starter) -> None:
    worker = start(DIAL, chunk_len=1, num_chunks=40, state_size=2**20, min_episode_steps=40, max_episode_steps=40)
    worker.reset()
    for chunk in range(40):
        worker.step(chunk, 1)
    assert np.count_nonzero(worker.store["final_obs/state"][0, :, 0]) == 40  # 160 MiB are written
    assert 2**20 < worker.process.own_bytes < 100 * 2**20
    worker.process.kill()
    assert worker.process.own_bytes == 0


def test_a_worker_that_prints_without_end_is_not_held_up(start: Starter) -> None:
    worker = start(PLAIN, noise_bytes=2**20)
    worker.reset()
    assert worker.step(0, 8).num_steps == 8
    assert worker.process.log.stat().st_size > 8 * 2**20
    assert worker.process.log_tail() == "x" * 4000
