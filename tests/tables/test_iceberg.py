"""Iceberg tables with an SQL catalog: exactly once through every failure, and errors that help."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock import DataError, PipelineError, StorageError
from penstock.ids import CheckpointId, Generation
from penstock.testing import check_sink
from tests.components import required_package
from tests.tables.deaths import killed_at_every_step

required_package("pyiceberg")

from pyiceberg.catalog import load_catalog  # noqa: E402
from pyiceberg.exceptions import NoSuchTableError  # noqa: E402

from penstock.connectors.iceberg import IcebergSink  # noqa: E402
from penstock.connectors.iceberg import sink as module  # noqa: E402

SCHEMA = "n bigint, text string"


@pytest.fixture
def catalog(tmp_path: Path) -> dict[str, str]:
    return {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}/warehouse"}


def rows_of(catalog: dict[str, str], name: str) -> list[dict[str, Any]]:
    try:
        table = load_catalog("default", **catalog).load_table(name)
    except NoSuchTableError:
        return []
    rows: list[dict[str, Any]] = table.scan().to_arrow().to_pylist()
    return rows


def batch(*numbers: int) -> pa.RecordBatch:
    return pa.record_batch({"n": list(numbers), "text": [f"row {n}" for n in numbers]})


def staged(sink: IcebergSink, *numbers: int) -> list[bytes]:
    writer = sink.writer(0, Generation(1))
    writer.write(batch(*numbers))
    return list(writer.prepare()())


@pytest.mark.parametrize("options", [{}, {"mode": "upsert", "key": "n"}], ids=["append", "upsert"])
def test_the_sink_keeps_the_contract(catalog: dict[str, str], options: dict[str, Any]) -> None:
    check_sink(
        lambda name: IcebergSink(catalog, f"trials.{name}", schema=SCHEMA, **options),
        lambda name: rows_of(catalog, f"trials.{name}"),
        rows=90,
        deaths_max=3,
    )


def test_a_driver_that_is_killed_at_any_step_of_a_commit_loses_and_doubles_nothing(tmp_path: Path) -> None:
    killed_at_every_step(
        tmp_path,
        sink="from penstock.connectors.iceberg import IcebergSink; sink = IcebergSink({'type': 'sql', 'uri': "
        "'sqlite:///' + DIRECTORY + '/catalog.db', 'warehouse': 'file://' + DIRECTORY + '/warehouse'}, 'a.t', "
        "schema='n bigint')",
        module="penstock.connectors.iceberg.sink",
        read_back=lambda home: [
            row["n"] for row in rows_of({"type": "sql", "uri": f"sqlite:///{home}/catalog.db"}, "a.t")
        ],
        deaths=2,
    )


def test_a_driver_that_is_killed_while_it_merges_a_changelog_loses_doubles_and_keeps_no_deleted_row(
    tmp_path: Path,
) -> None:
    killed_at_every_step(
        tmp_path,
        sink="from penstock.connectors.iceberg import IcebergSink; sink = IcebergSink({'type': 'sql', 'uri': "
        "'sqlite:///' + DIRECTORY + '/catalog.db', 'warehouse': 'file://' + DIRECTORY + '/warehouse'}, 'a.t', "
        "schema='n bigint', mode='upsert', key='n')",
        module="penstock.connectors.iceberg.sink",
        read_back=lambda home: [
            row["n"] for row in rows_of({"type": "sql", "uri": f"sqlite:///{home}/catalog.db"}, "a.t")
        ],
        deaths=3,
        changes=True,
    )


def changes(*rows: tuple[str, str, int]) -> pa.RecordBatch:
    ops, keys, values = zip(*rows, strict=True)
    return pa.record_batch({"op": list(ops), "k": list(keys), "value": list(values)})


def staged_changes(sink: IcebergSink, *rows: tuple[str, str, int]) -> list[bytes]:
    writer = sink.writer(0, Generation(1))
    writer.write(changes(*rows))
    return list(writer.prepare()())


def test_upserts_replace_rows_and_the_highest_sequence_wins(catalog: dict[str, str], tmp_path: Path) -> None:
    schema = "k string, version bigint, value bigint"
    sink = IcebergSink(catalog, "a.t", schema=schema, mode="upsert", key="k", by="version")
    committer = sink.committer()

    def upsert(checkpoint: int, *rows: tuple[str, int, int]) -> None:
        keys, versions, values = zip(*rows, strict=True)
        writer = sink.writer(0, Generation(1))
        writer.write(pa.record_batch({"k": list(keys), "version": list(versions), "value": list(values)}))
        committer.commit(CheckpointId(checkpoint), list(writer.prepare()()))

    upsert(1, ("a", 2, 20), ("a", 1, 10), ("b", 1, 1))
    upsert(2, ("a", 1, 99), ("b", 2, 2), ("c", 1, 3))
    assert {row["k"]: row["value"] for row in rows_of(catalog, "a.t")} == {"a": 20, "b": 2, "c": 3}
    assert len(rows_of(catalog, "a.t")) == 3
    table = load_catalog("default", **catalog).load_table("a.t")
    assert [snapshot.summary["penstock.checkpoint"] for snapshot in table.snapshots()] == ["1", "2"]
    assert list((tmp_path / "warehouse").rglob("penstock-*")) == []


def test_a_changelog_deletes_rows_and_the_newest_change_of_a_key_wins(catalog: dict[str, str]) -> None:
    sink = IcebergSink(catalog, "a.t", schema="k string, value bigint", mode="upsert", key="k")
    committer = sink.committer()
    first = ("insert", "a", 1), ("insert", "b", 1), ("insert", "c", 1), ("delete", "c", 1)
    committer.commit(CheckpointId(1), staged_changes(sink, *first))
    committer.commit(CheckpointId(2), staged_changes(sink, ("delete", "gone", 0)))
    second = ("delete", "a", 1), ("update", "b", 2), ("delete", "gone", 0), ("delete", "d", 1), ("insert", "d", 4)
    handed = staged_changes(sink, *second)
    for _ in range(2):
        committer.commit(CheckpointId(3), handed)
    assert sorted((row["k"], row["value"]) for row in rows_of(catalog, "a.t")) == [("b", 2), ("d", 4)]
    table = load_catalog("default", **catalog).load_table("a.t")
    assert table.current_snapshot().summary["penstock.checkpoint"] == "3"
    assert len(table.snapshots()) == 3
    with pytest.raises(DataError, match=r"the column 'op' of the changes for a.t has 'upsert'"):
        staged_changes(sink, ("upsert", "a", 1))


def test_a_delete_that_is_older_than_the_row_in_the_table_deletes_nothing(catalog: dict[str, str]) -> None:
    sink = IcebergSink(catalog, "a.t", schema="k string, value bigint", mode="upsert", key="k", by="value")
    committer = sink.committer()
    committer.commit(CheckpointId(1), staged_changes(sink, ("insert", "a", 5), ("insert", "b", 5)))
    committer.commit(CheckpointId(2), staged_changes(sink, ("delete", "a", 4), ("delete", "b", 5)))
    assert [row["k"] for row in rows_of(catalog, "a.t")] == ["a"]


def test_an_upsert_by_two_columns_rewrites_only_the_files_that_have_one_of_the_keys(catalog: dict[str, str]) -> None:
    from pyiceberg.partitioning import PartitionField, PartitionSpec
    from pyiceberg.transforms import IdentityTransform

    IcebergSink(catalog, "a.plain", schema="part string, n bigint, value bigint").committer()
    opened = load_catalog("default", **catalog)
    schema = opened.load_table("a.plain").schema()
    source = schema.find_field("part").field_id
    field = PartitionField(source_id=source, field_id=1000, transform=IdentityTransform(), name="part")
    opened.create_table("a.t", schema=schema, partition_spec=PartitionSpec(field))
    sink = IcebergSink(catalog, "a.t", mode="upsert", key=["part", "n"])
    committer = sink.committer()

    def upsert(checkpoint: int, numbers: list[int], value: int) -> None:
        writer = sink.writer(0, Generation(1))
        parts, values = [f"p{n % 4}" for n in numbers], [value] * len(numbers)
        writer.write(pa.record_batch({"part": parts, "n": numbers, "value": values}))
        committer.commit(CheckpointId(checkpoint), list(writer.prepare()()))

    def files() -> set[str]:
        return {task.file.file_path for task in opened.load_table("a.t").scan().plan_files()}

    upsert(1, list(range(100)), 1)
    before = files()
    assert len(before) == 4
    upsert(2, [7], 2)
    assert len(before & files()) == 3
    assert {row["n"]: row["value"] for row in rows_of(catalog, "a.t")} == {n: 2 if n == 7 else 1 for n in range(100)}
    assert len(rows_of(catalog, "a.t")) == 100


def test_an_independent_writer_between_look_and_upsert_is_tolerated(catalog: dict[str, str]) -> None:
    sink = IcebergSink(catalog, "a.t", schema=SCHEMA, mode="upsert", key="n")
    committer: Any = sink.committer()
    committer.commit(CheckpointId(1), staged(sink, 1, 2))
    merged = committer._merged

    def beside(*arguments: Any) -> Any:
        made = merged(*arguments)
        committer._merged = merged
        # Rewrites the very file that the upsert is about to replace.
        load_catalog("default", **catalog).load_table("a.t").delete("n = 1")
        return made

    committer._merged = beside
    committer.commit(CheckpointId(2), staged(sink, 2, 3))
    assert sorted(row["n"] for row in rows_of(catalog, "a.t")) == [2, 3]


def test_two_drivers_that_commit_one_checkpoint_at_once_publish_it_once(catalog: dict[str, str]) -> None:
    sink = IcebergSink(catalog, "a.t", schema=SCHEMA)
    slow: Any = sink.committer()
    committables = staged(sink, 1, 2, 3)
    publish = slow._publish

    def published_late(*arguments: Any) -> None:
        sink.committer().commit(CheckpointId(2), committables)
        slow._publish = publish
        publish(*arguments)

    slow._publish = published_late
    slow.commit(CheckpointId(2), committables)
    assert sorted(row["n"] for row in rows_of(catalog, "a.t")) == [1, 2, 3]


def test_an_independent_writer_between_look_and_commit_is_tolerated(catalog: dict[str, str]) -> None:
    sink = IcebergSink(catalog, "a.t", schema=SCHEMA)
    committer: Any = sink.committer()
    publish = committer._publish

    def beside(*arguments: Any) -> None:
        committer._publish = publish
        load_catalog("default", **catalog).load_table("a.t").append(pa.Table.from_batches([batch(9)]))
        publish(*arguments)

    committer._publish = beside
    committer.commit(CheckpointId(1), staged(sink, 1))
    assert sorted(row["n"] for row in rows_of(catalog, "a.t")) == [1, 9]


def test_the_snapshot_names_its_checkpoint_and_old_scopes_are_forgotten(
    catalog: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_SCOPES_MAX", 2)
    sink = IcebergSink(catalog, "a.t", schema=SCHEMA)
    committer = sink.committer()
    for checkpoint in (5, 6, 7):
        committer.commit(CheckpointId(checkpoint), staged(sink, checkpoint))
    table = load_catalog("default", **catalog).load_table("a.t")
    assert table.current_snapshot().summary["penstock.checkpoint"] == "7"
    assert table.properties[module.COMMITS].count("penstock-") == 2


def test_a_table_partitioned_by_values_is_written_and_other_transforms_are_refused(catalog: dict[str, str]) -> None:
    from pyiceberg.partitioning import PartitionField, PartitionSpec
    from pyiceberg.transforms import BucketTransform, IdentityTransform

    IcebergSink(catalog, "a.plain", schema=SCHEMA).committer()
    opened = load_catalog("default", **catalog)
    schema = opened.load_table("a.plain").schema()
    for name, transform in (("by_text", IdentityTransform()), ("bucket", BucketTransform(4))):
        source = schema.find_field("text").field_id
        field = PartitionField(source_id=source, field_id=1000, transform=transform, name="p")
        opened.create_table(f"a.{name}", schema=schema, partition_spec=PartitionSpec(field))
    sink = IcebergSink(catalog, "a.by_text")
    sink.committer().commit(CheckpointId(1), staged(sink, 1, 2, 3))
    assert len(rows_of(catalog, "a.by_text")) == 3
    assert len(list(opened.load_table("a.by_text").scan(row_filter="text = 'row 2'").plan_files())) == 1
    with pytest.raises(PipelineError, match=r"partitioned by bucket\[4\] of a column"):
        IcebergSink(catalog, "a.bucket").committer()


def test_wrong_catalogs_tables_and_records_are_told_with_the_way_out(catalog: dict[str, str]) -> None:
    with pytest.raises(PipelineError, match="write it with its namespace"):
        IcebergSink(catalog, "orders")
    with pytest.raises(PipelineError, match=r"the catalog has no table shop.orders: create it first"):
        IcebergSink(catalog, "shop.orders").committer()
    with pytest.raises(StorageError, match=r"cannot be loaded: .*Check the properties of the catalog"):
        IcebergSink({"type": "sql", "uri": "sqlite:////gone/x.db", "warehouse": "file:///gone"}, "a.t").committer()
    sink = IcebergSink(catalog, "a.t", schema=SCHEMA)
    sink.committer()
    with pytest.raises(DataError, match="the table has no column 'extra'"):
        sink.writer(0, Generation(1)).write(pa.record_batch({"extra": [1]}))
    secret = IcebergSink({**catalog, "uri": "postgresql://app:secret@db/catalog"}, "a.t")
    assert "secret" not in repr(secret)
