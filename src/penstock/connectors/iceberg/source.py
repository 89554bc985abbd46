"""An Iceberg table as a source: the rows of one snapshot, then the rows that later snapshots append."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa

from penstock.connectors.iceberg.log import EMPTY, IcebergLog
from penstock.connectors.iceberg.table import IcebergLocation
from penstock.connectors.tables.reader import TableLog
from penstock.connectors.tables.source import TableSource, check_time
from penstock.errors import PipelineError


@dataclass(frozen=True, slots=True)
class _Start:
    """On which all workers agree."""

    snapshot: int
    schema_id: int
    schema: pa.Schema


class IcebergSource(TableSource):
    """Rows of an Iceberg table: those of one snapshot, then those that are appended.

        IcebergSource(catalog, "shop.orders")                               # all rows now, then new ones
        IcebergSource(catalog, "shop.orders", snapshot=8184529014537)       # as of a snapshot, then what came after it
        IcebergSource(catalog, "shop.orders", as_of=datetime(2026, 1, 1, tzinfo=UTC))
        IcebergSource(catalog, "shop.orders", follow=False)                 # all rows now, bounded

    Example:

        catalog = {"type": "sql", "uri": "sqlite:///catalog.db", "warehouse": "file://" + str(Path.cwd())}
        orders.sink(IcebergSink(catalog, "shop.orders", schema="customer string, amount bigint, at bigint"))
        run(pipeline)
        again = Pipeline("again")
        again.source(IcebergSource(catalog, "shop.orders", follow=False)).sink(output)
        run(again)
        assert len(output.rows()) == 3

    `catalog` are the properties of pyiceberg's `load_catalog`, as in `IcebergSink`. Columns are found by their field
    ids: rows of older files have the names and types that the table has when the pipeline starts, and nulls in columns
    that they lack.

    A snapshot that deletes or updates rows is a `DataError`, because rows that were read would have to be taken back;
    `on_change="skip"` passes over such snapshots with a warning, and over all rows that they add. Compactions
    ("replace") change no data and are passed over in silence. `splits` is the parallelism that it can be read with, and
    cannot be changed later.

    The trap: snapshots expire. A pipeline that was stopped until the snapshots behind its position had expired cannot
    go on, and says so.
    """

    def __init__(
        self,
        catalog: str | Mapping[str, str],
        table: str,
        *,
        snapshot: int | None = None,
        as_of: datetime.datetime | None = None,
        follow: bool = True,
        on_change: Literal["fail", "skip"] = "fail",
        splits: int = 8,
    ) -> None:
        super().__init__(splits)
        self.location = IcebergLocation(catalog, table, "IcebergSource")
        if on_change not in ("fail", "skip"):
            raise PipelineError(f"IcebergSource: on_change is {on_change!r}: it must be 'fail' or 'skip'")
        if snapshot is not None and as_of is not None:
            raise PipelineError("IcebergSource: snapshot and as_of both set the starting point: give only one")
        check_time("IcebergSource", as_of)
        self.snapshot = snapshot
        self.as_of = as_of
        self.is_endless = follow
        self.on_change: Literal["fail", "skip"] = on_change
        self._start: _Start | None = None

    def identity(self) -> Mapping[str, str]:
        return {**super().identity(), **self.location.identity(), "splits": str(self.split_count)}

    def first_version(self) -> int:
        return self.start().snapshot

    def opened_log(self) -> TableLog:
        start = self.start()
        return IcebergLog(
            self.location,
            schema=start.schema,
            schema_id=start.schema_id,
            is_bounded=not self.is_endless,
            split_count=self.split_count,
            on_change=self.on_change,
        )

    def start(self) -> _Start:
        """The snapshot to begin with, and the schema of the table now. Raises `PipelineError`."""
        if self._start is None:
            table = self.location.table("create it first, or check the name and the catalog")
            schema = table.schema()
            self._start = _Start(self._first(table), schema.schema_id, self.location.arrow_schema(schema))
        return self._start

    def _first(self, table: Any) -> int:
        known = {snapshot.snapshot_id for snapshot in table.metadata.snapshots}
        if self.snapshot is not None:
            if self.snapshot not in known:
                raise PipelineError(
                    f"{self!r}: there is no snapshot {self.snapshot}, or it has expired; {_newest_of(table)}"
                )
            return self.snapshot
        if self.as_of is not None:
            found = table.snapshot_as_of_timestamp(int(self.as_of.timestamp() * 1000))
            if found is None:
                raise PipelineError(
                    f"{self!r}: as_of is {self.as_of.isoformat()}, and the table has no snapshot of that time, or it "
                    f"has expired; {_oldest_of(table)}"
                )
            return int(found.snapshot_id)
        current = table.metadata.current_snapshot_id
        return EMPTY if current is None else int(current)


def _newest_of(table: Any) -> str:
    newest = [str(entry.snapshot_id) for entry in table.history()][-3:]
    return f"the newest ones are {', '.join(newest)}" if newest else "the table has none"


def _oldest_of(table: Any) -> str:
    entries = table.history()
    if not entries:
        return "the table has none"
    oldest = datetime.datetime.fromtimestamp(entries[0].timestamp_ms / 1000, datetime.UTC)
    return f"the oldest one is of {oldest.isoformat()}"
