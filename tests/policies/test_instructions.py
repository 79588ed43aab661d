"""Instructions of a batch, of which each is encoded once, against one row at a time."""

from __future__ import annotations

import pytest
import torch

from ebrl.data.spec import INSTRUCTION_BYTES
from ebrl.policies.encoders import InstructionEncoder

torch.set_num_threads(1)


def texts(*rows: str) -> torch.Tensor:
    padded = [list(row.encode().ljust(INSTRUCTION_BYTES, b"\0")) for row in rows]
    return torch.tensor(padded, dtype=torch.uint8).reshape(-1, INSTRUCTION_BYTES)


@pytest.mark.parametrize(
    "rows",
    [["reach"], ["reach"] * 5, ["reach", "open the drawer", "reach", "push"], ["b", "a"], ["", "a", ""]],
    ids=["one row", "one task", "three tasks", "all different", "none"],
)
def test_a_batch_is_encoded_as_each_row_is_alone(rows: list[str]) -> None:
    torch.manual_seed(1)
    encoder = InstructionEncoder()
    weight = torch.randn(len(rows), 32)  # so that rows are told apart on the way back
    alone = torch.cat([encoder(texts(row)) for row in rows])
    wanted = torch.autograd.grad((alone * weight).sum(), list(encoder.parameters()))
    found = encoder(texts(*rows))
    torch.testing.assert_close(found, alone)
    torch.testing.assert_close(torch.autograd.grad((found * weight).sum(), list(encoder.parameters())), wanted)


@pytest.mark.parametrize(("rows", "encoded"), [(["a"] * 6, 1), (["a", "b", "a", "b", "a"], 2)])
def test_each_instruction_is_encoded_once(rows: list[str], encoded: int) -> None:
    encoder = InstructionEncoder()
    seen: list[int] = []
    encoder.convolution.register_forward_hook(lambda module, inputs, output: seen.append(len(output)))
    assert encoder(texts(*rows)).shape == (len(rows), 32)
    assert seen == [encoded]


def test_no_rows_are_no_features() -> None:
    assert InstructionEncoder()(texts()).shape == (0, 32)
