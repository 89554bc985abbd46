"""The backlog of a source: the input that it has not read, where it knows it."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock import Backlog, FileSource, GeneratorSource, Pipeline, Source
from penstock.connectors.source import END_OF_SPLIT
from penstock.driver.observation.progress import Mark, progress_of
from penstock.ids import OperatorName, WorkerId
from penstock.metrics.received import ReceivedMetrics
from penstock.metrics.registry import Registry
from penstock.metrics.standard import BACKLOG_BYTES
from penstock.storage import MemoryStore
from penstock.testing import CollectSink, ListSource, run
from penstock.worker.sources.source_stage import SourceStage
from tests.unit.driver.changed_pipelines import newest


def backlogs(source: Source, rows_max: int = 10) -> list[dict[str, Any]]:
    """The three gauges before each read of a source, and at its end."""
    registry = Registry()
    stage = SourceStage(OperatorName("read"), source, 0, 1, metrics=registry)
    stage.restore({})
    stage.discover(source.splits())
    told = []
    for _ in range(10_000):
        samples = {s.name.removeprefix("source_backlog_"): s.value for s in registry.samples() if "backlog" in s.name}
        told.append(samples)
        if stage.has_ended:
            return told
        stage.read(rows_max)
    raise AssertionError("the source does not end")


def test_of_lines_shrinks_with_the_position_and_ends_at_zero(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.connectors.files.formats.lines.BLOCK_BYTES", 100)
    for name in "ab":
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps({"n": n}) + "\n" for n in range(50)))
    size = sum(path.stat().st_size for path in tmp_path.iterdir())
    told = backlogs(FileSource(tmp_path, format="jsonl", schema="n long"))
    left = [each["bytes"] for each in told]
    assert left[0] == size and left[-1] == 0
    assert left == sorted(left, reverse=True) and len(set(left)) > 4
    assert (told[0]["splits"], told[-1]["splits"]) == (2, 0)
    assert all("rows" not in each for each in told)


def test_of_a_compressed_or_parquet_file_is_whole_until_it_is_read(tmp_path: Path) -> None:
    (tmp_path / "zipped").mkdir()
    (tmp_path / "zipped" / "a.jsonl.gz").write_bytes(gzip.compress(b'{"n": 1}\n' * 50))
    (tmp_path / "parquet").mkdir()
    pq.write_table(pa.table({"n": range(50)}), tmp_path / "parquet" / "a.parquet")
    for name, source in {
        "zipped": FileSource(tmp_path / "zipped", format="jsonl"),
        "parquet": FileSource(tmp_path / "parquet"),
    }.items():
        (file,) = (tmp_path / name).iterdir()
        assert {each["bytes"] for each in backlogs(source)} == {file.stat().st_size, 0}


def test_of_a_generator_is_its_rows_also_when_it_has_grown() -> None:
    def make(start: int, count: int) -> pa.RecordBatch:
        return pa.record_batch({"n": range(start, start + count)})

    told = [each["rows"] for each in backlogs(GeneratorSource(make, rows=100, splits=3))]
    assert told[0] == 100 and told[-1] == 0 and told == sorted(told, reverse=True)
    split = "1/3"
    position = json.dumps({"position": 33, "extents": [100]}).encode()
    grown = GeneratorSource(make, rows=160, splits=3).open(split, position)
    assert grown.backlog() == Backlog(rows=20)
    while grown.read(7) is not END_OF_SPLIT:
        pass
    assert grown.backlog() == Backlog(rows=0)
    assert GeneratorSource(make).open("0/1", None).backlog() is None


def test_is_zero_at_the_end_although_nobody_has_asked_before(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"n": 1}\n' * 100)
    pipeline = Pipeline("p")
    pipeline.source(FileSource(tmp_path, format="jsonl"), name="files").sink(CollectSink(), name="out")
    assert run(pipeline).metrics.value("source_backlog_bytes", "files") == 0


def test_is_none_where_nobody_knows_it() -> None:
    told = backlogs(ListSource([{"n": 1}]))
    assert all("rows" not in each and "bytes" not in each for each in told)


def test_is_in_the_progress_of_each_source_as_its_workers_told_it_last() -> None:
    pipeline, store = Pipeline("p"), MemoryStore()
    names = [OperatorName("files"), OperatorName("list")]
    first, second = (pipeline.source(ListSource([{"n": 1}]), name=name) for name in names)
    first.union(second).sink(CollectSink(), name="out")
    run(pipeline, store=store)
    manifest = newest(store)
    assert manifest is not None
    received = ReceivedMetrics()
    for worker in range(2):
        registry = Registry()
        registry.add(BACKLOG_BYTES, names[0], worker, lambda: 100)
        received.heard(WorkerId(worker), registry.update())
    files, listed = progress_of(manifest, 5, names, [], Mark(0, 0, 0), received.told).sources
    assert (files.backlog_bytes, files.backlog_rows) == (200, None)
    assert (listed.backlog_bytes, listed.backlog_splits) == (None, None)
