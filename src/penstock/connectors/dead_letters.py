"""Dead letters: records that could not be read, or that a function cannot take, as records of a side output.

The schema is fixed, so that one sink can take those of every source and operator. `path` and `line` are the place of
the input; of a function, they are the line of code that raised.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from penstock.ids import OperatorName

RAW_CHARS_MAX = 4096
"""The raw text of a dead letter is cut to this."""
_REASON_CHARS_MAX = 1024

SCHEMA = pa.schema(
    [
        ("operator", pa.string()),
        ("path", pa.string()),
        ("line", pa.int64()),
        ("offset", pa.int64()),
        ("raw", pa.string()),
        ("reason", pa.string()),
    ]
)


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A line, a row or a whole file that could not be read, or a record for which a function raised."""

    path: str | None
    reason: str
    line: int | None = None
    """Number of the line, or of the row of a Parquet file, from 1; None for a whole file."""
    offset: int | None = None
    """Where the line begins, in bytes; None if that is not known."""
    raw: bytes | str | None = None

    def __str__(self) -> str:
        line = "" if self.line is None else f", line {self.line}"
        return f"{self.path}{line}: {self.reason}"


def batch_of(letters: Sequence[DeadLetter], raw_chars_max: int | None = RAW_CHARS_MAX) -> pa.RecordBatch:
    """The letters as records; `labelled` fills in the operator, whose name a source does not know."""
    columns = [
        [""] * len(letters),
        [letter.path for letter in letters],
        [letter.line for letter in letters],
        [letter.offset for letter in letters],
        [_shown(letter.raw, raw_chars_max) for letter in letters],
        [_shown(letter.reason, _REASON_CHARS_MAX) for letter in letters],
    ]
    return pa.RecordBatch.from_arrays(
        [pa.array(values, field.type) for values, field in zip(columns, SCHEMA, strict=True)], schema=SCHEMA
    )


def labelled(batch: pa.RecordBatch, operator: OperatorName) -> pa.RecordBatch:
    return batch.set_column(0, SCHEMA.field(0), pa.repeat(pa.scalar(operator, pa.string()), batch.num_rows))


def _shown(raw: bytes | str | None, chars_max: int | None) -> str | None:
    """The text, cut to a limit. Bytes that are no UTF-8 are shown as `\\xe9`."""
    if raw is None:
        return None
    # A character has at most four bytes.
    bytes_max = None if chars_max is None else 4 * chars_max
    text = raw[:bytes_max].decode("utf-8", "backslashreplace") if isinstance(raw, bytes) else raw
    text = text.encode("utf-8", "backslashreplace").decode()
    return text[:chars_max]
