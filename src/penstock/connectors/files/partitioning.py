"""Which directory a row is written to: `country=NL/at_hour=2026-01-01-05`, as Spark and others read it.

A column that is named is in the path and no longer in the files, as Spark has it. A part of a time, such as `hour(at)`,
is a column more, in UTC, and the time itself stays in the files. A batch is sorted once, and each directory gets
slices of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from penstock.columnar.grouping import group
from penstock.connectors.files.latest import columns_of
from penstock.connectors.files.partitions import HIVE_NULL
from penstock.errors import DataError, OptionError

_FORMATS = {"year": "%Y", "month": "%Y-%m", "day": "%Y-%m-%d", "hour": "%Y-%m-%d-%H"}
_DERIVED = re.compile(r"(\w+)\((.+)\)")
_SPECIAL = re.compile(r'[\x00-\x1f"#%\'*/:=?\\\x7f{}\[\]^]')
"""The characters that Spark escapes in paths, and it reads others as they are."""


@dataclass(frozen=True, slots=True)
class PartitionField:
    """One level of directories."""

    name: str
    column: str
    unit: str | None
    """Of the time in `column`; None for the value itself."""


def partition_fields(sink: str, partition_by: str | Sequence[str]) -> tuple[PartitionField, ...]:
    """The levels that a user has named. Raises `OptionError`."""
    fields = tuple(_field(sink, text) for text in columns_of(partition_by))
    names = [field.name for field in fields]
    if len(set(names)) < len(names):
        raise OptionError(f"{sink}: partition_by names a column twice: {', '.join(names)}")
    return fields


def _field(sink: str, text: object) -> PartitionField:
    if not isinstance(text, str) or not text:
        raise OptionError(f"{sink}: partition_by takes names of columns, or day(column), not {text!r}")
    derived = _DERIVED.fullmatch(text)
    if derived is None:
        return PartitionField(text, text, None)
    unit, column = derived.groups()
    if unit not in _FORMATS:
        raise OptionError(f"{sink}: partition_by has no function {unit}(…); it has {', '.join(_FORMATS)}")
    return PartitionField(f"{column}_{unit}", column, unit)


class Partitioner:
    """Divides batches among directories. `where` is named in errors."""

    def __init__(self, fields: Sequence[PartitionField], where: str) -> None:
        self._fields = fields
        self._where = where

    def divided(self, batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Each directory, with a slash at its end, and its rows in their order."""
        keys = [self._key(batch, field) for field in self._fields]
        names = [f"partition {number}" for number in range(len(keys))]
        in_path = {field.column for field in self._fields if field.unit is None}
        kept = [name for name in batch.schema.names if name not in in_path]
        if not kept:
            raise DataError(f"{self._where}: every column is in partition_by, and none is left for the files")
        # Columns of the user may be called as those that are added, so these come first and are found by place.
        rows = batch.select(kept)
        keyed = pa.RecordBatch.from_arrays([*keys, *rows.columns], names=[*names, *(f"row {name}" for name in kept)])
        groups = group(keyed, names, self._where)
        rows = pa.RecordBatch.from_arrays(groups.batch.columns[len(keys) :], schema=rows.schema)
        texts = [self._texts(column, field) for column, field in zip(groups.keys.columns, self._fields, strict=True)]
        for values, start, end in zip(zip(*texts, strict=True), groups.starts, groups.ends, strict=True):
            yield "".join(f"{value}/" for value in values), rows.slice(start, end - start)

    def _key(self, batch: pa.RecordBatch, field: PartitionField) -> pa.Array:
        if batch.schema.names.count(field.column) != 1:
            known = ", ".join(batch.schema.names)
            raise DataError(
                f"{self._where}: partition_by names the column '{field.column}', which is not found, "
                f"or ambiguous; the columns are {known}"
            )
        column = batch.column(field.column)
        if field.unit is None:
            return self._value(column, field)
        if field.name in batch.schema.names:
            raise DataError(
                f"{self._where}: {field.unit}({field.column}) makes the column '{field.name}', which "
                "exists already: rename that one"
            )
        return self._time(column, field)

    def _value(self, column: pa.Array, field: PartitionField) -> pa.Array:
        kind = column.type
        is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
        if is_text or pa.types.is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_date32(kind):
            return column
        raise DataError(
            f"{self._where}: the column '{field.column}' of partition_by is {kind}: use a string, an integer, a "
            f"boolean, a date, or a part of a time such as day({field.column})"
        )

    def _time(self, column: pa.Array, field: PartitionField) -> pa.Array:
        is_date = pa.types.is_date(column.type) and field.unit != "hour"
        if not is_date and not pa.types.is_timestamp(column.type):
            raise DataError(
                f"{self._where}: {field.unit}({field.column}) of partition_by needs a timestamp, and the column is "
                f"{column.type}"
            )
        # Without a zone: Arrow would round in the zone of the column.
        return pc.floor_temporal(column.cast(pa.timestamp("us"), safe=False), unit=field.unit)

    def _texts(self, values: pa.Array, field: PartitionField) -> list[str]:
        if field.unit is None:
            texts = values.cast(pa.string()).to_pylist()
        else:
            texts = pc.strftime(values.cast(pa.timestamp("s")), _FORMATS[field.unit]).to_pylist()
        return [f"{_escaped(field.name)}={self._text(text, field)}" for text in texts]

    def _text(self, text: str | None, field: PartitionField) -> str:
        if text is None:
            return HIVE_NULL
        if text in ("", HIVE_NULL):
            raise DataError(
                f"{self._where}: the value {text!r} of the partition column '{field.column}' cannot "
                "be distinguished from null in a path: replace it in front of the sink"
            )
        return _escaped(text)


def _escaped(text: str) -> str:
    return _SPECIAL.sub(lambda found: f"%{ord(found[0]):02X}", text)
