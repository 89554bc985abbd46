"""The calls `Stream.join_table` and `KeyedStream.join_as_of`: their arguments, checked, and their operators."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING

from penstock.api.arguments import require_choice, require_columns, schema_or_none
from penstock.columnar.schemas.schema_guard import SchemaLike
from penstock.errors import PipelineError
from penstock.graph.edges import OutputPort
from penstock.graph.logical import Keeps, OperatorFactory
from penstock.model.units import Duration, duration_ms
from penstock.operators.join_table import JoinTableOperator, as_table, require_table_columns
from penstock.operators.keyed.join_as_of import JoinAsOfOperator

if TYPE_CHECKING:
    from penstock.api.keyed_stream import KeyedStream
    from penstock.api.stream import Stream

TABLE_BYTES_MAX = 256 << 20
"""A table travels to every worker with the pipeline, and each has it in memory."""


def table_join(table: object, on: object, how: object, refresh_every: Duration | None, suffix: str) -> OperatorFactory:
    """The operator of `join_table`."""
    columns, key = _columns_of(on)
    require_choice("join_table: how", how, "inner", "left")
    _require_suffix("join_table", suffix)
    refresh_ms = None
    if refresh_every is not None:
        refresh_ms = duration_ms("join_table: refresh_every", refresh_every, at_least_ms=1)
    if not callable(table):
        if refresh_ms is not None:
            raise PipelineError(
                "join_table: refresh_every needs a function that reads the table, but a table was "
                "given: pass a function without arguments that returns it"
            )
        read = as_table("join_table", table)
        require_table_columns("join_table", read, key)
        if read.nbytes > TABLE_BYTES_MAX:
            raise PipelineError(
                f"join_table: the table has {read.nbytes >> 20} MiB, and travels to every worker: at "
                f"most {TABLE_BYTES_MAX >> 20} MiB. Pass a function that reads it on the workers, "
                "drop columns that are not needed, or read it as a source with event time and use "
                "key_by and join_as_of"
            )
        table = read
    return functools.partial(
        JoinTableOperator, table, columns, key, keeps_unmatched=how == "left", suffix=suffix, refresh_ms=refresh_ms
    )


def _columns_of(on: object) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The columns of the stream, and of the table."""
    if isinstance(on, Mapping):
        columns, key = tuple(on), tuple(on.values())
    else:
        columns = key = (on,) if isinstance(on, str) else tuple(on) if isinstance(on, list | tuple) else ()
    require_columns("join_table: on", columns)
    require_columns("join_table: on", key)
    return columns, key


def _require_suffix(call: str, suffix: object) -> None:
    if not isinstance(suffix, str) or not suffix:
        raise PipelineError(f'{call}: suffix is {suffix!r}: it must be a string, such as "_right"')


def as_of_join(
    left: KeyedStream,
    right: object,
    how: object,
    suffix: str,
    right_schema: SchemaLike | None,
    name: str | None,
    parallelism: int | None,
) -> Stream:
    """Add the operator of `join_as_of`."""
    from penstock.api.keyed_stream import KeyedStream

    if not isinstance(right, KeyedStream):
        raise PipelineError(f'join_as_of takes a keyed stream, such as rates.key_by("currency"), not {right!r}')
    left._require_own("join_as_of", right)
    for stream in (left, right):
        stream._require_columns("join_as_of")
        stream._require_appends("join_as_of", "a version that is taken back would stay; join the records themselves")
    require_choice("join_as_of: how", how, "inner", "left")
    _require_suffix("join_as_of", suffix)
    if len(left.key) != len(right.key):
        raise PipelineError(
            f"join_as_of: the left side is keyed by {', '.join(left.key)}, the other by {', '.join(right.key)}: both "
            f"need as many columns, though not of the same names"
        )
    times = left._event_time, right._event_time
    if times[0] is None or times[1] is None:
        side = "left" if times[0] is None else "right"
        raise PipelineError(
            f'join_as_of: the {side} side has no event time: call with_watermark("…", "10 s") behind its source'
        )
    made = functools.partial(
        JoinAsOfOperator,
        (left.key, right.key),
        (times[0], times[1]),
        keeps_unmatched=how == "left",
        suffix=suffix,
        right_schema=schema_or_none(right_schema),
    )
    settings = (("left event time", times[0]), ("right event time", times[1]))
    pipeline = left.pipeline
    chosen = pipeline._add("join_as_of", name, parallelism, keeps=Keeps.KEYS, operator=made, definition=settings)
    pipeline._connect(left._ports, chosen, 0)
    pipeline._connect(right._ports, chosen, 1)
    return left._stream((OutputPort(chosen, event_time=times[0]),))
