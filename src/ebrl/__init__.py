"""EBRL: asynchronous embodied reinforcement learning.

    config = ebrl.load(Path("examples/reach.toml"), ["run.seed=1"])
    summary = ebrl.train(config)
    result = ebrl.evaluate(Path(summary["run_dir"]), episodes=128)

The names below are imported when they are first used; ``import ebrl`` alone is light, and env
workers rely on that.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ebrl.config.load import load_config as load
    from ebrl.config.schema import RunConfig
    from ebrl.errors import EbrlError
    from ebrl.runtime.session import evaluate, train

__version__ = "0.1.0"

__all__ = ["EbrlError", "RunConfig", "__version__", "evaluate", "load", "train"]

_HOMES = {
    "EbrlError": ("ebrl.errors", "EbrlError"),
    "RunConfig": ("ebrl.config.schema", "RunConfig"),
    "evaluate": ("ebrl.runtime.session", "evaluate"),
    "load": ("ebrl.config.load", "load_config"),
    "train": ("ebrl.runtime.session", "train"),
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'ebrl' has no attribute {name!r}")
    module, attribute = _HOMES[name]
    return getattr(importlib.import_module(module), attribute)


def __dir__() -> list[str]:
    return sorted(__all__)
