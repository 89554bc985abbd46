"""Columns of a stream: choosing, computing, removing, renaming and casting them, without a Python function."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from penstock.api.arguments import UserFunction, require_columns, require_expressions, require_mapping, type_of
from penstock.api.stream_base import StreamBase
from penstock.errors import PipelineError
from penstock.model.changelog import OP
from penstock.operators import columns as operators

if TYPE_CHECKING:
    from penstock.api.stream import Stream


class ColumnStream(StreamBase):
    """The methods of a stream that work on whole columns.

    An expression is one of Arrow: `pc.field("amount") * 2`, with `import pyarrow.compute as pc`. It is evaluated for
    whole batches. A column that is not there is a `DataError` that names those that are.
    """

    def select(
        self,
        *columns: str,
        name: str | None = None,
        parallelism: int | None = None,
        **expressions: pc.Expression,
    ) -> Stream:
        """Select columns, in this order, followed by computed ones.

        Example:

            >>> collect(orders.select("user", double=pc.field("amount") * 2))
            [{'user': 'ada', 'double': 6}, {'user': 'ben', 'double': -2}, {'user': 'ada', 'double': 10}]
        """
        if any(isinstance(column, pc.Expression) for column in columns):
            raise PipelineError(
                'select: an expression needs a name for its column: select(double=pc.field("amount") * 2)'
            )
        require_columns("select", (*columns, *expressions))
        require_expressions(expressions)
        made = functools.partial(operators.SelectOperator, columns, expressions)
        # Which columns an expression reads, Arrow does not say.
        stream = self._node("select", made, name, parallelism, reads=None if expressions else columns)
        return stream if OP in columns else stream._as_changelog(None)

    def with_column(
        self,
        column: str,
        value: pc.Expression | UserFunction,
        *,
        name: str | None = None,
        parallelism: int | None = None,
    ) -> Stream:
        """Add or replace a column, by an expression or by a function of a batch that returns an array.

        Example:

            >>> collect(orders.with_column("is_refund", pc.field("amount") < 0).select("is_refund"))
            [{'is_refund': False}, {'is_refund': True}, {'is_refund': False}]
            >>> collect(orders.with_column("half", lambda batch: pc.divide(batch["amount"], 2)).select("half"))
            [{'half': 1}, {'half': 0}, {'half': 2}]
        """
        require_columns("with_column", (column,))
        made = functools.partial(operators.WithColumnOperator, column, value)
        if isinstance(value, pc.Expression):
            return self._node("with_column", made, name, parallelism)
        if not callable(value):
            raise PipelineError(f"with_column takes an Arrow expression or a function, not {value!r}")
        return self._node("with_column", made, name, parallelism)

    def drop(self, *columns: str, name: str | None = None, parallelism: int | None = None) -> Stream:
        """All columns but these.

        Example:

            >>> collect(orders.drop("at", "amount"))
            [{'user': 'ada'}, {'user': 'ben'}, {'user': 'ada'}]
        """
        require_columns("drop", columns)
        stream = self._node("drop", functools.partial(operators.DropOperator, columns), name, parallelism)
        return stream._as_changelog(None) if OP in columns else stream

    def rename(self, names: Mapping[str, str], *, name: str | None = None, parallelism: int | None = None) -> Stream:
        """Rename columns: new names by old ones. The event-time column may be among them.

        Example:

            >>> collect(orders.rename({"user": "customer"}).drop("at"))[0]
            {'customer': 'ada', 'amount': 3}
        """
        require_mapping("rename", names, '{"user": "customer"}')
        require_columns("rename", tuple(names.values()))
        stream = self._node("rename", functools.partial(operators.RenameOperator, dict(names)), name, parallelism)
        timed = self._event_time
        return stream if timed is None else stream._timed(names.get(timed, timed))

    def cast(
        self,
        types: Mapping[str, pa.DataType | str],
        *,
        name: str | None = None,
        parallelism: int | None = None,
    ) -> Stream:
        """Cast columns to Arrow types, or to types of a DDL string. A value that does not fit is a `DataError`.

        Example:

            >>> collect(orders.cast({"amount": "double", "at": pa.int32()}))[0]
            {'user': 'ada', 'amount': 3.0, 'at': 1000}
        """
        require_mapping("cast", types, '{"amount": "double"}')
        wanted = {column: type_of(column, kind) for column, kind in types.items()}
        return self._node("cast", functools.partial(operators.CastOperator, wanted), name, parallelism)
