"""Arrow to Avro, a column at a time: each type makes the bytes of all rows, and a record joins those of its fields."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.columnar.ragged import Ragged, encoded_longs, joined
from penstock.connectors.kafka.avro.schemas import arrow_type

Write: TypeAlias = Callable[[pa.Array], Ragged]


def encoded_rows(where: str, avro: Any, batch: pa.RecordBatch) -> Ragged:
    """The records of a batch. Raises `ValueError`, with the field, for values that the schema has no room for."""
    names = [each["name"] for each in avro["fields"]]
    unknown = [name for name in batch.schema.names if name not in names]
    if unknown:
        raise ValueError(
            f"column '{unknown[0]}' is not in the Avro schema, whose fields are {', '.join(names)}: drop it in front "
            f"of the sink, or add it to the schema"
        )
    columns = {name: batch.column(name) for name in batch.schema.names}
    return joined([_field(where, each, columns.get(each["name"]), batch.num_rows) for each in avro["fields"]])


def _field(where: str, field: Any, column: pa.Array | None, rows: int) -> Ragged:
    name, avro = field["name"], field["type"]
    if column is None:
        if "default" not in field:
            raise ValueError(f"column '{name}' is missing, and the Avro schema has no default for it")
        return _default(avro, field["default"], rows)
    try:
        return _written(where, avro, column)
    except (ValueError, pa.ArrowException) as error:
        raise ValueError(f"{name}: {error}") from error


def _default(avro: Any, value: Any, rows: int) -> Ragged:
    from penstock.connectors.kafka.avro.resolution import encoded_default

    data = np.frombuffer(encoded_default(avro, value), np.uint8)
    return Ragged(np.tile(data, rows), np.full(rows, len(data)))


def _written(where: str, avro: Any, column: pa.Array) -> Ragged:
    if isinstance(avro, list):
        return _union(where, avro, column)
    if avro["type"] == "null":
        return _nothing(len(column))
    if column.null_count:
        raise ValueError(f"{column.null_count} values are null, and the Avro schema does not allow that")
    kind = arrow_type(where, avro)
    nested = {"record": _record, "array": _array, "map": _map}.get(avro["type"])
    if nested is not None:
        return nested(where, avro, column)
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    return _plain(avro, _cast(column, kind))


def _cast(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Like a column that was read; an error where a value would become another one."""
    if pa.types.is_timestamp(kind) and pa.types.is_timestamp(column.type) and kind.tz and not column.type.tz:
        raise ValueError("a timestamp without a time zone: give it one with cast, or declare a local-timestamp")
    return column.cast(kind)


def _nothing(rows: int) -> Ragged:
    return Ragged(np.empty(0, np.uint8), np.zeros(rows, np.int64))


def _union(where: str, avro: list[Any], column: pa.Array) -> Ragged:
    nulls = next((number for number, each in enumerate(avro) if each["type"] == "null"), None)
    other = next(number for number, each in enumerate(avro) if each["type"] != "null")
    if nulls is None and column.null_count:
        raise ValueError(f"{column.null_count} values are null, and the Avro schema does not allow that")
    present = np.asarray(column.is_valid())
    branch = encoded_longs(np.where(present, other, nulls or 0).astype(np.int64))
    values = _written(where, avro[other], column if present.all() else column.drop_null())
    lengths = np.zeros(len(column), np.int64)
    lengths[present] = values.lengths
    return joined([branch, Ragged(values.data, lengths)])


def _record(where: str, avro: Any, column: pa.Array) -> Ragged:
    columns = {field.name: column.field(number) for number, field in enumerate(column.type)}
    if not avro["fields"]:
        return _nothing(len(column))
    return joined([_field(where, each, columns.get(each["name"]), len(column)) for each in avro["fields"]])


def _array(where: str, avro: Any, column: pa.Array) -> Ragged:
    if not pa.types.is_list(column.type):
        column = column.cast(pa.list_(column.type.value_type))
    return _blocks(column, _written(where, avro["items"], column.flatten()))


def _map(where: str, avro: Any, column: pa.Array) -> Ragged:
    first, end = column.offsets[0].as_py(), column.offsets[-1].as_py()
    keys, items = column.keys.slice(first, end - first), column.items.slice(first, end - first)
    both = [_written(where, {"type": "string"}, keys), _written(where, avro["values"], items)]
    return _blocks(column, joined(both))


def _blocks(column: pa.Array, items: Ragged) -> Ragged:
    """One block with all items of a row, if there are any, and the empty block that ends them."""
    counts = np.diff(np.asarray(column.offsets)).astype(np.int64)
    bounds = np.concatenate([[0], np.cumsum(counts)])
    ends = np.concatenate([[0], np.cumsum(items.lengths)])
    content = Ragged(items.data, ends[bounds[1:]] - ends[bounds[:-1]])
    filled = counts > 0
    number = encoded_longs(counts[filled])
    lengths = np.zeros(len(column), np.int64)
    lengths[filled] = number.lengths
    closing = Ragged(np.zeros(len(column), np.uint8), np.ones(len(column), np.int64))
    return joined([Ragged(number.data, lengths), content, closing])


def _plain(avro: Any, column: pa.Array) -> Ragged:
    kind, rows = avro["type"], len(column)
    if pa.types.is_decimal(column.type):
        return _decimal(avro, column)
    if kind == "boolean":
        return Ragged(np.asarray(column.cast(pa.uint8())), np.ones(rows, np.int64))
    if kind == "int":
        return encoded_longs(np.asarray(column.view(pa.int32())).astype(np.int64))
    if kind == "long":
        return encoded_longs(np.asarray(column.view(pa.int64())))
    if kind in {"float", "double"}:
        values = np.ascontiguousarray(np.asarray(column)).astype("<f4" if kind == "float" else "<f8")
        return Ragged(values.view(np.uint8), np.full(rows, values.itemsize))
    if kind == "enum":
        return _enum(avro, column)
    if kind == "fixed":
        size = avro["size"]
        data = np.frombuffer(column.buffers()[1], np.uint8)[column.offset * size : (column.offset + rows) * size]
        return Ragged(data, np.full(rows, size))
    content = binary_rows(column)
    return joined([encoded_longs(content.lengths), content])


def binary_rows(column: pa.Array) -> Ragged:
    """The bytes of a column of strings or of bytes, without a copy. None of them may be null."""
    if not len(column):
        return _nothing(0)
    _, offsets, data = column.buffers()
    bounds = np.frombuffer(offsets, np.int32)[column.offset : column.offset + len(column) + 1].astype(np.int64)
    content = np.empty(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)[bounds[0] : bounds[-1]]
    return Ragged(content, np.diff(bounds))


def _enum(avro: Any, column: pa.Array) -> Ragged:
    numbers = pc.index_in(column, pa.array(avro["symbols"], pa.string()))
    if numbers.null_count:
        unknown = column.filter(numbers.is_null())[0].as_py()
        raise ValueError(f"'{unknown}' is not one of the symbols {', '.join(avro['symbols'])}")
    return encoded_longs(np.asarray(numbers).astype(np.int64))


def _decimal(avro: Any, column: pa.Array) -> Ragged:
    rows = len(column)
    raw = np.frombuffer(column.buffers()[1], np.uint8)[column.offset * 16 : (column.offset + rows) * 16]
    values = raw.reshape(rows, 16)[:, ::-1]
    if avro["type"] == "bytes":
        content = Ragged(np.ascontiguousarray(values).reshape(-1), np.full(rows, 16))
        return joined([encoded_longs(content.lengths), content])
    size = avro["size"]
    sign = np.where(values[:, :1] >= 0x80, 0xFF, 0).astype(np.uint8)
    if size > 16:
        values = np.concatenate([np.repeat(sign, size - 16, axis=1), values], axis=1)
    else:
        cut, values = values[:, : 16 - size], values[:, 16 - size :]
        if (cut != sign).any() or ((values[:, :1] >= 0x80) != (sign != 0)).any():
            raise ValueError(f"a decimal does not fit {size} bytes")
    return Ragged(np.ascontiguousarray(values).reshape(-1), np.full(rows, size))
