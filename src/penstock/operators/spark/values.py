"""The values that a processor of PySpark sees, and those that it returns: the same types as in `transformWithState`.

This is the one place that knows them. Frames and rows are converted by PySpark's own rules, with PySpark's own code
where a type is nested; a column that needs no conversion is left as it is. In short:

- times with a zone are in the session's zone: naive in pandas, aware in rows; in state they are naive and local;
- in pandas integers are int64, or float64 if the batch has a null; numbers with a point are float64;
- structs are dictionaries in a record and Rows in state, maps are dictionaries in pandas and in state.

`docs/processors.md` has the whole table.
"""

from __future__ import annotations

import datetime
import functools
import importlib
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from penstock.columnar.plain import plain
from penstock.columnar.records import Columns
from penstock.columnar.schemas.schema_guard import SchemaGuard
from penstock.columnar.values import tuples_of, values_of
from penstock.errors import DataError
from penstock.operators.formats import PandasFormat, Records, RowsFormat, concatenated
from penstock.operators.spark.frames import arrow_columns, frame_cut, joined_frames

Convert: TypeAlias = Callable[[Any], Any]
Row: TypeAlias = tuple[Any, ...]


@functools.cache
def _pyspark(module: str, name: str) -> Any:
    # PySpark is imported where a processor runs, and not before: the import takes a second.
    return getattr(importlib.import_module(module), name)


# --- state ---


class StateTuples:
    """The tuples of one state: converted on their way in and out, where their types need it."""

    def __init__(self, schema: pa.Schema) -> None:
        self._kept = [_kept_by(field.type, local=True) for field in schema]
        self._seen = [_seen_by(field.type) for field in schema]
        self._is_kept_as_given = not any(self._kept)
        self.is_seen_as_kept = not any(self._seen)
        self._row = row_maker(tuple(schema.names))

    def kept(self, value: object) -> Row:
        """The tuple for the state. A state of one field takes its value without a tuple around it too."""
        if self._is_kept_as_given and type(value) is tuple:
            return value
        if not isinstance(value, tuple | list):
            value = (value,)
        value = tuple(value)
        if self._is_kept_as_given or len(value) != len(self._kept):
            return value
        return tuple([item if by is None else by(item) for by, item in zip(self._kept, value, strict=True)])

    def seen(self, row: Row) -> Row:
        """The tuple as a processor gets it."""
        if self.is_seen_as_kept:
            return row
        return tuple([item if by is None else by(item) for by, item in zip(self._seen, row, strict=True)])

    def row(self, row: Row) -> Any:
        """The tuple as a Row."""
        return self._row(row if self.is_seen_as_kept else self.seen(row))


@functools.lru_cache(maxsize=1024)
def row_maker(names: tuple[str, ...]) -> Convert:
    """Makes Rows of PySpark from an iterable of values.

    They are of a class for these names, so that neither the names nor a dictionary are kept for each Row, and a field
    is found without a search. A Row that is pickled, or copied, is one of PySpark's own class again.
    """
    row = _pyspark("pyspark.sql.types", "Row")
    members: dict[str, Any] = {"__fields__": list(names), "__module__": row.__module__, "__qualname__": "Row"}
    positions = {name: position for position, name in reversed(list(enumerate(names)))}
    by_position, by_name = tuple.__getitem__, row.__getitem__

    def item_of(self: Row, item: Any) -> Any:
        if type(item) is str and item in positions:
            return by_position(self, positions[item])
        return by_name(self, item)

    members["__getitem__"] = item_of
    for position, name in reversed(list(enumerate(names))):
        # Methods of a tuple and of Row hide fields of their names, as in PySpark; of two equal names the first counts.
        if not name.startswith("__") and not hasattr(row, name):
            members[name] = property(operator.itemgetter(position))
    return functools.partial(tuple.__new__, type("Row", (row,), members))


def _is_instant(kind: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(kind) and kind.tz is not None)


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _nullable(convert: Convert) -> Convert:
    return lambda value: None if value is None else convert(value)


def _kept_by(kind: pa.DataType, *, local: bool) -> Convert | None:
    """Brings a value of a user into the form that Arrow takes for `kind`; None if there is nothing to do.

    `local`: a time without a zone is in the zone of the process, as in PySpark's states; else Arrow takes it for UTC.
    """
    if pa.types.is_timestamp(kind):
        return _kept_instant if local and kind.tz is not None else _kept_time
    if pa.types.is_struct(kind):
        return _nullable(functools.partial(_kept_struct, [(f.name, _kept_by(f.type, local=local)) for f in kind]))
    if pa.types.is_map(kind):
        key, item = _kept_by(kind.key_type, local=local), _kept_by(kind.item_type, local=local)
        return _nullable(functools.partial(_kept_map, key, item))
    if _is_list(kind):
        return _nullable(functools.partial(_kept_list, _kept_by(kind.value_type, local=local)))
    return None


def _kept_time(value: Any) -> Any:
    # NaT of pandas is not equal to itself.
    if value is None or value != value:  # noqa: PLR0124
        return None
    return value.to_pydatetime(warn=False) if hasattr(value, "to_pydatetime") else value


def _kept_instant(value: Any) -> Any:
    value = _kept_time(value)
    return value.astimezone(datetime.UTC) if isinstance(value, datetime.datetime) else value


def _kept_struct(fields: Sequence[tuple[str, Convert | None]], value: object) -> object:
    if isinstance(value, dict):
        items = [value.get(name) for name, _ in fields]
        if odd := set(value) - {name for name, _ in fields}:
            raise ValueError(
                f"a struct of {', '.join((name for name, _ in fields))} has no field {', '.join(map(str, odd))}"
            )
    elif isinstance(value, tuple | list) and len(value) == len(fields):
        items = list(value)
    else:
        return value
    return {name: item if by is None else by(item) for (name, by), item in zip(fields, items, strict=True)}


def _kept_map(key_by: Convert | None, item_by: Convert | None, value: Any) -> object:
    pairs = value.items() if isinstance(value, dict) else value
    if key_by is None and item_by is None:
        return list(pairs)
    return [(key if key_by is None else key_by(key), item if item_by is None else item_by(item)) for key, item in pairs]


def _kept_list(by: Convert | None, value: Any) -> object:
    if isinstance(value, str | bytes):
        return value
    return list(value) if by is None else [by(item) for item in value]


def _seen_by(kind: pa.DataType) -> Convert | None:
    """Makes of a value that Arrow gives for `kind` the one that PySpark gives; None if they are the same."""
    if _is_instant(kind):
        return _nullable(_seen_instant)
    if pa.types.is_struct(kind):
        row = row_maker(tuple(field.name for field in kind))
        return _nullable(functools.partial(_seen_struct, [(f.name, _seen_by(f.type)) for f in kind], row))
    if pa.types.is_map(kind):
        return _nullable(functools.partial(_seen_map, _seen_by(kind.key_type), _seen_by(kind.item_type)))
    if _is_list(kind):
        by = _seen_by(kind.value_type)
        return None if by is None else _nullable(lambda value: [by(item) for item in value])
    return None


def _seen_instant(value: Any) -> Any:
    value = value.to_pydatetime() if hasattr(value, "to_pydatetime") else value
    return value.astimezone().replace(tzinfo=None)


def _seen_struct(fields: Sequence[tuple[str, Convert | None]], row: Convert, value: Mapping[str, object]) -> object:
    return row([value[name] if by is None else by(value[name]) for name, by in fields])


def _seen_map(key_by: Convert | None, item_by: Convert | None, value: Any) -> object:
    return {key if key_by is None else key_by(key): item if item_by is None else item_by(item) for key, item in value}


# --- records ---


def in_zone(kind: pa.DataType, zone: str) -> pa.DataType:
    """The type with all its times in `zone`."""
    if _is_instant(kind):
        return pa.timestamp(kind.unit, zone)
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(in_zone(field.type, zone)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(in_zone(kind.key_type, zone), in_zone(kind.item_type, zone))
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(in_zone(kind.value_type, zone)))
    return kind


def _column_in_zone(column: pa.Array, zone: str) -> pa.Array:
    kind = in_zone(column.type, zone)
    return column if kind == column.type else column.cast(kind)


class SparkRowsFormat(RowsFormat):
    """Rows as PySpark has them."""

    def __init__(self, guard: SchemaGuard, zone: str) -> None:
        super().__init__(guard)
        self._zone = zone
        kept = {} if guard.schema is None else {f.name: _kept_by(f.type, local=False) for f in guard.schema}
        self._kept = {name: by for name, by in kept.items() if by is not None}

    def of(self, batch: pa.RecordBatch) -> Records:
        return list(map(row_maker(tuple(batch.schema.names)), self.keys(batch)))

    def keys(self, keys: pa.RecordBatch) -> list[Row]:
        """The keys as a processor sees them: one tuple for each row."""
        return tuples_of([_column_in_zone(column, self._zone) for column in keys.columns], keys.num_rows)

    def _columns(self, outputs: Sequence[object], schema: pa.Schema | None) -> Columns:
        # Without a schema nothing but a look at each row says that Rows within it have names.
        names, columns = self._columns_of_each(outputs, None) if schema is None else super()._columns(outputs, schema)
        return names, [
            [self._kept[name](value) for value in column] if name in self._kept else column
            for name, column in zip(names, columns, strict=True)
        ]

    def _as_dict(self, output: object, schema: pa.Schema | None) -> Mapping[str, object]:
        if schema is None and hasattr(output, "asDict"):
            as_dict: Mapping[str, object] = output.asDict(True)
            return as_dict
        return super()._as_dict(output, schema)


class SparkPandasFormat(PandasFormat):
    """DataFrames as PySpark has them: frames that it would build from the rows of a key."""

    def __init__(self, guard: SchemaGuard, zone: str) -> None:
        super().__init__(guard)
        self._zone = zone
        self._inferred: list[int] = []
        """The columns of the batch in hand whose type depends on which rows a frame has."""
        self._declared = _spark_schema(guard.schema) if guard.is_declared else None
        self._cut = frame_cut(self._pandas.DataFrame, self._pandas.RangeIndex)

    def of(self, batch: pa.RecordBatch) -> Records:
        series = [self._series(column) for column in batch.columns]
        frame = self._pandas.DataFrame(dict(enumerate(series)), copy=True)
        frame.columns = batch.schema.names
        is_open = [pa.types.is_boolean(column.type) and column.null_count > 0 for column in batch.columns]
        self._inferred = [position for position, is_so in enumerate(is_open) if is_so]
        return frame

    def cut(self, whole: Records, start: int, end: int) -> Records:
        # `of` has copied all columns into a frame of its own, of which each row is handed over once.
        frame = self._cut(whole, start, end, self._pandas.RangeIndex)
        for position in self._inferred:
            frame.isetitem(position, frame.iloc[:, position].infer_objects())
        return frame

    def keys(self, keys: pa.RecordBatch) -> list[Row]:
        """The keys as a processor sees them: one tuple for each row."""
        columns = [
            self._series(column).tolist() if pa.types.is_timestamp(column.type) else values_of(column)
            for column in keys.columns
        ]
        return list(zip(*columns, strict=True))

    def _series(self, column: pa.Array) -> Any:
        column = plain(column)
        kind = column.type
        if pa.types.is_timestamp(kind):
            if kind.tz is not None:
                column = pc.local_timestamp(column.cast(pa.timestamp(kind.unit, self._zone)))
            return column.to_pandas(coerce_temporal_nanoseconds=True)
        if pa.types.is_duration(kind):
            return column.to_pandas(coerce_temporal_nanoseconds=True)
        if pa.types.is_nested(kind):
            return self._nested(column)
        series = column.to_pandas()
        if pa.types.is_signed_integer(kind) and not column.null_count:
            return series.astype("int64", copy=False)
        return series.astype("float64", copy=False) if pa.types.is_floating(kind) else series

    def _nested(self, column: pa.Array) -> Any:
        spark_type = _spark_type(column.type)
        if spark_type is None:
            return column.to_pandas(maps_as_pydicts="strict")
        return _pyspark("pyspark.sql.conversion", "ArrowArrayToPandasConversion").convert(
            column, spark_type, timezone=self._zone
        )

    def batch(self, outputs: Sequence[object]) -> pa.RecordBatch | None:
        if self._declared is None:
            return super().batch([self._in_zone(frame) for frame in self._filled(outputs)])
        filled = self._filled(outputs)
        if not filled:
            return None
        schema = self.guard.schema
        assert schema is not None
        columns = arrow_columns(filled, schema)
        if columns is not None:
            return self.guard.check(pa.RecordBatch.from_arrays(columns, names=schema.names))
        return concatenated([self._to_arrow(frame) for frame in joined_frames(filled)])

    def _in_zone(self, frame: Any) -> Any:
        """The frame with the times in the session's zone that the declared schema wants with a zone."""
        schema = self.guard.schema if self.guard.is_declared else None
        naive = [field.name for field in schema or () if _is_instant(field.type) and _is_naive(frame, field.name)]
        if not naive:
            return frame
        # As PySpark has it: of the hour that comes twice, the second one.
        return frame.assign(**{name: frame[name].dt.tz_localize(self._zone, ambiguous=False) for name in naive})

    def _to_arrow(self, frame: Any) -> pa.RecordBatch:
        assert self._declared is not None
        names = self._declared.names
        given = list(frame.columns)
        is_named = any(isinstance(name, str) for name in given)
        if len(given) != len(names) or (is_named and sorted(map(str, given)) != sorted(names)):
            raise DataError(
                f"{self.guard.where}: the DataFrame has the columns {', '.join(map(str, given)) or 'none'}, and the "
                f"declared schema has {', '.join(names)}"
            )
        try:
            batch = _pyspark("pyspark.sql.conversion", "PandasToArrowConversion").convert(
                frame, self._declared, timezone=self._zone, arrow_cast=True, assign_cols_by_name=True
            )
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            cause = f": {error.__cause__}" if error.__cause__ is not None else ""
            raise DataError(f"{self.guard.where}: the DataFrame cannot become Arrow: {error}{cause}") from error
        return self.guard.check(batch)


@functools.cache
def _spark_type(kind: pa.DataType) -> Any:
    """The type of PySpark, or None if it has no such type."""
    try:
        return _pyspark("pyspark.sql.pandas.types", "from_arrow_type")(kind)
    except (TypeError, ValueError):
        return None


def _is_naive(frame: Any, name: str) -> bool:
    return name in frame.columns and str(frame[name].dtype).startswith("datetime64") and frame[name].dt.tz is None


def _spark_schema(schema: pa.Schema) -> Any:
    """The schema of PySpark, or None if it has no such types. Its times are no finer than microseconds."""
    if any("[ns" in str(kind) for kind in schema.types):
        return None
    try:
        return _pyspark("pyspark.sql.pandas.types", "from_arrow_schema")(schema)
    except (TypeError, ValueError):
        return None
