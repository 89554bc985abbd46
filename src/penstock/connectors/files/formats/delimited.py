"""CSV: fields between separators, in quotes if need be."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv

from penstock.connectors.files.formats.json_lines import one_batch
from penstock.connectors.files.formats.lines import Line, LineReader, bounds, filled_lines, line_breaks
from penstock.connectors.files.formats.pieces import BAD

_SEPARATORS = ",;\t|"


class CsvReader(LineReader):
    _names: Sequence[str] = ()

    # --- the beginning of a file ---

    def begin(self, file: Any, start: int) -> int:
        self.schema = self.file_schema
        line = self._first_line(file, start)
        if line is None:
            return start
        fields = self._fields(line.data)
        self._warn_of_separator(fields)
        if self.source.format_options.header:
            self._names, start = fields, line.place + len(line.data)
            self.require_columns(fields)
            self._require_distinct(fields)
        else:
            declared = self.file_schema.names if self.file_schema is not None else []
            self._names = declared or [f"_c{number}" for number in range(len(fields))]
        self._infer(file, start)
        return start

    def _first_line(self, file: Any, place: int) -> Line | None:
        """The first line that is not blank."""
        while block := self.block(file, place):
            if (line := next(self.lines(block, place, 0), None)) is not None:
                return line
            place += len(block)
        return None

    def _fields(self, line: bytes) -> Sequence[str]:
        try:
            text = self.text(line).rstrip(b"\r\n")
        except UnicodeDecodeError as error:
            raise ValueError(f"its first line: {self._reason(error)}") from error
        read = pa.csv.ReadOptions(use_threads=False)
        names: Sequence[str] = pa.csv.read_csv(io.BytesIO(text + b"\n"), read, self._parse_options()).schema.names
        return names

    def _require_distinct(self, fields: Sequence[str]) -> None:
        """Of two columns of one name Arrow would read the first one alone, without a word."""
        wanted = fields if self.file_schema is None else self.file_schema.names
        twice = next((name for name in wanted if fields.count(name) > 1), None)
        if twice is not None:
            raise ValueError(
                f"its header has the column '{twice}' more than once, in {', '.join(fields)}: give each column that is "
                f"read a name of its own, or declare a schema of the others"
            )

    def _warn_of_separator(self, fields: Sequence[str]) -> None:
        found = next((sep for sep in _SEPARATORS if len(fields) == 1 and sep in fields[0]), None)
        if found is not None:
            self.source.say_once(
                f"FileSource: the lines of '{self.split}' in {self.source.path} have one field, {fields[0]!r}: if "
                f"{found!r} separates the fields, set sep={found!r}"
            )

    def _infer(self, file: Any, place: int) -> None:
        while self.schema is None and (block := self.block(file, place)):
            text = b"".join(line for line in self.divided(block) if not self.is_blank(line) and self._is_text(line))
            if text:
                self.schema = self._inferred(self.text(text))
            place += len(block)

    def _is_text(self, line: bytes) -> bool:
        try:
            self.text(line)
        except UnicodeDecodeError:
            return False
        return True

    def _inferred(self, text: bytes) -> pa.Schema | None:
        if not self.source.format_options.infer_schema:
            return pa.schema([(name, pa.string()) for name in self._names])
        table = self._table(text, self._convert_options({}), self._parse_options(lambda row: "skip"))
        self.require_exact(table)
        return table.schema if table.num_rows else None

    # --- records ---

    def parse(self, text: bytes) -> pa.RecordBatch:
        # Without a schema no line of the file is good: its own types name the reason.
        types = {} if self.schema is None else {field.name: self._parsed_as(field.type) for field in self.schema}
        convert = self._convert_options(types)
        convert.include_columns = list(types)
        batch = one_batch(self._table(self._closed(text), convert, self._parse_options()))
        if not batch.num_rows or any(column[-1].as_py() not in (None, "") for column in batch.columns):
            raise ValueError("a quote is not closed")
        return batch.slice(0, batch.num_rows - 1)

    def _closed(self, text: bytes) -> bytes:
        """The text and a row of nulls. If a quote is not closed, Arrow takes that row for a part of its field."""
        options = self.source.format_options
        fields = options.sep * (len(self._names) - 1) or options.null_value or 2 * options.quote
        return b"".join([text, b"" if text.endswith(b"\n") else b"\n", fields.encode(), b"\n"])

    def _table(self, text: bytes, convert: pa.csv.ConvertOptions, parse: pa.csv.ParseOptions) -> pa.Table:
        read = pa.csv.ReadOptions(column_names=self._names, block_size=len(text) + 1, use_threads=False)
        return pa.csv.read_csv(io.BytesIO(text), read, parse, convert)

    def _parsed_as(self, kind: pa.DataType) -> pa.DataType:
        """Arrow reads dates of a pattern as timestamps."""
        has_pattern = self.source.format_options.date_format is not None
        return pa.timestamp("s") if has_pattern and pa.types.is_date(kind) else kind

    def _parse_options(self, on_bad_row: Callable[[Any], str] | None = None) -> pa.csv.ParseOptions:
        options = self.source.format_options
        doubles = options.escape == options.quote
        return pa.csv.ParseOptions(
            delimiter=options.sep,
            quote_char=options.quote,
            double_quote=doubles,
            escape_char=False if doubles else options.escape,
            newlines_in_values=options.multi_line,
            invalid_row_handler=on_bad_row,
        )

    def _convert_options(self, types: dict[str, pa.DataType]) -> pa.csv.ConvertOptions:
        options = self.source.format_options
        convert = pa.csv.ConvertOptions(column_types=types)
        if options.null_value is not None:
            convert.null_values = [options.null_value, ""]
            convert.strings_can_be_null = True
            convert.quoted_strings_can_be_null = not options.null_value
        formats = [each for each in (options.timestamp_format, options.date_format) if each is not None]
        if formats:
            convert.timestamp_parsers = [pa.csv.ISO8601 if each == str(pa.csv.ISO8601) else each for each in formats]
        return convert

    def obviously_bad(self, lines: Sequence[bytes]) -> Iterator[tuple[int, str]]:
        """Rows with too few or too many fields. Arrow numbers rows, which are lines if there are as many."""
        bad: list[tuple[int, str]] = []

        def on_bad_row(row: Any) -> str:
            fields = f"Expected {row.expected_columns} columns, got {row.actual_columns}"
            bad.append((row.number - 1, f"CSV parse error: {fields}"))
            return "skip"

        data = b"".join(lines)
        try:
            strings = self._convert_options(dict.fromkeys(self._names, pa.string()))
            table = self._table(self._closed(self.text(data)), strings, self._parse_options(on_bad_row))
        except BAD:
            return
        if self.count(self.text(data)) is not None and table.num_rows + len(bad) == len(lines) + 1:
            yield from bad

    # --- lines, or records over several lines ---

    def count(self, text: bytes) -> int | None:
        """None if there is a carriage return within a line, where Arrow may end a record."""
        if self.source.format_options.multi_line:
            return len(bounds(text, self._record_ends(text))[0])
        count = filled_lines(text)
        if not count or b"\r" not in text:
            return count
        is_plain = text.count(b"\r") == text.count(b"\r\n") + text.endswith(b"\r")
        return count if is_plain else None

    def cutter(self) -> Callable[[bytes], int]:
        if not self.source.format_options.multi_line:
            return super().cutter()
        quotes = 0

        def cut(part: bytes) -> int:
            nonlocal quotes
            ends = self._record_ends(part, quotes)
            quotes += part.count(self.source.format_options.quote.encode())
            return int(ends[-1]) + 1 if len(ends) else 0

        return cut

    def divided(self, block: bytes) -> Iterable[bytes]:
        if not self.source.format_options.multi_line:
            return super().divided(block)
        ends = [int(end) + 1 for end in self._record_ends(block)]
        if not ends or ends[-1] < len(block):
            ends.append(len(block))
        return [block[start:end] for start, end in zip([0, *ends], ends, strict=False)]

    def _record_ends(self, text: bytes, quotes_before: int = 0) -> npt.NDArray[np.intp]:
        """The line breaks that are not within quotes: an even number of quotes lies in front of them."""
        data = np.frombuffer(text, np.uint8)
        is_outside = (np.cumsum(data == ord(self.source.format_options.quote)) + quotes_before) % 2 == 0
        breaks = line_breaks(text)
        ends: npt.NDArray[np.intp] = breaks[is_outside[breaks]]
        return ends
