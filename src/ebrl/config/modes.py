"""Execution modes: presets of the same switches, so that a comparison of two differs in nothing else.

Each is a document to be laid under what the user chose. ``ebrl`` is what every switch is by default, with an
allocation that is planned.
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

_LOCK_STEP: Document = {
    "step_barrier": True,
    "observe": "every_step",
    "finished_episodes": "run_to_horizon",
    "binding": "none",
}

MODES: dict[Mode, Document] = {
    "colocated": {
        "simulation": _LOCK_STEP,
        "generation": {"env_groups": 1},
        "training": {"slack": 0},
        "resources": {"gpu_use": "hand_over"},
    },
    "disaggregated": {
        "simulation": _LOCK_STEP,
        "generation": {"env_groups": 1},
        "training": {"slack": 0},
        "resources": {"gpu_use": "whole"},
    },
    "hybrid": {
        "simulation": _LOCK_STEP,
        "generation": {"env_groups": 2, "round_robin": True},
        "training": {"slack": 0},
        "resources": {"gpu_use": "hybrid"},
    },
    "async": {
        "simulation": _LOCK_STEP,
        "generation": {"env_groups": 2, "round_robin": True},
        "training": {"slack": 1},
        "resources": {"gpu_use": "whole"},
    },
    "paper": {
        "simulation": {"observe": "every_step", "finished_episodes": "run_to_horizon"},
        "generation": {"env_groups": 4},
        "training": {"slack": 1},
        "resources": {"gpu_use": "split"},
    },
    "ebrl": {"training": {"slack": 1}, "resources": {"gpu_use": "best"}},
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
    """What the user chose, with the mode's switches where they chose nothing."""
    return laid_over(MODES[mode], document)
