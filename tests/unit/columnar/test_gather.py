"""Rows are taken, filtered and put together, whatever their type: of slices, with nulls and without."""

from __future__ import annotations

import decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.columnar.expressions import evaluated
from penstock.columnar.gather import filter_rows, joined, may_share, null_unless, owned, take, take_rows
from tests.unit.columnar.arrays import NAMES, columns


class Celsius(pa.ExtensionType):
    def __init__(self) -> None:
        super().__init__(pa.int64(), "tests.celsius")

    def __arrow_ext_serialize__(self) -> bytes:
        return b""

    @classmethod
    def __arrow_ext_deserialize__(cls, storage: pa.DataType, serialized: bytes) -> Celsius:
        return cls()


INTEGERS = [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()]
FLOATS = [pa.float16(), pa.float32(), pa.float64()]
UNITS = ["s", "ms", "us", "ns"]
TIMES = [
    *(pa.timestamp(unit) for unit in UNITS),
    pa.timestamp("us", "Europe/Berlin"),
    *(pa.duration(unit) for unit in UNITS),
    *(pa.date32(), pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns")),
]
DECIMALS = [
    pa.decimal128(20, 3),
    pa.decimal256(50, 3),
    *(getattr(pa, name)(5, 3) for name in ("decimal32", "decimal64") if hasattr(pa, name)),
]
OTHERS = [
    *(pa.bool_(), pa.null(), pa.string(), pa.large_binary(), pa.binary(2), pa.list_(pa.int32()), pa.date64()),
    *(pa.struct([("a", pa.int64())]), pa.dictionary(pa.int8(), pa.int64()), pa.dictionary(pa.int32(), pa.string())),
    Celsius(),
]


def array_of(values: list[int | None], kind: pa.DataType) -> pa.Array:
    """Numbers from 0 to 99 as values of any type."""
    if isinstance(kind, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(kind, array_of(values, kind.storage_type))
    if pa.types.is_dictionary(kind):
        return array_of(values, kind.value_type).dictionary_encode().cast(kind)
    if kind in TIMES:
        return pa.array(values, pa.int32() if kind.bit_width == 32 else pa.int64()).view(kind)
    return pa.array([None if value is None else _as_kind(value, kind) for value in values], kind)


def _as_kind(value: int, kind: pa.DataType) -> Any:
    if pa.types.is_null(kind):
        return None
    if pa.types.is_boolean(kind):
        return value % 2 == 0
    if pa.types.is_string(kind):
        return f"{value}" * (value % 5)
    if pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind):
        return f"{value:02}".encode()
    if pa.types.is_list(kind):
        return [value] * (value % 3)
    if pa.types.is_struct(kind):
        return {"a": value}
    if pa.types.is_float16(kind):
        return np.float16(value)
    return value * 86_400_000 if pa.types.is_date64(kind) else decimal.Decimal(value) if kind in DECIMALS else value


kinds = st.sampled_from([*INTEGERS, *FLOATS, *TIMES, *DECIMALS, *OTHERS])
values = st.lists(st.integers(0, 99), max_size=20) | st.lists(st.none() | st.integers(0, 99), max_size=20)


@st.composite
def slices(draw: st.DrawFn) -> pa.Array:
    whole = array_of(draw(values), draw(kinds))
    return whole.slice(draw(st.integers(0, len(whole))), draw(st.integers(0, 20)))


def some_rows(data: st.DataObject, length: int) -> Any:
    rows = st.lists(st.integers(0, length - 1), max_size=30) if length else st.just(list[int]())
    return np.array(data.draw(rows), dtype=np.intp)


@given(slices(), st.data())
def test_rows_are_those_that_arrow_takes(array: pa.Array, data: st.DataObject) -> None:
    rows = some_rows(data, len(array))
    taken, wanted = take(array, rows), array.take(pa.array(rows))
    taken.validate(full=True)
    assert (taken.type, taken.null_count, taken.offset) == (wanted.type, wanted.null_count, wanted.offset)
    assert taken.equals(wanted)


@given(st.lists(kinds, min_size=1, max_size=4), st.integers(0, 9), st.integers(0, 3), st.booleans(), st.data())
def test_a_batch_keeps_its_schema(
    types: list[pa.DataType], length: int, start: int, is_annotated: bool, data: st.DataObject
) -> None:
    arrays = [array_of(list(range(start + length)), kind) for kind in types]
    fields = [pa.field("twice", array.type) for array in arrays]
    if is_annotated:
        fields[0] = fields[0].with_nullable(types[0] == pa.null()).with_metadata({"unit": "°C"})
    schema = pa.schema(fields, {"of": "all"} if is_annotated else None)
    batch = pa.RecordBatch.from_arrays(arrays, schema=schema).slice(start)
    rows = some_rows(data, length)
    taken = take_rows(batch, rows)
    taken.validate(full=True)
    assert taken.schema.equals(schema, check_metadata=True)
    assert taken.equals(batch.take(pa.array(rows)), check_metadata=True)


@pytest.mark.parametrize("what", ["fields", "schema", "nulls"])
def test_each_annotation_of_a_schema_is_kept(what: str) -> None:
    field = pa.field("a", pa.int64(), what != "nulls", {"unit": "°C"} if what == "fields" else None)
    schema = pa.schema([field], {"of": "all"} if what == "schema" else None)
    batch = pa.RecordBatch.from_arrays([pa.array([1, 2, 3])], schema=schema)
    assert take_rows(batch, np.array([2, 0])).schema.equals(schema, check_metadata=True)


def test_a_batch_without_columns_has_as_many_rows_as_were_taken() -> None:
    batch = pa.record_batch({"a": [1, 2, 3]}).select([])
    assert take_rows(batch, np.array([2, 0])).num_rows == 2


def test_the_copy_does_not_hold_the_memory_of_the_original() -> None:
    array = pa.array(np.arange(1_000))
    assert take(array, np.arange(3)).get_total_buffer_size() == 24


@pytest.mark.parametrize("kind", [pa.string_view(), pa.binary_view()])
def test_views_are_taken_too(kind: pa.DataType) -> None:
    texts = pa.array(["a", "b" * 50, None, ""]).cast(kind)
    taken = take(texts, np.array([2, 1, 1]))
    assert taken.type == kind
    assert taken.to_pylist() == [texts[2].as_py(), *[texts[1].as_py()] * 2]


# --- every type ---


ROWS = 60
COLUMNS = columns(ROWS)
each_type = pytest.mark.parametrize("name", NAMES)


def written(array: pa.Array) -> pa.Buffer:
    out = pa.BufferOutputStream()
    batch = pa.record_batch([array], names=["x"])
    with pa.ipc.new_stream(out, batch.schema) as writer:
        writer.write_batch(batch)
    return out.getvalue()


def check(found: pa.Array, kind: pa.DataType, values: list[Any]) -> None:
    found.validate(full=True)
    assert found.type.equals(kind, check_metadata=True)
    assert repr(found.to_pylist()) == repr(values)  # by their text, in which a NaN is one


@each_type
@pytest.mark.parametrize("rows", [[], [0], [5, 5, 1, 0], list(range(40)), list(range(39, 0, -2))])
def test_rows_of_every_type_are_taken(name: str, rows: list[int]) -> None:
    array = COLUMNS[name].slice(7, 40)
    values = array.to_pylist()
    check(take(array, np.array(rows, dtype=np.intp)), array.type, [values[row] for row in rows])


@each_type
def test_what_was_taken_can_be_taken_from_sliced_and_written_again(name: str) -> None:
    array = COLUMNS[name]
    values = array.to_pylist()[::2]
    taken = take(array, np.arange(0, ROWS, 2)).slice(3, 20)
    again = take(taken, np.arange(20)[::-1])
    check(again, array.type, values[3:23][::-1])
    (restored,) = pa.ipc.open_stream(written(again)).read_all().column(0).chunks
    check(restored, array.type, values[3:23][::-1])


@each_type
def test_rows_of_every_type_are_filtered_by_a_mask_and_by_an_expression(name: str) -> None:
    batch = pa.record_batch({"n": range(ROWS), "x": COLUMNS[name]})
    wanted = [value for n, value in enumerate(COLUMNS[name].to_pylist()) if n >= 20 and n != 33]
    mask = pa.array([None if n == 33 else n >= 20 for n in range(ROWS)])
    check(filter_rows(batch, mask).column("x"), COLUMNS[name].type, wanted)
    expression = (pc.field("n") >= 20) & (pc.field("n") != 33)
    check(filter_rows(batch, evaluated(batch, [expression], ValueError)[0]).column("x"), COLUMNS[name].type, wanted)


@each_type
def test_batches_of_every_type_are_put_together(name: str) -> None:
    batch = pa.record_batch({"x": COLUMNS[name]})
    (whole,) = joined([batch.slice(0, 10), batch.slice(10, 0), batch.slice(10, 5), batch.slice(15)])
    check(whole.column(0), COLUMNS[name].type, COLUMNS[name].to_pylist())


def test_no_more_is_put_together_than_allowed() -> None:
    batches = [pa.record_batch({"x": [n] * 10}) for n in range(10)]
    found = joined(batches, 250)
    assert [batch.num_rows for batch in found] == [30, 30, 30, 10]
    assert joined(found, 1) == found


def test_dictionaries_that_do_not_fit_into_one_stay_apart() -> None:
    def batch(first: int) -> pa.RecordBatch:
        values = pa.array([f"v{n}" for n in range(first, first + 100)])
        return pa.record_batch({"x": pa.DictionaryArray.from_arrays(pa.array(range(100), pa.int8()), values)})

    batches = [batch(0), batch(0), batch(100), batch(200)]
    found = joined(batches)
    assert [value for each in found for value in each.column(0).to_pylist()] == [
        value for each in batches for value in each.column(0).to_pylist()
    ]
    assert all(each.schema == batches[0].schema for each in found)


@each_type
def test_a_slice_of_every_type_brings_no_values_of_other_rows_along(name: str) -> None:
    large = columns(4_000)[name]
    part = large.slice(1_000, 30)
    batch = pa.record_batch({"x": part})
    own = owned(batch)
    check(own.column(0), large.type, part.to_pylist())
    assert may_share(batch.schema) or own is batch
    # A row of the struct has all the other columns in it.
    assert written(own.column(0)).size < (60_000 if name == "struct of all" else 6_000)
    assert own.nbytes < (60_000 if name == "struct of all" else 6_000)


def test_a_dictionary_of_which_most_is_used_is_left_as_it_is() -> None:
    values = pa.array([f"value {n}" for n in range(1_000)])
    batch = pa.record_batch({"x": pa.DictionaryArray.from_arrays(pa.array(range(1_000), pa.int32()), values)})
    assert owned(batch) is batch
    assert owned(batch.slice(0, 999)).column(0).dictionary.equals(values.slice(0, 999))


def test_a_dictionary_keeps_its_order_and_its_nulls_when_it_is_cut() -> None:
    values = pa.array([f"{n:06}" for n in range(10_000)])
    indices = pa.array([9_000, None, 17, 9_000, None], pa.int16())
    array = pa.DictionaryArray.from_arrays(indices, values, ordered=True)
    (own,) = owned(pa.record_batch({"x": array})).columns
    assert own.dictionary.to_pylist() == ["000017", "009000"]
    check(own, array.type, ["009000", None, "000017", "009000", None])


@pytest.mark.parametrize("kind", [pa.decimal32(5, 2), pa.decimal64(15, 2), pa.decimal128(20, 2), pa.int64()])
def test_a_column_with_nulls_keeps_its_type(kind: pa.DataType) -> None:
    values = [1, 2] if pa.types.is_integer(kind) else [decimal.Decimal(1), decimal.Decimal(2)]
    found = null_unless(pa.array([True, True, False]), pa.array([values[0], None, values[1]], kind))
    assert found.equals(pa.array([values[0], None, None], kind))
