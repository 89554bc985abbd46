"""Delta tables: exactly once through every failure, beside independent writers, and with errors that help."""

from __future__ import annotations

import datetime
import functools
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock import DataError, GeneratorSource, Pipeline, PipelineError, StorageError
from penstock.connectors.delta import DeltaSink, DeltaSource
from penstock.ids import CheckpointId, Generation
from penstock.testing import CollectSink, ListSource, check_sink, check_source, run
from tests.components import required_package
from tests.tables.deaths import killed_at_every_step

deltalake = required_package("deltalake")


def rows_of(path: Path) -> list[dict[str, Any]]:
    if not deltalake.DeltaTable.is_deltatable(str(path)):
        return []
    rows: list[dict[str, Any]] = deltalake.DeltaTable(str(path)).to_pyarrow_table().to_pylist()
    return rows


def numbers(start: int, count: int) -> pa.RecordBatch:
    return pa.record_batch(
        {"n": range(start, start + count), "part": [f"p {n % 3}" for n in range(start, start + count)]}
    )


@pytest.mark.parametrize(
    ("options", "deaths"),
    [({}, 8), ({"partition_by": "part"}, 1), ({"mode": "upsert", "key": "n"}, 4)],
    ids=["append", "partitioned", "upsert"],
)
def test_the_sink_keeps_the_contract(options: dict[str, Any], deaths: int, tmp_path: Path) -> None:
    check_sink(
        lambda name: DeltaSink(tmp_path / name, **options),
        lambda name: rows_of(tmp_path / name),
        make_batch=numbers,
        rows=90,
        deaths_max=deaths,
    )


def test_a_driver_that_is_killed_at_any_step_of_a_commit_loses_and_doubles_nothing(tmp_path: Path) -> None:
    killed_at_every_step(
        tmp_path,
        sink="from penstock.connectors.delta import DeltaSink; sink = DeltaSink(DIRECTORY + '/table')",
        module="penstock.connectors.delta.sink",
        read_back=lambda directory: [row["n"] for row in rows_of(directory / "table")],
    )


def test_a_driver_that_is_killed_while_it_merges_a_changelog_loses_doubles_and_keeps_no_deleted_row(
    tmp_path: Path,
) -> None:
    killed_at_every_step(
        tmp_path,
        sink="from penstock.connectors.delta import DeltaSink; "
        "sink = DeltaSink(DIRECTORY + '/table', mode='upsert', key='n')",
        module="penstock.connectors.delta.sink",
        read_back=lambda directory: [row["n"] for row in rows_of(directory / "table")],
        changes=True,
    )


def staged(sink: DeltaSink, batch: pa.RecordBatch) -> list[bytes]:
    writer = sink.writer(0, Generation(1))
    writer.write(batch)
    return list(writer.prepare()())


def test_a_checkpoint_directory_that_was_deleted_does_not_make_new_output_look_old(tmp_path: Path) -> None:
    """Checkpoints begin again at 1: an application id by the pipeline's name would refuse them in silence."""
    for start in (0, 10):
        sink = DeltaSink(tmp_path / "t")
        sink.committer().commit(CheckpointId(1), staged(sink, numbers(start, 10)))
    assert len(rows_of(tmp_path / "t")) == 20


def test_a_repeated_commit_after_a_compaction_brings_nothing_back(tmp_path: Path) -> None:
    """A file that is added twice is one file to Delta, unless it was removed in between."""
    sink = DeltaSink(tmp_path / "t")
    parts = [staged(sink, numbers(10 * part, 10)) for part in range(2)]
    for checkpoint, part in enumerate(parts, 1):
        sink.committer().commit(CheckpointId(checkpoint), part)
    _compacted(tmp_path / "t")
    sink.committer().commit(CheckpointId(2), parts[1])
    assert len(rows_of(tmp_path / "t")) == 20


def test_two_drivers_that_commit_one_checkpoint_at_once_publish_it_once(tmp_path: Path) -> None:
    sink = DeltaSink(tmp_path / "t")
    committables = staged(sink, numbers(0, 10))
    sink.committer().commit(CheckpointId(1), staged(sink, numbers(100, 1)))
    slow, fast = sink.committer(), sink.committer()
    publish = slow._publish  # type: ignore[attr-defined]

    def published_late(*arguments: Any) -> None:
        fast.commit(CheckpointId(2), committables)
        slow._publish = publish  # type: ignore[attr-defined]
        publish(*arguments)

    slow._publish = published_late  # type: ignore[attr-defined]
    slow.commit(CheckpointId(2), committables)
    assert len(rows_of(tmp_path / "t")) == 11


@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_an_independent_writer_between_look_and_commit_is_tolerated(tmp_path: Path, mode: Any) -> None:
    sink = DeltaSink(tmp_path / "t", mode=mode, key="n" if mode == "upsert" else None)
    sink.committer().commit(CheckpointId(1), staged(sink, numbers(0, 1)))
    committer: Any = sink.committer()
    publish = committer._publish

    def beside(*arguments: Any) -> None:
        committer._publish = publish
        deltalake.write_deltalake(str(tmp_path / "t"), pa.Table.from_batches([numbers(50, 1)]), mode="append")
        publish(*arguments)

    committer._publish = beside
    committer.commit(CheckpointId(2), staged(sink, numbers(1, 1)))
    assert sorted(row["n"] for row in rows_of(tmp_path / "t")) == [0, 1, 50]


def test_upserts_replace_rows_and_the_highest_sequence_wins(tmp_path: Path) -> None:
    sink = DeltaSink(tmp_path / "t", mode="upsert", key="k", by="version")
    committer = sink.committer()

    def upsert(checkpoint: int, *rows: tuple[str, int, int]) -> None:
        keys, versions, values = zip(*rows, strict=True)
        batch = pa.record_batch({"k": list(keys), "version": list(versions), "value": list(values)})
        committer.commit(CheckpointId(checkpoint), staged(sink, batch))

    upsert(1, ("a", 2, 20), ("a", 1, 10), ("b", 1, 1))
    upsert(2, ("a", 1, 99), ("b", 2, 2), ("c", 1, 3))
    found = {row["k"]: row["value"] for row in rows_of(tmp_path / "t")}
    assert found == {"a": 20, "b": 2, "c": 3}
    assert list((tmp_path / "t").glob("penstock-*")) == []


def changes(*rows: tuple[str, str, int]) -> pa.RecordBatch:
    ops, keys, values = zip(*rows, strict=True)
    return pa.record_batch({"op": list(ops), "k": list(keys), "value": list(values)})


def test_a_changelog_deletes_rows_and_the_newest_change_of_a_key_wins(tmp_path: Path) -> None:
    sink = DeltaSink(tmp_path / "t", mode="upsert", key="k")
    committer = sink.committer()
    first = changes(("insert", "a", 1), ("insert", "b", 1), ("insert", "c", 1), ("delete", "c", 1))
    committer.commit(CheckpointId(1), staged(sink, first))
    second = ("delete", "a", 1), ("update", "b", 2), ("delete", "gone", 0), ("delete", "d", 1), ("insert", "d", 4)
    handed = staged(sink, changes(*second))
    for _ in range(2):
        committer.commit(CheckpointId(2), handed)
    assert sorted((row["k"], row["value"]) for row in rows_of(tmp_path / "t")) == [("b", 2), ("d", 4)]
    assert deltalake.DeltaTable(str(tmp_path / "t")).schema().to_arrow().names == ["k", "value"]


def test_a_delete_that_is_older_than_the_row_in_the_table_deletes_nothing(tmp_path: Path) -> None:
    sink = DeltaSink(tmp_path / "t", mode="upsert", key="k", by="value")
    committer = sink.committer()
    committer.commit(CheckpointId(1), staged(sink, changes(("insert", "a", 5), ("insert", "b", 5))))
    committer.commit(CheckpointId(2), staged(sink, changes(("delete", "a", 4), ("delete", "b", 5))))
    assert [row["k"] for row in rows_of(tmp_path / "t")] == ["a"]


def test_a_column_op_of_the_table_is_data_and_other_operations_are_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sink = DeltaSink(tmp_path / "changes", mode="upsert", key="k")
    with pytest.raises(DataError, match=r"the column 'op' of the changes for .* has 'upsert' \(1 of 2 records\)"):
        staged(sink, changes(("insert", "a", 1), ("upsert", "b", 1)))
    writer = sink.writer(0, Generation(1))
    writer.write(changes(("insert", "a", 1)))
    with pytest.raises(DataError, match="'op' is missing"):
        writer.write(changes(("insert", "a", 1)).drop_columns(["op"]))
    deltalake.write_deltalake(str(tmp_path / "own"), pa.Table.from_batches([changes(("plus", "a", 1))]))
    own = DeltaSink(tmp_path / "own", mode="upsert", key="k")
    with caplog.at_level("WARNING"):
        committer = own.committer()
    assert "the table has a column 'op', so it is written as data" in caplog.text
    committer.commit(CheckpointId(1), staged(own, changes(("delete", "a", 2))))
    assert rows_of(tmp_path / "own") == [{"op": "delete", "k": "a", "value": 2}]


def test_a_changelog_of_deletes_and_inserts_is_refused_and_one_by_key_becomes_a_table(tmp_path: Path) -> None:
    def best(sink: DeltaSink, *, by_key: bool) -> Pipeline:
        rows = [{"user": "ada", "amount": 1}, {"user": "ben", "amount": 2}, {"user": "ada", "amount": 3}]
        stream = Pipeline("best").source(ListSource(rows, batch_rows=1), name="orders")
        top = stream.key_by("user").top(1, by="amount", rank="rank")
        return (top.to_upsert("user", "rank") if by_key else top).sink(sink, name="table")

    sink = DeltaSink(tmp_path / "t", mode="upsert", key=["user", "rank"])
    with pytest.raises(PipelineError, match=r"Put to_upsert\(…\), with the columns of the key, in front of the sink"):
        best(sink, by_key=False)
    run(best(sink, by_key=True), crash_after_checkpoints=1)
    assert sorted((row["user"], row["amount"]) for row in rows_of(tmp_path / "t")) == [("ada", 3), ("ben", 2)]


def test_small_files_are_compacted_and_large_ones_are_followed_by_others(tmp_path: Path) -> None:
    sink = DeltaSink(tmp_path / "t", compact_every=3)
    committer = sink.committer()
    for checkpoint in range(1, 4):
        committer.commit(CheckpointId(checkpoint), staged(sink, numbers(10 * checkpoint, 10)))
    assert len(deltalake.DeltaTable(str(tmp_path / "t")).file_uris()) == 1
    assert len(rows_of(tmp_path / "t")) == 30
    rolling = DeltaSink(tmp_path / "rolled", roll_size=1)
    writer = rolling.writer(0, Generation(1))
    for start in (0, 10):
        writer.write(numbers(start, 10))
    assert len(list(writer.prepare()())) == 2


def test_readers_can_skip_files_by_their_statistics(tmp_path: Path) -> None:
    sink = DeltaSink(tmp_path / "t")
    sink.committer().commit(CheckpointId(1), staged(sink, numbers(5, 10)))
    (action,) = pa.table(deltalake.DeltaTable(str(tmp_path / "t")).get_add_actions(flatten=True)).to_pylist()
    assert (action["num_records"], action["min.n"], action["max.n"], action["null_count.n"]) == (10, 5, 14, 0)


def test_wrong_arguments_tables_and_records_are_told_with_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="mode is 'replace': it must be 'append' or 'upsert'"):
        DeltaSink(tmp_path / "t", mode="replace")  # type: ignore[arg-type]
    with pytest.raises(PipelineError, match="needs key="):
        DeltaSink(tmp_path / "t", mode="upsert")
    sink = DeltaSink(tmp_path / "t")
    sink.committer().commit(CheckpointId(1), staged(sink, numbers(0, 1)))
    with pytest.raises(PipelineError, match=r"partition_by is \['part'\], and the table is partitioned by nothing"):
        DeltaSink(tmp_path / "t", partition_by="part").committer()
    with pytest.raises(PipelineError, match="the table has no column 'id'; its columns are n, part"):
        DeltaSink(tmp_path / "t", mode="upsert", key="id").committer()
    with pytest.raises(DataError, match=r"the table has no column 'extra'.*'n' is string and should be int64"):
        staged(sink, pa.record_batch({"n": ["x"], "extra": [1]}))
    (tmp_path / "broken" / "_delta_log").mkdir(parents=True)
    (tmp_path / "broken" / "_delta_log" / f"{0:020d}.json").write_text("no json", encoding="utf-8")
    with pytest.raises(StorageError, match="cannot be opened"):
        DeltaSink(tmp_path / "broken").committer()
    with pytest.raises(StorageError, match="no Delta table found"):
        DeltaSource(tmp_path / "gone").start()


# --- the source ---


def appended(path: Path, start: int, count: int, **options: Any) -> None:
    table = pa.Table.from_batches([numbers(start, count)])
    deltalake.write_deltalake(str(path), table, mode="append", **options)


@pytest.mark.parametrize("partition_by", [None, ["part"]], ids=["plain", "partitioned"])
def test_the_source_keeps_the_contract(tmp_path: Path, partition_by: Any) -> None:
    for part in range(4):
        appended(tmp_path, 20 * part, 20, partition_by=partition_by)
    check_source(lambda: DeltaSource(tmp_path, follow=False, splits=3), numbers(0, 80))


def test_new_versions_are_followed_and_a_compaction_is_not_new_data(tmp_path: Path) -> None:
    appended(tmp_path, 0, 10)
    output = CollectSink()
    pipeline = Pipeline("follow")
    pipeline.source(DeltaSource(tmp_path, splits=2), name="table").sink(output, name="output")
    steps = iter([lambda: appended(tmp_path, 10, 10), lambda: _compacted(tmp_path), lambda: appended(tmp_path, 20, 10)])
    counts = iter([10, 20, 20])
    goal = [next(counts)]

    def until() -> bool:
        rows = sum(batch.num_rows for batch in output.batches())
        if rows >= goal[0]:
            step = next(steps, None)
            if step is not None:
                step()
                goal[0] = next(counts, 30)
        return rows >= 30

    run(pipeline, parallelism=2, until=until, crash_after_checkpoints=[1, 3])
    assert sorted(row["n"] for row in output.rows()) == list(range(30))


def _compacted(path: Path) -> None:
    deltalake.DeltaTable(str(path)).optimize.compact()


def test_a_start_in_the_past_reads_the_table_as_it_was_and_then_what_came_after(tmp_path: Path) -> None:
    for start in (0, 10, 20):
        appended(tmp_path, start, 10)
    check_source(lambda: DeltaSource(tmp_path, version=0, follow=False), numbers(0, 10))
    check_source(lambda: DeltaSource(tmp_path, version=1, splits=1), numbers(0, 30), rows=30)
    with pytest.raises(PipelineError, match="version is 7, but the newest one is 2"):
        DeltaSource(tmp_path, version=7).start()


def test_a_start_at_a_time_is_at_the_version_of_that_time_by_the_log(tmp_path: Path) -> None:
    for start in (0, 10, 20):
        appended(tmp_path, start, 10)
    second = datetime.timedelta(seconds=1)
    noon = datetime.datetime(2026, 1, 1, 12, tzinfo=datetime.UTC)
    # The clock of the second writer was ahead: its version is not in front of the third, whose time is earlier.
    for version, at in enumerate((noon, noon + 20 * second, noon + 10 * second)):
        file = tmp_path / "_delta_log" / f"{version:020d}.json"
        lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
        for line in lines:
            if "commitInfo" in line:
                line["commitInfo"]["timestamp"] = int(at.timestamp() * 1000)
        file.write_text("\n".join(json.dumps(line) for line in lines), encoding="utf-8")

    def version_at(at: datetime.datetime) -> int:
        return DeltaSource(tmp_path, as_of=at).start().version

    assert [version_at(noon + number * second) for number in (0, 15, 20, 99)] == [0, 0, 2, 2]
    check_source(lambda: DeltaSource(tmp_path, as_of=noon, splits=1), numbers(0, 30), rows=30)
    with pytest.raises(
        PipelineError, match=r"but the oldest version in the log of the table is of 2026-01-01T12:00:00\+00:00"
    ):
        version_at(noon - second)
    with pytest.raises(PipelineError, match="it must be a datetime with a time zone"):
        version_at(noon.replace(tzinfo=None))
    with pytest.raises(PipelineError, match="version and as_of both set the starting point"):
        DeltaSource(tmp_path, version=0, as_of=noon)


def test_deleted_rows_are_an_error_unless_they_are_to_be_passed_over(tmp_path: Path) -> None:
    appended(tmp_path, 0, 10)
    deltalake.DeltaTable(str(tmp_path)).delete("n < 5")
    appended(tmp_path, 10, 5)
    output = CollectSink()

    def pipeline(**options: Any) -> Pipeline:
        described = Pipeline("changes")
        described.source(DeltaSource(tmp_path, version=0, **options), name="table").sink(output, name="output")
        return described

    with pytest.raises(DataError, match=r"version 1 \(DELETE\) deletes or updates rows.*on_change='skip'"):
        run(pipeline(), restarts=1)
    output = CollectSink()
    run(pipeline(on_change="skip"), until=lambda: len(output.rows()) >= 15)
    assert sorted(row["n"] for row in output.rows()) == list(range(15))


def with_feed(path: Path) -> Any:
    """A table with rows 0 to 9, whose versions have change files."""
    properties = {"delta.enableChangeDataFeed": "true"}
    deltalake.write_deltalake(str(path), pa.Table.from_batches([numbers(0, 10)]), configuration=properties)
    return deltalake.DeltaTable(str(path))


def changed(path: Path) -> list[dict[str, Any]]:
    """An update, a delete, a merge, a compaction and an overwrite; returns the rows that are left."""
    table = with_feed(path)
    table.update(predicate="n = 3", updates={"part": "'updated'"})
    table.delete("n < 2")
    source = pa.table({"n": [4, 20], "part": ["merged", "merged"]})
    merger = table.merge(source, predicate="t.n = s.n", source_alias="s", target_alias="t")
    merger.when_matched_update_all().when_not_matched_insert_all().execute()
    table.optimize.compact()
    appended(path, 30, 2)
    deltalake.write_deltalake(str(path), pa.Table.from_batches([numbers(20, 3)]), mode="overwrite")
    table.update_incremental()
    table.delete("n = 22")
    return rows_of(path)


def test_changes_come_as_a_changelog_that_adds_up_to_the_table(tmp_path: Path) -> None:
    left = changed(tmp_path)
    output = CollectSink()
    pipeline = Pipeline("changes")
    source = DeltaSource(tmp_path, version=0, changes=True, follow=False)
    pipeline.source(source, name="table").sink(output, name="output")
    run(pipeline, crash_after_checkpoints=1)
    rows = output.rows()
    held: list[tuple[int, str]] = []
    for row in rows:
        # In order: what is deleted was there.
        (held.append if row["op"] == "insert" else held.remove)((row["n"], row["part"]))
    assert sorted(held) == sorted((row["n"], row["part"]) for row in left)
    assert [(row["n"], row["op"], row["part"]) for row in rows if row["_commit_version"] == 1] == [
        (3, "delete", "p 0"),
        (3, "insert", "updated"),
    ]
    assert {row["op"] for row in rows if row["_commit_version"] == 0} == {"insert"}


def test_positions_within_changes_are_kept(tmp_path: Path) -> None:
    changed(tmp_path)
    output = CollectSink()
    pipeline = Pipeline("all")
    pipeline.source(DeltaSource(tmp_path, version=0, changes=True, follow=False), name="t").sink(output, name="output")
    run(pipeline)
    expected = pa.RecordBatch.from_pylist(output.rows())
    check_source(lambda: DeltaSource(tmp_path, version=0, changes=True, follow=False), expected, batch_rows=2)


def test_changes_of_a_table_make_the_same_table_elsewhere(tmp_path: Path) -> None:
    left = changed(tmp_path / "in")
    pipeline = Pipeline("copy")
    stream = pipeline.source(DeltaSource(tmp_path / "in", version=0, changes=True, follow=False), name="in")
    sink = DeltaSink(tmp_path / "out", mode="upsert", key="n")
    with pytest.raises(PipelineError, match="Put to_upsert"):
        stream.sink(sink, name="refused")
    by_key = stream.drop("_commit_version").key_by("n").to_upsert("n")
    by_key.sink(sink, name="out")
    run(pipeline, parallelism=2, crash_after_checkpoints=[1])
    assert sorted(rows_of(tmp_path / "out"), key=str) == sorted(left, key=str)


def test_changes_can_be_added_up_and_followed(tmp_path: Path) -> None:
    table = with_feed(tmp_path)
    output = CollectSink()
    pipeline = Pipeline("sums")
    stream = pipeline.source(DeltaSource(tmp_path, changes=True), name="table").key_by("part")
    stream.aggregate(total=("sum", "n"), count="count").sink(output, name="output")
    steps = iter([lambda: table.delete("n = 9"), lambda: table.update(predicate="n = 6", updates={"n": "60"})])
    goal = [{"total": 18, "count": 4}]

    def until() -> bool:
        rows = [row for row in output.rows() if row["part"] == "p 0"]
        if not rows or {"total": rows[-1]["total"], "count": rows[-1]["count"]} != goal[0]:
            return False
        step = next(steps, None)
        if step is None:
            return True
        step()
        goal[0] = {"total": 9, "count": 3} if goal[0]["total"] == 18 else {"total": 63, "count": 3}
        return False

    run(pipeline, until=until)


def test_wrong_arguments_for_changes_are_told_with_the_way_out(tmp_path: Path) -> None:
    appended(tmp_path / "plain", 0, 1)
    with pytest.raises(PipelineError, match=r"needs the change data feed.*delta.enableChangeDataFeed = true"):
        DeltaSource(tmp_path / "plain", changes=True).start()
    with pytest.raises(PipelineError, match="changes are ordered"):
        DeltaSource(tmp_path / "plain", changes=True, splits=2)
    with pytest.raises(PipelineError, match="changes=True reads every version"):
        DeltaSource(tmp_path / "plain", changes=True, on_change="skip")
    properties = {"delta.enableChangeDataFeed": "true"}
    deltalake.write_deltalake(str(tmp_path / "op"), pa.table({"op": ["x"]}), configuration=properties)
    with pytest.raises(PipelineError, match="adds a column 'op', which the table has already"):
        DeltaSource(tmp_path / "op", changes=True).start()


def test_a_compaction_between_look_and_commit_is_tolerated(tmp_path: Path) -> None:
    for mode, key in (("append", None), ("upsert", "n")):
        path = tmp_path / mode
        sink = DeltaSink(path, mode=mode, key=key)  # type: ignore[arg-type]
        for checkpoint in (1, 2):
            sink.committer().commit(CheckpointId(checkpoint), staged(sink, numbers(10 * checkpoint, 10)))
        committer: Any = sink.committer()
        publish = committer._publish

        def beside(*arguments: Any, committer: Any = committer, publish: Any = publish, path: Path = path) -> None:
            committer._publish = publish
            _compacted(path)
            publish(*arguments)

        committer._publish = beside
        committer.commit(CheckpointId(3), staged(sink, numbers(15, 10)))
        expected = [*range(10, 30), *(range(15, 25) if mode == "append" else ())]
        assert sorted(row["n"] for row in rows_of(path)) == sorted(expected)


def test_a_schema_that_changes_while_the_pipeline_runs_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    appended(tmp_path, 0, 2)
    source = DeltaSource(tmp_path)
    source.on_start()
    wider = pa.table({"n": [2], "part": ["x"], "note": ["new"]})
    deltalake.write_deltalake(str(tmp_path), wider, mode="append", schema_mode="merge")
    output = CollectSink()
    pipeline = Pipeline("wider")
    pipeline.source(source, name="table").sink(output, name="output")
    run(pipeline, until=lambda: len(output.rows()) >= 3)
    assert sorted(row["n"] for row in output.rows()) == [0, 1, 2]
    assert "version 1 has a new schema (n, part, note): rows keep the schema of the start" in caplog.text


def test_the_backlog_counts_the_rows_that_are_left(tmp_path: Path) -> None:
    appended(tmp_path, 0, 10)
    reader = DeltaSource(tmp_path, splits=1).open("0/1", None)
    assert reader.backlog() is None
    reader.read(4)
    backlog = reader.backlog()
    assert backlog is not None
    assert backlog.rows == 6
    assert not reader.is_caught_up
    while reader.read(100) is not None:
        pass
    backlog = reader.backlog()
    assert backlog is not None
    assert (backlog.rows, backlog.bytes, reader.is_caught_up) == (0, 0, True)


def test_a_version_that_the_log_has_lost_is_an_error_and_not_a_gap(tmp_path: Path) -> None:
    appended(tmp_path, 0, 10)
    source = DeltaSource(tmp_path, version=0, splits=1)
    reader = source.open("0/1", None)
    while reader.read(100) is not None:
        pass
    for start in (10, 20):
        appended(tmp_path, start, 10)
    deltalake.DeltaTable(str(tmp_path)).create_checkpoint()
    offset = reader.offset()
    (tmp_path / "_delta_log" / f"{1:020d}.json").unlink()
    again = DeltaSource(tmp_path, version=0, splits=1).open("0/1", offset)
    with pytest.raises(DataError, match=r"version 1 is needed next.*removed it from its log"):
        for _ in range(10):
            again.read(100)


def test_columns_that_were_added_later_are_null_in_older_rows(tmp_path: Path) -> None:
    appended(tmp_path, 0, 2)
    wider = pa.table({"n": [2], "part": ["x"], "note": ["new"]})
    deltalake.write_deltalake(str(tmp_path), wider, mode="append", schema_mode="merge")
    output = CollectSink()
    pipeline = Pipeline("wider")
    pipeline.source(DeltaSource(tmp_path, follow=False), name="table").sink(output, name="output")
    run(pipeline)
    assert sorted((row["n"], row["note"]) for row in output.rows()) == [(0, None), (1, None), (2, "new")]


def test_a_pipeline_from_table_to_table_resumes_where_it_stopped(tmp_path: Path) -> None:
    appended(tmp_path / "in", 0, 50)
    for _ in range(2):
        pipeline = Pipeline("copy")
        source = DeltaSource(tmp_path / "in", splits=2)
        pipeline.source(source, name="in").sink(DeltaSink(tmp_path / "out"), name="out")
        wanted = len(rows_of(tmp_path / "in"))
        until = functools.partial(_has_rows, tmp_path / "out", wanted)
        run(pipeline, store=tmp_path / "checkpoints", until=until)
        appended(tmp_path / "in", wanted, 50)
    assert sorted(row["n"] for row in rows_of(tmp_path / "out")) == list(range(100))


def _has_rows(path: Path, count: int) -> bool:
    return len(rows_of(path)) >= count


def test_committables_are_small_and_say_nothing_of_passwords(tmp_path: Path) -> None:
    sink = DeltaSink(tmp_path / "t", storage_options={"AWS_SECRET_ACCESS_KEY": "secret"})
    (committable,) = staged(sink, numbers(0, 10_000))
    assert len(committable) < 500
    assert b"secret" not in committable
    assert "secret" not in repr(sink) + json.dumps(dict(sink.identity()))


def test_generated_rows_arrive(tmp_path: Path) -> None:
    pipeline = Pipeline("generated")
    source = GeneratorSource(numbers, rows=5_000, splits=2)
    pipeline.source(source, name="numbers").sink(DeltaSink(tmp_path / "t"), name="table")
    run(pipeline, parallelism=2, crash_after_checkpoints=1)
    assert sorted(row["n"] for row in rows_of(tmp_path / "t")) == list(range(5_000))


def test_lists_and_times_fit(tmp_path: Path) -> None:
    import datetime

    at = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
    pipeline = Pipeline("types")
    rows = [{"n": 1, "at": at, "tags": ["a", "b"], "day": at.date()}]
    pipeline.source(ListSource(rows), name="rows").sink(DeltaSink(tmp_path / "t", partition_by="day"), name="table")
    run(pipeline)
    assert rows_of(tmp_path / "t") == rows
