"""Channel state and operator state as bytes: what was written comes back, in order, and nothing else does."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import CorruptBlob
from penstock.exchange.codec import decode_batches, decode_items, encode_batches, encode_items
from penstock.exchange.items import BatchItem, Captured, WatermarkItem

NUMBERS = pa.record_batch({"v": [1, 2, 3]})
NAMES = pa.record_batch({"name": ["a", None], "v": [1.5, float("nan")]})
EMPTY = pa.record_batch({"v": pa.array([], pa.int64())})
NO_COLUMNS = pa.RecordBatch.from_pylist([], schema=pa.schema([]))


def item(batch: pa.RecordBatch) -> BatchItem:
    return BatchItem(batch, 77, batch.nbytes)


def seen(items: list[Captured]) -> list[object]:
    return [each.batch if isinstance(each, BatchItem) else each.watermark for each in items]


def round_trip(*items: Captured) -> list[object]:
    return seen(decode_items(bytes(encode_items(items))))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.one_of(st.sampled_from([NUMBERS, EMPTY, NUMBERS.slice(1)]), st.integers(-(2**63), 2**63 - 1))))
def test_records_and_watermarks_come_back_in_their_order(wanted: list[pa.RecordBatch | int]) -> None:
    items = [WatermarkItem(each) if isinstance(each, int) else item(each) for each in wanted]
    assert round_trip(*items) == wanted


def test_nothing_is_no_bytes() -> None:
    assert bytes(encode_items([])) == b""
    assert decode_items(b"") == []


def test_a_watermark_may_come_first_and_stand_alone() -> None:
    assert round_trip(WatermarkItem(5)) == [5]
    assert round_trip(WatermarkItem(5), item(NUMBERS), WatermarkItem(6)) == [5, NUMBERS, 6]


def test_a_change_of_schema_is_no_obstacle() -> None:
    def types(batches: list[pa.RecordBatch]) -> list[pa.Schema]:
        return [batch.schema for batch in batches]

    batches = [NUMBERS, NAMES, NAMES, EMPTY, NO_COLUMNS, NUMBERS]
    restored = decode_batches(bytes(encode_batches(batches)))
    assert types(restored) == types(batches)
    assert [batch.to_pydict() for batch in restored if batch.schema != NAMES.schema] == [
        batch.to_pydict() for batch in batches if batch.schema != NAMES.schema
    ]
    assert restored[1].column("name").to_pylist() == ["a", None]


def test_a_watermark_between_two_schemas_keeps_its_place() -> None:
    assert round_trip(item(NUMBERS), WatermarkItem(1), item(EMPTY), WatermarkItem(2)) == [NUMBERS, 1, EMPTY, 2]


def test_a_slice_is_written_without_the_rest_of_its_batch() -> None:
    large = pa.record_batch({"v": list(range(100_000))})
    assert len(bytes(encode_batches([large.slice(10, 10)]))) < 1_000


def test_dictionaries_that_differ_from_batch_to_batch_come_back() -> None:
    batches = [
        pa.record_batch({"k": pa.array(values).dictionary_encode()}) for values in (["a", "b"], ["c"], ["a", "c", "d"])
    ]
    restored = decode_batches(bytes(encode_batches(batches)))
    assert [batch.column("k").to_pylist() for batch in restored] == [["a", "b"], ["c"], ["a", "c", "d"]]


def test_recovered_records_have_no_price() -> None:
    (recovered,) = decode_items(bytes(encode_items([item(NUMBERS)])))
    assert isinstance(recovered, BatchItem)
    assert (recovered.cost, recovered.size) == (0, recovered.batch.nbytes)


@pytest.mark.parametrize("data", [b"x", b"not arrow at all", b"\xff\xff\xff\xff" + b"\x10\x00\x00\x00abc"])
def test_garbage_is_an_error_that_says_so(data: bytes) -> None:
    with pytest.raises(CorruptBlob, match=f"{len(data)} bytes of recovered state are not an Arrow stream"):
        decode_items(data)


def test_a_stream_that_was_cut_short_in_a_batch_is_an_error() -> None:
    whole = bytes(encode_batches([pa.record_batch({"v": list(range(1_000))})]))
    with pytest.raises(CorruptBlob):
        decode_items(whole[: len(whole) // 2])
