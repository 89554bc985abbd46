"""The committed output of a pipeline's file sinks, for Spark: `spark.read` and `spark.readStream.format("penstock")`.

The log of commits in the directory of the sink decides (`connectors/files/commit_log.py`): a query sees all files of a
checkpoint, or none. An offset of a stream is the number of a commit, and names its checkpoint. A stream reads from the
output alone, so retention in the checkpoint directory cannot take away anything that it has not read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from penstock.connectors.files.commit_log import COMMITS, Commit, CommittedFile, commits_of, files_of
from penstock.connectors.files.filesystem import place_of
from penstock.connectors.files.json_lines_sink import COMPRESSED_ENDS
from penstock.connectors.files.listing import absolute
from penstock.connectors.files.partitions import partition_column, partition_types, partition_values, without
from penstock.connectors.spark.rows import arrow_schema, spark_schema
from penstock.errors import DataError, OptionError, StorageError

_OPTIONS = {"path": "path", "start": "start", "maxrowspertrigger": "maxRowsPerTrigger"}
_PARTITION_BYTES = 64 << 20
"""Small files are read by one task up to about this size."""
_JSON_BLOCK_BYTES = 16 << 20


@dataclass(frozen=True)
class Files(InputPartition):
    """Files that one task reads, in the order of their commits."""

    names: tuple[str, ...]


class PenstockDataSource(DataSource):
    """Reads what the file sinks of a pipeline have committed, as a DataFrame or as a stream of Structured Streaming.

        spark.dataSource.register(PenstockDataSource)
        totals = spark.read.format("penstock").load("/data/totals")
        stream = spark.readStream.format("penstock").load("/data/totals")

    Options: `start` of a stream, `"earliest"` by default, or `"latest"`: only what is committed from now on; and
    `maxRowsPerTrigger`: a micro-batch has no more rows, as long as it has more than one commit. A commit is never
    divided. Give a schema with `.schema(…)` if nothing is committed yet, or for other types than those of the newest
    file. A column that a file does not have is null, as with Spark's own readers.

    Example on Spark:

        pipeline = Pipeline("numbers")
        numbers = GeneratorSource(pa.schema({"n": pa.int64()}), rows=100)
        pipeline.source(numbers, name="numbers").sink(ParquetSink("/tmp/penstock/read"), name="output")
        job = pipeline.start(spark, "/tmp/penstock/read-checkpoints", workers=1, parallelism=1)
        assert job.wait(timeout=120)
        spark.dataSource.register(PenstockDataSource)
        assert spark.read.format("penstock").load("/tmp/penstock/read").count() == 100
    """

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        unknown = [name for name in options if name.lower() not in _OPTIONS]
        if unknown:
            known = ", ".join(_OPTIONS.values())
            raise OptionError(f'format("penstock") has no option {unknown[0]!r}; its options are {known}')
        if not options.get("path"):
            raise OptionError('format("penstock") needs the directory of a file sink: load("/data/totals")')
        self.output = Output(absolute(options["path"]))

    @classmethod
    def name(cls) -> str:
        return "penstock"

    def schema(self) -> StructType:
        schema: StructType = spark_schema(self.output.newest_schema())
        return schema

    def reader(self, schema: StructType) -> DataSourceReader:
        return OutputReader(self.output, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return OutputStreamReader(self.output, schema, self.options)


class Output:
    """The directory of a file sink, as its log describes it. Pickled to the tasks."""

    def __init__(self, directory: str) -> None:
        self.directory = directory.rstrip("/")

    def commits(self) -> list[Commit]:
        return commits_of(place_of(self.directory), self.directory)

    def files(self, commits: Sequence[Commit]) -> list[CommittedFile]:
        place = place_of(self.directory)
        return [file for commit in commits for file in files_of(place, commit, self.directory)]

    def newest_schema(self) -> pa.Schema:
        commits = self.commits()
        if not commits:
            raise StorageError(
                f"nothing has been committed to {self.directory} yet, so its columns are not known: give them with "
                f".schema(…). A file sink writes down its commits below {COMMITS}"
            )
        names = [file.name for file in self.files(commits[-1:])]
        schema = self._schema_of(names[-1])
        for name, kind in partition_types(names).items():
            schema = schema.append(pa.field(name, kind))
        return schema

    def _schema_of(self, name: str) -> pa.Schema:
        with self._opened(name) as file:
            if name.endswith(".parquet"):
                import pyarrow.parquet

                return pyarrow.parquet.read_schema(file)
            with _json(file, name, None) as reader:
                return reader.schema

    def batches(self, name: str, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """The rows of a file with the columns of `schema`."""
        values = partition_values(name)
        inside = without(schema, values)
        try:
            with self._opened(name) as file:
                found = self._parquet(file, inside) if name.endswith(".parquet") else _json(file, name, inside)
                for batch in found:
                    yield self._fitted(batch, schema, values, name)
        except pa.ArrowException as error:
            raise DataError(
                f"{self.directory}/{name} does not fit the schema of the query: {error}. Declare the types of its "
                f"columns with .schema(…)"
            ) from error

    def _parquet(self, file: Any, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        import pyarrow.parquet

        with pyarrow.parquet.ParquetFile(file) as opened:
            wanted = [name for name in schema.names if name in opened.schema_arrow.names]
            yield from opened.iter_batches(columns=wanted)

    def _fitted(
        self, batch: pa.RecordBatch, schema: pa.Schema, values: Mapping[str, str | None], name: str
    ) -> pa.RecordBatch:
        """With the columns of the path, and nulls for those that are nowhere."""
        columns = []
        for field in schema:
            if field.name in values:
                where = f"{self.directory}/{name}"
                column = partition_column(field.name, values[field.name], field.type, batch.num_rows, where)
            elif field.name in batch.schema.names:
                column = batch.column(field.name).cast(field.type)
            else:
                column = pa.nulls(batch.num_rows, field.type)
            columns.append(column)
        return pa.RecordBatch.from_arrays(columns, schema=schema)

    def _opened(self, name: str) -> Any:
        try:
            return place_of(self.directory).open(name)
        except FileNotFoundError as error:
            raise StorageError(
                f"{self.directory}/{name} was committed, and is gone: put it back; or remove the entry below "
                f"{self.directory}/{COMMITS} that names it and all entries in front of that, and begin a new query"
            ) from error

    def partitions(self, commits: Sequence[Commit]) -> list[InputPartition]:
        """The files of some commits, small ones together."""
        found: list[InputPartition] = []
        names: list[str] = []
        size = 0
        for file in self.files(commits):
            if names and size + file.bytes > _PARTITION_BYTES:
                found.append(Files(tuple(names)))
                names, size = [], 0
            names.append(file.name)
            size += file.bytes
        return [*found, Files(tuple(names))] if names else found


def _json(file: Any, name: str, schema: pa.Schema | None) -> Any:
    import pyarrow.json

    codec = next((codec for codec, end in COMPRESSED_ENDS.items() if name.endswith(f".{end}")), None)
    if codec is not None:
        file = pa.CompressedInputStream(file, codec)

    # Binary columns are written in base64, and their text must not pass for their bytes.
    encoded = [field.name for field in schema or () if pa.types.is_binary(field.type)]
    if encoded:
        raise OptionError(
            f"JSON lines have base64 text in place of the binary column '{encoded[0]}': declare it as a string, and "
            f"decode it with unbase64"
        )
    explicit = None if schema is None else pa.schema([(field.name, _in_json(field.type)) for field in schema])
    unexpected = "infer" if schema is None else "ignore"
    options = pyarrow.json.ParseOptions(explicit_schema=explicit, unexpected_field_behavior=unexpected)
    return pyarrow.json.open_json(file, pyarrow.json.ReadOptions(block_size=_JSON_BLOCK_BYTES), options)


def _in_json(kind: pa.DataType) -> pa.DataType:
    """Arrow parses no dates in JSON, and casts texts to them."""
    return pa.string() if pa.types.is_date(kind) else kind


class OutputReader(DataSourceReader):
    """All that is committed when the query is planned."""

    def __init__(self, output: Output, schema: StructType) -> None:
        self._output = output
        self._schema = arrow_schema(schema)

    def partitions(self) -> Sequence[InputPartition]:
        # Spark makes one partition of none.
        return self._output.partitions(self._output.commits()) or [Files(())]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self._output, self._schema, partition)


class OutputStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Commit after commit. An offset says which commit was read last."""

    def __init__(self, output: Output, schema: StructType, options: Mapping[str, str]) -> None:
        self._output = output
        self._schema = arrow_schema(schema)
        self._start = options.get("start", "earliest")
        if self._start not in ("earliest", "latest"):
            raise OptionError(f"option start must be 'earliest' or 'latest', not {self._start!r}")
        self._rows_max = _rows_max(options.get("maxRowsPerTrigger"))
        self._last: int | None = None

    def initialOffset(self) -> dict[str, int]:
        commits = self._output.commits()
        if self._start == "latest" and commits:
            return _offset(commits[-1])
        # Entries at the beginning may have been removed, with their files.
        return {"commit": commits[0].number - 1 if commits else 0, "checkpoint": 0}

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadAllAvailable() if self._rows_max is None else ReadMaxRows(self._rows_max)

    def prepareForTriggerAvailableNow(self) -> None:
        commits = self._output.commits()
        self._last = commits[-1].number if commits else 0

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        commits = self._between(start, self._last)
        if isinstance(limit, ReadMaxRows):
            commits = self._limited(commits, limit.max_rows)
        return _offset(commits[-1]) if commits else start

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        return self._output.partitions(self._between(start, end["commit"]))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self._output, self._schema, partition)

    def _between(self, start: dict[str, int], last: int | None) -> list[Commit]:
        """The commits behind `start`, up to the one with the number `last`, or all of them."""
        commits = self._output.commits()
        self._check(commits, start, last)
        return [each for each in commits if each.number > start["commit"] and (last is None or each.number <= last)]

    def _check(self, commits: Sequence[Commit], start: dict[str, int], last: int | None) -> None:
        numbers = [commit.number for commit in commits]
        first, newest = (numbers[0], numbers[-1]) if numbers else (1, 0)
        at = next((commit for commit in commits if commit.number == start["commit"]), None)
        is_other = at is not None and start["checkpoint"] and at.checkpoint != start["checkpoint"]
        if start["commit"] > newest or (last or 0) > newest or is_other:
            raise StorageError(
                f"{self._output.directory} is not the output that this query has read: it stands at commit "
                f"{max(start['commit'], last or 0)} (checkpoint {start['checkpoint']}), and the log ends with commit "
                f"{newest}. The directory was emptied or replaced: begin a new query with a new checkpointLocation"
            )
        if start["commit"] + 1 < first:
            raise StorageError(
                f"{self._output.directory}: commits {start['commit'] + 1} to {first - 1} were removed before this "
                f"query has read them. Put them back, or begin a new query with a new checkpointLocation"
            )

    def _limited(self, commits: Sequence[Commit], rows_max: int) -> list[Commit]:
        found: list[Commit] = []
        rows = 0
        for commit in commits:
            rows += sum(max(0, file.rows) for file in self._output.files([commit]))
            if found and rows > rows_max:
                break
            found.append(commit)
        return found


def _rows_max(text: str | None) -> int | None:
    if text is None:
        return None
    if not text.isdecimal() or int(text) == 0:
        raise OptionError(f"option maxRowsPerTrigger must be a number of rows, at least 1, not {text!r}")
    return int(text)


def _offset(commit: Commit) -> dict[str, int]:
    return {"commit": commit.number, "checkpoint": int(commit.checkpoint)}


def _read(output: Output, schema: pa.Schema, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    assert isinstance(partition, Files)
    for name in partition.names:
        yield from output.batches(name, schema)
