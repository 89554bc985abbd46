"""Files that change: half written when they are seen, appended, replaced, cut. Nothing of that may pass in silence."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from penstock import DataError, FileSource, Pipeline, PipelineError
from penstock.connectors.files import FileSource as Files
from penstock.testing import CollectSink, run

_WRITER = """
import sys, time
with open(sys.argv[1], "w") as file:
    for number in range(10):
        file.write('{"n": %d}\\n' % number)
        file.flush()
        time.sleep(0.15)
"""


def lines(path: Path, first: int, count: int, mode: str = "w") -> None:
    with open(path, mode) as file:
        file.write("".join(json.dumps({"n": n}) + "\n" for n in range(first, first + count)))


def aged(path: Path) -> None:
    """As if it had been written an hour ago."""
    then = time.time() - 3600
    os.utime(path, (then, then))


def drained(source: Files, split: str, offset: bytes | None = None) -> tuple[list[int], Any]:
    reader = source.open(split, offset)
    found: list[int] = []
    while hasattr(batch := reader.read(100), "num_rows"):
        found += batch.column("n").to_pylist()
    return found, reader


def numbers(sink: CollectSink) -> list[int]:
    return sorted(row["n"] for row in sink.rows())


def test_a_slow_writer_loses_nothing(tmp_path: Path) -> None:
    """A real process that needs longer than a look at the directory, as `cp` does."""
    directory, pipeline, sink = tmp_path / "in", Pipeline("p"), CollectSink()
    directory.mkdir()
    pipeline.source(FileSource(directory, format="jsonl", watch=True, stable_for=2.0)).sink(sink)
    writer = subprocess.Popen([sys.executable, "-c", _WRITER, str(directory / "a.jsonl")])
    try:
        run(pipeline, until=lambda: len(sink.rows()) >= 10, timeout=120)
    finally:
        writer.wait(60)
    assert numbers(sink) == list(range(10))


def test_a_file_is_taken_up_when_it_has_not_changed_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    source = FileSource(tmp_path, format="jsonl", watch=True, stable_for=5)
    lines(tmp_path / "a.jsonl", 0, 3)
    lines(tmp_path / "old.jsonl", 0, 3)
    aged(tmp_path / "old.jsonl")
    assert source.splits() == ["old.jsonl"]
    now[0] += 4
    lines(tmp_path / "a.jsonl", 3, 3, "a")
    assert source.splits() == ["old.jsonl"]
    now[0] += 4
    assert source.splits() == ["old.jsonl"]
    now[0] += 1
    assert source.splits() == ["a.jsonl", "old.jsonl"]


@pytest.mark.parametrize("format", ["jsonl", "csv"])
@pytest.mark.parametrize("is_restored", [True, False])
def test_a_file_that_grows_after_it_was_read_is_an_error_with_the_cure(
    tmp_path: Path, is_restored: bool, format: Any
) -> None:
    path = tmp_path / f"a.{format}"
    path.write_text('{"n": 1}\n' if format == "jsonl" else "n\n1\n")
    aged(path)
    source = FileSource(tmp_path, format=format, watch=True)
    assert source.splits() == [path.name]
    found, reader = drained(source, path.name)
    assert found == [1]
    if is_restored:
        source = FileSource(tmp_path, format=format, watch=True)
        source.open(path.name, reader.offset())
    with open(path, "a") as file:
        file.write("{}\n")
    with pytest.raises(DataError, match=r"has changed since it was read.*then rename.*on_change='ignore'"):
        source.splits()


def test_a_changed_file_may_be_ignored(tmp_path: Path) -> None:
    lines(tmp_path / "a.jsonl", 0, 3)
    aged(tmp_path / "a.jsonl")
    source = FileSource(tmp_path, format="jsonl", watch=True, on_change="ignore")
    drained(source, "a.jsonl")
    lines(tmp_path / "a.jsonl", 3, 3, "a")
    source.splits()


def test_a_file_that_was_read_and_is_gone_is_fine(tmp_path: Path) -> None:
    lines(tmp_path / "a.jsonl", 0, 3)
    aged(tmp_path / "a.jsonl")
    source = FileSource(tmp_path, format="jsonl", watch=True)
    drained(source, "a.jsonl")
    (tmp_path / "a.jsonl").unlink()
    assert source.splits() == []


@pytest.mark.parametrize("count", [1, 40])
def test_a_file_that_was_replaced_before_a_restart_is_an_error(tmp_path: Path, count: int) -> None:
    lines(tmp_path / "a.jsonl", 0, 20)
    source = FileSource(tmp_path, format="jsonl")
    reader = source.open("a.jsonl", None)
    reader.read(5)
    offset = reader.offset()
    reader.close()
    lines(tmp_path / "a.jsonl", 0, count)
    with pytest.raises(DataError, match="has changed since it was read"):
        FileSource(tmp_path, format="jsonl").open("a.jsonl", offset).read(5)


def test_a_file_that_changes_while_it_is_read_is_an_error_at_its_end(tmp_path: Path) -> None:
    lines(tmp_path / "a.jsonl", 0, 3)
    reader = FileSource(tmp_path, format="jsonl").open("a.jsonl", None)
    reader.read(1)
    lines(tmp_path / "a.jsonl", 3, 3, "a")
    with pytest.raises(DataError, match="has changed since it was read"):
        for _ in range(10):
            reader.read(100)


def test_files_that_were_moved_have_other_times(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    for directory in (old, new):
        directory.mkdir()
        lines(directory / "a.jsonl", 0, 20)
    aged(new / "a.jsonl")
    reader = FileSource(old, format="jsonl").open("a.jsonl", None)
    reader.read(5)
    moved = FileSource(new, format="jsonl", moved_from=old)
    assert drained(moved, "a.jsonl", reader.offset())[0] == list(range(5, 20))


def test_a_position_of_an_older_version_has_no_stamp(tmp_path: Path) -> None:
    lines(tmp_path / "a.jsonl", 0, 20)
    source = FileSource(tmp_path, format="jsonl")
    assert drained(source, "a.jsonl", b'{"piece": 0, "row": 5}')[0] == list(range(5, 20))
    assert drained(source, "a.jsonl", b'{"end": true}')[0] == []


@pytest.mark.parametrize("name", [".a.jsonl", "_a.jsonl", "a.jsonl.tmp", "a.jsonl~", "a.jsonl._COPYING_"])
def test_names_of_unfinished_files_are_left_alone(tmp_path: Path, name: str) -> None:
    lines(tmp_path / name, 0, 3)
    assert FileSource(tmp_path, format="jsonl").splits() == []


def test_a_pipeline_with_a_file_that_grows_fails_with_the_cure(tmp_path: Path) -> None:
    lines(tmp_path / "a.jsonl", 0, 3)
    aged(tmp_path / "a.jsonl")
    pipeline, sink = Pipeline("p"), CollectSink()
    pipeline.source(FileSource(tmp_path, format="jsonl", watch=True)).sink(sink)

    def grow() -> bool:
        if len(sink.rows()) == 3:
            lines(tmp_path / "a.jsonl", 3, 1, "a")
        return False

    with pytest.raises(DataError, match=r"'a.jsonl' of .* has changed since it was read"):
        run(pipeline, until=grow, restarts=1, timeout=120)


@pytest.mark.parametrize("options", [{"on_change": "hope"}, {"stable_for": -1}, {"stable_for": float("nan")}])
def test_options_are_checked(tmp_path: Path, options: dict[str, Any]) -> None:
    with pytest.raises(PipelineError, match="FileSource"):
        FileSource(tmp_path, **options)
