"""JSON lines: one object on each line."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from penstock.connectors.files.formats.lines import LineReader, filled_lines
from penstock.connectors.files.formats.pieces import BAD
from penstock.errors import DataError

_BLANK = b" \t\r\n"
_OFFSET = r"[T ]\d\d.*(Z|[+-]\d\d(:?\d\d)?)$"
_INFERRED_LINES = 1024
"""Where lines at the beginning are bad, the schema is taken from the good ones among this many."""


class JsonReader(LineReader):
    def begin(self, file: Any, start: int) -> int:
        self.schema = self.file_schema
        place = start
        while self.schema is None and (block := self.block(file, place)):
            self.schema = self._inferred(block)
            place += len(block)
        return start

    def _inferred(self, block: bytes) -> pa.Schema | None:
        try:
            return self._schema_of([block])
        except BAD:
            lines = [line.data for line in self.lines(block, 0, 0)]
        for number in range(0, len(lines), _INFERRED_LINES):
            found = self._first_come(lines[number : number + _INFERRED_LINES])
            if found is not None:
                return found
        return None

    def _first_come(self, lines: list[bytes]) -> pa.Schema | None:
        """The schema of the good lines. One that contradicts those in front of it is bad."""
        accepted: list[bytes] = []
        schema: pa.Schema | None = None
        waiting = [lines]
        while waiting:
            some = waiting.pop()
            try:
                schema = self._schema_of([*accepted, *some])
                accepted += some
            except BAD:
                middle = len(some) // 2
                waiting += [some[middle:], some[:middle]] if middle else []
        return schema

    def _schema_of(self, lines: list[bytes]) -> pa.Schema | None:
        text = self.text(b"".join(lines))
        count = self.count(text)
        if count == 0:
            return None
        batch = parsed(text, None, "infer")
        if batch.num_rows != count:
            raise ValueError("the line is not one record")
        self.require_exact(batch)
        return _with_zones(batch, text, self._what)

    def parse(self, text: bytes) -> pa.RecordBatch:
        # What the user left out of a schema is not wanted; what the first block did not have would be lost.
        unexpected = "ignore" if self.source.schema is not None else "error"
        return parsed(text, self.schema, unexpected if self.schema is not None else "infer")

    def obviously_bad(self, lines: Sequence[bytes]) -> Iterator[tuple[int, str]]:
        for number, line in enumerate(lines):
            try:
                json.loads(line)
            except RecursionError:
                continue
            except ValueError as error:
                # Arrow takes the word for a number. And bytes that are no UTF-8 have a better reason.
                if b"Inf" not in line and isinstance(error, json.JSONDecodeError):
                    yield number, f"JSON parse error: {error.msg} at character {error.pos + 1}"

    def is_blank(self, line: bytes) -> bool:
        return not line.strip(_BLANK)

    def count(self, text: bytes) -> int | None:
        """Arrow takes objects wherever they end: each line must be one, from its first byte to its last."""
        data = np.frombuffer(text, np.uint8)
        is_break = data == ord("\n")
        begin = np.count_nonzero(is_break[:-1] & (data[1:] == ord("{"))) + text.startswith(b"{")
        end = np.count_nonzero(is_break[1:] & (data[:-1] == ord("}"))) + text.endswith(b"}")
        if begin == end == filled_lines(text):
            return int(begin)
        lines = [line for each in text.split(b"\n") if (line := each.strip(_BLANK))]
        is_each_one = all(line.startswith(b"{") and line.endswith(b"}") for line in lines)
        return len(lines) if is_each_one else None


def parsed(text: bytes, schema: pa.Schema | None, unexpected: str) -> pa.RecordBatch:
    """Records of a schema, or of one that Arrow infers. Raises one of `BAD`."""
    options = pa.json.ParseOptions(explicit_schema=_readable(schema), unexpected_field_behavior=unexpected)
    read = pa.json.ReadOptions(block_size=max(len(text), 1), use_threads=False)
    batch = one_batch(pa.json.read_json(io.BytesIO(text), read, options))
    for field in schema or ():
        if field.type.id in _WRITTEN_AS_TEXT and batch.num_rows:
            place = batch.schema.get_field_index(field.name)
            batch = batch.set_column(place, field, _WRITTEN_AS_TEXT[field.type.id](batch.column(place)))
    return batch


def _readable(schema: pa.Schema | None) -> pa.Schema | None:
    """The schema with texts for what Arrow would take for a number, or for the bytes of a text."""
    if schema is None:
        return None
    return pa.schema([field.with_type(pa.string()) if field.type.id in _WRITTEN_AS_TEXT else field for field in schema])


def _bytes(texts: pa.Array) -> pa.Array:
    """The bytes of texts in base64, as `JsonLinesSink` and Spark write them. Raises `ValueError`."""
    found = [None if text is None else base64.b64decode(text, validate=True) for text in texts.to_pylist()]
    return pa.array(found, pa.binary())


def _dates(texts: pa.Array) -> pa.Array:
    return texts.cast(pa.date32())


_WRITTEN_AS_TEXT: dict[int, Callable[[pa.Array], pa.Array]] = {
    pa.binary().id: _bytes,
    pa.date32().id: _dates,
}
"""Types that JSON does not have, and how their texts become values. Those within lists and structs are Arrow's."""


def _with_zones(batch: pa.RecordBatch, text: bytes, where: str) -> pa.Schema:
    """The inferred schema, with UTC for times of which each has an offset. Arrow would make naive ones of them."""
    times = [field for field in batch.schema if pa.types.is_timestamp(field.type)]
    if not times:
        return batch.schema
    texts = parsed(text, pa.schema([field.with_type(pa.string()) for field in times]), "ignore")
    schema = batch.schema
    for field in times:
        has_offset = pc.match_substring_regex(texts.column(field.name), _OFFSET)
        if pc.any(has_offset).as_py():
            if not pc.all(has_offset).as_py():
                raise DataError(
                    f"{where} has times with an offset such as Z or +02:00 in column '{field.name}', and times without "
                    f"one: declare a schema, with '{field.name} timestamp' if those without are in UTC, or "
                    f"'{field.name} string'"
                )
            zoned = field.with_type(pa.timestamp(field.type.unit, "UTC"))
            schema = schema.set(schema.get_field_index(field.name), zoned)
    return schema


def one_batch(table: pa.Table) -> pa.RecordBatch:
    batches = table.combine_chunks().to_batches()
    return batches[0] if batches else pa.RecordBatch.from_pylist([], schema=table.schema)
