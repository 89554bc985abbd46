"""Expressions of Arrow, evaluated for the rows of a batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import acero

from penstock.user_code import reason_of


def evaluated(
    batch: pa.RecordBatch, expressions: Sequence[pc.Expression], error: Callable[[str], Exception]
) -> list[pa.Array]:
    """For each expression an array with a value for each row. Raises the `error` for what Arrow cannot do."""
    names = [str(number) for number in range(len(expressions))]
    source = acero.Declaration("table_source", acero.TableSourceNodeOptions(pa.Table.from_batches([batch])))
    project = acero.Declaration("project", acero.ProjectNodeOptions(list(expressions), names))
    try:
        # In one thread: several would hand back the rows in any order.
        made = acero.Declaration.from_sequence([source, project]).to_table(use_threads=False)
    except (pa.ArrowException, NotImplementedError) as refusal:
        shown = ", ".join(str(expression) for expression in expressions)
        raise error(f"the expression {shown} cannot be evaluated: {_reason(refusal, batch.schema)}") from refusal
    return [column.combine_chunks() for column in made.columns]


def _reason(refusal: Exception, schema: pa.Schema) -> str:
    text = reason_of(refusal)
    if "the columns are" in text:
        return text
    return f"{text}; the columns are: {', '.join(f'{field.name} ({field.type})' for field in schema)}"
