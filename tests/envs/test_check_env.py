from __future__ import annotations

import pytest

from ebrl.errors import ConfigError, UnknownPlugin, UsageError
from ebrl.testing.check_env import CheckResult, check_env

DEFECTS = {
    "WrongShape": ("step", "env step 1: observation['state'] has shape (3,): the spec says (4,)"),
    "WrongDtype": ("reset", "observation['state'] has dtype float64: the spec says float32"),
    "MissingArray": ("reset", "observation has ['state']: the spec says ['instruction', 'state']"),
    "NanObservation": ("step", "observation['state'] is nan at index [0]: want finite numbers"),
    "NanReward": ("step", "env step 1: reward is nan: want a finite number"),
    "NumpyFlag": ("step", "want a bool"),
    "FourValues": ("step", "env step 1 gave a tuple of 4: want five values"),
    "Raises": ("reset", "raised RuntimeError: no table; at "),
    "BadSpec": ("spec", "action 1 has limits 1.0 to 1.0"),
    "HistoryDependent": ("same seed, same episode", "observation['state'] of the reset differs"),
    "HistoryInDynamics": ("same seed, same episode", "observation['state'] of env step 1 differs"),
    "InstanceDependent": ("second instance agrees", "in a second instance"),
    "PartsOfTheLast": ("steps in parts", "when each part of an env step is done for two environments"),
    "LazyPhysics": ("need_obs", "when some env steps had need_obs=False"),
    "AutoReset": ("no auto-reset", "shows the start of one"),
    "AutoResetWithFinal": ("no auto-reset", "info['final_obs'], a sign of auto-reset"),
    "LateAutoReset": ("no auto-reset", "the env step after the end shows the start of an episode"),
    "CutsUnseen": ("own truncation", "env step 5, truncated by the environment with need_obs=False: no observation"),
    "BadInstruction": ("instruction", "is not UTF-8"),
    "ClosesOnce": ("close twice", "already closed"),
}


def failures(name: str) -> list[CheckResult]:
    return [result for result in check_env(name) if not result.ok]


@pytest.mark.parametrize("defect", DEFECTS)
def test_each_defect_is_found_and_named(defect: str) -> None:
    check, words = DEFECTS[defect]
    failure, *_ = failures(f"broken_envs:{defect}")
    assert failure.name == check
    assert words in failure.detail


def test_steps_in_parts_are_checked_where_there_are_any() -> None:
    assert [one.ok for one in check_env("metaworld/reach-v3") if one.name == "steps in parts"] == [True]
    assert not [one for one in check_env("toy/reach-v1") if one.name == "steps in parts"]


@pytest.mark.parametrize(
    ("name", "check", "words"),
    [("IgnoresSeed", "seeds differ", "8 seeds give 1 different"), ("NeverLooksAway", "need_obs", "work was wasted")],
)
def test_what_is_allowed_but_unusual_is_a_warning(name: str, check: str, words: str) -> None:
    results = check_env(f"broken_envs:{name}")
    assert all(result.ok for result in results)
    (warning,) = [result for result in results if result.severity == "warning"]
    assert (warning.name, words in warning.detail) == (check, True)


def test_a_wrong_request_is_not_a_failed_check() -> None:
    with pytest.raises(UnknownPlugin, match=r"did you mean 'toy/reach-v1'"):
        check_env("toy/reech-v1")
    with pytest.raises(ConfigError, match=r"env.config.radios: unknown field; did you mean 'radius'"):
        check_env("toy/reach-v1", {"radios": 0.1})
    with pytest.raises(UsageError, match=r"has no 'Reech'"):
        check_env("ebrl.envs.toy:Reech")
