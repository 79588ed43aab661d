from __future__ import annotations

import gc
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from drills import named_memory, num_descriptors, shared_memory_of
from ebrl.data.shared import SharedArrays, num_bytes
from ebrl.data.spec import ArraySpec

LAYOUT = {
    "odd": ArraySpec((3,), "uint8"),
    "matrix": ArraySpec((5, 7), "float32"),
    "empty": ArraySpec((0, 4), "int64"),
    "scalar": ArraySpec((), "float64"),
}

OTHER = """
import json, sys
from ebrl.data.shared import SharedArrays, num_bytes
shared = SharedArrays.attach(int(sys.argv[1]), json.loads(sys.argv[2]))
assert shared["matrix"][1, 2] == 12.5
shared["matrix"][1, 2] = -3.0
shared["odd"][:] = [7, 8, 9]
"""


def test_another_process_maps_the_same_memory_through_a_descriptor() -> None:
    import json

    shared = SharedArrays.create("test", LAYOUT)
    shared["matrix"][1, 2] = 12.5
    command = [sys.executable, "-c", OTHER, str(shared.fd), json.dumps(shared.layout_json())]
    subprocess.run(command, pass_fds=[shared.fd], check=True, timeout=60)
    assert shared["matrix"][1, 2] == -3.0
    assert shared["odd"].tolist() == [7, 8, 9]
    shared.close()


def test_new_memory_is_zero_and_has_the_shapes_asked_for() -> None:
    shared = SharedArrays.create("test", LAYOUT)
    assert {name: (array.shape, str(array.dtype)) for name, array in shared.arrays.items()} == {
        name: (spec.shape, spec.dtype) for name, spec in LAYOUT.items()
    }
    assert not any(array.any() for array in shared.arrays.values())
    shared.close()


@given(
    layout=st.dictionaries(
        st.text(min_size=1, max_size=5),
        st.builds(
            ArraySpec,
            st.lists(st.integers(0, 5), max_size=3).map(tuple),
            st.sampled_from(["uint8", "bool", "float32", "int64"]),
        ),
        max_size=6,
    )
)
def test_arrays_start_on_cache_lines_and_never_overlap(layout: dict[str, ArraySpec]) -> None:
    shared = SharedArrays.create("test", layout)
    spans = []
    for array in shared.arrays.values():
        start = array.__array_interface__["data"][0]
        if array.size:
            assert start % 64 == 0
            spans.append((start, start + array.nbytes))
    for (_, end), (start, _) in zip(sorted(spans), sorted(spans)[1:], strict=False):
        assert end <= start
    assert sum(end - start for start, end in spans) <= num_bytes(shared.layout)
    shared.close()


def test_memory_that_was_given_back_is_nowhere() -> None:
    gc.collect()
    before = num_descriptors()
    shared = SharedArrays.create("gone", LAYOUT)
    assert shared_memory_of(label="gone")
    assert named_memory() == []
    shared.close()
    shared.close()
    del shared
    assert shared_memory_of(label="gone") == []
    assert num_descriptors() == before


def test_a_view_outlives_the_descriptor() -> None:
    shared = SharedArrays.create("viewed", LAYOUT)
    view = shared["matrix"]
    view[:] = 4.0
    shared.close()
    del shared
    assert np.array_equal(view, np.full((5, 7), 4.0, np.float32))
    del view
    assert shared_memory_of(label="viewed") == []


def test_a_descriptor_is_not_inherited_unless_it_is_passed() -> None:
    shared = SharedArrays.create("test", LAYOUT)
    code = "import os, sys; sys.exit(os.path.exists(f'/proc/self/fd/{sys.argv[1]}'))"
    subprocess.run([sys.executable, "-c", code, str(shared.fd)], check=True, timeout=60, close_fds=False)
    shared.close()


def test_too_small_a_file_is_refused(tmp_path: Path) -> None:
    fd = os.open(tmp_path / "small", os.O_RDWR | os.O_CREAT)
    with pytest.raises(ValueError, match="length is greater"):
        SharedArrays(fd, LAYOUT)
    os.close(fd)
