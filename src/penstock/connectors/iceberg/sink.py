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
import urllib.parse
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from penstock.columnar.schema_ddl import SchemaLike, as_schema
from penstock.connectors.files.filesystem import LocalPlace, Place, RemotePlace, address_of
from penstock.connectors.sink import Committer, Sink, SinkWriter
from penstock.connectors.tables.arguments import required
from penstock.connectors.tables.data_files import CommitId, DataFile, DataFileWriter
from penstock.errors import PipelineError, StorageError
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
    """Appends rows to an Iceberg table, exactly once: one snapshot for each checkpoint.

    Example:

        orders.sink(IcebergSink({"type": "rest", "uri": "http://catalog:8181"}, "shop.orders"), name="table")
        assert [node.name for node in pipeline.graph().nodes] == ["orders", "table"]

    `catalog` are the properties of pyiceberg's `load_catalog`, with its `name` if that is not "default"; or the name
    of a catalog that `~/.pyiceberg.yaml` has on the driver and on all workers. The table must exist, or be described
    by `schema`, of Arrow or a DDL string, from which it is made. Tables that are not partitioned, or partitioned by
    the values of columns (`identity`), can be written. `roll_size` is the size at which a file is followed by another
    one.

    The summary of a snapshot has `penstock.checkpoint`. Files that were staged and never committed stay until
    `remove_orphan_files` of the table's maintenance removes them.
    """

    def __init__(
        self,
        catalog: str | Mapping[str, str],
        table: str,
        *,
        schema: SchemaLike | None = None,
        roll_size: Size = "128 MiB",
    ) -> None:
        required("pyiceberg.catalog", "iceberg", "IcebergSink")
        if "." not in table:
            raise PipelineError(f"IcebergSink: table is {table!r}: write it with its namespace, as 'shop.orders'")
        self.catalog = catalog if isinstance(catalog, str) else dict(catalog)
        self.name = table
        self.schema = None if schema is None else as_schema(schema)
        self.roll_bytes = size_bytes("IcebergSink: roll_size", roll_size, at_least=1)

    def identity(self) -> Mapping[str, str]:
        catalog = self.catalog if isinstance(self.catalog, str) else address_of(self.catalog.get("uri", "default"))
        return {**super().identity(), "catalog": catalog, "table": self.name}

    def table(self) -> Any:
        """The table as it is now. Raises `PipelineError` if it does not exist, `StorageError` if the catalog fails."""
        exceptions = required("pyiceberg.exceptions", "iceberg", "IcebergSink")
        try:
            return self._catalog().load_table(self.name)
        except exceptions.NoSuchTableError as error:
            raise PipelineError(
                f"{self!r}: the catalog has no such table: create it first, or set schema=… to have it made"
            ) from error
        except Exception as error:
            raise self.failure("cannot be loaded", error) from error

    def _catalog(self) -> Any:
        load_catalog = required("pyiceberg.catalog", "iceberg", "IcebergSink").load_catalog
        if isinstance(self.catalog, str):
            return load_catalog(self.catalog)
        properties = dict(self.catalog)
        # Some catalogs, such as that of SQL, keep tables by the name of the catalog too.
        return load_catalog(properties.pop("name", "default"), **properties)

    def failure(self, what: str, error: Exception) -> StorageError:
        text = str(error).strip().partition("\n")[0]
        return StorageError(
            f"{self!r}: the table {what}: {type(error).__name__}: {text}. Check the properties of the catalog, its "
            f"credentials and those of the warehouse"
        )

    def writer(self, subtask: int, generation: Generation) -> SinkWriter:
        table = self.table()
        to_arrow = required("pyiceberg.io.pyarrow", "iceberg", "IcebergSink").schema_to_pyarrow
        # Files that the table has not written itself must come without its field ids: it maps them by name.
        schema: pa.Schema = to_arrow(table.schema(), include_field_ids=False).remove_metadata()
        return DataFileWriter(
            self.name,
            _place(table),
            subtask,
            generation,
            schema_of=lambda given: schema,
            partition_by=_partitions(table, self.name),
            roll_bytes=self.roll_bytes,
            prefix="data/",
            keeps_partitions=True,
        )

    def committer(self) -> Committer:
        if self.schema is not None:
            self._create()
        _partitions(self.table(), self.name)
        return _IcebergCommitter(self)

    def _create(self) -> None:
        exceptions = required("pyiceberg.exceptions", "iceberg", "IcebergSink")
        try:
            catalog = self._catalog()
            catalog.create_namespace_if_not_exists(self.name.rpartition(".")[0])
            catalog.create_table_if_not_exists(self.name, schema=self.schema)
        except exceptions.TableAlreadyExistsError:
            pass
        except Exception as error:
            raise self.failure("cannot be made", error) from error


def _place(table: Any) -> Place:
    """The directory of the table, with the file system and the credentials that the catalog gives for it."""
    location = table.location().rstrip("/")
    parts = urllib.parse.urlsplit(location)
    if parts.scheme in ("", "file"):
        return LocalPlace(urllib.parse.unquote(parts.path))
    files = required("pyiceberg.io.pyarrow", "iceberg", "IcebergSink").PyArrowFileIO(table.io.properties)
    return RemotePlace(files.fs_by_scheme(parts.scheme, parts.netloc), f"{parts.netloc}{parts.path}", location)


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
        exceptions = required("pyiceberg.exceptions", "iceberg", "IcebergSink")
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
                return
            except (exceptions.CommitFailedException, exceptions.CommitStateUnknownException) as error:
                # Somebody else has changed the table, or the answer was lost: the next look tells.
                _log.warning(
                    "%r: commit of checkpoint %d, try %d of %d: %s", self._sink, checkpoint, number, _TRIES, error
                )
                if number == _TRIES:
                    raise self._sink.failure(f"refused checkpoint {checkpoint} {_TRIES} times", error) from error
                time.sleep(_PAUSE_S * number)
            except Exception as error:
                raise self._sink.failure(f"did not take checkpoint {checkpoint}", error) from error

    def _publish(self, table: Any, files: Sequence[DataFile], identity: CommitId, commits: dict[str, int]) -> None:
        location = table.location().rstrip("/")
        # The newest last, so that the oldest are forgotten.
        known = {scope: version for scope, version in commits.items() if scope != identity.scope}
        newest = dict([*known.items(), (identity.scope, identity.version)][-_SCOPES_MAX:])
        # In this copy of the metadata alone. pyiceberg would try again on a newer state of the table, without the look
        # for the checkpoint that our own loop begins with (I4).
        table.metadata.properties["commit.retry.num-retries"] = "0"
        with table.transaction() as transaction:
            transaction.set_properties({COMMITS: json.dumps(newest)})
            transaction.add_files(
                [f"{location}/{file.path}" for file in files],
                snapshot_properties={
                    "penstock.checkpoint": str(identity.version),
                    "penstock.scope": identity.scope,
                },
                # Their names are random, and looking for them reads every manifest of the table.
                check_duplicate_files=False,
            )
