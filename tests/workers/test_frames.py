"""Images that a working renderer hardly makes are counted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ebrl.data import messages as m
from ebrl.data.shared import SharedArrays
from ebrl.data.spec import ArraySpec
from ebrl.data.trajectory import slab_layout, store_layout
from ebrl.envs.toy import Dial
from ebrl.workers.env_worker import Shard
from ebrl.workers.frames import Frames

IMAGE = ArraySpec((2, 3, 3), "uint8")
PICTURE = np.arange(18, dtype=np.uint8).reshape(2, 3, 3)
BLUE = np.zeros((2, 3, 3), np.uint8) + np.array([0, 0, 255], np.uint8)
GREY = np.full((2, 3, 3), 9, np.uint8)


def counts(*observations: dict[str, np.ndarray], spec: dict[str, ArraySpec] | None = None) -> tuple[int, int, int]:
    """Images, those of one colour, those that are repeated."""
    frames = Frames(spec or {"front": IMAGE, "wrist": IMAGE})
    for observation in observations:
        frames.look(observation)
    return frames.total, frames.constant, frames.repeated


def test_pictures_are_counted_and_nothing_more() -> None:
    flipped = PICTURE[::-1]
    assert counts({"front": PICTURE, "wrist": flipped}, {"front": flipped, "wrist": PICTURE}) == (4, 0, 0)


@pytest.mark.parametrize("colour", [BLUE, GREY])
def test_one_colour_is_constant(colour: np.ndarray) -> None:
    assert counts({"front": PICTURE, "wrist": colour}) == (2, 1, 0)
    almost = colour.copy()
    almost[1, 2, 0] ^= 1
    assert counts({"front": PICTURE, "wrist": almost}) == (2, 0, 0)


def test_a_repetition_is_one_of_the_same_camera() -> None:
    other = PICTURE + np.uint8(1)
    assert counts({"front": PICTURE, "wrist": other}, {"front": other, "wrist": other}) == (4, 0, 1)


def test_an_environment_that_writes_into_its_old_image_is_not_taken_for_a_broken_one() -> None:
    frames = Frames({"front": IMAGE})
    image = PICTURE.copy()
    frames.look({"front": image})
    image += 1
    frames.look({"front": image})
    assert (frames.total, frames.repeated) == (2, 0)


def test_an_episode_that_begins_with_the_last_image_of_another_repeats_it() -> None:
    frames = Frames({"front": IMAGE})
    frames.look({"front": PICTURE})
    frames.begin_episode()
    frames.look({"front": PICTURE})
    assert (frames.total, frames.repeated) == (1, 1)


def test_what_is_no_image_is_not_looked_at() -> None:
    spec = {
        "state": ArraySpec((3,), "float32"),
        "instruction": ArraySpec((9,), "uint8"),
        "depth": ArraySpec((2, 3, 1), "uint8"),
        "fields": ArraySpec((2, 3, 3), "float32"),
    }
    assert counts({name: np.zeros(one.shape, one.dtype) for name, one in spec.items()}, spec=spec) == (0, 0, 0)


@pytest.mark.parametrize(
    ("config", "frames"),
    [
        ({}, (0, 0, 0)),
        ({"image_size": 8}, (4, 0, 0)),
        ({"image_size": 8, "renderer": "black"}, (4, 4, 3)),
        ({"image_size": 8, "renderer": "frozen"}, (4, 0, 3)),
    ],
)
def test_an_episode_tells_at_its_end_what_was_seen_at_its_reset_and_its_chunks(
    config: dict[str, Any], frames: tuple[int, int, int]
) -> None:
    env = Dial("", Dial.Config(min_episode_steps=10, max_episode_steps=10, success_probability=0.0, **config))
    slabs = SharedArrays.create("slabs", slab_layout(env.spec, num_shards=1, chunk_len=4))
    layout = store_layout(env.spec, {}, num_slots=1, trajectory_chunks=3, num_transitions=1, chunk_len=4)
    shard = Shard([env], 0, slabs, SharedArrays.create("store", layout))
    for episode in range(2):
        shard.reset([(0, episode, episode)])
        _, _, _, ends = [shard.run(0, chunk, 0, 4) for chunk in range(3)][-1]
        repeated = frames[2] + (episode == 1 and config.get("renderer") is not None)
        assert ends == [m.EpisodeEnd(0, m.TERMINATED, 0.0, 10, *frames[:2], repeated)]
