"""The forms in which a user's function sees records: Arrow batches, pandas or polars frames, or rows.

Everything is stored and sent as Arrow; a form is a pair of conversions around a call. pandas and polars are
imported when a pipeline asks for them and not before.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import pyarrow as pa

from penstock.columnar.records import Columns, columns_of
from penstock.columnar.row_calls import ColumnRows, RowCalls, RowFunction
from penstock.columnar.schemas.schema_guard import SchemaGuard
from penstock.columnar.time_zones import TimeZones
from penstock.columnar.values import rows_of
from penstock.errors import DataError, PipelineError
from penstock.user_code import shortened

As: TypeAlias = Literal["arrow", "pandas", "polars", "rows"]

Records: TypeAlias = Any
"""Records as a function gets them: a batch, a DataFrame, or a list of rows."""


class Format(ABC):
    """One form. `guard` holds the output to one schema."""

    name: str
    one: type
    """The usual type of one output. `is_one` knows the others."""

    def __init__(self, guard: SchemaGuard) -> None:
        self.guard = guard

    @abstractmethod
    def of(self, batch: pa.RecordBatch) -> Records:
        """The batch as the function gets it."""

    @abstractmethod
    def cut(self, whole: Records, start: int, end: int) -> Records:
        """Some rows of what `of` has returned."""

    @abstractmethod
    def batch(self, outputs: Sequence[object]) -> pa.RecordBatch | None:
        """All that a function has returned, each of its results in this form, as one batch; None if no rows."""

    def adopted(self, batch: pa.RecordBatch, zones: Mapping[str, bool]) -> pa.RecordBatch:
        """A batch that this form has made of outputs in another process, in the one schema of all outputs."""
        return self.guard.check(batch)

    @property
    def time_zones(self) -> dict[str, bool]:
        """By column, whether the times of outputs have had a zone, if this form looks at that."""
        return {}

    @abstractmethod
    def is_one(self, output: object) -> bool:
        """Whether a function has returned one output, and not an iterable of them."""

    def outputs(self, returned: object) -> list[object]:
        """What a function has returned, as a list: of nothing, of one output, or of all of an iterable."""
        if returned is None:
            return []
        if self.is_one(returned):
            return [returned]
        if isinstance(returned, Iterable) and not isinstance(returned, str | bytes):
            return list(returned)
        raise self._unexpected(returned)

    def _unexpected(self, output: object) -> DataError:
        return DataError(f"{self.guard.where}: expected {self.expected}, but the function returned {_brief(output)}")

    expected: str


class ArrowFormat(Format):
    name = "arrow"
    one = pa.RecordBatch
    expected = "a pyarrow.RecordBatch (or Table)"

    def of(self, batch: pa.RecordBatch) -> Records:
        return batch

    def cut(self, whole: Records, start: int, end: int) -> Records:
        return whole.slice(start, end - start)

    def is_one(self, output: object) -> bool:
        return isinstance(output, pa.RecordBatch | pa.Table)

    def batch(self, outputs: Sequence[object]) -> pa.RecordBatch | None:
        batches: list[pa.RecordBatch] = []
        for output in outputs:
            if isinstance(output, pa.Table):
                batches += output.to_batches()
            elif isinstance(output, pa.RecordBatch):
                batches.append(output)
            else:
                raise self._unexpected(output)
        return concatenated([self.guard.check(batch) for batch in batches if batch.num_rows])


class PandasFormat(Format):
    """The types stay what they are: a column of integers or booleans with nulls becomes one of pandas' own types for
    those, which are Arrow's integers and booleans again on the way back."""

    name = "pandas"
    expected = "a pandas.DataFrame"

    def __init__(self, guard: SchemaGuard) -> None:
        super().__init__(guard)
        self._pandas: Any = importlib.import_module("pandas")
        self.one = self._pandas.DataFrame

    def of(self, batch: pa.RecordBatch) -> Records:
        changed = [position for position, column in enumerate(batch.columns) if _needs_nullable(column)]
        # Integers beside a null within a list or struct would become floats, which are other numbers from 2⁵³ on.
        if not changed:
            return batch.to_pandas(integer_object_nulls=True)
        frame = self._pandas.DataFrame(
            {
                position: column.to_pandas(
                    types_mapper=self._nullable if position in changed else None, integer_object_nulls=True
                )
                for position, column in enumerate(batch.columns)
            }
        )
        frame.columns = batch.schema.names
        return frame

    def _nullable(self, kind: pa.DataType) -> Any:
        if pa.types.is_boolean(kind):
            return self._pandas.BooleanDtype()
        sign = "U" if pa.types.is_unsigned_integer(kind) else ""
        return getattr(self._pandas, f"{sign}Int{kind.bit_width}Dtype")()

    def cut(self, whole: Records, start: int, end: int) -> Records:
        return whole.iloc[start:end].reset_index(drop=True)

    def is_one(self, output: object) -> bool:
        return isinstance(output, self._pandas.DataFrame)

    def _filled(self, outputs: Sequence[object]) -> list[object]:
        """The frames that have rows. Raises `DataError` for an output that is no frame."""
        for output in outputs:
            if not self.is_one(output):
                raise self._unexpected(output)
        frames: Sequence[Any] = outputs
        return [frame for frame in frames if len(frame)]

    def batch(self, outputs: Sequence[object]) -> pa.RecordBatch | None:
        filled = self._filled(outputs)
        if not filled:
            return None
        frame = filled[0] if len(filled) == 1 else self._pandas.concat(filled, ignore_index=True)
        try:
            table = pa.Table.from_pandas(frame, preserve_index=False)
        except (pa.ArrowException, TypeError, ValueError) as error:
            raise DataError(f"{self.guard.where}: the DataFrame cannot become Arrow: {error}") from error
        batch = concatenated(table.replace_schema_metadata(None).to_batches())
        return None if batch is None else self.guard.check(batch)


class PolarsFormat(Format):
    name = "polars"
    expected = "a polars.DataFrame"

    def __init__(self, guard: SchemaGuard) -> None:
        super().__init__(guard)
        self._polars: Any = importlib.import_module("polars")
        self.one = self._polars.DataFrame

    def of(self, batch: pa.RecordBatch) -> Records:
        return self._polars.from_arrow(batch)

    def cut(self, whole: Records, start: int, end: int) -> Records:
        return whole.slice(start, end - start)

    def is_one(self, output: object) -> bool:
        return isinstance(output, self._polars.DataFrame)

    def batch(self, outputs: Sequence[object]) -> pa.RecordBatch | None:
        batches: list[pa.RecordBatch] = []
        frames: Sequence[Any] = outputs
        for frame in frames:
            if not self.is_one(frame):
                raise self._unexpected(frame)
            batches += frame.to_arrow().to_batches()
        return concatenated([self.guard.check(batch) for batch in batches if batch.num_rows])


class RowsFormat(Format):
    """A row is a dictionary on the way in. On the way out it is a dictionary, or what PySpark calls a Row; a tuple
    where the output's schema is declared."""

    name = "rows"
    one = dict
    expected = "a row: a dict, a Row, or a tuple where schema= says what its fields are"

    def __init__(self, guard: SchemaGuard) -> None:
        super().__init__(guard)
        self._checked: pa.Schema | None = None
        self._zones = TimeZones(guard.where)
        self._check_types()

    def _check_types(self) -> None:
        """Arrow cannot make every type from Python values: say so before the first row comes, with the column."""
        schema = self.guard.schema
        if schema is None or schema is self._checked:
            return
        self._checked = schema
        for field in schema:
            try:
                pa.array([], field.type)
            except (pa.ArrowException, NotImplementedError) as error:
                raise DataError(
                    f"{self.guard.where}: Arrow cannot make the column '{field.name}' of type {field.type} from rows: "
                    f"cast it in front of this operator, or use a function of batches"
                ) from error

    def of(self, batch: pa.RecordBatch) -> Records:
        return rows_of(batch)

    def cut(self, whole: Records, start: int, end: int) -> Records:
        return whole[start:end]

    def is_one(self, output: object) -> bool:
        return isinstance(output, dict | tuple)

    def outputs(self, returned: object) -> list[object]:
        # Most functions of rows return a list or are generators: one question instead of three.
        return returned if type(returned) is list else super().outputs(returned)

    def batch(self, outputs: Sequence[object]) -> pa.RecordBatch | None:
        if not outputs:
            return None
        self._check_types()
        schema = self.guard.schema
        names, columns = self._columns(outputs, schema)
        if schema is not None:
            return self._made(schema, columns, outputs)
        with self._telling(outputs, columns, ()):
            batch = self.guard.check(pa.record_batch([pa.array(column) for column in columns], names=names))
        self._zones.check(batch.schema, columns, outputs)
        return batch

    def mapped(self, function: RowFunction, batch: pa.RecordBatch) -> pa.RecordBatch | None:
        """The results of a function for the rows of a batch, one for each."""
        rows, schema = RowCalls(batch), self.guard.schema
        if schema is None or not rows.count:
            return self.batch(rows.results(function))
        self._check_types()
        names = tuple(schema.names)
        columns, odd = rows.columns(function, names)
        if odd:
            return self.batch([*ColumnRows(names, columns), *odd])
        # A text that the function has passed on is in a column already.
        kept = [
            batch.column(field.name) if _is_text(field.type) and _is_passed_on(field, column, batch, rows) else None
            for field, column in zip(schema, columns, strict=True)
        ]
        return self._made(schema, columns, ColumnRows(names, columns), kept)

    def collected(self) -> Collected:
        """A place for outputs, to be added by `RowCalls.outputs`."""
        self._check_types()
        return Collected(self)

    def made(self, columns: Sequence[Sequence[object]]) -> pa.RecordBatch:
        """A batch of these columns of the schema, which is known."""
        schema = self.guard.schema
        assert schema is not None
        return self._made(schema, columns, ColumnRows(schema.names, columns))

    def _made(
        self,
        schema: pa.Schema,
        columns: Sequence[Sequence[object]],
        rows: Sequence[object],
        kept: Iterable[pa.Array | None] = itertools.repeat(None),
    ) -> pa.RecordBatch:
        """A batch of these columns, of which some are Arrow's already; `rows` are the same, to be shown in errors."""
        with self._telling(rows, columns, schema.types):
            arrays = [
                pa.array(column, kind) if array is None else array
                for column, kind, array in zip(columns, schema.types, kept, strict=False)
            ]
            batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
        self._zones.check(batch.schema, columns, rows)
        return batch

    @contextlib.contextmanager
    def _telling(
        self, rows: Sequence[object], columns: Sequence[Sequence[object]], kinds: Sequence[pa.DataType]
    ) -> Iterator[None]:
        try:
            yield
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            hint = "" if self.guard.is_declared else ". Types were taken from the first batch: set schema=… instead"
            row = _first_refused(rows, columns, kinds)
            raise DataError(f"{self.guard.where}: rows cannot become Arrow: {error}{row}{hint}") from error

    def adopted(self, batch: pa.RecordBatch, zones: Mapping[str, bool]) -> pa.RecordBatch:
        self._zones.agree(zones)
        known = self.guard.schema
        if known is None or batch.schema.equals(known):
            return self.guard.check(batch)
        # It was made before anybody knew the types of the first batch.
        made = self.batch(rows_of(batch))
        assert made is not None
        return made

    @property
    def time_zones(self) -> dict[str, bool]:
        return self._zones.found

    def _columns(self, outputs: Sequence[object], schema: pa.Schema | None) -> Columns:
        """The names and values of the columns, which are those of the schema if there is one."""
        made = columns_of(outputs, None if schema is None else tuple(schema.names))
        return self._columns_of_each(outputs, schema) if made is None else made

    def _columns_of_each(self, outputs: Sequence[object], schema: pa.Schema | None) -> Columns:
        """The same for rows that are not all alike."""
        rows = [self._as_dict(output, schema) for output in outputs]
        if schema is None:
            # Arrow would take the fields from the first row, and leave out what only others have.
            names = tuple(dict.fromkeys(name for row in rows for name in row))
        else:
            self._check_fields(rows, schema)
            names = tuple(schema.names)
        return names, [[row.get(name) for row in rows] for name in names]

    def _check_fields(self, rows: Sequence[Mapping[str, object]], schema: pa.Schema) -> None:
        """Arrow would leave out what the schema does not name, and fill up what a row does not have, without a word."""
        known = set(schema.names)
        for number, row in enumerate(rows):
            if not known.issuperset(row):
                odd = ", ".join(sorted(map(str, set(row) - known)))
                raise DataError(f"{self.guard.where}: a row has the fields {odd}, which the schema lacks: {schema}")
            if self.guard.is_declared and len(row) < len(known):
                missing = ", ".join(f"'{name}'" for name in schema.names if name not in row)
                raise DataError(
                    f"{self.guard.where}: row {number} of {len(rows)} in its batch does not have the field {missing} "
                    f"of the declared schema: {shortened(repr(row))}. Return it, as None if there is no value, or take "
                    f"it out of schema="
                )

    def _as_dict(self, output: object, schema: pa.Schema | None) -> Mapping[str, object]:
        if isinstance(output, dict):
            return output
        for method in ("asDict", "_asdict"):
            if hasattr(output, method):
                fields: Mapping[str, object] = getattr(output, method)()
                return fields
        if isinstance(output, tuple | list) and schema is not None and len(output) == len(schema):
            return dict(zip(schema.names, output, strict=True))
        raise self._unexpected(output)


_FORMS: dict[str, type[Format]] = {
    format.name: format for format in (ArrowFormat, PandasFormat, PolarsFormat, RowsFormat)
}


def _first_refused(rows: Sequence[object], columns: Sequence[Sequence[object]], kinds: Sequence[pa.DataType]) -> str:
    """Which row it was that Arrow does not take; empty if each one alone would do. Only ever asked after a failure."""
    for number, row in enumerate(rows):
        try:
            for column, kind in zip(columns, kinds, strict=False):
                pa.array([column[number]], kind)
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            return f", in row {number} of {len(rows)} in its batch, {shortened(repr(row))}"
    return ""


def check_format(as_: str, operator: str) -> None:
    """Raise `PipelineError` if there is no such form, or what it needs is not installed."""
    if as_ not in _FORMS:
        raise PipelineError(f"operator '{operator}': format is {as_!r}: it must be one of {', '.join(_FORMS)}")
    if as_ in ("pandas", "polars"):
        try:
            importlib.import_module(as_)
        except ImportError as error:
            raise PipelineError(
                f"operator '{operator}' wants its records as {as_}, which is not installed: "
                f"pip install {'penstock[polars]' if as_ == 'polars' else as_}, here and on the workers"
            ) from error


def format_of(as_: str, guard: SchemaGuard) -> Format:
    return _FORMS[as_](guard)


def concatenated(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch | None:
    """All rows as one batch; None if there are none."""
    filled = [batch for batch in batches if batch.num_rows]
    if len(filled) <= 1:
        return filled[0] if filled else None
    return pa.concat_batches(filled)


def _needs_nullable(column: pa.Array) -> bool:
    kind = column.type
    return bool(column.null_count) and (pa.types.is_integer(kind) or pa.types.is_boolean(kind))


class Collected:
    """Outputs of a function of rows that have not left yet: as columns, as long as they are rows of the schema."""

    __slots__ = ("_format", "columns", "names", "odd")

    def __init__(self, format: RowsFormat) -> None:
        schema = format.guard.schema
        self._format = format
        self.names: tuple[str, ...] = () if schema is None else tuple(schema.names)
        self.columns: list[list[object]] = [[] for _ in self.names]
        self.odd: list[object] = []
        """Those that are something else, and all behind them."""

    def rows(self) -> list[object]:
        return [*ColumnRows(self.names, self.columns), *self.odd]

    def batch(self) -> pa.RecordBatch | None:
        """Those that are columns; None if there are none."""
        return self._format.made(self.columns) if self.columns and self.columns[0] else None

    def clear(self) -> None:
        self.odd.clear()
        for column in self.columns:
            column.clear()


def _is_text(kind: pa.DataType) -> bool:
    """Whether equal values of this type are the same: of numbers they are not, 1 and True or 0.0 and -0.0."""
    return kind.id in _TEXT


def _is_passed_on(field: pa.Field, returned: list[object], batch: pa.RecordBatch, rows: RowCalls) -> bool:
    """Whether a function has returned the column of this name that it was given."""
    given = rows.values(field.name)
    return given is not None and batch.schema.field(field.name).type == field.type and returned == given


_TEXT = {kind.id for kind in (pa.string(), pa.large_string(), pa.binary(), pa.large_binary())}


def _brief(value: object) -> str:
    text = repr(value)
    return f"{type(value).__name__}: {text if len(text) <= 80 else text[:77] + '…'}"
