"""What users pass to the methods of a stream, checked at the call: every error says what is wrong and what to write.

Arguments are `Any` here, because annotations do not keep anybody from passing something else.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import pyarrow as pa

from penstock.columnar.schema_guard import as_schema
from penstock.errors import PipelineError
from penstock.model.aggregates import FUNCTIONS, Aggregate
from penstock.model.units import duration_ms
from penstock.model.windows import FixedWindows

AtEnd: TypeAlias = Literal["fire", "drop"]
EmitWhen: TypeAlias = Literal["updates", "final"]


def require_name(what: str, name: Any) -> None:
    if not isinstance(name, str) or not name.strip():
        raise PipelineError(f"the name of {what} is {name!r}: it must be a text, state is found by it")


def require_instance(call: str, value: Any, kind: type, such_as: str) -> None:
    if not isinstance(value, kind):
        raise PipelineError(f"{call} takes a {kind.__name__}, such as {such_as}, not {value!r}")


def require_count(what: str, value: Any) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise PipelineError(f"{what} is {value!r}: it must be a number of at least 1")


def require_choice(what: str, value: Any, *choices: str) -> None:
    if value not in choices:
        raise PipelineError(f"{what} is {value!r}: it must be {' or '.join(repr(choice) for choice in choices)}")


def require_columns(call: str, columns: Any) -> None:
    if not columns or not all(isinstance(column, str) and column for column in columns):
        raise PipelineError(f"{call} takes the names of columns, at least one, not {columns!r}")
    if len(set(columns)) < len(columns):
        raise PipelineError(f"{call} names a column twice: {', '.join(columns)}")


def require_sequence(call: str, sequence: Any) -> None:
    if sequence is not None and (not isinstance(sequence, str) or not sequence):
        raise PipelineError(
            f'{call}: sequence is {sequence!r}: it must be the name of a column, such as sequence="version"; an output '
            f"cannot have the name 'sequence'"
        )


def outputs_besides(sequence: str, outputs: dict[str, Any]) -> dict[str, Any]:
    if sequence in outputs:
        raise PipelineError(f"aggregate: '{sequence}' is the sequence and an output: give one of them another name")
    return outputs


def schema_or_none(schema: Any) -> pa.Schema | None:
    return None if schema is None else as_schema(schema)


def instance_of(function: Any) -> Any:
    """An instance, where a class was passed."""
    return function() if isinstance(function, type) else function


def aggregates_of(key: tuple[str, ...], outputs: dict[str, Any]) -> list[Aggregate]:
    if not outputs:
        raise PipelineError('aggregate needs at least one output, such as total=("sum", "amount")')
    names = [*key, *outputs]
    if len(set(names)) < len(names):
        raise PipelineError(f"aggregate: an output has the name of a key column: {', '.join(names)}")
    return [_aggregate(output, what) for output, what in outputs.items()]


def windows_of(size: Any, every: Any, offset: Any) -> FixedWindows:
    size_ms = duration_ms("window: size", size, at_least_ms=1)
    every_ms = size_ms if every is None else duration_ms("window: every", every, at_least_ms=1)
    offset_ms = duration_ms("window: offset", offset, at_least_ms=0)
    if every_ms > size_ms or offset_ms >= every_ms:
        raise PipelineError(
            f"window: size is {size_ms} ms, every {every_ms} ms and offset {offset_ms} ms: every may not be more than "
            f"the size, or records between the windows would be lost, and offset must be less than every"
        )
    return FixedWindows(size_ms, every_ms, offset_ms)


def _aggregate(output: str, what: Any) -> Aggregate:
    function, column = what if isinstance(what, tuple) and len(what) == 2 else (what, None)
    if function not in FUNCTIONS:
        raise PipelineError(
            f"aggregate: {output} is {what!r}: it must be a function and a column, such as "
            f'{output}=("sum", "amount"); functions are {", ".join(FUNCTIONS)}'
        )
    if column is None and function != "count":
        raise PipelineError(f'aggregate: {function} needs a column: {output}=("{function}", "…")')
    return Aggregate(function, column, output)
