from __future__ import annotations

from typing import Any

import gymnasium
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebrl.envs.base import encode_instruction, episode_seed
from ebrl.testing.check_env import check_env

gymnasium.register("EbrlCutsItself-v0", entry_point="self_truncating:CutsItself")

CASES: list[tuple[str, dict[str, Any]]] = [
    ("toy/reach-v1", {}),
    ("toy/reach-v1", {"image_size": 24, "reward": "dense"}),
    ("toy/dial-v1", {"min_episode_steps": 3, "max_episode_steps": 30, "image_size": 16}),
    ("gym/Pendulum-v1", {}),
    ("gym/CartPole-v1", {}),
    ("gym/EbrlCutsItself-v0", {}),
    ("broken_envs:CutsItself", {}),
    ("metaworld/drawer-open-v3", {}),
    ("metaworld/reach-v3", {}),
    ("metaworld/pick-place-v3", {"reward": "dense"}),
]


@pytest.mark.parametrize(("name", "section"), CASES, ids=lambda value: value if isinstance(value, str) else "")
def test_keeps_the_contract(name: str, section: dict[str, Any]) -> None:
    assert [result for result in check_env(name, section) if not result.ok or result.severity == "warning"] == []


@given(st.integers(0, 2**40), st.integers(0, 2**40), st.integers(0, 2**31), st.integers(0, 2**31))
def test_training_never_sees_an_evaluation_seed(run: int, other_run: int, episode: int, other: int) -> None:
    train = episode_seed(run, episode, evaluation=False)
    held_out = episode_seed(other_run, other, evaluation=True)
    assert train != held_out
    assert 0 <= train < 2**31
    assert 0 <= held_out < 2**31
    assert train == episode_seed(run, episode, evaluation=False)


@given(st.text(max_size=80))
def test_an_instruction_is_padded_to_size_and_never_cut(text: str) -> None:
    if len(text.encode()) > 64:
        with pytest.raises(ValueError, match="want at most 64"):
            encode_instruction(text)
        return
    encoded = encode_instruction(text)
    assert encoded.shape == (64,)
    assert encoded.tobytes() == text.encode().ljust(64, b"\0")
