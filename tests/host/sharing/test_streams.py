"""Two streams of different priority."""

from __future__ import annotations

from sharing_fakes import Cuda, Gpu

from ebrl.host.sharing.base import STAGES, Split
from ebrl.host.sharing.streams import Streams


def test_each_stage_works_on_its_own_stream_and_generation_goes_first() -> None:
    cuda = Cuda(Gpu())
    sharing = Streams(cuda=cuda)
    found = {}
    for stage in STAGES:
        with sharing.lane(stage):
            found[stage] = cuda.current
    assert cuda.current is cuda.default
    assert found["generation"] is not found["training"]
    assert found["generation"].priority < found["training"].priority


def test_there_is_one_split_and_both_have_everything() -> None:
    sharing = Streams(cuda=Cuda(Gpu()))
    assert sharing.table() == (Split(generation=132, training=132, shared=True),)
    assert sharing.readback().training.remark == "priority 0: a hint, not a share"


def test_closing_waits_for_the_work() -> None:
    cuda = Cuda(Gpu())
    sharing = Streams(cuda=cuda)
    with sharing.lane("training"):
        cuda.current.launch("training", 7.0)
    sharing.close()
    assert cuda.gpu.now == 7.0
