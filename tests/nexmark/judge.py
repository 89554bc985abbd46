"""DuckDB answers a question about the same events, and the answers are compared."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import duckdb
import pyarrow as pa

from examples.nexmark.generator import COLUMNS, Shape, table
from examples.nexmark.queries.joins import SIDE_TABLE
from tests.nexmark.questions import Compared, Question

Row: TypeAlias = tuple[Any, ...]
Answer: TypeAlias = Counter[Row]

_OPERATION = "op"
"""The column of a changelog: insert, update or delete."""


@functools.cache
def _database(shape: Shape, events: int) -> duckdb.DuckDBPyConnection:
    database = duckdb.connect()
    database.execute("SET TimeZone = 'UTC'; SET threads = 1")
    for kind in COLUMNS:
        database.register(kind, table(shape, kind, events))
    database.register("side_table", SIDE_TABLE)
    return database


def right_answer(question: Question) -> pa.Table:
    """The answer of DuckDB to a question about the first events."""
    return _database(question.shape, question.events).sql(question.sql).to_arrow_table()


def differences(question: Question, ours: Sequence[pa.RecordBatch]) -> list[str]:
    """Rows that are missing, and rows that should not be there; of each at most three."""
    expected = right_answer(question)
    columns = expected.column_names
    right = Counter(_rows(expected, columns))
    found = _answer(question, ours, columns)
    if question.is_part:
        keys = {row[: len(question.key)] for row in right}
        found = Counter({row: count for row, count in found.items() if row[: len(question.key)] in keys})
    missing, surplus = right - found, found - right
    return [
        *(f"missing, {count} times: {dict(zip(columns, row, strict=True))}" for row, count in missing.most_common(3)),
        *(f"not right, {count} times: {dict(zip(columns, row, strict=True))}" for row, count in surplus.most_common(3)),
    ]


def _answer(question: Question, batches: Sequence[pa.RecordBatch], columns: Sequence[str]) -> Answer:
    rows = (row for batch in batches for row in _rows(batch, columns))
    operations = (each for batch in batches for each in _operations(batch))
    match question.compared:
        case Compared.ROWS:
            return _applied(rows, operations)
        case Compared.LAST:
            last: dict[Row, Row] = {}
            for row, operation in zip(rows, operations, strict=True):
                key = row[: len(question.key)]
                if operation != "delete":
                    last[key] = row
                elif last.get(key) == row:
                    # The row that took its place may have come before: then there is nothing to delete.
                    del last[key]
            return Counter(last.values())
        case Compared.TOTAL:
            return Counter([(sum(row[-1] for row in rows),)])


def _applied(rows: Iterable[Row], operations: Iterable[str]) -> Answer:
    """The rows that are left of a changelog: a delete takes back one row with the same values."""
    answer: Answer = Counter()
    for row, operation in zip(rows, operations, strict=True):
        answer[row] += -1 if operation == "delete" else 1
    return +answer


def _operations(batch: pa.RecordBatch) -> Iterable[str]:
    if _OPERATION not in batch.schema.names:
        return ["insert"] * batch.num_rows
    return [str(each) for each in batch[_OPERATION].to_pylist()]


def _rows(batch: pa.RecordBatch | pa.Table, columns: Sequence[str]) -> Iterable[Row]:
    return zip(*(_values(batch[column]) for column in columns), strict=True)


def _values(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    """Values that are equal if they mean the same: times of any unit, decimals of any scale, floats to nine digits."""
    if pa.types.is_timestamp(column.type):
        return list(column.cast(pa.timestamp("ms")).cast(pa.int64()).to_pylist())
    if pa.types.is_floating(column.type):
        return [None if value is None else float(f"{value:.9g}") for value in column.to_pylist()]
    return list(column.to_pylist())
