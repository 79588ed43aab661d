"""Normalisation, cloning and configuration of the built-in policies."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from ebrl import registry
from ebrl.data.spec import ArraySpec, EnvSpec
from ebrl.errors import ConfigError
from ebrl.policies.base import RowStreams, make_policy
from ebrl.policies.encoders import Tanh, VectorNormalizer
from ebrl.policies.flow import FlowPolicy
from ebrl.policies.mlp import MlpPolicy

torch.set_num_threads(1)

SPEC = EnvSpec({"goal": ArraySpec((1,), "float32"), "state": ArraySpec((2,), "float32")}, (-2.0,), (2.0,), 50)


def batch(num: int, seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        "state": torch.tensor([3.0, -1.0]) + torch.tensor([2.0, 0.0]) * torch.randn(num, 2, generator=generator),
        "goal": 5.0 * torch.randn(num, 1, generator=generator),
    }


def test_running_statistics_equal_those_of_all_observations_together() -> None:
    normalizer = VectorNormalizer(SPEC, "running")
    parts = [batch(40, 0), batch(7, 1), batch(100, 2)]
    for part in parts:
        normalizer.observe(part)
    joined = torch.cat([torch.cat([part["goal"], part["state"]], dim=1) for part in parts]).double()
    std = joined.std(dim=0, correction=0)
    assert std[2] < 1e-6, "the last dimension is constant, so the floor of 0.01 holds"
    torch.testing.assert_close(normalizer.center, joined.mean(dim=0).float())
    torch.testing.assert_close(normalizer.scale, (1.0 / std.clamp(min=0.01)).float())


def test_normalised_values_stay_within_five() -> None:
    normalizer = VectorNormalizer(SPEC, "running")
    normalizer.fit(batch(100, 0))
    far = {"state": torch.tensor([[1e6, -1.0]]), "goal": torch.tensor([[-1e6]])}
    out = normalizer(far)
    assert out is not None
    torch.testing.assert_close(out, torch.tensor([[-5.0, 5.0, 0.0]]))


def test_a_fitted_normaliser_stays_and_travels_with_the_weights() -> None:
    policy = make_policy(MlpPolicy, MlpPolicy.Config(), SPEC, 2, seed=0)
    policy.fit_normalizer(batch(100, 0))
    fitted = {name: x.clone() for name, x in policy.state_dict().items()}
    policy.observe(batch(100, 9))
    assert all(torch.equal(x, fitted[name]) for name, x in policy.state_dict().items())
    other = make_policy(MlpPolicy, MlpPolicy.Config(), SPEC, 2, seed=1)
    other.load_state_dict(fitted)
    other.observe(batch(100, 9))
    assert torch.equal(other.value(batch(5, 3)), policy.value(batch(5, 3)))


def test_observations_that_are_not_finite_leave_no_trace() -> None:
    clean, dirty = VectorNormalizer(SPEC, "running"), VectorNormalizer(SPEC, "running")
    good = batch(10, 0)
    bad = {name: torch.cat([x, torch.full_like(x[:1], torch.inf)]) for name, x in good.items()}
    clean.observe(good)
    dirty.observe(bad)
    assert torch.equal(clean.center, dirty.center)
    assert torch.equal(clean.scale, dirty.scale)


def test_normalisation_can_be_turned_off() -> None:
    normalizer = VectorNormalizer(SPEC, "none")
    normalizer.observe(batch(10, 0))
    out = normalizer({"state": torch.tensor([[7.0, 8.0]]), "goal": torch.tensor([[9.0]])})
    assert out is not None
    assert out.tolist() == [[9.0, 7.0, 8.0]]


@pytest.mark.parametrize(
    ("cls", "options"),
    [
        (MlpPolicy, {"hidden": (32,), "initial_std": 0.05}),
        (FlowPolicy, {"hidden": (64, 64), "noise_std": 0.05}),
        (FlowPolicy, {"hidden": (64, 64), "sampler": "mixed", "a": 0.1}),
    ],
)
def test_cloning_finds_a_known_target(cls: Any, options: dict[str, Any]) -> None:
    """Demonstrated: first action tanh(goal), second 1 minus it; env limits ±2."""

    def target(obs: dict[str, torch.Tensor]) -> torch.Tensor:
        first = torch.tanh(obs["goal"] / 5.0)
        return torch.stack([first, 1.0 - first], dim=1)

    policy = make_policy(cls, cls.Config(**options), SPEC, 2, seed=0)
    policy.fit_normalizer(batch(500, 0))
    optimizer = torch.optim.Adam(policy.actor_parameters(), lr=3e-3)
    rng = torch.Generator().manual_seed(4)
    for update in range(300):
        obs = batch(128, update)
        optimizer.zero_grad()
        policy.clone_loss(obs, target(obs), rng).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    held_out = batch(200, 10_000)
    actions = policy.sample(held_out, RowStreams([(0, row) for row in range(200)])).actions
    error = (actions - target(held_out)).abs().mean().item()
    assert error < 0.2, error
    assert all(p.grad is None for p in policy.critic_parameters())


@pytest.mark.parametrize(
    ("cls", "section", "message"),
    [
        (MlpPolicy, {"hidden": []}, r"policy.hidden: = \(\): want"),
        (MlpPolicy, {"initial_std": 9.0}, r"policy.initial_std: = 9.0: want min_std to max_std"),
        (MlpPolicy, {"max_std": 0.01}, r"policy.max_std: = 0.01: want at least min_std"),
        (FlowPolicy, {"num_denoise_steps": 0}, r"policy.num_denoise_steps: = 0: want a positive number"),
        (FlowPolicy, {"std_high": 0.01}, r"policy.std_high: = 0.01: want more than std_low"),
        (FlowPolicy, {"sampler": "mixed", "learn_std": True}, r"policy.learn_std: = True: want sampler"),
        (FlowPolicy, {"sampler": "euler"}, r"want one of"),
    ],
)
def test_a_wrong_config_names_its_field(cls: Any, section: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        registry.make_config(cls, section, "policy")


def test_an_observation_that_cannot_be_encoded_is_named() -> None:
    spec = EnvSpec({"depth": ArraySpec((4, 4), "float32")}, (-1.0,), (1.0,), 50)
    with pytest.raises(ValueError, match="'depth' = float32"):
        make_policy(MlpPolicy, MlpPolicy.Config(), spec, 2, seed=0)


@pytest.mark.parametrize(
    ("log_std", "wants", "moves"),
    [
        (-9.0, "more", True),
        (-9.0, "less", False),
        (9.0, "less", True),
        (9.0, "more", False),
        (-0.5, "more", True),
        (-0.5, "less", True),
    ],
)
def test_a_spread_beyond_its_limits_can_come_back(log_std: float, wants: str, moves: bool) -> None:
    """An ordinary clamp has no gradient there, so what momentum carries over a limit would stay there for ever."""
    policy = make_policy(MlpPolicy, MlpPolicy.Config(hidden=(4,), critic_hidden=(4,)), SPEC, 2, seed=0)
    assert isinstance(policy, MlpPolicy)
    torch.nn.init.constant_(policy.log_std, log_std)
    obs = batch(3, 0)
    entropy = policy.evaluate(obs, {"path": torch.zeros(3, 1, 2, 1)}).entropy.mean()
    (-entropy if wants == "more" else entropy).backward()  # type: ignore[no-untyped-call]
    assert policy.log_std.grad is not None
    assert bool(policy.log_std.grad.abs().sum() > 0) is moves


def test_the_least_spread_may_be_the_first() -> None:
    config = MlpPolicy.Config(hidden=(4,), critic_hidden=(4,), initial_std=0.05, min_std=0.05)
    policy = make_policy(MlpPolicy, config, SPEC, 2, seed=0)
    assert isinstance(policy, MlpPolicy)
    entropy = policy.evaluate(batch(3, 0), {"path": torch.zeros(3, 1, 2, 1)}).entropy.mean()
    (-entropy).backward()  # type: ignore[no-untyped-call]
    assert policy.log_std.grad is not None
    assert (policy.log_std.grad < 0).all()


def test_tanh_and_its_gradient() -> None:
    x = torch.cat([torch.linspace(-12, 12, 4001), torch.tensor([math.inf, -math.inf, 1e-30, -100.0, 100.0])])
    ours, theirs = x.clone().requires_grad_(), x.double().requires_grad_()
    found, wanted = Tanh()(ours), theirs.tanh()
    assert (found - wanted).abs().max() < 2e-7
    found.sum().backward()
    wanted.sum().backward()  # type: ignore[no-untyped-call]
    assert ours.grad is not None
    assert theirs.grad is not None
    assert (ours.grad - theirs.grad).abs().max() < 4e-7
    assert Tanh()(torch.tensor(math.nan)).isnan()
