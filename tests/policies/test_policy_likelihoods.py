"""Densities of every sampler against closed forms written apart, in numpy and float64."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from ebrl.data.spec import INSTRUCTION_BYTES, ArraySpec, EnvSpec
from ebrl.policies.base import Policy, RowStreams, make_policy
from ebrl.policies.denoising import sde_schedule
from ebrl.policies.encoders import EncodedPolicy
from ebrl.policies.flow import FlowPolicy
from ebrl.policies.mlp import MlpPolicy

torch.set_num_threads(1)

Array = npt.NDArray[np.float64]
S, H, A, E = 5, 3, 2, 6
SPEC = EnvSpec({"state": ArraySpec((S,), "float32")}, (-2.0, 0.0), (2.0, 3.0), 50)
SAMPLERS: dict[str, tuple[Any, dict[str, Any]]] = {
    "mlp": (MlpPolicy, {"hidden": (16, 16), "critic_hidden": (8,)}),
    "flow_noise": (FlowPolicy, {"hidden": (16, 16), "critic_hidden": (8,), "num_denoise_steps": 3}),
    "learned_std": (FlowPolicy, {"hidden": (16,), "critic_hidden": (8,), "learn_std": True}),
    "flow_sde": (FlowPolicy, {"hidden": (16, 16), "critic_hidden": (8,), "sampler": "flow_sde"}),
    "mixed": (FlowPolicy, {"hidden": (16, 16), "critic_hidden": (8,), "sampler": "mixed"}),
}
every_sampler = pytest.mark.parametrize("name", SAMPLERS)


def build(name: str) -> Policy:
    """A policy whose weights are far enough from their start to matter, with a fitted normaliser."""
    cls, options = SAMPLERS[name]
    policy = make_policy(cls, cls.Config(**options), SPEC, H, seed=3)
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for p in policy.parameters():
            p.add_(torch.randn(p.shape, generator=generator), alpha=0.2)
    policy.fit_normalizer({"state": 2.0 + 3.0 * torch.randn(50, S, generator=generator)})
    return policy


def observations(num: int = E) -> dict[str, torch.Tensor]:
    return {"state": 2.0 + 3.0 * torch.randn(num, S, generator=torch.Generator().manual_seed(11))}


def streams(num: int = E) -> RowStreams:
    return RowStreams([(5, row) for row in range(num)])


def weights(policy: Policy) -> dict[str, Array]:
    return {name: x.double().numpy() for name, x in policy.state_dict().items()}


def normalized(w: dict[str, Array]) -> Array:
    x = observations()["state"].double().numpy()
    return np.clip((x - w["normalizer.center"]) * w["normalizer.scale"], -5, 5)


def log_normal(x: Array, mean: Array, std: Array | float) -> Array:
    return np.asarray(-((x - mean) ** 2) / (2 * np.square(std)) - np.log(std) - 0.5 * math.log(2 * math.pi))


def velocity(w: dict[str, Array], x: Array, t: float) -> tuple[Array, Array]:
    """Velocity of chunks ``[E, C]`` at one time, and the last hidden layer."""
    angles = [t * 2**i * math.pi / 2 for i in range(6)]
    features = np.array([math.sin(a) for a in angles] + [math.cos(a) for a in angles])
    joint = np.concatenate([normalized(w), x, np.tile(features, (len(x), 1))], axis=1)
    first = np.concatenate([w[f"expert.from_{part}.weight"] for part in ("obs", "chunk", "time")], axis=1)
    hidden = joint @ first.T + w["expert.from_obs.bias"]
    hidden = hidden / (1 + np.exp(-hidden))
    if "expert.body.1.weight" in w:
        hidden = hidden @ w["expert.body.1.weight"].T + w["expert.body.1.bias"]
        hidden = hidden / (1 + np.exp(-hidden))
    return hidden @ w["expert.velocity.weight"].T + w["expert.velocity.bias"], hidden


def sde_transition(x: Array, v: Array, t: float, d: float, a: float) -> tuple[Array, float]:
    """Mean by way of the two end points of the flow, as the equation is first stated."""
    sigma2 = a * a * t / ((1 - t) if t < 1 else d)
    x0_hat, x1_hat = x - t * v, x + (1 - t) * v
    mean = (1 - (t - d)) * x0_hat + (t - d - sigma2 * d / (2 * t)) * x1_hat
    return mean, math.sqrt(sigma2 * d)


def closed_form(name: str, policy: Policy, record: dict[str, torch.Tensor]) -> tuple[Array, Array]:
    """Log-density and entropy terms of each transition, ``[E, D, H, A]``."""
    w = weights(policy)
    path = record["path"].double().numpy().reshape(E, -1, H * A)
    if name == "mlp":
        hidden = np.tanh(normalized(w) @ w["head.0.weight"].T + w["head.0.bias"])
        hidden = np.tanh(hidden @ w["head.2.weight"].T + w["head.2.bias"])
        mean = hidden @ w["head.4.weight"].T + w["head.4.bias"]
        std: Array = np.tile(np.exp(w["log_std"]), H)
        log_prob, spread = [log_normal(path[:, 0], mean, std)], [np.tile(std, (E, 1))]
    else:
        log_prob, spread = [], []
        num_steps = path.shape[1] - 1
        for k in range(num_steps):
            t, d = 1 - k / num_steps, 1 / num_steps
            v, hidden = velocity(w, path[:, k], t)
            if name in ("flow_sde", "mixed"):
                mean, sigma = sde_transition(path[:, k], v, t, d, a=0.5)
                std = np.full((E, H * A), sigma)
            elif name == "flow_noise":
                mean, std = path[:, k] - d * v, np.full((E, H * A), 0.2)
            else:
                z = hidden @ w["expert.spread.weight"].T + w["expert.spread.bias"]
                lo, hi = math.log(0.08), math.log(0.24)
                mean, std = path[:, k] - d * v, np.exp(lo + 0.5 * (np.tanh(z) + 1) * (hi - lo))
            log_prob.append(log_normal(path[:, k + 1], mean, std))
            spread.append(std)
    result, stds = np.stack(log_prob, axis=1), np.stack(spread, axis=1)
    if name == "mixed":
        rows, index = np.arange(E), record["denoise_index"].numpy()
        result, stds = result[rows, index][:, None], stds[rows, index][:, None]
    entropy = 0.5 * np.log(2 * math.pi * math.e * stds**2)
    return result.reshape(E, -1, H, A), entropy.sum(axis=(1, 2))


@every_sampler
def test_log_density_and_entropy_equal_the_closed_form(name: str) -> None:
    policy = build(name)
    record = policy.sample(observations(), streams()).record
    found = policy.evaluate(observations(), record)
    log_prob, entropy = closed_form(name, policy, record)
    assert found.log_prob.shape == (E, policy.num_transitions(), H, A)
    np.testing.assert_allclose(found.log_prob.detach().numpy(), log_prob, atol=2e-4, rtol=1e-5)
    np.testing.assert_allclose(found.entropy.detach().numpy(), entropy, rtol=1e-5)


@every_sampler
def test_evaluating_a_sample_gives_the_sample_s_numbers(name: str) -> None:
    policy = build(name)
    sample = policy.sample(observations(), streams())
    found = policy.evaluate(observations(), sample.record)
    for mine, theirs in ((found.log_prob, sample.log_prob), (found.mean, sample.mean), (found.value, sample.value)):
        torch.testing.assert_close(mine.detach(), theirs, atol=1e-5, rtol=0.0)
    total = (found.log_prob - sample.log_prob).sum(dim=(1, 2, 3)).exp()
    torch.testing.assert_close(total.detach(), torch.ones(E), atol=1e-4, rtol=0.0)
    assert found.std.expand_as(found.mean).shape == found.mean.shape
    for array_name, spec in policy.record_spec().items():
        assert sample.record[array_name].shape == (E, *spec.shape)
        assert str(sample.record[array_name].dtype) == f"torch.{spec.dtype}"


@every_sampler
def test_a_sample_is_its_mean_plus_its_row_s_noise(name: str) -> None:
    """Standardised by the closed form, what was drawn is the row's own standard normal noise."""
    policy = build(name)
    sample = policy.sample(observations(), streams())
    found = policy.evaluate(observations(), sample.record)
    path, rng = sample.record["path"], streams()
    if name == "mixed":
        index = rng.integers(4)
        torch.testing.assert_close(sample.record["denoise_index"], index)
        drawn = rng.normal(2, H, A)
        after = path[torch.arange(E), index + 1][:, None]
    elif name == "mlp":
        drawn, after = torch.cat([torch.zeros(E, 1, H, A), rng.normal(1, H, A)], dim=1), path
    else:
        drawn, after = rng.normal(path.shape[1], H, A), path[:, 1:]
    if name != "mlp":
        torch.testing.assert_close(path[:, 0], drawn[:, 0])
    torch.testing.assert_close(((after - found.mean) / found.std).detach(), drawn[:, 1:], atol=1e-4, rtol=0.0)


def test_transitions_of_mixed_that_are_not_noisy_follow_the_plain_flow() -> None:
    policy = build("mixed")
    sample = policy.sample(observations(), streams())
    path, w = sample.record["path"].double().numpy().reshape(E, 5, H * A), weights(policy)
    noisy = sample.record["denoise_index"].numpy()
    assert len(set(noisy.tolist())) > 1
    for k in range(4):
        v, _ = velocity(w, path[:, k], 1 - k / 4)
        plain = noisy != k
        np.testing.assert_allclose(path[plain, k + 1], (path[:, k] - v / 4)[plain], atol=1e-5)
        assert np.abs(path[~plain, k + 1] - (path[:, k] - v / 4)[~plain]).max(initial=1.0) > 1e-2


@every_sampler
def test_gradient_of_the_log_density_equals_finite_differences(name: str) -> None:
    policy = build(name).double()
    obs = {"state": observations()["state"].double()}
    record = {
        key: x.double() if x.is_floating_point() else x for key, x in policy.sample(obs, streams()).record.items()
    }
    policy.evaluate(obs, record).log_prob.sum().backward()  # type: ignore[no-untyped-call]
    pick = np.random.default_rng(0)
    for p in policy.actor_parameters():
        assert p.grad is not None
        for at in pick.integers(p.numel(), size=4).tolist():
            flat, sides = p.data.view(-1), []
            for step in (1e-5, -2e-5):
                flat[at] += step
                sides.append(policy.evaluate(obs, record).log_prob.sum().item())
            flat[at] += 1e-5
            assert p.grad.view(-1)[at].item() == pytest.approx((sides[0] - sides[1]) / 2e-5, rel=1e-4, abs=1e-4)


def test_std_of_the_stochastic_equation() -> None:
    """The table of formulas A.6 at a = 0.5."""
    assert sde_schedule(4, 0.5).std == pytest.approx((0.500, 0.433, 0.250, 0.144), abs=5e-4)
    assert sde_schedule(5, 0.5).std == pytest.approx((0.500, 0.447, 0.274, 0.183, 0.112), abs=5e-4)


@pytest.mark.parametrize("num_steps", [1, 4, 7])
def test_both_forms_of_the_stochastic_mean_agree(num_steps: int) -> None:
    schedule, d = sde_schedule(num_steps, 0.7), 1 / num_steps
    x, v = np.array([0.3, -1.2]), np.array([0.9, 0.4])
    for k, t in enumerate(schedule.time):
        mean, std = sde_transition(x, v, t, d, 0.7)
        np.testing.assert_allclose(schedule.path_gain[k] * x + schedule.velocity_gain[k] * v, mean, atol=1e-12)
        assert schedule.std[k] == pytest.approx(std)


@every_sampler
def test_a_row_does_not_depend_on_its_batch(name: str) -> None:
    policy = build(name)
    together = policy.sample(observations(), streams())
    alone = policy.sample({"state": observations()["state"][4:5]}, RowStreams([(5, 4)]))
    for array_name, array in alone.record.items():
        torch.testing.assert_close(array[0], together.record[array_name][4], atol=1e-5, rtol=0.0)
    torch.testing.assert_close(alone.actions[0], together.actions[4], atol=1e-5, rtol=0.0)
    other = policy.sample({"state": observations()["state"][4:5]}, RowStreams([(6, 4)]))
    assert (other.actions[0] - together.actions[4]).abs().max() > 1e-2


def test_streams_differ_by_row_and_by_draw_and_come_again() -> None:
    keys = [(seed, row, serial) for seed in (0, 1) for row in range(8) for serial in (0, 1, 2**40)]
    streams = RowStreams(keys)
    first, second = streams.normal(2, 100), streams.normal(2, 100)
    again = RowStreams(keys[::-1])
    torch.testing.assert_close(again.normal(2, 100).flip(0), first, atol=0.0, rtol=0.0)
    torch.testing.assert_close(again.normal(2, 100).flip(0), second, atol=0.0, rtol=0.0)
    every = torch.cat([first, second]).reshape(2 * len(keys), -1)
    correlation = torch.corrcoef(every)
    assert (correlation - torch.eye(len(every))).abs().max() < 0.4  # 4,560 pairs, standard error 0.07
    assert every.mean().abs() < 0.02
    assert (every.std() - 1).abs() < 0.02
    torch.testing.assert_close(RowStreams([(0, 1)]).normal(5), RowStreams([(0, 1, 0)]).normal(5), atol=0.0, rtol=0.0)
    with pytest.raises(ValueError, match="want two or three integers for each row"):
        RowStreams([(0, 1, 2, 3)])
    counts = torch.stack([RowStreams([(7, row)]).integers(5)[0] for row in range(500)]).bincount(minlength=5)
    assert counts.sum() == 500
    assert counts.min() > 70


@every_sampler
def test_actions_leave_in_the_environment_s_units(name: str) -> None:
    policy = build(name)
    assert isinstance(policy, EncodedPolicy)
    sample = policy.sample(observations(), streams())
    last = sample.record["path"][:, -1]
    expected = torch.stack([2.0 * last[..., 0], 1.5 + 1.5 * last[..., 1]], dim=-1)
    torch.testing.assert_close(sample.actions, expected)
    torch.testing.assert_close(policy.from_env_units(sample.actions), last)


@every_sampler
def test_images_and_instructions_reach_actions_and_value(name: str) -> None:
    cls, options = SAMPLERS[name]
    spec = EnvSpec(
        {
            "camera": ArraySpec((16, 20, 3), "uint8"),
            "instruction": ArraySpec((INSTRUCTION_BYTES,), "uint8"),
            "state": ArraySpec((S,), "float32"),
        },
        (-math.inf, -1.0),
        (1.0, 1.0),
        50,
    )
    policy = make_policy(cls, cls.Config(**options), spec, H, seed=0)
    generator = torch.Generator().manual_seed(1)
    obs = {
        **observations(),
        "camera": torch.randint(256, (E, 16, 20, 3), dtype=torch.uint8, generator=generator),
        "instruction": torch.randint(1, 256, (E, INSTRUCTION_BYTES), dtype=torch.uint8, generator=generator),
    }
    sample = policy.sample(obs, streams())
    torch.testing.assert_close(policy.evaluate(obs, sample.record).log_prob.detach(), sample.log_prob)
    torch.testing.assert_close(sample.actions[..., 0], sample.record["path"][:, -1, :, 0])
    for changed in ("camera", "instruction"):
        other = policy.evaluate({**obs, changed: obs[changed].flip(0)}, sample.record)
        assert (other.mean - sample.mean).abs().max() > 1e-4
        assert (other.value - sample.value).abs().max() > 1e-2
    ids = [id(p) for p in [*policy.actor_parameters(), *policy.critic_parameters()]]
    assert sorted(ids) == sorted(id(p) for p in policy.parameters())
