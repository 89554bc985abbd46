"""Avro a column at a time, against fastavro a record at a time."""

from __future__ import annotations

import datetime
import decimal
import io
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.connectors.kafka.avro.decoding import decode
from penstock.connectors.kafka.avro.encoding import encoded_rows
from penstock.connectors.kafka.avro.resolution import Incompatible, record_reader
from penstock.connectors.kafka.avro.schemas import arrow_schema, avro_schema
from penstock.errors import PipelineError


def record(**fields: Any) -> dict[str, Any]:
    """A schema; a field is its type, or a type and a default."""
    made = []
    for name, each in fields.items():
        kind, *default = each if isinstance(each, tuple) else (each,)
        made.append({"name": name, "type": kind} | ({"default": default[0]} if default else {}))
    return {"type": "record", "name": "r", "fields": made}


def written(schema: Any, rows: list[dict[str, Any]]) -> list[bytes]:
    parsed = fastavro.parse_schema(schema)
    found = []
    for row in rows:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, parsed, row)
        found.append(out.getvalue())
    return found


def read(messages: list[bytes], writer: Any, reader: Any | None = None) -> pa.RecordBatch:
    from_, to = avro_schema("test", writer), avro_schema("test", reader if reader is not None else writer)
    lengths = np.array([len(each) for each in messages], np.int64)
    end = np.cumsum(lengths)
    data = np.frombuffer(b"".join(messages), np.uint8)
    return decode(record_reader("test", from_, to), arrow_schema("test", to), data, end - lengths, end)


def back(schema: Any, batch: pa.RecordBatch) -> list[dict[str, Any]]:
    rows = encoded_rows("test", avro_schema("test", schema), batch)
    data, ends = rows.data.tobytes(), np.cumsum(rows.lengths)
    parsed = fastavro.parse_schema(schema)
    found = []
    for end, length in zip(ends, rows.lengths, strict=True):
        message = io.BytesIO(data[end - length : end])
        found.append(fastavro.schemaless_reader(message, parsed, None))
        assert message.tell() == length
    return found


# --- any type, any value ---

_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
_PRIMITIVES: list[tuple[Any, st.SearchStrategy[Any]]] = [
    ("boolean", st.booleans()),
    ("int", st.integers(-(2**31), 2**31 - 1)),
    ("long", st.integers(-(2**63), 2**63 - 1)),
    ("double", st.floats(allow_nan=False)),
    ("float", st.floats(allow_nan=False, width=32)),
    ("string", _TEXT),
    ("bytes", st.binary(max_size=20)),
    ({"type": "enum", "name": "e", "symbols": ["A", "B", "C"]}, st.sampled_from("ABC")),
    ({"type": "fixed", "name": "f", "size": 3}, st.binary(min_size=3, max_size=3)),
    ({"type": "int", "logicalType": "date"}, st.dates()),
    (
        {"type": "long", "logicalType": "timestamp-micros"},
        st.datetimes(timezones=st.just(datetime.UTC), min_value=datetime.datetime(1900, 1, 1)),
    ),
    (
        {"type": "bytes", "logicalType": "decimal", "precision": 20, "scale": 2},
        st.integers(-(10**20) + 1, 10**20 - 1).map(lambda number: decimal.Decimal(number).scaleb(-2, _CONTEXT)),
    ),
    (
        {"type": "fixed", "name": "d", "size": 9, "logicalType": "decimal", "precision": 18, "scale": 4},
        st.integers(-(10**18) + 1, 10**18 - 1).map(lambda number: decimal.Decimal(number).scaleb(-4, _CONTEXT)),
    ),
]
_CONTEXT = decimal.Context(prec=50)


def _nested(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    def made(pair: tuple[Any, st.SearchStrategy[Any]]) -> st.SearchStrategy[Any]:
        kind, values = pair
        return st.sampled_from(
            [
                (["null", kind], st.none() | values),
                ([kind, "null"], st.none() | values),
                ({"type": "array", "items": kind}, st.lists(values, max_size=4)),
                ({"type": "map", "values": kind}, st.dictionaries(_TEXT, values, max_size=3)),
                (
                    {"type": "record", "name": f"i{len(str(kind))}", "fields": [{"name": "x", "type": kind}]},
                    st.builds(lambda value: {"x": value}, values),
                ),
            ]
        )

    return inner.flatmap(made).filter(lambda pair: not _is_union_of_union(pair[0]))


def _is_union_of_union(kind: Any) -> bool:
    return isinstance(kind, list) and any(isinstance(each, list) for each in kind)


_TYPES = (
    st.sampled_from(_PRIMITIVES)
    | _nested(st.sampled_from(_PRIMITIVES))
    | _nested(_nested(st.sampled_from(_PRIMITIVES)))
)


@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_columns_are_as_fastavro_reads_and_writes_the_records(data: st.DataObject) -> None:
    kind, values = data.draw(_TYPES)
    schema = record(before="long", value=kind, after="string")
    rows = data.draw(
        st.lists(
            st.fixed_dictionaries({"before": st.integers(-9, 9), "value": values, "after": st.just("end")}), max_size=6
        )
    )
    messages = written(schema, rows)
    expected = [fastavro.schemaless_reader(io.BytesIO(each), fastavro.parse_schema(schema), None) for each in messages]
    arrow = arrow_schema("test", avro_schema("test", schema))
    batch = read(messages, schema)
    batch.validate(full=True)
    assert batch.equals(pa.RecordBatch.from_pylist(expected, schema=arrow))
    assert back(schema, batch) == expected
    # A slice of a batch begins elsewhere in its buffers.
    assert back(schema, batch.slice(1)) == expected[1:]


def test_a_field_that_is_not_wanted_is_passed_over_whatever_its_type() -> None:
    kinds: list[tuple[Any, Any]] = [
        (["int", "string", "null"], "text"),
        ({"type": "array", "items": ["int", "string"]}, [1, "two"]),
        ({"type": "map", "values": "double"}, {"a": 1.0}),
        ({"type": "record", "name": "i", "fields": [{"name": "x", "type": ["int", "string"]}]}, {"x": "y"}),
        ({"type": "enum", "name": "e", "symbols": ["A"]}, "A"),
    ]
    for kind, value in kinds:
        writer = record(old=kind, id="long")
        messages = written(writer, [{"old": value, "id": 7}, {"old": value, "id": 8}])
        assert read(messages, writer, record(id="long")).to_pylist() == [{"id": 7}, {"id": 8}]


# --- evolution ---


def test_added_fields_have_their_defaults_and_removed_ones_are_gone() -> None:
    writer = record(id="int", gone="string")
    reader = record(
        id="long",
        note=(["null", "string"], None),
        amount=("double", 1.5),
        raw=("bytes", "\u00ff\u0001"),
        kind=({"type": "enum", "name": "e", "symbols": ["A", "B"]}, "B"),
        at=({"type": "long", "logicalType": "timestamp-millis"}, 1000),
        tags=({"type": "array", "items": "string"}, ["x"]),
        inner=({"type": "record", "name": "i", "fields": [{"name": "z", "type": "int", "default": 4}]}, {}),
    )
    found = read(written(writer, [{"id": 3, "gone": "old"}]), writer, reader).to_pylist()[0]
    at = datetime.datetime.fromtimestamp(1, datetime.UTC)
    assert found == {
        **{"id": 3, "note": None, "amount": 1.5, "raw": b"\xff\x01", "kind": "B", "at": at, "tags": ["x"]},
        "inner": {"z": 4},
    }


@pytest.mark.parametrize(
    ("written_as", "read_as", "value", "expected"),
    [
        ("int", "long", -7, -7),
        ("int", "float", 7, 7.0),
        ("long", "double", 2**40, 2.0**40),
        ("float", "double", 0.5, 0.5),
        ("string", "bytes", "ü", "ü".encode()),
        ("bytes", "string", b"x", "x"),
        ("int", ["null", "long"], 5, 5),
        (["null", "int"], "long", 5, 5),
        (["null", "int"], ["long", "null"], None, None),
    ],
)
def test_types_are_promoted(written_as: Any, read_as: Any, value: Any, expected: Any) -> None:
    messages = written(record(v=written_as), [{"v": value}])
    assert read(messages, record(v=written_as), record(v=read_as)).to_pylist() == [{"v": expected}]


def test_an_alias_finds_the_field_under_its_old_name() -> None:
    reader = record(customer="string")
    reader["fields"][0]["aliases"] = ["user"]
    assert read(written(record(user="string"), [{"user": "a"}]), record(user="string"), reader).to_pylist() == [
        {"customer": "a"}
    ]


@pytest.mark.parametrize(
    ("writer", "reader", "reason"),
    [
        (record(v="string"), record(v="int"), "field 'v' is written as string and read as int"),
        (record(v="long"), record(v="int"), "field 'v' is written as long and read as int"),
        (record(v="int"), record(v="int", w="int"), "field 'w' was not written, and has no default"),
        (record(v=["null", "string"]), record(v="int"), "field 'v' is written as a union of null, string"),
        (
            record(v={"type": "long", "logicalType": "timestamp-millis"}),
            record(v={"type": "long", "logicalType": "timestamp-micros"}),
            "written as timestamp-millis and read as timestamp-micros",
        ),
        (
            record(v={"type": "record", "name": "i", "fields": [{"name": "x", "type": "string"}]}),
            record(v={"type": "record", "name": "i", "fields": [{"name": "x", "type": "boolean"}]}),
            "field 'v.x' is written as string and read as boolean",
        ),
    ],
)
def test_what_cannot_be_read_is_said_with_its_field(writer: Any, reader: Any, reason: str) -> None:
    with pytest.raises(Incompatible, match=reason):
        record_reader("test", avro_schema("test", writer), avro_schema("test", reader))


def test_only_values_that_use_what_the_reader_lacks_are_at_fault() -> None:
    writer, reader = record(v=["null", "int", "string"]), record(v="long")
    assert read(written(writer, [{"v": 3}]), writer, reader).to_pylist() == [{"v": 3}]
    for value in ("text", None):
        with pytest.raises(ValueError, match="field 'v' is written as"):
            read(written(writer, [{"v": value}]), writer, reader)
    letters = {"type": "enum", "name": "e", "symbols": ["A", "B", "C"]}
    fewer = {"type": "enum", "name": "e", "symbols": ["A"]}
    with pytest.raises(ValueError, match="the enum symbol 'C' is not in the reader's schema"):
        read(written(record(v=letters), [{"v": "C"}]), record(v=letters), record(v=fewer))
    with_default = {**fewer, "default": "A"}
    found = read(written(record(v=letters), [{"v": "C"}]), record(v=letters), record(v=with_default))
    assert found.to_pylist() == [{"v": "A"}]


# --- bad data ---


@pytest.mark.parametrize(
    ("kind", "message", "reason"),
    [
        ("long", b"", "ends in the middle"),
        ("long", b"\x80", "ends in the middle"),
        ("long", b"\xff" * 10 + b"\x01", "more than 10 bytes"),
        ("long", b"\x02\x02", "ends 1 bytes before the message"),
        ("int", b"\xff\xff\xff\xff\x7f", "outside of 32 bits"),
        ("string", b"\x08ab", "ends in the middle"),
        ("string", b"\x01", "ends in the middle"),
        ("string", b"\x04\xff\xfe", "(?i)utf"),
        ("boolean", b"\x02", "neither 0 nor 1"),
        ("double", b"\0\0\0\0", "ends in the middle"),
        (["null", "int"], b"\x04", "outside its 2"),
        ({"type": "enum", "name": "e", "symbols": ["A"]}, b"\x02", "outside its 1 symbols"),
        ({"type": "array", "items": "int"}, b"\x04\x02", "ends in the middle"),
        ({"type": "fixed", "name": "f", "size": 3}, b"ab", "ends in the middle"),
        (
            {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 0},
            b"\x22" + b"\x01" * 17,
            "does not fit decimal128",
        ),
    ],
)
def test_a_message_that_is_no_such_record_is_refused(kind: Any, message: bytes, reason: str) -> None:
    with pytest.raises((ValueError, pa.ArrowException), match=reason):
        read([message], record(v=kind))


def test_a_message_does_not_read_from_the_next_one() -> None:
    # Joined, the second message would be the rest of the first string.
    with pytest.raises(ValueError, match="ends in the middle"):
        read([b"\x06a", b"\x06abc"], record(v="string"))


@pytest.mark.parametrize(
    ("schema", "column", "reason"),
    [
        (record(v="int"), pa.array([2**40]), "v: Integer value 1099511627776 not in range"),
        (record(v="long"), pa.array([None], pa.int64()), "v: 1 values are null"),
        (
            record(v={"type": "enum", "name": "e", "symbols": ["A"]}),
            pa.array(["Z"]),
            "v: 'Z' is not one of the symbols A",
        ),
        (record(v="long", w="int"), pa.array([1]), "column 'w' is missing, and the Avro schema has no default"),
        (record(w=("int", 1)), pa.array([1]), "column 'v' is not in the Avro schema, whose fields are w"),
        (
            record(v={"type": "long", "logicalType": "timestamp-millis"}),
            pa.array([0], pa.timestamp("ms")),
            "v: a timestamp without a time zone",
        ),
    ],
)
def test_rows_that_the_schema_has_no_room_for_are_refused(schema: Any, column: pa.Array, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        back(schema, pa.record_batch([column], ["v"]))


def test_a_field_without_a_column_is_written_with_its_default() -> None:
    schema = record(v="long", w=("int", 7), x=(["null", "string"], None))
    assert back(schema, pa.record_batch({"v": [1, 2]})) == [{"v": 1, "w": 7, "x": None}, {"v": 2, "w": 7, "x": None}]


def test_types_that_arrow_does_not_have_are_refused_with_a_way_out() -> None:
    with pytest.raises(PipelineError, match="has no Arrow type: decode it with a function"):
        arrow_schema("test", avro_schema("test", record(v=["int", "string"])))
    chain = {"type": "record", "name": "n", "fields": [{"name": "next", "type": ["null", "n"]}]}
    with pytest.raises(PipelineError, match="'n' contains itself"):
        avro_schema("test", chain)
    with pytest.raises(PipelineError, match="must be that of a record"):
        avro_schema("test", {"type": "string"})
