"""Episodes side by side as a GIF, each column with a title."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

MAX_BYTES = 4_000_000
"""Frames are left out until the file is no larger."""

HOLD_FRAMES = 8
"""How long the end of an episode stays."""

FRAME_MS = 70
_HEIGHT = 256
_HEADER = 46
_GAP = 8
_GREY, _GREEN, _RED = (40, 44, 52), (80, 200, 120), (230, 90, 80)


@dataclass(slots=True)
class Film:
    """What one episode looked like."""

    frames: list[np.ndarray] = field(default_factory=list)
    """``[height, width, 3] uint8`` each."""
    num_steps: list[int] = field(default_factory=list)
    """Env steps before each frame."""
    success: bool = False


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
        How many frames the file has; equal ones that follow each other are one.
    """
    every = 1
    while True:
        kept = frames[::every]
        palette = _palette(kept)
        flat = [frame.quantize(palette=palette, dither=Image.Dither.NONE) for frame in kept]
        flat[0].save(path, save_all=True, append_images=flat[1:], duration=FRAME_MS * every, loop=0, optimize=False)
        if path.stat().st_size <= max_bytes or len(kept) <= 2:
            with Image.open(path) as written:
                return int(getattr(written, "n_frames", 1))
        every *= 2


def _palette(frames: list[Image.Image]) -> Image.Image:
    """One palette for all frames, so that colours do not flicker; made from some of them and our own colours."""
    some = frames[:: max(1, len(frames) // 6)]
    width, height = some[0].size
    sheet = Image.new("RGB", (width, height * len(some) + 40), _GREEN)
    for row, frame in enumerate(some):
        sheet.paste(frame, (0, row * height))
    sheet.paste(_RED, (0, height * len(some), width, height * len(some) + 20))
    return sheet.quantize(192)


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
