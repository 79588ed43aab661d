"""Adam whose state is complete from the start and known by parameter name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

STATE_NAMES = ("step", "exp_avg", "exp_avg_sq")


class NotFinite(ArithmeticError):
    """A loss or a gradient is infinite or not a number."""


class NamedAdam:
    """Adam over named parameters.

    The state of every parameter exists before the first step, so that it can be saved, loaded and
    restored in place without a special case for new optimizers.
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter], lr: float) -> None:
        self._parameters = dict(parameters)
        self._adam = torch.optim.Adam(self._parameters.values(), lr=lr, fused=True)
        for p in self._parameters.values():
            self._adam.state[p] = {
                "step": torch.zeros((), dtype=torch.float32, device=p.device),
                "exp_avg": torch.zeros_like(p),
                "exp_avg_sq": torch.zeros_like(p),
            }

    def state(self) -> dict[str, Tensor]:
        """The live tensors, by ``<parameter>/<moment>``."""
        return {
            f"{name}/{moment}": self._adam.state[p][moment]
            for name, p in self._parameters.items()
            for moment in STATE_NAMES
        }

    def clear_gradients(self) -> None:
        """Forget the gradients of the last minibatch."""
        self._adam.zero_grad()

    def clip_gradients(self, max_norm: float) -> Tensor:
        """Scale all gradients so that their joint norm is at most ``max_norm``; returns the norm before."""
        return nn.utils.clip_grad_norm_(self._parameters.values(), max_norm)

    def step(self) -> None:
        """Move the parameters."""
        self._adam.step()


class Snapshot:
    """Copies of tensors, to put back if an update fails."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._tensors = list(tensors)
        self._copies = [x.detach().clone() for x in self._tensors]

    @torch.no_grad()
    def restore(self) -> None:
        """Give every tensor the bits it had."""
        for x, copy in zip(self._tensors, self._copies, strict=True):
            x.copy_(copy)
