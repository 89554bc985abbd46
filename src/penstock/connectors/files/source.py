"""A directory of files as a source: Parquet, JSON lines, CSV or text; bounded, or watched for new files.

Every file is a split. Nothing is read twice and nothing is left out, because a position is a place in a file that does
not change. That is the contract with whoever writes the files: a file appears by a rename, complete, and is never
changed again. Names that begin with "." or "_", or end like those of unfinished copies, are not looked at, so a writer
can stage there. A file that is changed all the same is noticed by its size and time, and is an error: to go on would
mean to lose records, or to read some twice.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

import pyarrow as pa

from penstock.columnar.schemas.schema_ddl import SchemaLike, as_schema
from penstock.connectors.files.filesystem import Stamp, address_of
from penstock.connectors.files.formats.delimited import CsvReader
from penstock.connectors.files.formats.json_lines import JsonReader
from penstock.connectors.files.formats.parquet import ParquetReader
from penstock.connectors.files.formats.plain_text import TextReader
from penstock.connectors.files.listing import (
    Changes,
    absolute,
    directory_and_pattern,
    elsewhere,
    fixed_part,
    is_hidden,
)
from penstock.connectors.files.options import format_options
from penstock.connectors.files.partitions import partition_types
from penstock.connectors.files.reader import FileReader
from penstock.connectors.source import Source, SplitReader
from penstock.errors import PipelineError, StorageError
from penstock.ids import DEAD_LETTERS
from penstock.model.units import Duration, duration_s

Format: TypeAlias = Literal["parquet", "jsonl", "json", "csv", "text"]

_READERS: dict[str, type[FileReader]] = {
    "parquet": ParquetReader,
    "jsonl": JsonReader,
    "csv": CsvReader,
    "text": TextReader,
}


class FileSource(Source):
    """Files of a directory, or of a pattern such as `/data/orders/*.jsonl`, on a path or a URL of pyarrow.fs.

        FileSource("/data/orders", format="parquet")
        FileSource("s3://bucket/clicks/*.jsonl.gz", format="jsonl", schema=schema, watch=True)
        FileSource("/data/bookings", format="csv", sep=";", encoding="latin1", on_error="dead_letter")

    Without `watch` it reads the files that are there when the pipeline is started. With it, the source never ends and
    takes up files as they appear. Without a `schema` (of Arrow, or a DDL string), Parquet files have their
    own, and that of text files is taken from the first megabyte of each: declare it if they may differ.

    Options of a format have the names that Spark's reader gives them, as arguments or in `options`: see
    docs/connectors/files.md.
    Files of lines may be compressed: the end of the name says how (.gz, .bz2, .zst, .lz4, .xz).

    `on_error` says what becomes of a line, a row or a file that cannot be read: `"fail"` ends the pipeline, `"skip"`
    counts and warns, `"dead_letter"` sends it to the stream `dead_letters()`, which must have a reader.
    `on_missing="skip"` goes on without a file that is gone before it was read to its end.

    Directories such as `dt=2026-01-01` below it are read too, and are columns, as for Spark: numbers and dates if all
    values that there are at the start are such, else strings, or whatever the `schema` says.

    The writer of a file should give it its name when it is complete: write it under a name that begins with "." and
    rename it. A watched source takes a file up when it has not changed for `stable_for`. A file that changes later is a
    `DataError`, because what was added would never be read; `on_change="ignore"` leaves it at that.

    Positions are kept by the names of files below the directory, so a checkpoint is refused by a source of another
    directory. Say `moved_from="/old/directory"`, from then on, if the same files lie elsewhere now.

    The trap: a watched source keeps a position for every file it has ever read.

    Example:

        Path("orders").mkdir()
        pq.write_table(pa.table({"n": [1, 2]}), "orders/first.parquet")
        pipeline = Pipeline("files")
        pipeline.source(FileSource("orders")).sink(output)
        run(pipeline)
        assert output.rows() == [{"n": 1}, {"n": 2}]
    """

    in_order = True

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        format: Format = "parquet",
        schema: SchemaLike | None = None,
        watch: bool = False,
        stable_for: Duration = "1 s",
        on_change: Literal["fail", "ignore"] = "fail",
        on_error: Literal["fail", "skip", "dead_letter"] = "fail",
        on_missing: Literal["fail", "skip"] = "fail",
        moved_from: str | os.PathLike[str] | None = None,
        options: Mapping[str, Any] | None = None,
        **format_settings: Any,
    ) -> None:
        _require("on_change", on_change, "fail", "ignore")
        _require("on_error", on_error, "fail", "skip", "dead_letter")
        _require("on_missing", on_missing, "fail", "skip")
        self.format = "jsonl" if format == "json" else format
        if self.format not in _READERS:
            raise PipelineError(f"FileSource: format is {format!r}: it must be one of {', '.join(_READERS)}")
        given = {**(options or {}), **format_settings}
        self.format_options = format_options(self.format, given, has_schema=schema is not None)
        self.path = absolute(path)
        self.moved_from = None if moved_from is None else absolute(moved_from)
        self.schema = None if schema is None else as_schema(schema)
        self.splits_may_appear = self.is_endless = watch
        self.stable_for_s = duration_s("FileSource: stable_for", stable_for)
        self.on_change = on_change
        self.on_error = on_error
        self.on_missing = on_missing
        self.side_outputs = (DEAD_LETTERS,) if on_error == "dead_letter" else ()
        self._listing: list[str] | None = None
        self.sizes: dict[str, int] = {}
        """Sizes of the files when they were listed last, in bytes."""
        self._partition_types: dict[str, pa.DataType] | None = None
        self._changes = Changes()

    def __getstate__(self) -> dict[str, Any]:
        if not self.splits_may_appear:
            # The workers must agree on the files, whatever is added while they start: the list travels with the source.
            self._listing = list(self.splits())
        # Settled once, for all workers.
        self.partition_types()
        return {**vars(self), "_changes": Changes()}

    def identity(self) -> Mapping[str, str]:
        options = self.format_options
        return {
            **super().identity(),
            "directory": address_of(fixed_part(self.moved_from or self.path)),
            "format": self.format,
            # A position is a place in the decoded bytes, and the number of a record.
            **({} if options.is_cut_by_bytes else {"encoding": options.encoding}),
            **({"multiLine": "true"} if options.multi_line else {}),
        }

    def splits(self) -> Sequence[str]:
        if self._listing is None or self.splits_may_appear:
            self._listing = self._list()
        return self._listing

    def _list(self) -> list[str]:
        place, pattern = directory_and_pattern(self.path)
        if not place.exists():
            if not self.splits_may_appear:
                raise StorageError(
                    f"FileSource: {self.path} does not exist: create it, or set watch=True to wait for it"
                )
            self.say_once(f"FileSource: {self.path} does not exist yet; waiting for it")
            return []
        stamps = {name: stamp for name, stamp in place.stamps().items() if pattern.fullmatch(name)}
        names = sorted(name for name in stamps if not is_hidden(name))
        self.sizes = {name: stamps[name].size for name in names}
        if not names:
            waiting = "; waiting for one" if self.splits_may_appear else ""
            self.say_once(f"FileSource: no file matches {self.path}{elsewhere(place, pattern)}{waiting}")
        if self.on_change == "fail":
            self._changes.check(stamps, self.path)
        return self._changes.stable(names, stamps, self.stable_for_s) if self.splits_may_appear else names

    def say_once(self, text: str) -> None:
        """Warn, unless this process has said it before."""
        self._changes.say_once(text)

    def partition_types(self) -> Mapping[str, pa.DataType]:
        """The columns in the names of directories, with the types that they have without a declared one."""
        if self._partition_types is None:
            place, pattern = directory_and_pattern(self.path)
            self._partition_types = partition_types(name for name in place.files() if pattern.fullmatch(name))
        return self._partition_types

    def stamp(self, split: str) -> Stamp | None:
        place, _ = directory_and_pattern(self.path)
        return place.stamp(split)

    def was_read(self, split: str, stamp: Stamp) -> None:
        """What is read of a file is that of this time: a change from now on is noticed."""
        self._changes.read[split] = stamp

    def open(self, split: str, offset: bytes | None) -> SplitReader:
        return _READERS[self.format](self, split, json.loads(offset) if offset else None)

    def file(self, split: str) -> Any:
        """The open file of a split."""
        place, _ = directory_and_pattern(self.path)
        return place.open(split)

    def path_of(self, split: str) -> str:
        """The whole path of a split, without secrets of a URL."""
        fixed = address_of(fixed_part(self.path))
        return fixed if fixed.endswith(f"/{split}") else f"{fixed.rstrip('/')}/{split}"


def _require(name: str, value: object, *choices: str) -> None:
    if value not in choices:
        allowed = " or ".join(repr(choice) for choice in choices)
        raise PipelineError(f"FileSource: {name} is {value!r}: it must be {allowed}")
