"""What users pass to the methods of a stream, checked at the call: every error says what is wrong and what to write.

Arguments are `object` here, because annotations do not keep anybody from passing something else.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Literal, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from penstock.columnar.schemas.schema_guard import SchemaLike, as_schema
from penstock.errors import PenstockError, PipelineError
from penstock.graph.logical import OperatorFactory
from penstock.ids import DEAD_LETTERS, LATE, MAIN_OUTPUT
from penstock.model.aggregates import ALIASES, FUNCTIONS, Aggregate, ColumnarAggregate, Function
from penstock.model.filtered import Filtered, Masked, masked
from penstock.model.triggers import AT_END, Trigger
from penstock.model.units import Duration, duration_ms
from penstock.model.windows import ON_CLOSE, Emission, FixedWindows, SessionWindows
from penstock.operators.contract import BatchLimits, with_limits
from penstock.operators.failures import OnError
from penstock.state.aggregates.sketches import digest_library

AtEnd: TypeAlias = Literal["fire", "drop"]
EmitWhen: TypeAlias = Literal["updates", "final", "changelog"] | Duration
Output: TypeAlias = (
    str
    | tuple[str, str]
    | tuple[str, str, float]
    | tuple[str, str, str]
    | tuple[ColumnarAggregate, str]
    | tuple[ColumnarAggregate, str, str]
    | tuple[ColumnarAggregate, str, str, str]
    | Filtered
)
"""An aggregate: `"count"`, or a function and a column, such as `("sum", "amount")`. Some functions take more:
`("quantile", "ms", 0.99)`, `("arg_max", "seller", "price")`, and a `ColumnarAggregate` with its columns.
`filtered` makes one of some records only."""
Row: TypeAlias = dict[str, Any]
UserFunction: TypeAlias = Callable[..., object]
"""A function of records, in the format that its user chose."""


def require_name(what: str, name: object) -> None:
    if not isinstance(name, str) or not name.strip():
        raise PipelineError(f"the name of {what} is {name!r}: it must be a string, because state is found by name")


def require_instance(call: str, value: object, kind: type, such_as: str) -> None:
    if not isinstance(value, kind):
        raise PipelineError(f"{call} takes a {kind.__name__}, such as {such_as}, not {value!r}")


def require_count(what: str, value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise PipelineError(f"{what} is {value!r}: it must be a number of at least 1")


def limits_of(call: str, format: str, batch_rows: int | None, batch_time: Duration | None) -> BatchLimits:
    """The limits on the batches of a function. Raises `PipelineError` where they have no meaning."""
    if batch_rows is None and batch_time is None:
        return BatchLimits()
    if format == "rows" and call != "process":
        raise PipelineError(
            f'{call}: batch_rows and batch_time apply to functions of batches, but format="rows" '
            "calls the function once per row: leave them out, or choose another format"
        )
    if batch_rows is not None:
        require_count(f"{call}: batch_rows", batch_rows)
    time_ms = 0 if batch_time is None else duration_ms(f"{call}: batch_time", batch_time, at_least_ms=1)
    return BatchLimits(batch_rows, time_ms)


def limited(made: OperatorFactory, limits: BatchLimits) -> OperatorFactory:
    """The same operator with limits on its batches."""
    return made if limits == BatchLimits() else functools.partial(with_limits, made, limits)


def require_choice(what: str, value: object, *choices: str) -> None:
    if value not in choices:
        raise PipelineError(f"{what} is {value!r}: it must be {' or '.join(repr(choice) for choice in choices)}")


def require_columns(call: str, columns: tuple[object, ...]) -> None:
    if not columns or not all(isinstance(column, str) and column for column in columns):
        raise PipelineError(f"{call} takes the names of columns, at least one, not {columns!r}")
    names = [str(column) for column in columns]
    if len(set(names)) < len(names):
        raise PipelineError(f"{call} names a column twice: {', '.join(names)}")


def require_mapping(call: str, mapping: object, such_as: str) -> None:
    """A dictionary by columns, with at least one of them."""
    if not isinstance(mapping, Mapping) or not mapping:
        raise PipelineError(f"{call} takes a dictionary by columns, such as {such_as}, not {mapping!r}")
    require_columns(call, tuple(mapping))


def require_expressions(expressions: Mapping[str, object]) -> None:
    for name, expression in expressions.items():
        if not isinstance(expression, pc.Expression):
            raise PipelineError(
                f"select: {name} is {expression!r}: it must be an Arrow expression, such as "
                f'{name}=pc.field("amount") * 2; columns that are taken unchanged come first, as '
                "strings"
            )


def require_sequence(call: str, sequence: object) -> None:
    if sequence is not None and (not isinstance(sequence, str) or not sequence):
        raise PipelineError(
            f"{call}: sequence is {sequence!r}: it must be the name of a column, such as "
            "sequence=\"version\"; no output can be named 'sequence'"
        )


def outputs_besides(sequence: str, outputs: dict[str, Output]) -> dict[str, Output]:
    if sequence in outputs:
        raise PipelineError(f"aggregate: '{sequence}' names both the sequence column and an output: rename one of them")
    return outputs


def letters_of(on_error: OnError) -> tuple[str, ...]:
    """The side outputs of an operator with this `on_error`."""
    return (DEAD_LETTERS,) if on_error == "stream" else ()


def side_schemas_of(call: str, function: object, given: Mapping[str, SchemaLike] | None) -> dict[str, pa.Schema]:
    """The side outputs that a function, by its class, and the call declare."""
    by_class = getattr(function, "side_outputs", {})
    declared: dict[Any, SchemaLike] = {**(by_class if isinstance(by_class, Mapping) else {}), **(given or {})}
    for name in declared:
        if not isinstance(name, str) or not name.strip() or name in (MAIN_OUTPUT, DEAD_LETTERS, LATE):
            raise PipelineError(
                f"{call}: a side output is named {name!r}: it must be a string other than "
                f"'{MAIN_OUTPUT}', '{DEAD_LETTERS}' and '{LATE}'"
            )
    return {name: as_schema(schema) for name, schema in declared.items()}


def schema_or_none(schema: SchemaLike | None) -> pa.Schema | None:
    return None if schema is None else as_schema(schema)


def type_of(column: str, kind: object) -> pa.DataType:
    """A type of Arrow, or as in a DDL string."""
    if isinstance(kind, pa.DataType):
        return kind
    try:
        if isinstance(kind, str):
            return as_schema(f"value {kind}").field(0).type
    except (PenstockError, ValueError):
        pass
    raise PipelineError(
        f"cast: the type of '{column}' is {kind!r}: it must be an Arrow type, or a string such as "
        "'bigint', 'double', 'timestamp' or 'decimal(10, 2)'"
    )


def instance_of(function: object) -> object:
    """An instance, where a class was passed."""
    return function() if isinstance(function, type) else function


def aggregates_of(key: tuple[str, ...], outputs: Mapping[str, Output]) -> list[Aggregate]:
    if not outputs:
        raise PipelineError('aggregate needs at least one output, such as total=("sum", "amount")')
    names = [*key, *outputs]
    if len(set(names)) < len(names):
        raise PipelineError(f"aggregate: an output has the name of a key column: {', '.join(names)}")
    return [_aggregate(output, what) for output, what in outputs.items()]


def masks_of(outputs: Mapping[str, Output]) -> list[Masked]:
    """The masked columns that filtered aggregates read. `aggregates_of` has checked them."""
    return [
        masked(column, what.where)
        for output, what in outputs.items()
        if isinstance(what, Filtered)
        for column in _aggregate(output, what.what).columns or (None,)
    ]


def _filtered_aggregate(output: str, filtered: Filtered) -> Aggregate:
    """The aggregate over the masked columns."""
    if not isinstance(filtered.where, pc.Expression):
        raise PipelineError(
            f"aggregate: {output} is filtered, and where is {filtered.where!r}: it must be an Arrow expression, "
            f'such as filtered("count", where=pc.field("amount") > 10)'
        )
    if any(isinstance(each, Filtered) for each in filtered.what):
        raise PipelineError(f"aggregate: {output} is filtered twice: combine the conditions with &")
    plain = _aggregate(output, filtered.what)
    names = [masked(column, filtered.where).name for column in plain.columns or (None,)]
    by = names[1] if plain.by is not None else None
    more = tuple(names[1:]) if plain.more else ()
    return replace(plain, column=names[0], by=by, more=more)


def windows_of(size: Duration, every: Duration | None, offset: Duration, lateness: Duration) -> FixedWindows:
    size_ms = duration_ms("window: size", size, at_least_ms=1, exactly=True)
    every_ms = size_ms if every is None else duration_ms("window: every", every, at_least_ms=1, exactly=True)
    offset_ms = duration_ms("window: offset", offset, exactly=True)
    if every_ms > size_ms or offset_ms >= every_ms:
        raise PipelineError(
            f"window: size is {size_ms} ms, every {every_ms} ms and offset {offset_ms} ms: every must "
            "not exceed the size, or records between the windows would be lost, and offset must be "
            "less than every"
        )
    lateness_ms = duration_ms("window: allowed_lateness", lateness, exactly=True)
    return FixedWindows(size_ms, every_ms, offset_ms, lateness_ms)


def emission_of(emit: Literal["on_close", "on_update"] | Duration) -> Emission:
    """When results are emitted: `"on_close"`, `"on_update"`, or early ones as often as a duration says."""
    if emit == "on_close":
        return ON_CLOSE
    if emit == "on_update":
        return Emission(is_early=True)
    try:
        return Emission(is_early=True, every_ms=duration_ms("window: emit", emit, at_least_ms=1))
    except PipelineError as error:
        raise PipelineError(
            f"window: emit is {emit!r}: it must be 'on_close', 'on_update', or a duration such as '5 s'"
        ) from error


_ROWS = re.compile(r"\s*(\d+)\s*rows?\s*")


def trigger_of(call: str, emit: EmitWhen, *choices: str) -> Trigger | None:
    """When the values of a key are emitted; None for every change. `choices` are the words that the call knows."""
    if emit == "final":
        return AT_END
    if emit in choices:
        return None
    rows = _ROWS.fullmatch(emit) if isinstance(emit, str) else None
    try:
        if rows is not None and int(rows[1]) > 0:
            return Trigger(rows=int(rows[1]))
        return Trigger(every_ms=duration_ms(f"{call}: emit", emit, at_least_ms=1))
    except PipelineError as error:
        known = ", ".join(repr(choice) for choice in (*choices, "final"))
        raise PipelineError(
            f"{call}: emit is {emit!r}: it must be {known}, a duration such as '5 s', or a number of records of a key "
            f"such as '1000 rows'"
        ) from error


def sessions_of(gap: Duration) -> SessionWindows:
    return SessionWindows(duration_ms("session: gap", gap, at_least_ms=1, exactly=True))


def _aggregate(output: str, what: object) -> Aggregate:
    if isinstance(what, Filtered):
        return _filtered_aggregate(output, what)
    named, *arguments = what if isinstance(what, tuple) and what else (what,)
    if isinstance(named, ColumnarAggregate):
        return _own_aggregate(output, named, arguments)
    function: Function | None = FUNCTIONS.get(ALIASES.get(named, named)) if isinstance(named, str) else None
    if function is None or len(arguments) > 2:
        known = ", ".join([*FUNCTIONS, *ALIASES])
        raise PipelineError(
            f"aggregate: {output} is {what!r}: it must be a function and a column, such as "
            f'{output}=("sum", "amount"), or a ColumnarAggregate and its columns; functions are {known}'
        )
    column, more = [*arguments, None, None][:2]
    if not isinstance(column, str) and not (column is None and function == "count"):
        raise PipelineError(f'aggregate: {named} needs a column: {output}=("{named}", "…")')
    if function == "quantile":
        return Aggregate(function, column, output, fraction=_fraction(output, more))
    if function in ("arg_min", "arg_max"):
        if not isinstance(more, str):
            raise PipelineError(
                f"aggregate: {named} needs the column to return and the column to compare: "
                f'{output}=("{named}", "{column}", "…")'
            )
        return Aggregate(function, column, output, by=more)
    if more is not None:
        raise PipelineError(f"aggregate: {output} is {what!r}: {named} takes one column")
    return Aggregate(function, column, output)


def _fraction(output: str, fraction: object) -> float:
    digest_library()
    if isinstance(fraction, bool) or not isinstance(fraction, int | float) or not 0 <= fraction <= 1:
        raise PipelineError(
            f"aggregate: quantile needs a column and a fraction from 0 to 1, not {fraction!r}: "
            f'{output}=("quantile", "…", 0.99)'
        )
    return float(fraction)


def _own_aggregate(output: str, own: ColumnarAggregate, columns: list[object]) -> Aggregate:
    names = [column for column in columns if isinstance(column, str) and column]
    if not names or len(names) < len(columns) or len(set(names)) < len(names):
        raise PipelineError(
            f"aggregate: {output} is a {own.name}: it takes at least one column name, each of them "
            f"once, not {columns!r}"
        )
    kinds = {"int64", "float64", "bool"}
    state: object = getattr(own, "state", None)
    if not isinstance(state, Mapping) or not state or not set(state.values()) <= kinds:
        raise PipelineError(
            f"aggregate: {own.name}.state is {state!r}: it must map each field to its type, such as "
            f'{{"total": "float64"}}; types are {", ".join(sorted(kinds))}'
        )
    return Aggregate("own", names[0], output, own=own, more=tuple(names[1:]))
