"""What is compared in ``ebrl bench convergence``: tasks, modes and slacks, and the configuration of each run.

Modes differ in their switches, and in two sizes that do not suit them all (``suited``): with one size for everybody,
the comparison would be won by whoever it suits.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from ebrl.bench.emulated import beside_real, metaworld_costs
from ebrl.config.load import make_config
from ebrl.config.modes import NAMES, Mode, in_mode, laid_over
from ebrl.config.schema import Padding, RunConfig
from ebrl.errors import UsageError, nearest
from ebrl.host.probe import usable_cpus
from ebrl.resources.workload import Workload

MODES: tuple[Mode, ...] = ("colocated", "async", "paper", "ebrl")
SLACKS = (1, 2, 4, 8)

Document = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What all runs of a bench have in common."""

    name: str
    """Of the task, as ``--task`` takes it."""
    document: Document
    """Environment, policy, batches, what is emulated."""
    pretrain: Document
    """The demonstrations, and with them the clone that all runs start from."""
    horizon_chunks: int
    """Of an episode that nobody ends."""
    num_cpus: int = field(default_factory=lambda: len(usable_cpus()))
    """That simulate."""
    max_env_steps: int = 200_000
    every_env_steps: int = 10_000
    """Between two checkpoints that are looked at."""
    checkpoint_every_updates: int = 2
    """Between two that are written."""
    episodes: int = 128
    """Of each checkpoint that is looked at."""
    final_episodes: int = 512
    """Of the clone, and of the last checkpoint of a run."""
    padding: Padding = "left_out"
    """What an update makes of chunks that were never executed; see ``emulation.padding`` of a run."""
    evaluation_seed: int = 90_000
    """Of the initial states that all checkpoints of all runs are measured on."""


@dataclass(frozen=True, slots=True)
class Variant:
    """A mode, with a slack that may be another one than its own."""

    mode: Mode
    slack: int

    @property
    def name(self) -> str:
        """In tables and as the key of curves."""
        return self.mode if self.slack == own_slack(self.mode) else f"{self.mode}, slack {self.slack}"


def own_slack(mode: Mode) -> int:
    """The slack that a mode has."""
    return int(in_mode(mode, {})["training"]["slack"])


def variants(modes: Iterable[Mode], slacks: Iterable[int]) -> tuple[Variant, ...]:
    """Each mode with its own slack, then ``ebrl`` with each of ``slacks``; none of them twice."""
    found = [Variant(mode, own_slack(mode)) for mode in modes]
    return tuple(dict.fromkeys(found + [Variant("ebrl", slack) for slack in slacks]))


def _document(env: str) -> Document:
    return {
        "env": {"name": env},
        "policy": {"name": "flow", "chunk_len": 8},
        "simulation": {"num_envs": 16},
        "generation": {"device": "emulated"},
        "training": {"device": "emulated", "batch_trajectories": 16, "trajectory_chunks": 16},
        "emulation": {"workload": "openpi-libero", "machine": "4xa100", "gpus": 2, "speed": 20.0},
    }


TASKS = {
    task.name: task
    for task in (
        Settings(
            name="reach-v3",
            document=_document("metaworld/reach-v3"),
            pretrain={"num_demos": 8, "noise_std": 0.5, "seed": 5},
            horizon_chunks=25,
        ),
        Settings(
            name="drawer-open-v3",
            document=_document("metaworld/drawer-open-v3"),
            pretrain={"num_demos": 4, "noise_std": 0.6, "seed": 4},
            horizon_chunks=25,
        ),
    )
}
"""Policy, batches and demonstrations as in ``examples/``."""

QUICK_MODES: tuple[Mode, ...] = ("colocated", "ebrl")


def quick(settings: Settings) -> Settings:
    """For a look: too short to learn much."""
    return replace(settings, max_env_steps=25_000, episodes=32, final_episodes=64)


def settings_of(task: str) -> Settings:
    """Those of a task.

    Raises:
        UsageError: there are none for it; names the nearest.
    """
    name = task.removeprefix("metaworld/")
    if name not in TASKS:
        raise UsageError(f"--task {task}: no such task here; {nearest(name, TASKS) or f'known: {list(TASKS)}'}")
    return TASKS[name]


def emulated_workload(settings: Settings) -> Workload:
    """GPU times of the workload that is emulated, beside Meta-World's own."""
    emulation = settings.document["emulation"]
    return beside_real(emulation["workload"], metaworld_costs(), speed=emulation["speed"])


def suited(settings: Settings, mode: Mode) -> Document:
    """Sizes of a mode, where others than the task's suit it better.

    A barrier after every env step costs a message to each env worker, which GPUs that are emulated many times as fast
    make many times as dear: so there each env group has one env worker to a CPU, with as many environments as that
    takes. Environments that step on to their horizon begin and end together: so there a trajectory is a whole episode,
    and no batch consists of what follows the episodes' ends.
    """
    switches, document = in_mode(mode, {}), settings.document
    simulation, groups = switches["simulation"], switches["generation"]["env_groups"]
    sizes: Document = {}
    if simulation["step_barrier"]:
        num_envs, batch = document["simulation"]["num_envs"], document["training"]["batch_trajectories"]
        workers = max(settings.num_cpus, document["emulation"]["gpus"])  # no GPU without an env worker, on one CPU
        most = max(1, num_envs // (groups * workers))
        each = max(size for size in range(1, most + 1) if num_envs % size == 0 and batch % size == 0)
        sizes["simulation"] = {"envs_per_worker": each}
    if simulation["finished_episodes"] == "run_to_horizon":
        sizes["training"] = {"trajectory_chunks": settings.horizon_chunks}
    return sizes


def in_full(settings: Settings) -> Document:
    """The settings, and each mode's own sizes, which replace those of ``document``."""
    return asdict(settings) | {"suited": {mode: suited(settings, mode) for mode in NAMES}}


def config_of(settings: Settings, variant: Variant, seed: int, *, workload: Path) -> RunConfig:
    """The configuration of one run; ``workload`` is the file of ``emulated_workload``."""
    own: Document = {
        "run": {"name": "convergence", "seed": seed},
        "emulation": {"workload": str(workload), "padding": settings.padding},
        "training": {"max_env_steps": settings.max_env_steps},
        "checkpoint": {"every_updates": settings.checkpoint_every_updates, "keep": 1_000_000},
        "records": {"level": "off"},
    }
    sized = laid_over(settings.document, suited(settings, variant.mode))
    document = in_mode(variant.mode, laid_over(sized, own))
    return make_config(laid_over(document, {"training": {"slack": variant.slack}}))


def evaluation_config(settings: Settings) -> RunConfig:
    """The same environment and policy on real devices, in no mode."""
    own: Document = {
        "run": {"seed": settings.evaluation_seed},
        "generation": {"device": "cpu"},
        "training": {"device": "cpu"},
        "records": {"level": "off"},
    }
    document = {name: part for name, part in settings.document.items() if name != "emulation"}
    return make_config(laid_over(document, own))


def pretrain_config(settings: Settings) -> RunConfig:
    """Demonstrations and clone, the same for all modes and seeds."""
    return make_config(laid_over(settings.document, {"pretrain": settings.pretrain | {"enabled": True}}))
