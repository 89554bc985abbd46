"""Data files of a table: Parquet that writers stage in the table's directory, where no reader looks for it.

A table format lists its files in a log or in metadata. A file that is written and not listed does not exist for any
reader, so staging needs no rename: the commit adds the names. A file that is never committed is an orphan, which the
table's own cleaning removes (VACUUM, `remove_orphan_files`).

Names hold the generation, the subtask, a random part and a count, so that no two writers touch one file. The random
part, the *writer token*, also tells commits apart: see `CommitId`.
"""

from __future__ import annotations

import base64
import json
import math
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import pyarrow as pa

from penstock.columnar.grouping import group
from penstock.connectors.files.filesystem import Place
from penstock.connectors.sink import Prepared, SinkWriter
from penstock.connectors.tables.changes import check_ops, data_schema, staged_schema
from penstock.connectors.tables.conform import conformed
from penstock.errors import DataError, StorageError
from penstock.ids import CheckpointId, Generation
from penstock.model.changelog import OP

_GROUP_ROWS = 1 << 17
_GROUP_BYTES = 8 * 1024 * 1024
"""A row group is encoded on the mailbox thread, so it must not become large."""
_STATS_COLUMNS = 32
_PARTITIONS_MAX = 1_000
_TABLE_SCHEMA = b"penstock.table"
"""Metadata of a file: the schema of its table, with the partition columns, for the commit that makes the table.
A text, because other implementations of Arrow refuse metadata that is none."""


@dataclass(frozen=True, slots=True)
class DataFile:
    """A staged file, as a committable names it."""

    writer: str
    """Token of the writer."""
    path: str
    """Relative to the table."""
    size: int
    """In bytes."""
    rows: int
    partition: Mapping[str, str | None] = field(default_factory=dict)
    """Values of the partition columns, which are not in the file."""
    stats: Mapping[str, Any] = field(default_factory=dict)
    """`min`, `max` and `nulls` by column."""

    def encoded(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @staticmethod
    def decoded(payload: bytes) -> DataFile:
        return DataFile(**json.loads(payload))


@dataclass(frozen=True, slots=True)
class CommitId:
    """By which a table knows a commit again: `scope` has published everything up to `version`.

    The scope is the smallest writer token among the committables. A repeated commit has the same committables, and so
    the same scope and version. The trap of a scope that the user names, such as the pipeline: ids of checkpoints begin
    again at 1 when a checkpoint directory is deleted, and the table would refuse new output as published. A token
    belongs to one writer of one generation, whose checkpoints only ascend (I5).
    """

    scope: str
    version: int

    @staticmethod
    def of(checkpoint: CheckpointId, tokens: Sequence[str]) -> CommitId:
        return CommitId(f"penstock-{min(tokens)}", int(checkpoint))


def schema_of_table(schema: pa.Schema) -> pa.Schema:
    """The schema of the table for which a file with this schema was staged."""
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(schema.metadata[_TABLE_SCHEMA])))


class DataFileWriter(SinkWriter):
    """Stages the rows of one subtask as Parquet files, one or more for each partition and checkpoint.

    `schema_of` gives the schema of the table for that of the first batch. `keeps_partitions`: the partition columns
    stay in the files. `takes_changes`: the column `op` of the records is staged, and is none of the table.
    """

    def __init__(
        self,
        table: str,
        place: Place,
        subtask: int,
        generation: Generation,
        *,
        schema_of: Callable[[pa.Schema], pa.Schema],
        partition_by: Sequence[str] = (),
        roll_bytes: int,
        prefix: str = "",
        keeps_partitions: bool = False,
        takes_changes: bool = False,
    ) -> None:
        self._table = table
        self._place = place
        self._schema_of = schema_of
        self._partition_by = tuple(partition_by)
        self._roll_bytes = roll_bytes
        self._keeps_partitions = keeps_partitions
        self._takes_changes = takes_changes
        self.token = secrets.token_hex(8)
        self._name = f"{prefix}penstock-g{generation}-{subtask}-{self.token}"
        self._count = 0
        self._schema: pa.Schema | None = None
        self._table_schema: pa.Schema | None = None
        self._has_ops = False
        self._open: dict[tuple[str | None, ...], _Part] = {}
        self._full: list[_Part] = []

    def write(self, batch: pa.RecordBatch) -> None:
        if self._schema is None:
            self._begin(batch.schema)
        assert self._schema is not None
        fitting = conformed(batch, self._schema, self._table)
        if self._has_ops:
            check_ops(fitting.column(OP), self._table)
        if not self._partition_by:
            self._write((), fitting)
            return
        groups = group(fitting, self._partition_by, f"the sink of {self._table}")
        values = [column.cast(pa.string()).to_pylist() for column in groups.keys.columns]
        rows = groups.batch if self._keeps_partitions else groups.batch.drop_columns(list(self._partition_by))
        for partition, start, end in zip(zip(*values, strict=True), groups.starts, groups.ends, strict=True):
            self._write(partition, rows.slice(start, end - start))

    def _begin(self, given: pa.Schema) -> None:
        """Fix the schema with the first batch."""
        data = data_schema(given) if self._takes_changes else given
        table = self._table_schema = self._schema_of(data)
        missing = [name for name in self._partition_by if name not in table.names]
        if missing:
            raise DataError(
                f"the table {self._table} is partitioned by '{missing[0]}', which is not one of its "
                f"columns: {', '.join(table.names)}"
            )
        self._schema = staged_schema(table, given) if self._takes_changes else table
        self._has_ops = self._schema is not table

    def _write(self, partition: tuple[str | None, ...], rows: pa.RecordBatch) -> None:
        part = self._open.get(partition)
        if part is None:
            if len(self._open) >= _PARTITIONS_MAX:
                raise DataError(
                    f"the rows of one checkpoint go to more than {_PARTITIONS_MAX} partitions of {self._table}, each a "
                    f"file of its own: partition by a column with fewer values, or put key_by in front of the sink"
                )
            self._count += 1
            path = f"{self._name}-{self._count:06d}.parquet"
            named = dict(zip(self._partition_by, partition, strict=True))
            assert self._table_schema is not None
            schema = rows.schema.with_metadata({_TABLE_SCHEMA: base64.b64encode(self._table_schema.serialize())})
            part = self._open[partition] = _Part(self._place, path, schema, self.token, named, self._table)
        part.write(rows)
        if part.is_as_large_as(self._roll_bytes):
            self._full.append(self._open.pop(partition))

    def prepare(self) -> Prepared:
        parts = [*self._full, *self._open.values()]
        self._full, self._open = [], {}
        if not parts:
            return list
        return lambda: [part.finish().encoded() for part in parts]

    def close(self) -> None:
        for part in [*self._full, *self._open.values()]:
            part.discard()
        self._full, self._open = [], {}


class _Part:
    """One file in the making."""

    def __init__(
        self, place: Place, path: str, schema: pa.Schema, token: str, partition: Mapping[str, str | None], table: str
    ) -> None:
        import pyarrow.parquet

        self._place = place
        self._path = path
        self._token = token
        self._partition = partition
        self._table = table
        self._file = place.create(path)
        self._metadata: list[Any] = []
        self._writer = pyarrow.parquet.ParquetWriter(
            self._file, schema, compression="zstd", metadata_collector=self._metadata
        )
        self._schema = schema
        self._held: list[pa.RecordBatch] = []
        self._held_rows = self._held_bytes = self._rows = 0
        self._finished: DataFile | None = None
        self._error: Exception | None = None

    def write(self, batch: pa.RecordBatch) -> None:
        # Small batches would make small row groups, which are slow to read.
        self._held.append(pa.RecordBatch.from_arrays(batch.columns, schema=self._schema))
        self._held_rows += batch.num_rows
        self._held_bytes += batch.nbytes
        self._rows += batch.num_rows
        if self._held_rows >= _GROUP_ROWS or self._held_bytes >= _GROUP_BYTES:
            self._flush()

    def _flush(self) -> None:
        if self._held:
            self._writer.write_table(pa.Table.from_batches(self._held, self._schema))
        self._held = []
        self._held_rows = self._held_bytes = 0

    def is_as_large_as(self, bytes_max: int) -> bool:
        return bool(self._file.tell() >= bytes_max)

    def finish(self) -> DataFile:
        """Make it durable, in the background. Called again after a failure, it fails again: half a file was closed."""
        if self._error is not None:
            raise self._error
        if self._finished is None:
            try:
                self._flush()
                self._writer.close()
                self._place.close_durably(self._file)
                size = self._place.size(self._path)
                assert size is not None, f"{self._path} was written and is not there"
            except Exception as error:
                self._error = StorageError(f"{self._path} of the table {self._table} cannot be written: {error}")
                raise self._error from error
            stats = _stats_of(self._metadata[0])
            self._finished = DataFile(self._token, self._path, size, self._rows, self._partition, stats)
        return self._finished

    def discard(self) -> None:
        # Left to the garbage collector it would write its end into a file that is closed.
        self._writer.close()
        self._file.close()
        self._place.remove(self._path)


def _stats_of(metadata: Any) -> dict[str, Any]:
    """Minimum, maximum and nulls of the first columns, where all row groups have them: readers skip files by them."""
    lows: dict[str, Any] = {}
    highs: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for column in range(min(metadata.num_columns, _STATS_COLUMNS)):
        chunks = [metadata.row_group(group).column(column) for group in range(metadata.num_row_groups)]
        name = chunks[0].path_in_schema if chunks else ""
        if not chunks or "." in name or not all(chunk.is_stats_set for chunk in chunks):
            continue
        stats = [chunk.statistics for chunk in chunks]
        if all(stat.has_null_count for stat in stats):
            nulls[name] = sum(stat.null_count for stat in stats)
        # Texts and numbers alone: other types would need the format's own spelling.
        if all(stat.has_min_max and type(stat.min) in (int, float, str) for stat in stats):
            low, high = min(stat.min for stat in stats), max(stat.max for stat in stats)
            is_nan = isinstance(low, float) and (math.isnan(low) or math.isnan(high))
            if not (isinstance(high, str) and max(len(low), len(high)) > 64) and not is_nan:
                lows[name], highs[name] = low, high
    return {"min": lows, "max": highs, "nulls": nulls}
