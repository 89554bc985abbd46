"""The columns of a joined row: those of the left side, then those of the right one.

A key column that has one name on both sides is there once, with the value of whichever row there is. Any other column
of the right side whose name the left one has gets a suffix. A row without a partner has nulls in the columns of the
other side.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from penstock.columnar.plain import plain
from penstock.errors import DataError
from penstock.operators.join.keys import common_type


@dataclass(frozen=True, slots=True)
class _Column:
    """A column of the output, and where it comes from; `sources` has a name for each side that has it."""

    name: str
    kind: pa.DataType
    sources: tuple[str | None, str | None]


class JoinOutput:
    """Makes joined rows of rows of two schemas. Raises `DataError` if their keys or names do not go together."""

    def __init__(
        self, schemas: Sequence[pa.Schema], keys: Sequence[tuple[str, ...]], *, suffix: str, added: Sequence[str]
    ) -> None:
        left, right = schemas
        self.key_kinds = [key_type(left.field(ours), right.field(theirs)) for ours, theirs in zip(*keys, strict=True)]
        shared = {ours: kind for ours, theirs, kind in zip(*keys, self.key_kinds, strict=True) if ours == theirs}
        self._columns = [
            _Column(
                field.name,
                shared.get(field.name, field.type),
                (field.name, field.name if field.name in shared else None),
            )
            for field in left
        ]
        for field in right:
            if field.name not in shared:
                name = f"{field.name}{suffix}" if field.name in left.names else field.name
                self._columns.append(_Column(name, field.type, (None, field.name)))
        self._names = [*(column.name for column in self._columns), *added]
        twice = sorted({name for name in self._names if self._names.count(name) > 1})
        if twice:
            raise DataError(
                f"the result would have the column '{twice[0]}' twice: choose another suffix=…, or rename the column "
                f"on one side with rename"
            )

    def rows(self, sides: Sequence[pa.RecordBatch | None], added: Mapping[str, pa.Array]) -> pa.RecordBatch:
        """Joined rows. A side that is None has no row."""
        count = next(batch.num_rows for batch in sides if batch is not None)
        arrays = [self._array(column, sides, count) for column in self._columns]
        return pa.RecordBatch.from_arrays([*arrays, *added.values()], names=self._names)

    def _array(self, column: _Column, sides: Sequence[pa.RecordBatch | None], count: int) -> pa.Array:
        for source, batch in zip(column.sources, sides, strict=True):
            if source is not None and batch is not None:
                array = batch.column(source)
                return array if array.type == column.kind else plain(array).cast(column.kind)
        return pa.nulls(count, column.kind)


def key_type(left: pa.Field, right: pa.Field) -> pa.DataType:
    """The type of the keys of both sides. Raises `DataError` if they cannot be equal."""
    kind = common_type(left.type, right.type)
    if kind is None:
        raise DataError(
            f"the key '{left.name}' of the left side is {left.type} and the key '{right.name}' of the right side is "
            f'{right.type}, which are never equal: cast one of them before key_by, such as cast({{"{right.name}": …}})'
        )
    return kind
