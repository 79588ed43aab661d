"""What the local engine makes of episodes that are over."""

from __future__ import annotations

from ebrl.data import messages as m
from ebrl.engines.local.ends import EpisodeEnds
from ebrl.scheduling.events import EpisodeEnd


def end(frames: int, constant: int = 0) -> m.EpisodeEnd:
    return m.EpisodeEnd(0, 0, 0.0, 1, frames, constant)


def test_every_field_reaches_control() -> None:
    said = m.EpisodeEnd(3, m.SUCCESS, -0.5, 7, 20, 2, 1)
    heard = EpisodeEnd(
        env=3,
        terminated=False,
        success=True,
        episode_return=-0.5,
        num_steps=7,
        constant_frames=2,
        repeated_frames=1,
    )
    assert EpisodeEnds("toy", print).events([said, said._replace(flags=m.TERMINATED)]) == (
        heard,
        EpisodeEnd(
            env=3,
            terminated=True,
            success=False,
            episode_return=-0.5,
            num_steps=7,
            constant_frames=2,
            repeated_frames=1,
        ),
    )


def test_a_renderer_that_seems_broken_is_told_of_once() -> None:
    notices: list[str] = []
    ends = EpisodeEnds("toy/dial-v1", notices.append)
    ends.events([end(99, 99)])  # too few to say
    assert notices == []
    for _ in range(3):
        ends.events([end(1)])
    assert notices == [
        "99 of 100 images of toy/dial-v1 are of one colour all over: is its renderer broken, or does a camera look "
        "at nothing? Look at them before you trust what is learned"
    ]


def test_one_dark_image_in_a_hundred_is_no_alarm() -> None:
    notices: list[str] = []
    ends = EpisodeEnds("toy/dial-v1", notices.append)
    for _ in range(100):
        ends.events([end(100, 1), end(0)])
    assert notices == []
