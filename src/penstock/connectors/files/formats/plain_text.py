"""Text: one column `value` with the lines, as Spark has it."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.connectors.files.formats.lines import LineReader

VALUE = "value"


class TextReader(LineReader):
    def begin(self, file: Any, start: int) -> int:
        self.require_columns([VALUE])
        return start

    def is_blank(self, line: bytes) -> bool:
        return False

    def count(self, text: bytes) -> int | None:
        return text.count(b"\n") + (not text.endswith(b"\n"))

    def parse(self, text: bytes) -> pa.RecordBatch:
        whole = pa.array([text.removesuffix(b"\n")], pa.large_binary()).cast(pa.large_string())
        lines = pc.split_pattern(whole, "\n").values
        if b"\r\n" in text or text.endswith(b"\r"):
            lines = pc.replace_substring_regex(lines, "\r$", "")
        return pa.RecordBatch.from_arrays([lines.cast(pa.string())], [VALUE])
