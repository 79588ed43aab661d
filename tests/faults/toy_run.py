"""``python toy_run.py DOCUMENT [RUN_DIR]``: one run of the session, told line by line."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path

from ebrl.config.load import make_config
from ebrl.runtime.session import train


class Lines:
    """Prints each thing once, so that a test can wait for it."""

    def __init__(self) -> None:
        self.version = -1

    def phase(self, text: str) -> None:
        print("phase", text, flush=True)

    def progress(self, done: float, total: float, facts: Mapping[str, float]) -> None:
        version = int(facts.get("policy_version", -1))
        if version > self.version:
            self.version = version
            print("version", version, flush=True)

    def notice(self, text: str) -> None:
        print("notice", text.splitlines()[0], flush=True)


if __name__ == "__main__":
    resume = Path(sys.argv[2]) if len(sys.argv) > 2 else None
    summary = train(make_config(json.loads(sys.argv[1])), Lines(), resume=resume, validate=True)
    print("outcome", summary["outcome"], flush=True)
