"""An Iceberg table as a sink: data files staged by the writers, one snapshot for each checkpoint in the driver.

The commit is one transaction of the catalog: the snapshot with its files, whose summary names the checkpoint, and the
property `penstock.commits`, by which a repeated commit is recognised (I4). Snapshots expire and their summaries with
them, a property stays. Two drivers that commit at once base their transactions on one state of the table: the catalog
refuses the second, which looks again and finds the checkpoint (I6).
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet

from penstock.columnar.schemas.schema_ddl import SchemaLike, as_schema
from penstock.connectors.files.filesystem import Place
from penstock.connectors.iceberg.merge import Replacement, replacement_of
from penstock.connectors.iceberg.table import IcebergLocation
from penstock.connectors.sink import Committer, Sink, SinkWriter
from penstock.connectors.tables.arguments import check_mode
from penstock.connectors.tables.changes import newest_changes, warn_of_own_op
from penstock.connectors.tables.data_files import CommitId, DataFile, DataFileWriter
from penstock.errors import DataError, PipelineError
from penstock.ids import CheckpointId, Generation
from penstock.model.units import Size, size_bytes

COMMITS = "penstock.commits"
"""Property of the table: the newest checkpoint by scope, as JSON."""
_SCOPES_MAX = 200
"""Scopes that are remembered. Each start of a pipeline has its own, and only the last one of each is ever asked for."""
_TRIES = 10
_PAUSE_S = 0.1

_log = logging.getLogger("penstock")


class IcebergSink(Sink):
    """Writes rows to an Iceberg table, exactly once: one snapshot for each checkpoint.

    Example:

        orders.sink(IcebergSink({"type": "rest", "uri": "http://catalog:8181"}, "shop.orders"), name="table")
        assert [node.name for node in pipeline.graph().nodes] == ["orders", "table"]

    `catalog` are the properties of pyiceberg's `load_catalog`, with its `name` if that is not "default"; or the name
    of a catalog that `~/.pyiceberg.yaml` has on the driver and on all workers. The table must exist, or be described
    by `schema`, of Arrow or a DDL string, from which it is made. Tables that are not partitioned, or partitioned by
    the values of columns (`identity`), can be written. `roll_size` is the size at which a file is followed by another
    one.

    `mode="upsert"` replaces the row with the same `key`, or adds one. Of several rows of a key the one that is highest
    in the column `by` wins, in the checkpoint and in the table; without `by` the last one, which is certain only if all
    rows of a key come from one subtask: put `key_by` in front. If the records are a changelog, with a column `op` that
    the table does not have, "delete" removes the row of the key. An upsert is a copy-on-write in the driver: it reads
    the keys of each file whose statistics allow one of them, and writes the files anew that have one. So it is for
    changes that touch few files, and not for bulk loads.

    The summary of a snapshot has `penstock.checkpoint`. Files that were staged and never committed stay until
    `remove_orphan_files` of the table's maintenance removes them.
    """

    def __init__(
        self,
        catalog: str | Mapping[str, str],
        table: str,
        *,
        mode: Literal["append", "upsert"] = "append",
        key: str | Sequence[str] | None = None,
        by: str | None = None,
        schema: SchemaLike | None = None,
        roll_size: Size = "128 MiB",
    ) -> None:
        self.location = IcebergLocation(catalog, table, "IcebergSink")
        self.mode = mode
        self.key, self.by = check_mode("IcebergSink", mode, key, by), by
        self.is_upsert = mode == "upsert"
        self.schema = None if schema is None else as_schema(schema)
        self.roll_bytes = size_bytes("IcebergSink: roll_size", roll_size, at_least=1)

    def identity(self) -> Mapping[str, str]:
        # Committables of appends are what they were before there were others.
        mode = {"mode": self.mode} if self.is_upsert else {}
        return {**super().identity(), **self.location.identity(), **mode}

    def table(self) -> Any:
        """The table as it is now. Raises `PipelineError` if it does not exist, `StorageError` if the catalog fails."""
        return self.location.table("create it first, or set schema=… to have it made")

    def writer(self, subtask: int, generation: Generation) -> SinkWriter:
        table = self.table()
        schema = self.location.arrow_schema(table.schema())
        return DataFileWriter(
            self.location.name,
            self.location.place(table),
            subtask,
            generation,
            schema_of=lambda given: schema,
            # An upsert is merged, which partitions the rows itself.
            partition_by=() if self.is_upsert else _partitions(table, self.location.name),
            roll_bytes=self.roll_bytes,
            prefix="data/",
            keeps_partitions=True,
            takes_changes=self.is_upsert,
        )

    def committer(self) -> Committer:
        if self.schema is not None:
            self._create()
        table = self.table()
        _partitions(table, self.location.name)
        if self.is_upsert:
            self._check(table)
        return _IcebergCommitter(self)

    def _check(self, table: Any) -> None:
        names = self.location.arrow_schema(table.schema()).names
        for name in (*self.key, *([self.by] if self.by else [])):
            if name not in names:
                raise PipelineError(f"{self!r}: the table has no column '{name}'; its columns are {', '.join(names)}")
        warn_of_own_op(self, names)

    def _create(self) -> None:
        exceptions = self.location.package("exceptions")
        name = self.location.name
        try:
            catalog = self.location.open_catalog()
            catalog.create_namespace_if_not_exists(name.rpartition(".")[0])
            catalog.create_table_if_not_exists(name, schema=self.schema)
        except exceptions.TableAlreadyExistsError:
            pass
        except Exception as error:
            raise self.location.failure("cannot be made", error) from error


def _partitions(table: Any, name: str) -> list[str]:
    """The columns by which the table is partitioned. Raises `PipelineError` for other transforms than `identity`."""
    others = [field for field in table.spec().fields if str(field.transform) != "identity"]
    if others:
        raise PipelineError(
            f"IcebergSink: the table {name} is partitioned by {others[0].transform} of a column, and only partitions "
            f"by the values of columns can be written: add such a column in front of the sink, and partition by it"
        )
    return [table.schema().find_column_name(field.source_id) for field in table.spec().fields]


class _IcebergCommitter(Committer):
    def __init__(self, sink: IcebergSink) -> None:
        self._sink = sink

    def commit(self, checkpoint: CheckpointId, committables: Sequence[bytes]) -> None:
        exceptions = self._sink.location.package("exceptions")
        files = [DataFile.decoded(payload) for payload in committables]
        identity = CommitId.of(checkpoint, [file.writer for file in files])
        for number in range(1, _TRIES + 1):
            table = self._sink.table()
            # I4: read from the same state of the table as the transaction below is based on.
            commits = json.loads(table.properties.get(COMMITS, "{}"))
            if commits.get(identity.scope, 0) >= identity.version:
                return
            try:
                self._publish(table, files, identity, commits)
                break
            except DataError:
                raise
            except (exceptions.CommitFailedException, exceptions.CommitStateUnknownException) as error:
                # Somebody else has changed the table, or the answer was lost: the next look tells.
                _log.warning(
                    "%r: commit of checkpoint %d, try %d of %d: %s", self._sink, checkpoint, number, _TRIES, error
                )
                if number == _TRIES:
                    raise self._sink.location.failure(
                        f"refused checkpoint {checkpoint} {_TRIES} times", error
                    ) from error
                time.sleep(_PAUSE_S * number)
            except Exception as error:
                raise self._sink.location.failure(f"did not take checkpoint {checkpoint}", error) from error

        self._clean(files)

    def _publish(self, table: Any, files: Sequence[DataFile], identity: CommitId, commits: dict[str, int]) -> None:
        # The newest last, so that the oldest are forgotten.
        known = {scope: version for scope, version in commits.items() if scope != identity.scope}
        newest = dict([*known.items(), (identity.scope, identity.version)][-_SCOPES_MAX:])
        # In this copy of the metadata alone. pyiceberg would try again on a newer state of the table, without the look
        # for the checkpoint that our own loop begins with (I4).
        table.metadata.properties["commit.retry.num-retries"] = "0"
        summary = {"penstock.checkpoint": str(identity.version), "penstock.scope": identity.scope}
        # Before the transaction: nothing is listed yet, and most of the time is spent here.
        merged = self._merged(table, files) if self._sink.is_upsert else None
        with table.transaction() as transaction:
            transaction.set_properties({COMMITS: json.dumps(newest)})
            if merged is None:
                self._append(transaction, table, files, summary)
            else:
                _replace(transaction, merged, summary)

    def _append(self, transaction: Any, table: Any, files: Sequence[DataFile], summary: Mapping[str, str]) -> None:
        location = table.location().rstrip("/")
        transaction.add_files(
            [f"{location}/{file.path}" for file in files],
            snapshot_properties=dict(summary),
            # Their names are random, and looking for them reads every manifest of the table.
            check_duplicate_files=False,
        )

    def _merged(self, table: Any, files: Sequence[DataFile]) -> Replacement:
        sink = self._sink
        place = sink.location.place(table)
        read = pa.concat_tables([self._read(place, file).replace_schema_metadata() for file in files])
        rows = newest_changes(read, sink.key, sink.by, sink)
        return replacement_of(sink.location, table, rows, sink.key, sink.by)

    def _read(self, place: Place, file: DataFile) -> pa.Table:
        try:
            with place.open(file.path) as opened:
                return pyarrow.parquet.read_table(opened)
        except FileNotFoundError as error:
            raise DataError(
                f"{self._sink!r}: the staged file {file.path} was removed before its commit, by a "
                "removal of orphan files with a short retention or by hand. Put it back, or start "
                "from an older checkpoint with restore=…"
            ) from error

    def _clean(self, files: Sequence[DataFile]) -> None:
        if self._sink.is_upsert:
            place = self._sink.location.place(self._sink.table())
            for file in files:
                place.remove(file.path)


def _replace(transaction: Any, merged: Replacement, summary: Mapping[str, str]) -> None:
    """One snapshot. Without files that go it is an append, which readers of new rows can follow."""
    update = transaction.update_snapshot(snapshot_properties=dict(summary))
    with update.overwrite() if merged.removed else update.fast_append() as snapshot:
        for file in merged.removed:
            snapshot.delete_data_file(file)
        for file in merged.added:
            snapshot.append_data_file(file)
