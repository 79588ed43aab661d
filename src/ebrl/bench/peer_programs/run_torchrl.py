"""TorchRL: PPO over its synchronous collector with two processes, each of which steps its environments in turn."""

# mypy: disable-error-code="import-not-found, misc, no-untyped-call"

from __future__ import annotations

import functools
import itertools
import math
import os
from typing import Any

import torch
from tensordict.nn import TensorDictModule
from torch import nn
from torchrl.collectors import MultiSyncCollector
from torchrl.envs import GymWrapper, SerialEnv
from torchrl.modules import IndependentNormal, ProbabilisticActor, ValueOperator
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.value import GAE

from ebrl.bench.peer_programs.tasks import Request, Window, answer, make_env, read_request


class Gaussian(nn.Module):
    """Mean from a network, spread from parameters."""

    def __init__(self, network: nn.Module, num_actions: int, std: float) -> None:
        super().__init__()
        self.network = network
        self.log_std = nn.Parameter(torch.full((num_actions,), math.log(std)))

    def forward(self, observation: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Mean and standard deviation."""
        mean = self.network(observation)
        return mean, self.log_std.exp().expand_as(mean)


def _mlp(sizes: list[int]) -> nn.Sequential:
    layers: list[nn.Module] = []
    for n_in, n_out in itertools.pairwise(sizes):
        layers += [nn.Linear(n_in, n_out), nn.Tanh()]
    return nn.Sequential(*layers[:-1])


def _one(request: Request, index: int) -> Any:
    return GymWrapper(make_env(request, request.seed + index))


def _some(request: Request, first: int) -> Any:
    torch.set_num_threads(1)
    count = request.num_envs // request.num_processes
    indices = [{"index": first + i} for i in range(count)]
    return SerialEnv(count, functools.partial(_one, request), create_env_kwargs=indices)


def main() -> None:
    """Measure once."""
    request = read_request()
    torch.set_num_threads(1)
    probe = make_env(request, request.seed)
    size, actions = probe.observation_space.shape[0], probe.action_space.shape[0]
    body = Gaussian(_mlp([size, *request.hidden, actions]), actions, request.initial_std)
    actor = ProbabilisticActor(
        TensorDictModule(body, in_keys=["observation"], out_keys=["loc", "scale"]),
        in_keys=["loc", "scale"],
        distribution_class=IndependentNormal,
        return_log_prob=True,
    )
    critic = ValueOperator(_mlp([size, *request.hidden, 1]), in_keys=["observation"])
    loss = ClipPPOLoss(actor, critic, entropy_coeff=0.0, normalize_advantage=True)
    advantage = GAE(gamma=0.99, lmbda=0.95, value_network=critic)
    optimizer = torch.optim.Adam(loss.parameters(), lr=request.learning_rate)
    share = request.num_envs // request.num_processes
    collector = MultiSyncCollector(
        [functools.partial(_some, request, i * share) for i in range(request.num_processes)],
        actor,
        frames_per_batch=request.update_steps,
        total_frames=10**10,
        num_threads=1,
        num_sub_threads=1,
    )
    torch.set_num_threads(len(os.sched_getaffinity(0)))  # to learn: its environments wait meanwhile
    window, steps = Window(request), 0
    for batch in collector:
        if request.learn:
            learn(batch, request, advantage, loss, optimizer)
            collector.update_policy_weights_()
        steps += batch.numel()
        if window.update_ended(steps):
            break
    answer(window)
    os._exit(0)


def learn(batch: Any, request: Request, advantage: Any, loss: Any, optimizer: Any) -> None:
    """One update."""
    with torch.no_grad():
        advantage(batch)
    flat = batch.reshape(-1)
    for _ in range(request.epochs):
        order = torch.randperm(len(flat))
        for rows in order.split(request.minibatch_steps):
            losses = loss(flat[rows])
            optimizer.zero_grad()
            (losses["loss_objective"] + losses["loss_critic"]).backward()
            torch.nn.utils.clip_grad_norm_(loss.parameters(), 0.5)
            optimizer.step()


if __name__ == "__main__":
    main()
