"""Write ``docs/images/simulator-*.png``: what each simulator's cameras show, under its own interpreter.

python docs/make_pictures.py            simulators that are not installed are named and left out
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from ebrl.errors import EbrlError
from ebrl.testing.pictures import pictures

IMAGES = Path(__file__).parent / "images"

SHOWN: dict[str, tuple[str, dict[str, Any]]] = {
    "libero": ("libero/libero_spatial/0", {"image_size": 256, "render_quality": "reference"}),
    "robosuite": ("robosuite/Lift", {"cameras": ["agentview", "robot0_eye_in_hand"], "image_size": 256}),
    "metaworld": ("metaworld/drawer-open-v3", {"camera": "corner3", "image_size": 256}),
    "maniskill": ("maniskill/PickCube-v1", {"cameras": ["base_camera"], "image_size": 256}),
    "pusht": ("gym/gym_pusht/PushT-v0", {"options": {"obs_type": "pixels"}}),
}
"""Simulator → environment and config; cameras side by side, in the order of the observation."""


def main() -> None:
    """Write every picture that can be made here."""
    for simulator, (name, section) in SHOWN.items():
        try:
            with tempfile.TemporaryDirectory() as directory:
                images = pictures(name, section, Path(directory), seed=2, steps=20)
        except EbrlError as error:
            print(f"{simulator}: left out: {error}")
            continue
        Image.fromarray(np.concatenate(list(images.values()), axis=1)).save(IMAGES / f"simulator-{simulator}.png")
        print(f"{simulator}: {', '.join(images)}")


if __name__ == "__main__":
    main()
