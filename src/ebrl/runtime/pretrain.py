"""Warm start: demonstrations by a scripted expert, cloned into the policy's weights."""

from __future__ import annotations

import json
import math
import select
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ebrl.config.schema import RunConfig
from ebrl.data import messages as m
from ebrl.data.checkpoint import save_checkpoint
from ebrl.engines.local.process import WorkerProcess
from ebrl.errors import RunError
from ebrl.host.simulators import python_for
from ebrl.policies.base import Policy
from ebrl.registry import portable
from ebrl.runtime.display import Display
from ebrl.runtime.emulation import torch_device
from ebrl.workers.building import build_policy

_TRIES_PER_DEMO = 25
"""Noise makes the expert fail; so many episodes are tried for each demonstration wanted."""


def pretrain(config: RunConfig, run_dir: Path, display: Display) -> tuple[Path, dict[str, Any]]:
    """Record demonstrations and clone them.

    Returns:
        The checkpoint with the cloned weights, and figures about it.

    Raises:
        RunError: the environment has no scripted expert, or the expert fails too often, or it hangs.
    """
    demos = run_dir / "demonstrations.npz"
    display.phase(f"demonstrations by the scripted expert of {config.env.name}")
    facts = record_demonstrations(config, demos, display)
    display.phase(f"cloning {facts['windows']} windows of {config.pretrain.num_demos} demonstrations")
    with np.load(demos, allow_pickle=False) as arrays:
        windows = {name: arrays[name] for name in arrays.files}
    obs = {name.removeprefix("obs_"): torch.from_numpy(array) for name, array in windows.items() if name != "actions"}
    policy = build_policy(
        {
            "env_spec": facts["spec"],
            "policy": config.policy.name,
            "policy_config": config.policy.config,
            "chunk_len": config.policy.chunk_len,
            "seed": config.pretrain.seed,
            "device": torch_device(config.training.device),
        }
    )
    torch.set_num_threads(config.training.threads)
    loss = clone(policy, obs, torch.from_numpy(windows["actions"]), config, display)
    checkpoint = save_checkpoint(run_dir / "pretrained", policy, None, {"policy_version": 0}, keep=1)
    return checkpoint, {"demonstrations": config.pretrain.num_demos, "windows": facts["windows"], "clone_loss": loss}


def record_demonstrations(config: RunConfig, output: Path, display: Display) -> dict[str, Any]:
    """Let the environment's scripted expert write windows of observations and actions to ``output``."""
    pre = config.pretrain
    request = {
        "env": portable("env", config.env.name),
        "env_config": config.env.config,
        "demo_seed": pre.seed,
        "num_demos": pre.num_demos,
        "noise_std": pre.noise_std,
        "noise_ar": pre.noise_correlation,
        "chunk_len": config.policy.chunk_len,
        "max_tries": pre.num_demos * _TRIES_PER_DEMO,
        "output": str(output.absolute()),
    }
    log = output.parent / "logs" / "demonstrator.log"
    python = python_for(config.env.name, config.env.python or None)
    process = WorkerProcess("ebrl.workers.demonstrator", "demonstrator", log, python=python)
    try:
        process.send_json(m.SETUP, request)
        return _listen(process, config.failures.start_s, display)
    finally:
        process.kill()


def _listen(process: WorkerProcess, within_s: float, display: Display) -> dict[str, Any]:
    """What the demonstrator says at its end; silent for longer than ``within_s`` it is killed."""
    what = "its start"
    while True:
        if not select.select([process.sock], [], [], within_s)[0]:
            process.kill(dump_stack=True)
            raise RunError(
                f"demonstrator: nothing was heard of {what} for {within_s:g} s (failures.start_s)\n{process.log_tail()}"
            )
        got, data = process.receive()
        if got != m.PROGRESS:
            text = data[1:].decode(errors="replace")
            raise RunError(f"demonstrations failed: {process.kill()}\n{text or process.log_tail()}")
        told: dict[str, Any] = json.loads(data[1:])
        if "error" in told:
            raise RunError(f"demonstrations failed: {told['error']}\n{told['traceback']}")
        if "done" in told:
            return told
        what = f"try {told['tries'] + 1}"
        display.progress(told["demos"], told["of"], {"env steps": told["steps"], "tries": told["tries"]})


def clone(
    policy: Policy, obs: dict[str, torch.Tensor], actions_NHA: torch.Tensor, config: RunConfig, display: Display
) -> float:
    """Fit ``policy`` to demonstrations; returns the mean loss of the last tenth of the updates."""
    pre, device = config.pretrain, torch_device(config.training.device)
    rng = torch.Generator(device=device)
    rng.manual_seed(pre.seed)
    obs = {name: tensor.to(device) for name, tensor in obs.items()}
    actions_NHA = actions_NHA.to(device)
    policy.fit_normalizer(obs)
    optimizer = torch.optim.AdamW(policy.actor_parameters(), lr=pre.lr)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda update: 0.5 * (1 + math.cos(math.pi * min(1.0, update / pre.updates)))
    )
    losses: list[float] = []
    for update in range(pre.updates):
        rows = torch.randint(len(actions_NHA), (pre.batch,), generator=rng, device=device)
        loss = policy.clone_loss({name: tensor[rows] for name, tensor in obs.items()}, actions_NHA[rows], rng)
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
        schedule.step()
        losses.append(float(loss.detach()))
        if update % 20 == 19:
            display.progress(update + 1, pre.updates, {"loss": sum(losses[-20:]) / 20})
    tail = losses[-max(1, len(losses) // 10) :]
    return sum(tail) / len(tail)
