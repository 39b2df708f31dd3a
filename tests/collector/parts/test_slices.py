"""Lists of Python become Arrow's in slices, and nothing is lost between two of them."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from speccollect.parts import slices
from speccollect.parts.slices import ELEMENTS, list_array

LISTS = st.lists(st.none() | st.lists(st.integers(0, 9), max_size=5).map(tuple), max_size=40)


@given(lists=LISTS, at_once=st.integers(1, 20))
def test_slices_make_the_array_of_the_whole(lists: list[tuple[int, ...] | None], at_once: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(slices, "ELEMENTS", at_once)
        made = list_array(lists, pa.list_(pa.int32()))
    assert made.equals(pa.array(lists, type=pa.list_(pa.int32())))


def test_a_full_buffer_of_large_batches_gives_way_after_every_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    ways: list[None] = []
    monkeypatch.setattr(slices, "give_way", lambda: ways.append(None))
    cycles, requests = 4096, 64
    made = list_array([(1,) * requests] * cycles, pa.list_(pa.int32()))
    assert len(made.flatten()) == cycles * requests
    assert len(ways) >= cycles * requests // (ELEMENTS + requests)
