"""Console, collect, and the callable sink; and a source and a sink of a user's own."""

from __future__ import annotations

import json
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock import (
    END_OF_SPLIT,
    CallableSink,
    Committer,
    ConsoleSink,
    Pipeline,
    PipelineError,
    Sink,
    SinkWriter,
    Source,
    SplitReader,
)
from penstock.ids import CheckpointId, Generation
from penstock.testing import ABORT, CHECKPOINT, CollectSink, ListSource, run

ITEMS: list[Any] = [*({"n": n} for n in range(50)), CHECKPOINT, *({"n": n} for n in range(50, 80)), ABORT(), {"n": 80}]


def items() -> list[Any]:
    return [ABORT() if isinstance(item, ABORT) else item for item in ITEMS]


@pytest.mark.parametrize("parallelism", [1, 3])
def test_collect_is_exactly_once(parallelism: int) -> None:
    pipeline, sink = Pipeline("p"), CollectSink()
    pipeline.source(ListSource(items(), splits=2, batch_rows=7)).sink(sink)
    assert run(pipeline, parallelism=parallelism, workers=2).restarts == 1
    assert sorted(row["n"] for row in sink.rows()) == list(range(81))
    assert sink.table().num_rows == sum(batch.num_rows for batch in sink.batches()) == 81


def test_collecting_the_same_again_changes_nothing() -> None:
    sink = CollectSink()
    writer = pickle.loads(pickle.dumps(sink)).writer(0, Generation(1))
    writer.write(pa.record_batch({"n": [1]}))
    committables = writer.prepare()()
    for _ in range(2):
        sink.committer().commit(CheckpointId(1), committables)
    assert sink.rows() == [{"n": 1}]
    assert CollectSink().rows() == []


def test_the_console_shows_the_first_records_of_a_checkpoint_and_counts_the_rest(
    capsys: pytest.CaptureFixture[str],
) -> None:
    sink, staged = ConsoleSink(rows=2), []
    for subtask in range(2):
        writer = sink.writer(subtask, Generation(1))
        for n in (1, 2):
            writer.write(pa.record_batch({"n": [n + 10 * subtask], "text": ["x"]}))
        staged += writer.prepare()()
    sink.committer().commit(CheckpointId(5), staged)
    assert capsys.readouterr().out == "checkpoint 5: 4 rows\nn  text\n1  x\n2  x\n… and 2 more\n\n"
    with pytest.raises(PipelineError):
        ConsoleSink(rows=-1)


def test_the_console_shows_every_record_of_a_pipeline_once(capsys: pytest.CaptureFixture[str]) -> None:
    pipeline = Pipeline("p")
    pipeline.source(ListSource([{"n": n} for n in range(100, 105)])).sink(ConsoleSink())
    run(pipeline)
    lines = capsys.readouterr().out.splitlines()
    assert sorted(line for line in lines if line.isdigit()) == ["100", "101", "102", "103", "104"]


def printed(sink: ConsoleSink, *batches: pa.RecordBatch, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """What one subtask's batches look like."""
    writer, committer = sink.writer(0, Generation(1)), sink.committer()
    for batch in batches:
        writer.write(batch)
    committer.commit(CheckpointId(7), list(writer.prepare()()))
    return capsys.readouterr().out.splitlines()


def test_the_columns_of_the_console_are_aligned_and_its_values_readable(capsys: pytest.CaptureFixture[str]) -> None:
    batch = pa.record_batch(
        {
            "name": ["a", "long" * 20, None],
            "n": [1, -20, 300],
            "at": pa.array([0, 1_500, None], pa.timestamp("ms", "UTC")),
        }
    )
    other = pa.record_batch({"x": ["a\nb"]})
    assert printed(ConsoleSink(), batch, other, capsys=capsys) == [
        "checkpoint 7: 4 rows",
        f"name{' ' * 40}n  at",
        f"a{' ' * 43}1  1970-01-01 00:00:00Z",
        f"{('long' * 20)[:39]}…  -20  1970-01-01 00:00:01.500000Z",
        f"null{' ' * 36}  300  null",
        "x",
        r"a\nb",
        "",
    ]


def test_a_table_that_is_wider_than_the_terminal_becomes_lines(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = pa.record_batch({"customer": ["ann"], "total": [5]})
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "15")
    assert printed(ConsoleSink(), batch, capsys=capsys)[1:-1] == ["customer  total", "ann           5"]
    monkeypatch.setenv("COLUMNS", "14")
    assert printed(ConsoleSink(), batch, capsys=capsys)[1:-1] == ["customer=ann  total=5"]


def test_output_that_an_earlier_version_staged_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    ConsoleSink().committer().commit(CheckpointId(3), [b'{"lines": ["n=1"], "count": 4}'])
    assert capsys.readouterr().out.splitlines() == ["checkpoint 3: 4 rows", "n=1", "… and 3 more", ""]


def test_a_callable_sink_is_at_least_once() -> None:
    seen: list[int] = []
    pipeline = Pipeline("p")
    pipeline.source(ListSource(items())).sink(CallableSink(lambda batch: seen.extend(batch["n"].to_pylist())))
    run(pipeline)
    assert set(seen) == set(range(81))
    assert len(seen) > 81
    with pytest.raises(PipelineError):
        CallableSink(7)  # type: ignore[arg-type]


# --- twenty lines each ---


class Numbers(Source):
    def __init__(self, count: int) -> None:
        self.count = count

    def splits(self) -> Sequence[str]:
        return ["all"]

    def open(self, split: str, offset: bytes | None) -> SplitReader:
        return NumbersReader(self.count, int(offset or b"0"))


class NumbersReader(SplitReader):
    def __init__(self, count: int, position: int) -> None:
        self.count, self.position = count, position

    def read(self, rows_max: int) -> Any:
        if self.position == self.count:
            return END_OF_SPLIT
        self.position += 1
        return pa.record_batch({"n": [self.position - 1]})

    def offset(self) -> bytes:
        return str(self.position).encode()


class Letters(Sink):
    """A file for each checkpoint: written under its name plus `.new`, renamed by the commit."""

    def __init__(self, directory: str) -> None:
        self.directory = directory

    def writer(self, subtask: int, generation: Generation) -> SinkWriter:
        return LettersWriter(f"{self.directory}/{generation}-{subtask}")

    def committer(self) -> Committer:
        return LettersCommitter()


class LettersWriter(SinkWriter):
    def __init__(self, prefix: str) -> None:
        self.prefix, self.count, self.held = prefix, 0, list[int]()

    def write(self, batch: pa.RecordBatch) -> None:
        self.held += batch["n"].to_pylist()

    def prepare(self) -> Any:
        held, self.held, self.count = self.held, [], self.count + 1
        path = Path(f"{self.prefix}-{self.count}.new")
        return lambda: [str(path).encode()] if path.write_text(json.dumps(held)) else []


class LettersCommitter(Committer):
    def commit(self, checkpoint: CheckpointId, committables: Sequence[bytes]) -> None:
        for path in (Path(payload.decode()) for payload in committables):
            if path.exists():
                path.rename(path.with_suffix(".json"))


def test_a_source_and_a_sink_of_ones_own(tmp_path: Path) -> None:
    pipeline = Pipeline("p")
    pipeline.source(Numbers(500)).sink(Letters(str(tmp_path)))
    result = run(pipeline, crash_after_checkpoints=[1, 2])
    assert result.restarts == 2
    found = [n for path in tmp_path.glob("*.json") for n in json.loads(path.read_text())]
    assert sorted(found) == list(range(500))
