"""Execution modes: presets of the same switches, so that a comparison of two differs in nothing else.

Each is a document to be laid over what the user chose. ``ebrl`` is what every switch is by default.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, Literal, get_args

Mode = Literal["colocated", "disaggregated", "hybrid", "async", "paper", "ebrl"]
NAMES: tuple[Mode, ...] = get_args(Mode)
BASELINES: tuple[Mode, ...] = ("colocated", "disaggregated", "hybrid", "async")
"""Those of other systems."""

Document = dict[str, Any]


def _mode(
    *,
    lock_step: bool = False,
    every_frame: bool = True,
    env_groups: int = 0,
    round_robin: bool = False,
    slack: int = 1,
    gpu_use: str,
    lend: bool = False,
) -> Document:
    """Every switch, so that no mode leans on a default."""
    return {
        "simulation": {
            "step_barrier": lock_step,
            "observe": "every_step" if every_frame else "chunk_end",
            "finished_episodes": "run_to_horizon" if every_frame else "replace",
            "binding": "none" if lock_step else "cpu",
        },
        "generation": {"env_groups": env_groups, "round_robin": round_robin},
        "training": {"slack": slack},
        "resources": {"gpu_use": gpu_use, "lend": lend},
    }


MODES: dict[Mode, Document] = {
    "colocated": _mode(lock_step=True, env_groups=1, slack=0, gpu_use="hand_over"),
    "disaggregated": _mode(lock_step=True, env_groups=1, slack=0, gpu_use="whole"),
    "hybrid": _mode(lock_step=True, env_groups=2, round_robin=True, slack=0, gpu_use="hybrid"),
    "async": _mode(lock_step=True, env_groups=2, round_robin=True, gpu_use="whole"),
    "paper": _mode(env_groups=4, gpu_use="split"),
    "ebrl": _mode(every_frame=False, gpu_use="best", lend=True),
}
"""DESIGN.md section 9."""


def laid_over(document: Mapping[str, Any], layer: Mapping[str, Any]) -> Document:
    """A document with another one laid over it; tables are merged."""
    result = copy.deepcopy(dict(document))
    for key, value in layer.items():
        inner = result.get(key)
        result[key] = laid_over(inner, value) if isinstance(inner, dict) else copy.deepcopy(value)
    return result


def in_mode(mode: Mode, document: Mapping[str, Any]) -> Document:
    """What the user chose, with the mode's switches instead of their own."""
    return laid_over(document, MODES[mode])
