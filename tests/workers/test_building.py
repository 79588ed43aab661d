"""How the learner's process multiplies."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from ebrl.workers import building
from ebrl.workers.building import use_fast_products


@pytest.fixture(autouse=True)
def one_process() -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    yield
    torch.set_float32_matmul_precision(before)


SHAPES = [(1, 39, 256), (32, 39, 256), (512, 39, 256), (512, 256, 256), (500, 256, 4), (256, 512, 256)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_products_are_as_exact_as_float32_whoever_makes_them(shape: tuple[int, int, int]) -> None:
    used = use_fast_products()
    assert torch.get_float32_matmul_precision() == ("medium" if used else "highest")
    rows, inner, columns = shape
    draw = torch.Generator().manual_seed(1)
    left, right = torch.rand(rows, inner, generator=draw), torch.rand(inner, columns, generator=draw)
    exact = left.double() @ right.double()
    assert ((left @ right - exact).abs() / exact).max() < 2e-6
    transposed = (right.t().contiguous().t(), left.t().contiguous().t())
    assert ((transposed[1] @ transposed[0] - exact).abs() / exact).max() < 2e-6


def test_where_they_would_be_less_exact_nothing_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = torch.Generator().manual_seed(1)
    left, right = torch.randn(512, 256, generator=draw), torch.randn(256, 256, generator=draw)
    before = left @ right
    monkeypatch.setattr(building, "_ROUNDING", 0.0)
    assert not use_fast_products()
    assert torch.get_float32_matmul_precision() == "highest"
    assert torch.equal(left @ right, before)
