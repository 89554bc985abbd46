"""A Delta table as a sink: data files staged by the writers, one commit for each checkpoint in the driver.

A commit holds an application transaction (`CommitId`), written in the same entry of the log as the files. A repeated
commit finds it and does nothing. Two drivers that commit at once read the log at the same version, and Delta refuses
the second entry with the same application id; the next look finds the transaction (I4, I6).
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet

from penstock.connectors.delta.table import DeltaLocation, arrow_schema
from penstock.connectors.files.latest import columns_of
from penstock.connectors.sink import Committer, Sink, SinkWriter
from penstock.connectors.tables.arguments import check_mode, required
from penstock.connectors.tables.changes import are_changes, newest_changes, warn_of_own_op
from penstock.connectors.tables.data_files import CommitId, DataFile, DataFileWriter, schema_of_table
from penstock.errors import DataError, PipelineError, StorageError
from penstock.ids import CheckpointId, Generation
from penstock.model.changelog import DELETE, OP
from penstock.model.units import Size, size_bytes

_TRIES = 10
_PAUSE_S = 0.05

_log = logging.getLogger("penstock")


class DeltaSink(Sink):
    """Writes rows to a Delta table, exactly once: one version of the table for each checkpoint.

    Example:

        orders.sink(DeltaSink("orders", partition_by="customer"))
        totals = orders.key_by("customer").aggregate(total=("sum", "amount"), sequence="version")
        totals.sink(DeltaSink("totals", mode="upsert", key="customer", by="version"))
        run(pipeline)
        from deltalake import DeltaTable
        assert sorted(DeltaTable("totals").to_pyarrow_table()["total"].to_pylist()) == [20, 40]

    The table is made with the first commit if it does not exist; `partition_by` counts then, and must agree with a
    table that exists. Rows that do not fit its schema are a `DataError`; columns that they lack are null.

    `mode="upsert"` replaces the row with the same `key`, or adds one (a merge). Of several rows of a key the one that
    is highest in the column `by` wins, in the checkpoint and in the table; without `by` the last one, which is certain
    only if all rows of a key come from one subtask: put `key_by` in front. The driver reads the rows of a checkpoint
    for it, so an upsert is for changes and not for bulk loads. If the records are a changelog, with a column `op` that
    the table does not have, "delete" removes the row of the key.

    `roll_size` is the size at which a file is followed by another one. Each checkpoint ends the files it finds
    open: with `compact_every=100` the driver rewrites small files into larger ones after every 100 commits.
    `storage_options` are those of deltalake, such as `AWS_REGION`.

    The trap: files that were staged and never committed stay until `VACUUM` removes them, as with every other writer.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        mode: Literal["append", "upsert"] = "append",
        key: str | Sequence[str] | None = None,
        by: str | None = None,
        partition_by: str | Sequence[str] = (),
        roll_size: Size = "128 MiB",
        compact_every: int | None = None,
        storage_options: Mapping[str, str] | None = None,
    ) -> None:
        self.location = DeltaLocation(path, storage_options, "DeltaSink")
        self.mode = mode
        self.key, self.by = check_mode("DeltaSink", mode, key, by), by
        self.is_upsert = mode == "upsert"
        self.partition_by = columns_of(partition_by)
        self.roll_bytes = size_bytes("DeltaSink: roll_size", roll_size, at_least=1)
        if compact_every is not None and compact_every < 1:
            raise PipelineError(
                f"DeltaSink: compact_every is {compact_every}: it must be at least 1, or None for never"
            )
        self.compact_every = compact_every

    def identity(self) -> Mapping[str, str]:
        return {**super().identity(), "path": self.location.address, "mode": self.mode}

    def writer(self, subtask: int, generation: Generation) -> SinkWriter:
        return DataFileWriter(
            self.location.address,
            self.location.place(),
            subtask,
            generation,
            schema_of=self._schema_of,
            # An upsert is merged, which partitions the rows itself.
            partition_by=() if self.is_upsert else self._partitions(),
            roll_bytes=self.roll_bytes,
            takes_changes=self.is_upsert,
        )

    def committer(self) -> Committer:
        table = self.location.table()
        if table is not None:
            self._check(table)
            if self.is_upsert:
                warn_of_own_op(self, arrow_schema(table).names)
        return _DeltaCommitter(self)

    def _schema_of(self, given: pa.Schema) -> pa.Schema:
        table = self.location.table()
        if table is not None:
            return arrow_schema(table)
        try:
            return pa.schema(self.location.deltalake.Schema.from_arrow(given.remove_metadata()).to_arrow())
        except Exception as error:
            raise DataError(
                f"{self!r}: Delta has no type for a column: {error}. Cast it in front of the sink"
            ) from error

    def _partitions(self) -> Sequence[str]:
        table = self.location.table()
        return self.partition_by if table is None else list(table.metadata().partition_columns)

    def _check(self, table: Any) -> None:
        """Compare the sink with a table that exists. Raises `PipelineError`."""
        partitions = tuple(table.metadata().partition_columns)
        if self.partition_by and self.partition_by != partitions:
            raise PipelineError(
                f"{self!r}: partition_by is {list(self.partition_by)}, and the table is partitioned by "
                f"{list(partitions) or 'nothing'}: leave partition_by out, or write to another table"
            )
        names = arrow_schema(table).names
        for name in (*self.key, *([self.by] if self.by else [])):
            if name not in names:
                raise PipelineError(f"{self!r}: the table has no column '{name}'; its columns are {', '.join(names)}")


class _DeltaCommitter(Committer):
    def __init__(self, sink: DeltaSink) -> None:
        self._sink = sink
        self._location = sink.location
        self._commits = 0

    def commit(self, checkpoint: CheckpointId, committables: Sequence[bytes]) -> None:
        files = [DataFile.decoded(payload) for payload in committables]
        identity = CommitId.of(checkpoint, [file.writer for file in files])
        for number in range(1, _TRIES + 1):
            table = self._existing(files[0])
            # I4: read at the same version of the log as the commit below is based on.
            if (table.transaction_version(identity.scope) or 0) >= identity.version:
                return
            try:
                self._publish(table, files, identity)
                break
            except self._location.deltalake.exceptions.CommitFailedError as error:
                # Somebody else has changed the table meanwhile, perhaps another driver with this very commit.
                _log.warning(
                    "%r: commit of checkpoint %d, try %d of %d: %s", self._sink, checkpoint, number, _TRIES, error
                )
                if number == _TRIES:
                    raise self._location.failure(f"refused checkpoint {checkpoint} {_TRIES} times", error) from error
                time.sleep(_PAUSE_S * number)
            except (self._location.deltalake.exceptions.DeltaError, OSError) as error:
                raise self._location.failure(f"did not take checkpoint {checkpoint}", error) from error
        self._clean(files)

    def _existing(self, file: DataFile) -> Any:
        table = self._location.table()
        if table is not None:
            return table
        self._location.deltalake.DeltaTable.create(
            self._location.path,
            schema=self._schema_of_new(file),
            partition_by=list(self._sink.partition_by) or None,
            storage_options=self._location.options or None,
            mode="ignore",
        )
        table = self._location.table()
        if table is None:
            raise StorageError(
                f"{self._sink!r}: the table was removed after this sink had created "
                "it: restore it, or start again with a new checkpoint directory"
            )
        self._sink._check(table)
        return table

    def _schema_of_new(self, file: DataFile) -> pa.Schema:
        return schema_of_table(self._read(file).schema)

    def _read(self, file: DataFile) -> pa.Table:
        try:
            with self._location.place().open(file.path) as opened:
                return pyarrow.parquet.read_table(opened)
        except FileNotFoundError as error:
            raise StorageError(
                f"{self._sink!r}: the staged file {file.path} was removed before its commit, by "
                "VACUUM with a short retention or by hand. Put it back, or start from an older "
                "checkpoint with restore=…"
            ) from error

    def _publish(self, table: Any, files: Sequence[DataFile], identity: CommitId) -> None:
        deltalake = self._location.deltalake
        properties = deltalake.CommitProperties(
            app_transactions=[deltalake.Transaction(identity.scope, identity.version)],
            custom_metadata={"penstock.checkpoint": str(identity.version)},
        )
        if self._sink.is_upsert:
            self._merge(table, files, properties)
            return
        table.create_write_transaction(
            [_added(file) for file in files],
            "append",
            table.schema(),
            partition_by=list(table.metadata().partition_columns) or None,
            commit_properties=properties,
        )

    def _merge(self, table: Any, files: Sequence[DataFile], properties: Any) -> None:
        key, by = self._sink.key, self._sink.by
        read = pa.concat_tables([self._read(file).replace_schema_metadata() for file in files])
        rows = newest_changes(read, key, by, self._sink)
        quoted = [f'"{name}"' for name in key]
        merger = table.merge(
            source=rows,
            predicate=" AND ".join(f"t.{name} = s.{name}" for name in quoted),
            source_alias="s",
            target_alias="t",
            commit_properties=properties,
        )
        newer = [] if by is None else [f's."{by}" >= t."{by}"']
        if not are_changes(rows, arrow_schema(table)):
            merger = merger.when_matched_update_all(predicate=_all(newer)).when_not_matched_insert_all()
        else:
            stays, goes = f"s.{OP} <> '{DELETE}'", f"s.{OP} = '{DELETE}'"
            merger = merger.when_matched_delete(predicate=_all([goes, *newer]))
            merger = merger.when_matched_update_all(predicate=_all([stays, *newer]), except_cols=[OP])
            merger = merger.when_not_matched_insert_all(predicate=stays, except_cols=[OP])
        merger.execute()

    def _clean(self, files: Sequence[DataFile]) -> None:
        if self._sink.is_upsert:
            place = self._location.place()
            for file in files:
                place.remove(file.path)
        self._commits += 1
        if self._sink.compact_every is not None and self._commits % self._sink.compact_every == 0:
            self._compact()

    def _compact(self) -> None:
        try:
            stats = self._location.table().optimize.compact(target_size=self._sink.roll_bytes)
            _log.info("%r: compacted %s files", self._sink, stats["numFilesRemoved"])
        except (self._location.deltalake.exceptions.DeltaError, OSError) as error:
            # The output is committed: small files are slower to read, and the next compaction takes them too.
            _log.warning(
                "%r: small files could not be compacted; the next compaction includes them: %s", self._sink, error
            )


def _all(conditions: Sequence[str]) -> str | None:
    return " AND ".join(conditions) or None


def _added(file: DataFile) -> Any:
    add = required("deltalake.transaction", "delta", "DeltaSink").AddAction
    stats = {
        "numRecords": file.rows,
        "minValues": file.stats.get("min", {}),
        "maxValues": file.stats.get("max", {}),
        "nullCount": file.stats.get("nulls", {}),
    }
    return add(file.path, file.size, dict(file.partition), int(time.time() * 1000), True, json.dumps(stats))
