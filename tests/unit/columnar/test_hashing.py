"""Hashes of keys: their known answers, and that equal values hash equally however they are laid out."""

from __future__ import annotations

import datetime
import decimal
import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.columnar import hashing as keys
from penstock.columnar.hashing import NULL_HASH, hash_array, hash_rows, key_groups
from penstock.errors import DataError

INTEGER_TYPES = [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()]
STRING_TYPES = [pa.string(), pa.large_string(), pa.string_view()]
BINARY_TYPES = [pa.binary(), pa.large_binary(), pa.binary_view()]

short_texts = st.lists(st.none() | st.text(max_size=20), max_size=30)


def hashes(values: list[Any], kind: pa.DataType) -> list[int]:
    return hash_array(pa.array(values, kind)).tolist()


KNOWN = [
    (pa.int64(), 0, 0xE220A8397B1DCDAF),
    (pa.int64(), 1, 0x910A2DEC89025CC1),
    (pa.int64(), -1, 0xE4D971771B652C20),
    (pa.uint64(), 2**64 - 1, 0xE4D971771B652C20),
    (pa.bool_(), True, 0x910A2DEC89025CC1),
    (pa.float64(), 1.5, 0xD6DAB18E1392608A),
    (pa.float64(), math.nan, 0xC72971D82E15BB46),
    (pa.date32(), datetime.date(2024, 2, 29), 0xDB8C04CA25F6E90D),
    (pa.timestamp("us", "UTC"), datetime.datetime(2024, 2, 29, 1, 2, 3, 4, datetime.UTC), 0x20C5F7FC46F8E60),
    (pa.decimal128(38, 2), decimal.Decimal("-1.25"), 0x4C8FE4EE6398C301),
    (pa.decimal128(38, 0), decimal.Decimal(10**30), 0xFD30FAE9D686F159),
    (pa.string(), "", 0xA706DD2F4D197E6F),
    (pa.string(), "a", 0x5C1B5B6FC74BD9C4),
    (pa.string(), "penstock", 0xFE5AF7F1BC32102F),
    (pa.string(), "Wasserkraftwerk am Fluß", 0x4E5F9EA942940B74),
    (pa.binary(), bytes(range(256)) * 2, 0x1AD1FD6866A30DC5),
    (pa.struct([("a", pa.int64()), ("b", pa.string())]), {"a": 7, "b": "x"}, 0x141066F9A3B6C886),
    (pa.int64(), None, 0x9B0F2C4E6A8D1357),
]


@pytest.mark.parametrize(("kind", "value", "answer"), KNOWN, ids=lambda item: str(item)[:20])
def test_the_hash_is_part_of_the_checkpoint_format_and_never_changes(
    kind: pa.DataType, value: Any, answer: int
) -> None:
    assert hashes([value], kind) == [answer]


def test_the_key_group_is_part_of_the_checkpoint_format_and_never_changes() -> None:
    batch = pa.record_batch({"a": pa.array([0, 1, 2, None, -5]), "b": pa.array(["", "x", None, "yy", "zzz" * 9])})
    assert key_groups(batch, ["a"], 128).tolist() == [113, 72, 75, 77, 11]
    assert key_groups(batch, ["a", "b"], 128).tolist() == [5, 8, 33, 28, 119]
    assert key_groups(batch, ["b", "a"], 32_768).tolist() == [8943, 31103, 10328, 8865, 20494]


@given(st.lists(st.integers(0, 127), max_size=20))
def test_integers_of_every_width_hash_equally(values: list[int]) -> None:
    assert len({tuple(hashes(values, kind)) for kind in INTEGER_TYPES}) == 1


@given(st.lists(st.integers(-128, 127), max_size=20))
def test_negative_integers_of_every_signed_width_hash_equally(values: list[int]) -> None:
    assert len({tuple(hashes(values, kind)) for kind in INTEGER_TYPES[:4]}) == 1


@given(st.lists(st.floats(width=16), max_size=20))
def test_floats_of_every_width_hash_equally(values: list[float]) -> None:
    halves = pa.array(np.array(values, dtype=np.float16))
    widths = [halves, halves.cast(pa.float32()), halves.cast(pa.float32()).cast(pa.float64())]
    assert len({tuple(hash_array(array).tolist()) for array in widths}) == 1


def test_zero_has_one_sign_and_all_nans_are_one() -> None:
    other_nans = np.array([0x7FF8000000000001, 0xFFF8000000000000, 0x7FF0000000000001], dtype=np.uint64)
    found = hash_array(pa.array([0.0, -0.0, math.nan, *other_nans.view(np.float64).tolist()])).tolist()
    raw = hash_array(pa.array(other_nans.view(np.float64))).tolist()
    assert found[0] == found[1]
    assert {*found[2:], *raw} == {found[2]}
    assert found[0] != found[2]


@given(st.lists(st.integers(-(10**17), 10**17), max_size=20))
def test_decimals_of_every_width_hash_equally_at_one_scale(values: list[int]) -> None:
    numbers = [decimal.Decimal(value).scaleb(-2) for value in values]
    kinds = [pa.decimal64(18, 2), pa.decimal128(38, 2), pa.decimal256(60, 2)]
    assert len({tuple(hashes(numbers, kind)) for kind in kinds}) == 1


def test_large_decimals_differ_by_their_upper_words() -> None:
    values = [decimal.Decimal(5 + (high << 64)) for high in range(-50, 50)]
    assert len(set(hashes(values, pa.decimal128(38, 0)))) == len(values)
    assert hashes(values, pa.decimal128(38, 0)) == hashes(values, pa.decimal256(50, 0))


@given(short_texts)
def test_strings_hash_equally_in_every_layout(values: list[str | None]) -> None:
    layouts = [pa.array(values, kind) for kind in STRING_TYPES]
    layouts += [pa.array([None if v is None else v.encode() for v in values], kind) for kind in BINARY_TYPES]
    layouts += [pa.array(values, pa.string()).dictionary_encode()]
    assert len({tuple(hash_array(array).tolist()) for array in layouts}) == 1


@given(st.lists(st.binary(min_size=5, max_size=5), max_size=20))
def test_binary_of_fixed_size_hashes_as_other_binary(values: list[bytes]) -> None:
    assert hashes(values, pa.binary(5)) == hashes(values, pa.binary())


def mixed(word: int) -> int:
    word = (word + 0x9E3779B97F4A7C15) % 2**64
    word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    word = (word ^ word >> 27) * 0x94D049BB133111EB % 2**64
    return word ^ word >> 31


def simple_hash(value: bytes) -> int:
    words = [int.from_bytes(value[at : at + 8], "little") for at in range(0, max(1, len(value)), 8)]
    total = sum(mixed((word + place * 0xD6E8FEB86659FD93) % 2**64) for place, word in enumerate(words))
    return mixed((total + len(value) * 0xA0761D6478BD642F) % 2**64)


@given(st.lists(st.binary(max_size=40) | st.binary(min_size=200, max_size=600), max_size=12))
def test_the_vectorised_hash_of_strings_is_the_simple_one(values: list[bytes]) -> None:
    assert hashes(values, pa.binary()) == [simple_hash(value) for value in values]


@given(st.lists(st.binary(max_size=600), min_size=1, max_size=12))
def test_a_string_hashes_the_same_alone_and_among_others(values: list[bytes]) -> None:
    assert hashes(values, pa.binary()) == [hashes([value], pa.binary())[0] for value in values]


@pytest.mark.parametrize("length", [0, 1, 7, 8, 9, 15, 16, 17, 255, 256, 257, 5_000])
def test_every_byte_of_a_string_counts(length: int) -> None:
    value = b"\0" * length
    others = [value + b"\0", *(value[:at] + b"\1" + value[at + 1 :] for at in range(length))]
    assert len(set(hashes([value, *others], pa.binary()))) == length + 2


def test_the_order_of_the_words_of_a_string_counts() -> None:
    first, second = b"A" * 8, b"B" * 8
    for repeated in (1, 30, 100):
        left, right = (first + second) * repeated, (second + first) * repeated
        assert len(set(hashes([left, right], pa.binary()))) == 2


def test_long_strings_are_summed_in_blocks_with_the_same_result(monkeypatch: pytest.MonkeyPatch) -> None:
    values = [bytes([row]) * size for row, size in enumerate([300, 0, 9_000, 257, 256, 40_000, 300])]
    expected = hashes(values, pa.binary())
    monkeypatch.setattr(keys, "_TAIL_BLOCK_WORDS", 16)
    assert hashes(values, pa.binary()) == expected


@given(short_texts, st.data())
def test_a_slice_hashes_as_its_copy(values: list[str | None], data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(values)))
    stop = data.draw(st.integers(start, len(values)))
    numbers = [None if value is None else len(value) for value in values]
    fields = [{"s": s, "n": n} if n != 3 else None for s, n in zip(values, numbers, strict=True)]
    arrays = [
        pa.array(values, pa.string()),
        pa.array(values, pa.string_view()),
        pa.array(numbers, pa.int16()),
        pa.array([None if n is None else n > 2 for n in numbers], pa.bool_()),
        pa.array([None if n is None else bytes([n] * 3) for n in numbers], pa.binary(3)),
        pa.array([None if n is None else decimal.Decimal(n) for n in numbers], pa.decimal128(30, 1)),
        pa.array(values, pa.string()).dictionary_encode(),
        pa.array(fields, pa.struct([("s", pa.string()), ("n", pa.int64())])),
    ]
    for array in arrays:
        assert hash_array(array.slice(start, stop - start)).tolist() == hash_array(array).tolist()[start:stop]


def test_a_null_has_its_own_hash_in_every_type() -> None:
    kinds = [*INTEGER_TYPES, *STRING_TYPES, *BINARY_TYPES, pa.null(), pa.bool_(), pa.float32(), pa.binary(4)]
    kinds += [
        pa.decimal128(5, 1),
        pa.time64("ns"),
        pa.struct([("a", pa.int8())]),
        pa.dictionary(pa.int8(), pa.string()),
    ]
    for kind in kinds:
        assert hashes([None, None], kind) == [NULL_HASH, NULL_HASH]


def test_a_struct_of_nulls_is_not_a_null_struct() -> None:
    one, other = hashes([None, {"a": None}], pa.struct([("a", pa.int64())]))
    assert one != other


def test_a_null_in_the_values_of_a_dictionary_is_a_null() -> None:
    array = pa.DictionaryArray.from_arrays(pa.array([0, 1, None], pa.int8()), pa.array(["x", None]))
    assert hash_array(array).tolist() == hashes(["x", None, None], pa.string())


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["", "a", "b"])), max_size=30))
def test_rows_hash_equally_if_and_only_if_all_key_columns_are_equal(rows: list[tuple[int, str]]) -> None:
    batch = pa.record_batch(
        {"a": pa.array([a for a, _ in rows], pa.int64()), "b": pa.array([b for _, b in rows], pa.string())}
    )
    found = hash_rows(batch, ["a", "b"]).tolist()
    assert len(set(found)) == len(set(rows))
    assert len(set(zip(found, rows, strict=True))) == len(set(rows))


def test_the_order_of_the_key_columns_matters() -> None:
    batch = pa.record_batch({"a": [1], "b": [2]})
    assert hash_rows(batch, ["a", "b"]).tolist() != hash_rows(batch, ["b", "a"]).tolist()


def test_hashing_does_not_change_the_batch() -> None:
    batch = pa.record_batch({"a": pa.array(range(1_000)), "f": pa.array([-0.0] * 1_000)})
    before = batch.column("a").to_pylist()
    hash_rows(batch, ["a", "f", "a"])
    assert batch.column("a").to_pylist() == before
    assert math.copysign(1, batch.column("f")[0].as_py()) == -1


def test_an_empty_batch_has_no_hashes() -> None:
    kinds = [*INTEGER_TYPES, *STRING_TYPES, *BINARY_TYPES, pa.binary(4), pa.decimal128(5, 1), pa.bool_(), pa.float32()]
    for kind in [*kinds, pa.struct([("a", pa.int8())]), pa.dictionary(pa.int8(), pa.string())]:
        assert len(hash_rows(pa.record_batch({"k": pa.array([], kind)}), ["k"])) == 0


@pytest.mark.parametrize("max_parallelism", [1, 2, 7, 128, 32_768])
def test_key_groups_cover_their_range_evenly(max_parallelism: int) -> None:
    rows = max_parallelism * 100
    groups = key_groups(pa.record_batch({"k": np.arange(rows)}), ["k"], max_parallelism)
    counts = np.bincount(groups, minlength=max_parallelism)
    assert len(counts) == max_parallelism
    assert counts.min() > 30
    assert counts.max() < 200


def test_a_type_without_a_hash_is_refused_by_the_name_of_its_column() -> None:
    with pytest.raises(DataError, match=r"key column 'k'.*list<"):
        hash_rows(pa.record_batch({"k": pa.array([[1]])}), ["k"])


@pytest.mark.parametrize("columns", [["x"], []])
def test_a_missing_key_column_is_refused(columns: list[str]) -> None:
    with pytest.raises(DataError, match="column"):
        hash_rows(pa.record_batch({"k": [1]}), columns)
