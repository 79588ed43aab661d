"""A wrong request exits 2, names field, value and what was wanted, and starts nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from calling import TINY, call, call_here

WRONG = {
    "unknown section": (["trainin.slack=1"], "trainin: unknown field; did you mean 'training'?"),
    "unknown key": (["training.slak=1"], "training.slak: unknown field; did you mean 'slack'?"),
    "wrong type": (["training.slack=many"], "training.slack: = 'many': input should be a valid integer"),
    "impossible number": (["training.slack=-1"], "training.slack: = -1: input should be greater than or equal to 0"),
    "impossible together": (
        ["generation.min_batch=9"],
        "generation.min_batch: = 9: want at most simulation.num_envs (2)",
    ),
    "unknown environment": (["env.name=toy/reech-v1"], "no env named 'toy/reech-v1'; did you mean 'toy/reach-v1'?"),
    "unknown task": (
        ["env.name=metaworld/drawer-opn-v3"],
        "no env named 'metaworld/drawer-opn-v3'; did you mean 'metaworld/drawer-open-v3'?",
    ),
    "unknown gym id": (
        ["env.name=gym/CartPol-v1"],
        "no env named 'gym/CartPol-v1'; did you mean 'gym/CartPole-v1'?",
    ),
    "unknown policy": (["policy.name=flwo"], "no policy named 'flwo'; did you mean 'flow'?"),
    "unknown algorithm": (["algorithm.name=pp"], "no algorithm named 'pp'; did you mean 'ppo'?"),
    "no such module": (["env.name=nowhere:Env"], "env 'nowhere:Env': cannot import module 'nowhere'"),
    "unknown key of the environment": (
        ["env.config.radis=1"],
        "env.config.radis: unknown field; did you mean 'radius'?",
    ),
    "wrong value of the environment": (["env.config.radius=2"], "env.config.radius: = 2.0: want above 0 and below 0.7"),
    "unknown key of the policy": (["policy.config.hiden=[8]"], "policy.config.hiden: unknown field; did you mean"),
    "wrong type of the policy": (["policy.config.hidden=8"], "policy.config.hidden: = 8: want a list"),
    "unknown key of the algorithm": (["algorithm.config.gama=1"], "algorithm.config.gama: unknown field; did you mean"),
    "wrong value of the algorithm": (
        ["algorithm.config.clip_low=1"],
        "algorithm.config.clip_low: = 1.0: want more than 0 and less than 1",
    ),
    "not a number": (["training.max_minutes=nan"], "training.max_minutes: = nan: input should be greater than 0"),
    "not finite": (["failures.start_s=inf"], "failures.start_s: = inf: input should be a finite number"),
    "not a number of a plug-in": (["algorithm.config.gamma=nan"], "algorithm.config.gamma: = nan: want a number"),
    "not finite of the algorithm": (
        ["algorithm.config.entropy_coef=inf"],
        "algorithm.config.entropy_coef: = inf: want a finite number",
    ),
    "too many trajectories": (
        ["training.batch_trajectories=1000000000000"],
        "training.batch_trajectories: = 1000000000000: input should be less than or equal to 100000",
    ),
    "neither of two kinds": (
        ["simulation.cpus=al"],
        "simulation.cpus: = 'al': input should be a valid list or 'all'",
    ),
    "a number for a list": (["simulation.cpus=-1"], "simulation.cpus: = -1: input should be a valid list or 'all'"),
    "a number for a section": (["run=5"], "run: = 5: want a table, [run]"),
    "a number for a section of a plug-in": (["env.config=5"], "env.config: = 5: want a table, [env.config]"),
    "a date": (["env.config.radius=2020-01-01"], "env.config.radius: = datetime.date(2020, 1, 1): want a string"),
    "no such kind of device": (
        ["training.device=gpu"],
        "training.device: = 'gpu': want a torch device such as cpu, cuda or cuda:0",
    ),
    "no such device": (["generation.device=cuda:99"], "generation.device: = 'cuda:99': this machine has "),
    "a device that computes nothing": (
        ["training.device=meta"],
        "training.device: = 'meta': torch cannot compute there",
    ),
    "no expert to clone": (
        ["pretrain.enabled=true", "env.name=toy/dial-v1"],
        "pretrain: env 'toy/dial-v1' has no scripted expert to clone (no method expert_action)",
    ),
    "forbidden CPU": (["simulation.cpus=[9999]"], "simulation.cpus: = [9999]: this process may not use [9999]"),
    "CPUs that cannot be shared out": (
        ["simulation.cpus_per_worker=4096"],
        "simulation.cpus_per_worker: = 4096: want a divisor of ",
    ),
    "siblings of segments": (
        ["training.siblings=2"],
        'training.siblings: = 2: want training.trajectory = "episode"',
    ),
    "not an assignment": (["training.slack"], "--set: 'training.slack': want section.field=value"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_field_is_named_and_nothing_is_made(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sets, message = WRONG[case]
    (tmp_path / "run.toml").write_text(TINY)
    monkeypatch.chdir(tmp_path)
    code = call_here(monkeypatch, "train", "run.toml", *(part for text in sets for part in ("--set", text)))
    out, err = capsys.readouterr()
    assert code == 2
    assert err.startswith(f"error: {message}"), err
    assert (out, (tmp_path / "runs").exists()) == ("", False)


def test_a_required_field_that_is_misspelt_is_not_just_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for wrong, message in (
        ('[env]\nnme = "toy/reach-v1"\n', "env.nme: unknown field; did you mean 'name'?"),
        ('[evn]\nname = "toy/reach-v1"\n', "evn: unknown field; did you mean 'env'?"),
        ("[env]\n", "env.name: is required"),
    ):
        (tmp_path / "run.toml").write_text(wrong)
        assert call_here(monkeypatch, "train", str(tmp_path / "run.toml")) == 2
        assert capsys.readouterr().err.startswith(f"error: {message}")


def test_there_is_nobody_to_clone_without_an_expert(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run.toml").write_text(TINY)
    monkeypatch.chdir(tmp_path)
    assert call_here(monkeypatch, "pretrain", "run.toml", "--set", "env.name=toy/dial-v1") == 2
    assert "has no scripted expert to clone" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        (["train"], "UsageError", "nothing to train"),
        (["train", "absent.toml"], "ConfigError", "cannot read absent.toml: No such file or directory"),
        (["train", "--resume", "absent"], "UsageError", "is not a run directory"),
        (["train", "--valdate"], "UsageError", "--valdate"),
        (["eval", "absent"], "UsageError", "is not a run directory"),
        (["eval"], "UsageError", "Missing argument"),
        (["list", "envz"], "UsageError", "envz"),
        (["check", "env", "toy/reach-v1", "--set", "radius=1"], "ConfigError", "want config.FIELD=VALUE"),
        (["check", "env", "toy/reach-v2"], "UnknownPlugin", "did you mean 'toy/reach-v1'?"),
        (["trian"], "UsageError", "trian"),
    ],
)
def test_with_json_an_error_is_a_document_too(
    arguments: list[str],
    kind: str,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    code = call_here(monkeypatch, *arguments, "--json")
    out, err = capfd.readouterr()
    error = json.loads(out)["error"]
    assert (code, error["type"]) == (2, kind)
    assert message in error["message"]
    assert "Traceback" not in err


def test_an_algorithm_that_compares_siblings_wants_some(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "comparing.py").write_text(
        "from ebrl.algorithms.ppo import Ppo\nclass Comparing(Ppo):\n    compares_siblings = True\n"
    )
    (tmp_path / "run.toml").write_text(TINY)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    assert call_here(monkeypatch, "train", "run.toml", "--set", "algorithm.name=comparing:Comparing") == 2
    wanted = "training.siblings: = 1: algorithm 'comparing:Comparing' compares siblings, so it wants 2 or more"
    assert capsys.readouterr().err.startswith(f"error: {wanted}")


@pytest.mark.parametrize(
    ("sets", "message"),
    [
        (["training.trajectory=episode"], "training.trajectory: = 'episode': profiles and forecasts want \"segment\""),
        (["simulation.cpus_per_worker=2"], "simulation.cpus_per_worker: = 2: profiles and forecasts want 1"),
    ],
)
def test_what_cannot_be_profiled_is_said_at_once(
    sets: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "run.toml").write_text(TINY)
    monkeypatch.chdir(tmp_path)
    code = call_here(monkeypatch, "profile", "run.toml", *(part for text in sets for part in ("--set", text)))
    assert code == 2
    assert f"error: {message}" in capsys.readouterr().err
    assert not (tmp_path / "profile.json").exists()


def test_what_libraries_print_does_not_mix_with_the_document(tmp_path: Path) -> None:
    (tmp_path / "chatty.py").write_text(
        "import os\nfrom ebrl.envs.toy import Reach\nprint('hello')\nos.system('echo from a child')\nEnv = Reach\n"
    )
    result = call("check", "env", "chatty:Env", "--json", cwd=tmp_path)
    assert result.document["passed"]
    # Twice: the module is imported here, to see that there is such a task, and where it is checked.
    assert sorted(result.err.splitlines()) == ["from a child"] * 2 + ["hello"] * 2


def test_a_bug_gives_a_traceback_and_exit_code_1(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("raise ZeroDivisionError('mine')\n")
    result = call("check", "env", "mine:Env", "--json", cwd=tmp_path)
    assert (result.code, result.document["error"]["type"]) == (1, "ZeroDivisionError")
    assert "Traceback" in result.err
