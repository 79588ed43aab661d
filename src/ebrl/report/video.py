"""``before_after.gif``: the first and the newest checkpoint side by side, from the same initial states."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from ebrl.config.schema import RunConfig
from ebrl.data.checkpoint import list_checkpoints
from ebrl.errors import CheckpointError
from ebrl.report.playback import Film, film
from ebrl.runtime.display import Display

MAX_BYTES = 4_000_000
"""Frames are left out until the file is no larger."""

MAX_FRAMES = 50
"""Of one episode, about."""

HOLD_FRAMES = 8
"""How long the end of an episode stays."""

FRAME_MS = 70
_HEIGHT = 256
_HEADER = 46
_GAP = 8
_GREY, _GREEN, _RED = (40, 44, 52), (80, 200, 120), (230, 90, 80)


def record_before_after(run_dir: Path, config: RunConfig, display: Display, *, episodes: int) -> dict[str, Any]:
    """Write ``before_after.gif`` into the run directory.

    Returns:
        Its path and size, the checkpoints shown, and the success of each episode shown.

    Raises:
        CheckpointError: the run has no checkpoint.
        UsageError: the environment offers no picture, or OpenGL is missing.
    """
    found = list_checkpoints(run_dir / "checkpoints")
    if not found:
        raise CheckpointError(f"no checkpoint in {run_dir / 'checkpoints'}")
    shown = [("before", found[0]), ("after", found[-1])] if len(found) > 1 else [("so far", found[0])]
    display.phase(f"filming {episodes} episodes of {' and '.join(path.name for _, path in shown)}")
    done = 0

    def count() -> None:
        nonlocal done
        done += 1
        display.progress(done, episodes * len(shown), {})

    columns: list[tuple[str, list[Film]]] = []
    for title, checkpoint in shown:
        steps, films = film(config, checkpoint, episodes=episodes, max_frames=MAX_FRAMES, on_episode=count)
        columns.append((f"{title} ({_thousands(steps)} env steps)", films))
    path = run_dir / "before_after.gif"
    frames = compose(columns)
    num_frames = save_gif(frames, path)
    return {
        "path": str(path),
        "bytes": path.stat().st_size,
        "frames": num_frames,
        "checkpoints": [checkpoint.name for _, checkpoint in shown],
        "success": [[shot.success for shot in films] for _, films in columns],
    }


def compose(columns: list[tuple[str, list[Film]]]) -> list[Image.Image]:
    """Frames in which all columns show the same episode at the same time, one episode after another."""
    frames = []
    episodes = len(columns[0][1])
    for episode in range(episodes):
        shots = [films[episode] for _, films in columns]
        length = max(len(shot.frames) for shot in shots) + HOLD_FRAMES
        for index in range(length):
            panels = [
                _panel(title, shot, index, f"episode {episode + 1} of {episodes}")
                for (title, _), shot in zip(columns, shots, strict=True)
            ]
            frames.append(_side_by_side(panels))
    return frames


def save_gif(frames: list[Image.Image], path: Path, *, max_bytes: int = MAX_BYTES) -> int:
    """Write a GIF that plays for ever; leaves out every other frame until it is small enough.

    Returns:
        How many frames it has.
    """
    every = 1
    while True:
        kept = frames[::every]
        palette = kept[len(kept) // 2].quantize(128)
        flat = [frame.quantize(palette=palette, dither=Image.Dither.NONE) for frame in kept]
        flat[0].save(path, save_all=True, append_images=flat[1:], duration=FRAME_MS * every, loop=0, optimize=False)
        if path.stat().st_size <= max_bytes or len(kept) <= 2:
            return len(kept)
        every *= 2


def _panel(title: str, shot: Film, index: int, episode: str) -> Image.Image:
    """One column of one frame: two lines of text above the picture; a coloured edge once the episode is over."""
    over = index >= len(shot.frames) - 1
    at = min(index, len(shot.frames) - 1)
    picture = Image.fromarray(np.ascontiguousarray(shot.frames[at]))
    width = max(1, round(picture.width * _HEIGHT / picture.height))
    picture = picture.resize((width, _HEIGHT), Image.Resampling.BILINEAR)
    panel = Image.new("RGB", (width, _HEIGHT + _HEADER), _GREY)
    panel.paste(picture, (0, _HEADER))
    draw = ImageDraw.Draw(panel)
    draw.text((6, 4), title, fill="white", font=ImageFont.load_default(16))
    state, colour = f"env step {shot.num_steps[at]}", (200, 200, 200)
    if over:
        state, colour = ("success", _GREEN) if shot.success else ("no success", _RED)
        draw.rectangle((0, _HEADER, width - 1, _HEADER + _HEIGHT - 1), outline=colour, width=4)
    draw.text((6, 25), f"{episode}: ", fill=(200, 200, 200), font=ImageFont.load_default(14))
    offset = draw.textlength(f"{episode}: ", font=ImageFont.load_default(14))
    draw.text((6 + offset, 25), state, fill=colour, font=ImageFont.load_default(14))
    return panel


def _side_by_side(panels: list[Image.Image]) -> Image.Image:
    width = sum(panel.width for panel in panels) + _GAP * (len(panels) - 1)
    frame = Image.new("RGB", (width, panels[0].height), "white")
    left = 0
    for panel in panels:
        frame.paste(panel, (left, 0))
        left += panel.width + _GAP
    return frame


def _thousands(steps: int) -> str:
    return f"{steps / 1000:.0f}k" if steps >= 10_000 else str(steps)
