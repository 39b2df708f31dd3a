"""The wire format, byte by byte."""

from __future__ import annotations

import numpy as np
import pytest

from specanalyze.formats import protobuf_columns as pb


def test_numbers_and_texts() -> None:
    # The examples of the encoding guide: field 1 = 150, field 2 = "testing".
    assert pb.number(1, 150) == bytes.fromhex("089601")
    assert pb.text(2, "testing") == bytes.fromhex("120774657374696e67")


def test_columns_are_padded_to_one_width() -> None:
    values = np.array([0, 150, 2**21 - 1], dtype=np.int64)
    cells = pb.rows(3, pb.numbers(1, values, 3))
    assert [bytes(row).hex() for row in cells] == ["08808000", "08968100", "08ffff7f"]


@pytest.mark.parametrize("value", [-1, 2**21])
def test_a_number_that_does_not_fit_is_an_error(value: int) -> None:
    with pytest.raises(ValueError, match="does not fit into 3 bytes"):
        pb.numbers(1, np.array([value], dtype=np.int64), 3)


def test_messages_of_two_shapes_in_one_order() -> None:
    short = pb.rows(2, pb.message(1, pb.numbers(1, np.array([1, 3], dtype=np.int64), 1)))
    long = pb.rows(
        1, pb.message(1, [*pb.numbers(1, np.array([2], dtype=np.int64), 1), *pb.fixed64(2, np.array([1.5]))])
    )
    text = pb.interleaved([(np.array([0, 2]), short), (np.array([1]), long)], 3)
    assert text.hex() == "0a020801" + "0a0b0802" + "11000000000000f83f" + "0a020803"
