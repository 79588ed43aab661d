from __future__ import annotations

import math

import pytest
import torch

from ebrl.algorithms.corrections import (
    LogprobLevel,
    behavior_weight,
    effective_sample_size,
    executed_mask,
    gaussian_kl,
    ratio,
    ratio_units,
    unit_mask,
)

torch.set_num_threads(1)

LOG_PROB = torch.arange(1.0, 13.0).reshape(1, 2, 3, 2)  # D=2: rows 1..6 and 7..12, two per env step
LEVELS: list[tuple[LogprobLevel, list[float], list[float], list[float]]] = [
    ("denoise", [21.0, 57.0], [10.0, 34.0], [1.0, 1.0]),
    ("chunk", [78.0], [44.0], [1.0]),
    ("action", [3.0, 7.0, 11.0, 15.0, 19.0, 23.0], [3.0, 7.0, 0.0, 15.0, 19.0, 0.0], [1.0, 1.0, 0.0, 1.0, 1.0, 0.0]),
    (
        "token",
        [float(i) for i in range(1, 13)],
        [1.0, 2.0, 3.0, 4.0, 0.0, 0.0, 7.0, 8.0, 9.0, 10.0, 0.0, 0.0],
        [1.0, 1.0, 1.0, 1.0, 0.0, 0.0] * 2,
    ),
]


@pytest.mark.parametrize(("level", "whole", "first_two", "mask"), LEVELS)
def test_units_of_each_level(
    level: LogprobLevel, whole: list[float], first_two: list[float], mask: list[float]
) -> None:
    executed = executed_mask(torch.tensor([2]), 3)
    assert executed.tolist() == [[True, True, False]]
    assert ratio_units(LOG_PROB, level).tolist() == [whole]
    assert ratio_units(LOG_PROB, level, executed).tolist() == [first_two]
    assert unit_mask(LOG_PROB.shape, level, executed).tolist() == [mask]


def test_an_action_that_never_ran_cannot_spoil_the_ratio() -> None:
    log_prob = torch.tensor([[[[1.0], [torch.nan]]]])
    assert ratio_units(log_prob, "chunk", executed_mask(torch.tensor([1]), 2)).tolist() == [[1.0]]


def test_behaviour_weights_beyond_the_cap_are_dropped_or_held() -> None:
    weights = torch.tensor([[0.5, 2.0, 2.1, 50.0]])
    masked, over = behavior_weight(weights, "mask", 2.0)
    assert masked.tolist() == [[0.5, 2.0, 0.0, 0.0]]
    assert over.tolist() == [[False, False, True, True]]
    clamped, _ = behavior_weight(weights, "clamp", 2.0)
    assert clamped.tolist() == [[0.5, 2.0, 2.0, 2.0]]


def test_ratio_is_finite_whatever_the_densities() -> None:
    new, old = torch.tensor([0.0, 1000.0, -1000.0]), torch.tensor([math.log(2.0), 0.0, 0.0])
    found = ratio(new.view(1, 3, 1, 1), old.view(1, 3, 1, 1), "denoise")
    torch.testing.assert_close(found, torch.tensor([[0.5, math.exp(20.0), math.exp(-20.0)]]))


def test_ratio_of_long_chunks_keeps_its_decimals() -> None:
    """50 actions of 32 numbers in 10 transitions, as large policies have: their log-densities add up to -16,000."""
    old = -1.0 - torch.rand(4, 10, 50, 32, generator=torch.Generator().manual_seed(0))
    new = old + torch.randn(old.shape, generator=torch.Generator().manual_seed(1)) * 1e-3
    wanted = (new.double() - old.double()).sum(dim=(1, 2, 3), keepdim=True)[:, :, 0, 0].exp()
    torch.testing.assert_close(ratio(new, old, "chunk").double(), wanted, rtol=1e-5, atol=0.0)


def test_effective_sample_size() -> None:
    everything = torch.ones(4)
    assert effective_sample_size(torch.full((4,), 7.0), everything).item() == pytest.approx(1.0)
    assert effective_sample_size(torch.tensor([1.0, 0.0, 0.0, 0.0]), everything).item() == pytest.approx(0.25)
    # (1 + 3)² / (2 (1 + 9)) = 0.8, the third and fourth being masked.
    mask = torch.tensor([1.0, 1.0, 0.0, 0.0])
    assert effective_sample_size(torch.tensor([1.0, 3.0, 9.0, 9.0]), mask).item() == pytest.approx(0.8)


def test_kl_equals_the_closed_form_and_the_library_s() -> None:
    generator = torch.Generator().manual_seed(0)
    old, new = torch.randn(2, 5, 3, 4, 2, generator=generator).unbind(0)
    std = torch.full((1, 3, 1, 1), 0.2)
    by_hand = ((old - new) ** 2).sum(dim=(1, 2, 3)) / (2 * 0.2**2)
    torch.testing.assert_close(gaussian_kl(old, std, new, std), by_hand)
    torch.testing.assert_close(gaussian_kl(old, std.clone(), new, std), by_hand)
    old_std, new_std = torch.rand(2, 5, 3, 4, 2, generator=generator).add(0.1).unbind(0)
    normal = torch.distributions.Normal
    library = torch.distributions.kl_divergence(normal(old, old_std), normal(new, new_std)).sum(dim=(1, 2, 3))
    torch.testing.assert_close(gaussian_kl(old, old_std, new, new_std), library)
