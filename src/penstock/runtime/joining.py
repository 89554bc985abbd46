"""Putting small batches together, where Arrow can be trusted to."""

from __future__ import annotations

import pyarrow as pa


def can_join(schema: pa.Schema) -> bool:
    """Whether batches of `schema` can be put together as they are.

    Not with dictionaries, each batch having its own, nor with unions and runs.
    """
    return all(_is_plain(kind) for kind in schema.types)


def _is_plain(kind: pa.DataType) -> bool:
    if pa.types.is_nested(kind):
        is_known = pa.types.is_struct(kind) or pa.types.is_map(kind) or _is_list(kind)
        return is_known and all(_is_plain(kind.field(number).type) for number in range(kind.num_fields))
    is_encoded = pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind)
    return not is_encoded and not isinstance(kind, pa.BaseExtensionType)


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


class Joining:
    """Remembers the answer for the schema that was asked for last: on one input it hardly ever changes."""

    __slots__ = ("_answer", "_schema")

    def __init__(self) -> None:
        self._schema: pa.Schema | None = None
        self._answer = False

    def fits(self, schema: pa.Schema) -> bool:
        if self._schema is None or schema != self._schema:
            self._schema, self._answer = schema, can_join(schema)
        return self._answer
