"""Keys of two streams: which can be equal, and which are."""

from __future__ import annotations

import pyarrow as pa
import pytest

from penstock.operators.join.keys import common_type, equal_keys, hash_is_key, without_key


@pytest.mark.parametrize(
    ("kinds", "is_key"),
    [
        ([pa.int64()], True),
        ([pa.timestamp("us")], True),
        ([pa.float32()], True),
        ([pa.string()], False),
        ([pa.decimal128(30, 2)], False),
        ([pa.int64(), pa.int64()], False),
        ([pa.struct([("x", pa.int64())])], False),
    ],
)
def test_only_the_hash_of_a_single_word_tells_keys_apart(kinds: list[pa.DataType], is_key: bool) -> None:
    assert hash_is_key(kinds) is is_key


@pytest.mark.parametrize(
    ("left", "right", "common"),
    [
        (pa.int8(), pa.int64(), pa.int64()),
        (pa.uint32(), pa.int16(), pa.int64()),
        (pa.uint64(), pa.uint8(), pa.uint64()),
        (pa.uint64(), pa.int64(), None),
        (pa.float32(), pa.float64(), pa.float64()),
        (pa.int64(), pa.float64(), None),
        (pa.decimal128(10, 2), pa.decimal128(12, 2), pa.decimal128(12, 2)),
        (pa.decimal128(10, 2), pa.decimal128(10, 3), None),
        (pa.timestamp("ms"), pa.timestamp("us"), None),
        (pa.dictionary(pa.int8(), pa.string()), pa.large_string(), pa.large_string()),
        (pa.struct([("x", pa.int8())]), pa.struct([("x", pa.int64())]), pa.struct([("x", pa.int64())])),
        (pa.struct([("x", pa.int8())]), pa.struct([("y", pa.int8())]), None),
    ],
)
def test_types_have_one_in_common_or_none(left: pa.DataType, right: pa.DataType, common: pa.DataType | None) -> None:
    assert common_type(left, right) == common
    assert common_type(right, left) == common


def test_keys_are_compared_whole_and_value_by_value() -> None:
    left = [pa.array([1, 1, 2]), pa.array(["a", "b", "c"])]
    right = [pa.array([1, 1, 3], pa.int32()), pa.array(["a", "x", "c"], pa.large_string())]
    assert equal_keys(left, right, [pa.int64(), pa.large_string()]).tolist() == [True, False, False]


def test_a_null_at_any_depth_is_no_key() -> None:
    key = [pa.array([1, None, 3, 4]), pa.array([{"x": 1}, {"x": 1}, {"x": None}, None])]
    missing = without_key(key)
    assert missing is not None
    assert missing.tolist() == [False, True, True, True]
    assert without_key([pa.array([1])]) is None
