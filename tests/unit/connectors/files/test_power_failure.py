"""After a power failure every file is there that a file sink has handed over, or has published."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.connectors.files.filesystem import LocalPlace
from penstock.connectors.files.json_lines_sink import JsonLinesSink
from penstock.connectors.files.parquet_sink import ParquetSink
from penstock.connectors.files.sink import FileSink
from penstock.ids import CheckpointId, Generation
from tests.unit.power_failure import Platter, platter

__all__ = ["platter"]

OUT = "data/of/orders"
BATCH = pa.record_batch({"n": [1, 2, 3]})


def handed_over(sink: FileSink, subtask: int = 0) -> Sequence[bytes]:
    writer = sink.writer(subtask, Generation(1))
    writer.write(BATCH)
    return writer.prepare()()


def survives(platter: Platter, path: str) -> bool:
    return platter.content_at(path) == (platter.root / path).read_bytes()


@pytest.mark.parametrize("kind", [JsonLinesSink, ParquetSink])
def test_a_staged_file_outlives_a_power_failure_with_the_way_to_it(
    tmp_path: Path, platter: Platter, kind: type[FileSink]
) -> None:
    (committable,) = handed_over(kind(tmp_path / OUT))
    assert survives(platter, f"{OUT}/{json.loads(committable)['staged']}")


def test_a_staged_file_outlives_it_in_directories_that_somebody_else_has_made(tmp_path: Path, platter: Platter) -> None:
    # Another writer, which has not come to syncing them.
    os.makedirs(tmp_path / OUT / "_staging")
    (committable,) = handed_over(JsonLinesSink(tmp_path / OUT))
    assert survives(platter, f"{OUT}/{json.loads(committable)['staged']}")


def test_a_staged_file_outlives_it_in_directories_that_were_removed_and_made_again(
    tmp_path: Path, platter: Platter
) -> None:
    writer = JsonLinesSink(tmp_path / OUT).writer(0, Generation(1))
    for _ in range(3):
        writer.write(BATCH)
        (committable,) = writer.prepare()()
        assert survives(platter, f"{OUT}/{json.loads(committable)['staged']}")
        shutil.rmtree(tmp_path / "data")
        os.makedirs(tmp_path / OUT / "_staging")


def test_a_published_file_outlives_a_power_failure(tmp_path: Path, platter: Platter) -> None:
    sink = JsonLinesSink(tmp_path / OUT)
    committables = handed_over(sink)
    committer = sink.committer()
    assert committer is not None
    committer.commit(CheckpointId(1), committables)
    assert survives(platter, f"{OUT}/{json.loads(committables[0])['final']}")


def test_the_way_is_synced_once_and_not_for_every_file(
    tmp_path: Path, platter: Platter, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = JsonLinesSink(tmp_path / OUT).writer(0, Generation(1))
    synced = []
    sync = os.fsync

    def counted(descriptor: int) -> None:
        synced.append(descriptor)
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", counted)
    counts = []
    for _ in range(3):
        writer.write(BATCH)
        writer.prepare()()
        counts.append(len(synced))
        synced.clear()
    # The file and its directory.
    assert counts[1:] == [2, 2]


def test_a_place_travels_without_what_it_holds_open(tmp_path: Path) -> None:
    place = LocalPlace(str(tmp_path / OUT))
    place.close_durably(place.create("a"))
    assert pickle.loads(pickle.dumps(place)).files() == ["a"]


def test_the_model_would_notice(tmp_path: Path, platter: Platter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)
    (committable,) = handed_over(JsonLinesSink(tmp_path / OUT))
    assert not survives(platter, f"{OUT}/{json.loads(committable)['staged']}")
