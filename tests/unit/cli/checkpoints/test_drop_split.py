"""`penstock checkpoints drop-split`: a pipeline that a damaged or lost file has stopped goes on without it."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest

from penstock import DataError, FileSource, Pipeline
from penstock.storage import LocalStore
from penstock.storage.copies import newest_completed, read_manifest
from penstock.storage.lease import Lease
from penstock.testing import CollectSink, ListSource, run
from penstock.worker.settings import WorkerSettings
from tests.unit.cli.kit import penstock

N = pa.schema([("n", pa.int64())])
SLOWLY = WorkerSettings(source_rows_max=10, driver_silence_ms=10**6)


def described(files: Path) -> tuple[Pipeline, CollectSink]:
    pipeline, sink = Pipeline("totals"), CollectSink()
    pipeline.source(FileSource(files, format="jsonl", schema=N, watch=True), name="read").sink(sink)
    return pipeline, sink


def stopped_in_the_middle(path: Path) -> tuple[Path, Path]:
    """A pipeline that was stopped while it read a file that is gone now."""
    files, checkpoints = path / "in", path / "checkpoints"
    files.mkdir()
    (files / "a.jsonl").write_text("".join(f'{{"n": {n}}}\n' for n in range(5000)))
    pipeline, sink = described(files)
    run(pipeline, store=checkpoints, until=lambda: len(sink.rows()) > 0, worker_settings=SLOWLY)
    assert 0 < len(sink.rows()) < 5000
    (files / "a.jsonl").unlink()
    return files, checkpoints


def test_a_pipeline_goes_on_without_a_file_that_is_gone(tmp_path: Path) -> None:
    files, checkpoints = stopped_in_the_middle(tmp_path)
    with pytest.raises(DataError, match=r"drop-split DIR 'a\.jsonl'"):
        run(described(files)[0], store=checkpoints, restarts=0)
    before = newest_completed(LocalStore(checkpoints))
    result = penstock("checkpoints", "drop-split", checkpoints, "a.jsonl", "--yes")
    assert result.exit_code == 0, result.stderr
    assert "has 'a.jsonl' as read" in result.stdout
    store = LocalStore(checkpoints)
    newest = newest_completed(store)
    assert before is not None and newest is not None and newest > before
    (split,) = [split for report in read_manifest(store, newest).reports for split in report.splits]
    assert json.loads(split.offset)["end"] and "of" in json.loads(split.offset)
    (files / "b.jsonl").write_text('{"n": -1}\n')
    pipeline, sink = described(files)
    run(pipeline, store=checkpoints, until=lambda: {"n": -1} in sink.rows())
    assert sink.rows() == [{"n": -1}]
    again = penstock("checkpoints", "drop-split", checkpoints, "a.jsonl", "--yes", "--json")
    assert json.loads(again.stdout)["checkpoint"] is None


def test_it_is_refused_while_a_pipeline_runs(tmp_path: Path) -> None:
    _, checkpoints = stopped_in_the_middle(tmp_path)
    store = LocalStore(checkpoints)
    before = newest_completed(store)
    lease = Lease(store, "totals")
    lease.beat()
    result = penstock("checkpoints", "drop-split", checkpoints, "a.jsonl", "--yes")
    assert result.exit_code != 0 and "in use by pipeline 'totals'" in result.stderr
    assert newest_completed(store) == before
    lease.release()
    assert penstock("checkpoints", "drop-split", checkpoints, "a.jsonl", "--yes").exit_code == 0
    # It takes its own note back.
    Lease(store, "totals").check()


def test_a_name_that_is_wrong_is_answered_with_the_right_one(tmp_path: Path) -> None:
    _, checkpoints = stopped_in_the_middle(tmp_path)
    result = penstock("checkpoints", "drop-split", checkpoints, "a.json", "--yes")
    assert result.exit_code != 0 and "has no split 'a.json'; there are 1, such as a.jsonl" in result.stderr
    assert "pass --yes" in penstock("checkpoints", "drop-split", checkpoints, "a.jsonl").stderr


def test_splits_of_other_sources_are_left_alone(tmp_path: Path) -> None:
    pipeline = Pipeline("totals")
    pipeline.source(ListSource([{"n": 1}]), name="read").sink(CollectSink())
    run(pipeline, store=tmp_path)
    store = LocalStore(tmp_path)
    newest = newest_completed(store)
    assert newest is not None
    (split,) = [split.split for report in read_manifest(store, newest).reports for split in report.splits]
    result = penstock("checkpoints", "drop-split", tmp_path, split, "--yes")
    assert result.exit_code != 0 and "'read' is not a FileSource" in result.stderr
