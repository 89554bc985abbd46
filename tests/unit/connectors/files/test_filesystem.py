"""Staged and published files survive a power failure, and publishing can be repeated wherever it broke off."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock import JsonLinesSink, ParquetSink, StorageError
from penstock.connectors.files.filesystem import place_of
from penstock.connectors.files.sink import STAGING, FileSink
from penstock.ids import CheckpointId, Generation

ONE = CheckpointId(1)
SINKS: list[type[FileSink]] = [ParquetSink, JsonLinesSink]


class Disk:
    """Knows of every file and directory what it held when it was synced last: a power failure leaves no more."""

    def __init__(self) -> None:
        self._durable: dict[int, int | frozenset[str]] = {}

    def sync(self, descriptor: int) -> None:
        try:
            self._durable[os.fstat(descriptor).st_ino] = frozenset(os.listdir(descriptor))
        except NotADirectoryError:
            self._durable[os.fstat(descriptor).st_ino] = os.fstat(descriptor).st_size

    def size(self, path: Path) -> int | None:
        found = self._durable.get(path.stat().st_ino)
        return found if isinstance(found, int) else None

    def has_name(self, path: Path) -> bool:
        found = self._durable.get(path.parent.stat().st_ino)
        return isinstance(found, frozenset) and path.name in found


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    model, fsync = Disk(), os.fsync

    def note(descriptor: int) -> None:
        fsync(descriptor)
        model.sync(descriptor)

    monkeypatch.setattr(os, "fsync", note)
    return model


def handed_over(sink: FileSink, *numbers: int) -> list[dict[str, Any]]:
    """Committables of one checkpoint."""
    writer = sink.writer(0, Generation(1))
    for number in numbers:
        writer.write(pa.record_batch({"n": [number]}))
    found = [json.loads(payload) for payload in writer.prepare()()]
    writer.close()
    return found


def commit(sink: FileSink, committables: list[dict[str, Any]]) -> None:
    committer = sink.committer()
    assert committer is not None
    committer.commit(ONE, [json.dumps(each).encode() for each in committables])


@pytest.mark.parametrize("sink_type", SINKS)
def test_a_staged_file_and_its_name_are_durable_when_it_is_handed_over(
    sink_type: type[FileSink], tmp_path: Path, disk: Disk
) -> None:
    # Two files: one became full before the checkpoint, the other one is ended by it.
    committables = handed_over(sink_type(tmp_path, roll_size=1), 1, 2)
    assert len(committables) == 2
    for committable in committables:
        staged = tmp_path / committable["staged"]
        assert disk.size(staged) == staged.stat().st_size == committable["bytes"]
        assert disk.has_name(staged)


@pytest.mark.parametrize("sink_type", SINKS)
def test_a_published_file_has_its_name_for_good_when_the_commit_returns(
    sink_type: type[FileSink], tmp_path: Path, disk: Disk
) -> None:
    sink = sink_type(tmp_path)
    committables = handed_over(sink, 1)
    commit(sink, committables)
    assert all(disk.has_name(tmp_path / committable["final"]) for committable in committables)


def test_publishing_is_one_rename(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = JsonLinesSink(tmp_path)
    (committable,) = handed_over(sink, 1)
    inode = (tmp_path / committable["staged"]).stat().st_ino
    commit(sink, [committable])
    # A copy would be seen while it is incomplete.
    assert (tmp_path / committable["final"]).stat().st_ino == inode


@pytest.mark.parametrize("url", ["local", "memory://places"])
def test_what_is_not_there_can_be_removed(url: str, tmp_path: Path) -> None:
    place = place_of(tmp_path if url == "local" else url)
    place.remove(f"{STAGING}/nothing")
    assert place.size(f"{STAGING}/nothing") is None


@pytest.mark.parametrize("sink_type", SINKS)
def test_a_move_that_broke_off_is_repeated_and_leaves_nothing_behind(sink_type: type[FileSink], tmp_path: Path) -> None:
    """Where a move is a copy, a crash may leave a part of the copy, or the copy and the original."""
    sink = sink_type(tmp_path)
    (committable,) = handed_over(sink, 1)
    staged, final = tmp_path / committable["staged"], tmp_path / committable["final"]
    whole = staged.read_bytes()
    final.write_bytes(whole[:5])
    commit(sink, [committable])
    assert final.read_bytes() == whole
    staged.write_bytes(whole)
    commit(sink, [committable])
    assert final.read_bytes() == whole
    assert not staged.exists()


@pytest.mark.parametrize("sink_type", SINKS)
def test_a_staged_file_that_lost_its_end_is_not_published(sink_type: type[FileSink], tmp_path: Path) -> None:
    sink = sink_type(tmp_path)
    (committable,) = handed_over(sink, 1)
    staged = tmp_path / committable["staged"]
    staged.write_bytes(staged.read_bytes()[:5])
    with pytest.raises(StorageError, match="but neither it nor"):
        commit(sink, [committable])
    assert not (tmp_path / committable["final"]).exists()


@pytest.mark.parametrize(
    "final", ["../part-g1-0-1-00000000.jsonl", "/etc/passwd", "part-g1-0-1-00000000.jsonl/../../x"]
)
def test_a_staged_file_is_published_nowhere_else(final: str, tmp_path: Path) -> None:
    sink = JsonLinesSink(tmp_path / "output")
    (committable,) = handed_over(sink, 1)
    with pytest.raises(StorageError, match="which are no names of this sink"):
        commit(sink, [{**committable, "final": final}])
    assert (tmp_path / "output" / committable["staged"]).exists()


def test_a_preparation_that_failed_half_way_goes_on_failing_by_the_same_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = JsonLinesSink(tmp_path, roll_size=1).writer(0, Generation(1))
    for number in (1, 2):
        writer.write(pa.record_batch({"n": [number]}))
    prepared, fsync, files = writer.prepare(), os.fsync, set[int]()

    def full(descriptor: int) -> None:
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            files.add(os.fstat(descriptor).st_ino)
        if len(files) > 1:
            raise OSError("no space left")
        fsync(descriptor)

    # The first file and its name are synced, the second file is not.
    monkeypatch.setattr(os, "fsync", full)
    for _ in range(2):
        with pytest.raises(StorageError, match="no space left"):
            prepared()
