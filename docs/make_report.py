"""Write ``docs/images/report.png``: what the page of ``ebrl report`` looks like in a browser.

python docs/make_report.py              trains a toy for a few seconds, and takes its page
python docs/make_report.py RUN_DIR      the page of another run

Wants Chromium or Chrome on the PATH. The browser is given no network, and must have nothing to complain about.
"""

from __future__ import annotations

import io
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from PIL import Image

from ebrl.config.load import make_config
from ebrl.report.page import write_report
from ebrl.runtime.session import train

PICTURE = Path(__file__).parent / "images" / "report.png"

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")

MAX_BYTES = 400_000

_SIZE = (1280, 2900)
"""Of the window: from the title down to the timeline."""

_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--hide-scrollbars",
    "--host-resolver-rules=MAP * ~NOTFOUND",
    "--enable-logging=stderr",
)

_TOY: dict[str, dict[str, Any]] = {
    "run": {"name": "toy-reach", "seed": 1},
    "env": {
        "name": "toy/reach-v1",
        "config": {"max_episode_steps": 24, "radius": 0.25, "speed": 0.25, "reward": "dense"},
    },
    "policy": {"name": "mlp", "chunk_len": 4, "config": {"hidden": [64], "critic_hidden": [64]}},
    "algorithm": {
        "config": {"epochs": 6, "minibatch_chunks": 128, "actor_lr": 2e-3, "critic_lr": 3e-3, "gamma": 0.95},
    },
    "simulation": {"num_envs": 8},
    "training": {"batch_trajectories": 32, "trajectory_chunks": 12, "max_updates": 60},
    "evaluation": {"episodes": 64},
}


def browser() -> str | None:
    """The first browser that is installed."""
    return next((path for name in BROWSERS if (path := shutil.which(name))), None)


def photograph(program: str, page: Path, picture: Path, *, size: tuple[int, int] = _SIZE) -> list[str]:
    """Take a picture of a page; returns what the page wrote to the browser's console."""
    flags = [*_FLAGS, f"--window-size={size[0]},{size[1]}", f"--screenshot={picture}"]
    return _complaints(_browse(program, page, flags).stderr)


def read_back(program: str, page: Path) -> tuple[str, list[str]]:
    """The page as the browser has it once its scripts have run, and what they wrote to the console."""
    result = _browse(program, page, [*_FLAGS, "--dump-dom"])
    return result.stdout, _complaints(result.stderr)


def _browse(program: str, page: Path, flags: list[str]) -> subprocess.CompletedProcess[str]:
    with tempfile.TemporaryDirectory() as profile:
        command = [program, *flags, f"--user-data-dir={profile}", page.resolve().as_uri()]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)


def _complaints(log: str) -> list[str]:
    return [line for line in log.splitlines() if re.search(r":CONSOLE[:(]", line)]


def _shrink(picture: Path) -> None:
    """Fewer colours, until the file is small enough."""
    with Image.open(picture) as image:
        whole = image.convert("RGB")
    for colours in (256, 128, 64, 32):
        held = io.BytesIO()
        whole.quantize(colours, dither=Image.Dither.NONE).save(held, "PNG", optimize=True)
        if held.tell() <= MAX_BYTES:
            break
    picture.write_bytes(held.getvalue())


def main() -> None:
    """Train, write the page, and take its picture."""
    program = browser()
    if program is None:
        sys.exit(f"no browser: want one of {', '.join(BROWSERS)} on the PATH")
    with tempfile.TemporaryDirectory() as directory:
        if len(sys.argv) > 1:
            run_dir = Path(sys.argv[1])
        else:
            section = {**_TOY["run"], "directory": directory}
            run_dir = Path(train(make_config({**_TOY, "run": section}))["run_dir"])
        page = write_report(run_dir, output=Path(directory) / "report.html").path
        complaints = photograph(program, page, PICTURE)
    if complaints:
        sys.exit("\n".join(["the browser complains:", *complaints]))
    _shrink(PICTURE)
    print(f"{PICTURE.name}: {PICTURE.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
