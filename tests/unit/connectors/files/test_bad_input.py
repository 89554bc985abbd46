"""A way past bad input: every line, row and file comes out once, as a record, as a dead letter, or in a count."""

from __future__ import annotations

import gzip
import json
import logging
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock import END_OF_SPLIT, DataError, FileSource, Pipeline, PipelineError, StorageError
from penstock.connectors.files.formats import lines
from penstock.connectors.files.formats.parquet import ParquetReader
from penstock.connectors.source import Portion
from penstock.protocol.coordinator.state import Policy
from penstock.testing import CollectSink, Schedule, run
from penstock.worker.settings import WorkerSettings

N = pa.schema([("n", pa.int64())])
NT = pa.schema([("n", pa.int64()), ("t", pa.string())])


def read(source: FileSource, split: str, rows_max: int = 1000, stops: int | None = None) -> tuple[list[Any], list[Any]]:
    """Records and dead letters of a file, through a new reader after every `stops` calls."""
    records: list[Any] = []
    letters: list[Any] = []
    reader, calls = source.open(split, None), 0
    while (portion := reader.read(rows_max)) is not END_OF_SPLIT:
        if isinstance(portion, Portion):
            letters += [row for batch in portion.side.values() for row in batch.to_pylist()]
            portion = portion.records
        records += portion.to_pylist() if portion is not None else []
        calls += 1
        if stops is not None and calls % stops == 0:
            offset = reader.offset()
            reader.close()
            reader = source.open(split, offset)
    return records, letters


def letters_of(source: FileSource, **options: Any) -> tuple[list[Any], list[Any], Any]:
    pipeline, good, bad = Pipeline("p"), CollectSink(), CollectSink()
    stream = pipeline.source(source, name="read")
    stream.sink(good)
    if source.on_error == "dead_letter":
        stream.dead_letters().sink(bad)
    result = run(pipeline, **options)
    return good.rows(), bad.rows(), result


JSON_LINES = [
    b'{"n": 0}',
    b"nonsense",
    b'{"n": "text"}',
    b'{"n": 3}',
    b"\xff\xfe",
    b'{"n": 5}{"n": 6}',
    b"",
    b'{"n": 7}',
]


def test_json_dead_letters_name_file_line_byte_text_and_reason(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b"\n".join(JSON_LINES))
    records, letters, result = letters_of(FileSource(tmp_path, format="jsonl", schema=N, on_error="dead_letter"))
    assert [row["n"] for row in records] == [0, 3, 7]
    assert [(row["line"], row["offset"], row["raw"]) for row in letters] == [
        (2, 9, "nonsense"),
        (3, 18, '{"n": "text"}'),
        (5, 41, "\\xff\\xfe"),
        (6, 44, '{"n": 5}{"n": 6}'),
    ]
    assert {row["operator"] for row in letters} == {"read"}
    assert {row["path"] for row in letters} == {str(tmp_path / "a.jsonl")}
    reasons = [row["reason"] for row in letters]
    assert (
        reasons[0] == "JSON parse error: Expecting value at character 1"
        and "changed from number to string" in reasons[1]
    )
    assert 'encoding="latin1"' in reasons[2] and reasons[3] == "JSON parse error: Extra data at character 9"
    assert not any("in row" in reason for reason in reasons)
    assert (result.dead_letters, result.rows_skipped, result.files_skipped) == (4, 0, 0)


def test_csv_rows_with_too_many_fields_or_values_of_another_type(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"n,t\n1,a\n2\n\n3,b,c\nx,d\n4,e\xe9\n5,f\n")
    records, letters = read(FileSource(tmp_path, format="csv", schema=NT, on_error="dead_letter"), "a.csv")
    assert [row["n"] for row in records] == [1, 5]
    assert [(row["line"], row["raw"]) for row in letters] == [(3, "2"), (5, "3,b,c"), (6, "x,d"), (7, "4,e\\xe9")]
    assert letters[0]["reason"] == "CSV parse error: Expected 2 columns, got 1"


@pytest.mark.parametrize("format", ["jsonl", "csv"])
def test_skipped_lines_are_counted_and_said_with_the_first_of_them(
    tmp_path: Path, format: Any, caplog: pytest.LogCaptureFixture
) -> None:
    good, bad = ('{"n": 1}\n', "{\n") if format == "jsonl" else ("1\n", "1,2\n")
    (tmp_path / f"a.{format}").write_text(("" if format == "jsonl" else "n\n") + good * 3 + bad + good + bad)
    with caplog.at_level(logging.WARNING, "penstock"):
        records, _, result = letters_of(FileSource(tmp_path, format=format, schema=N, on_error="skip"))
    assert len(records) == 4
    assert result.rows_skipped == 2
    line = 4 if format == "jsonl" else 5
    assert any(
        f"2 records could not be read and were skipped. The first one: {tmp_path}/a.{format}, line {line}: " in m
        for m in caplog.messages
    )


@pytest.mark.parametrize("is_restored", [False, True])
def test_a_bad_line_fails_with_its_number_in_the_file_and_the_way_out(tmp_path: Path, is_restored: bool) -> None:
    (tmp_path / "a.jsonl").write_text('{"n": 1}\n\n' * 500 + "{\n" + '{"n": 1}\n' * 10)
    source = FileSource(tmp_path, format="jsonl", schema=N)
    reader, offset = source.open("a.jsonl", None), None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lines, "BLOCK_BYTES", 256)
        if is_restored:
            reader.read(100)
            reader.read(100)
            offset = reader.offset()
        with pytest.raises(
            DataError, match=r"'a.jsonl' of .* cannot be read: line 1001: JSON.*on_error=\"skip\""
        ) as raised:
            read_from = source.open("a.jsonl", offset)
            while read_from.read(100) is not END_OF_SPLIT:
                pass
    assert "declare one" not in str(raised.value)


def test_a_position_of_an_older_version_does_not_know_its_line_and_the_line_is_still_right(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"n": 1}\n\n' * 5 + "{\n")
    source = FileSource(tmp_path, format="jsonl", schema=N, on_error="dead_letter")
    reader = source.open("a.jsonl", b'{"piece": 20, "row": 1}')
    portion = reader.read(10)
    assert isinstance(portion, Portion) and portion.records is not None
    assert portion.records.to_pylist() == [{"n": 1}] * 2
    assert portion.side["dead_letters"]["line"].to_pylist() == [11]


def test_a_position_in_a_good_block_holds_when_the_block_has_bad_lines_under_another_schema(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("n\n\n\n" + "".join(f"{n}\n" for n in range(600)) + "x\n")
    reader = FileSource(tmp_path, format="csv", schema=pa.schema([("n", pa.string())])).open("a.csv", None)
    for rows in (1, 1, 348):
        reader.read(rows)
    offset = reader.offset()
    reader.close()
    again = FileSource(tmp_path, format="csv", schema=N, on_error="dead_letter").open("a.csv", offset)
    found: list[int] = []
    while (portion := again.read(1000)) is not END_OF_SPLIT:
        batch = portion.records if isinstance(portion, Portion) else portion
        found += [] if batch is None else batch.column("n").to_pylist()
    assert found == list(range(350, 600))


def test_a_record_over_several_lines_does_not_shift_the_numbers_of_bad_lines(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('n,t\n1,"a\n2,b"\n3,c,d\n4,e\n')
    found, letters = read(FileSource(tmp_path, format="csv", schema=NT, on_error="dead_letter"), "a.csv")
    assert [row["line"] for row in letters] == [2, 4]
    assert found == [{"n": 2, "t": 'b"'}, {"n": 4, "t": "e"}]


# --- whole files ---


def corrupt_parquet(path: Path) -> None:
    pq.write_table(pa.table({"n": range(1000)}), path, row_group_size=100, compression="gzip")
    data = bytearray(path.read_bytes())
    middle = len(data) // 2
    data[middle : middle + 100] = b"\xff" * 100
    path.write_bytes(data)


def write_broken(path: Path, kind: str) -> str:
    """A file that cannot be read, and the format of it."""
    match kind:
        case "stray":
            (path / "b.txt").write_text("a note to myself")
        case "empty":
            (path / "b.parquet").touch()
        case "cut":
            pq.write_table(pa.table({"n": range(1000)}), path / "b.parquet")
            data = (path / "b.parquet").read_bytes()
            (path / "b.parquet").write_bytes(data[: len(data) // 2])
        case "other columns":
            pq.write_table(pa.table({"m": range(10)}), path / "b.parquet")
        case "gz":
            data = gzip.compress(b"".join(b'{"n": %d}\n' % n for n in range(10)))
            (path / "b.jsonl.gz").write_bytes(data[:12])
        case "no gz":
            (path / "b.jsonl.gz").write_text('{"n": 1}\n')
    return "jsonl" if "gz" in kind else "parquet"


BROKEN = ["stray", "empty", "cut", "other columns", "gz", "no gz"]


def with_good_neighbours(path: Path, format: str) -> None:
    for name in ("a", "c"):
        if format == "parquet":
            pq.write_table(pa.table({"n": range(5)}), path / f"{name}.parquet")
        else:
            (path / f"{name}.jsonl.gz").write_bytes(gzip.compress(b'{"n": 1}\n' * 5))


@pytest.mark.parametrize("kind", BROKEN)
def test_a_file_that_cannot_be_read_fails_with_a_hint_that_fits(tmp_path: Path, kind: str) -> None:
    format: Any = write_broken(tmp_path, kind)
    schema = N if kind == "other columns" else None
    with pytest.raises(DataError, match=r"the file 'b\..*' of .* cannot be read: .*on_error=\"skip\"") as raised:
        letters_of(FileSource(tmp_path, format=format, schema=schema), restarts=0)
    assert "declare one" not in str(raised.value)
    if kind in ("stray", "empty"):
        assert "'*.parquet'" in str(raised.value)


@pytest.mark.parametrize("kind", BROKEN)
def test_a_file_that_cannot_be_read_is_skipped_and_counted(
    tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    format: Any = write_broken(tmp_path, kind)
    with_good_neighbours(tmp_path, format)
    with caplog.at_level(logging.WARNING, "penstock"):
        records, _, result = letters_of(FileSource(tmp_path, format=format, schema=N, on_error="skip"))
    assert len(records) == 10
    assert (result.files_skipped, result.rows_skipped) == (1, 0)
    assert any("1 file could not be read and was skipped. The first one: " in message for message in caplog.messages)


@pytest.mark.parametrize("kind", BROKEN)
def test_a_file_that_cannot_be_read_is_a_dead_letter(tmp_path: Path, kind: str) -> None:
    format: Any = write_broken(tmp_path, kind)
    with_good_neighbours(tmp_path, format)
    source = FileSource(tmp_path, format=format, schema=N, on_error="dead_letter")
    records, letters, _ = letters_of(source, crash_after_checkpoints=1)
    assert len(records) == 10
    (letter,) = letters
    assert Path(letter["path"]).name.startswith("b.") and letter["line"] is None and letter["raw"] is None


def test_what_lies_in_front_of_the_damage_is_read_once(tmp_path: Path) -> None:
    text = b"".join(b'{"n": %d, "t": "%s"}\n' % (n, os.urandom(9).hex().encode()) for n in range(5000))
    data = gzip.compress(text)
    (tmp_path / "a.jsonl.gz").write_bytes(data[: 2 * len(data) // 3])
    source = FileSource(tmp_path, format="jsonl", schema=N, on_error="dead_letter")
    small = WorkerSettings(source_rows_max=50, driver_silence_ms=10**6)
    policy = Policy(interval_ms=1, backoff_ms=1)
    records, letters, result = letters_of(source, crash_after_checkpoints=[1, 2], worker_settings=small, policy=policy)
    assert result.restarts == 2
    assert [row["n"] for row in records] == list(range(len(records)))
    assert 3000 < len(records) < 4000
    (letter,) = letters
    assert letter["reason"].startswith("the rest of the file cannot be read: it ends in the middle")


def test_a_parquet_file_is_read_up_to_the_row_group_that_is_damaged(tmp_path: Path) -> None:
    corrupt_parquet(tmp_path / "a.parquet")
    records, letters = read(FileSource(tmp_path, on_error="dead_letter"), "a.parquet", stops=1)
    numbers = [row["n"] for row in records]
    assert numbers == list(range(len(numbers))) and 0 < len(numbers) < 1000
    assert [letter["reason"][:28] for letter in letters] == ["the rest of the file cannot "]


def test_a_store_that_fails_is_no_reason_to_skip_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.jsonl").write_text('{"n": 1}\n')
    source = FileSource(tmp_path, format="jsonl", schema=N, on_error="skip")

    real, calls = source.file, []

    def failing_once(split: str) -> Any:
        calls.append(split)
        if len(calls) == 1:
            raise OSError(5, "Input/output error")
        return real(split)

    monkeypatch.setattr(source, "file", failing_once)
    with pytest.raises(StorageError, match=r"'a.jsonl' of .* cannot be read: .*Input/output error"):
        source.open("a.jsonl", None).read(1)


def test_parquet_rows_that_do_not_fit_the_declared_type(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ParquetReader, "STRETCH_ROWS", 4)
    values = [str(n) if n % 7 else "x" for n in range(30)]
    pq.write_table(pa.table({"n": values, "t": values}), tmp_path / "a.parquet", row_group_size=11)
    for rows_max in (1, 3, 100):
        source = FileSource(tmp_path, schema=N, on_error="dead_letter")
        records, letters = read(source, "a.parquet", rows_max, stops=2)
        assert [row["n"] for row in records] == [n for n in range(30) if n % 7]
        assert [row["line"] for row in letters] == [1, 8, 15, 22, 29]
        assert letters[0]["raw"] == '{"n": "x"}'
    with pytest.raises(DataError, match="cannot be read: row 1: Failed to parse string: 'x'"):
        read(FileSource(tmp_path, schema=N), "a.parquet")


# --- files that are gone ---


def test_a_file_that_is_gone_fails_with_the_ways_out_or_is_skipped(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.jsonl").write_text('{"n": 1}\n' * 10)
    source = FileSource(tmp_path, format="jsonl", on_missing="skip")
    reader = source.open("a.jsonl", None)
    reader.read(5)
    offset = reader.offset()
    reader.close()
    (tmp_path / "a.jsonl").unlink()
    with pytest.raises(
        DataError, match=r"it is gone, and a part of it .*on_missing=\"skip\".*drop-split DIR 'a.jsonl'"
    ) as e:
        FileSource(tmp_path, format="jsonl").open("a.jsonl", offset).read(5)
    assert "declare one" not in str(e.value)
    skipping = source.open("a.jsonl", offset)
    portion = skipping.read(5)
    assert isinstance(portion, Portion) and portion.files_skipped == 1 and "a.jsonl: it is gone" in portion.example
    assert skipping.read(5) is END_OF_SPLIT
    assert json.loads(skipping.offset())["end"]


# --- options ---


def test_dead_letters_that_nobody_reads_are_refused(tmp_path: Path) -> None:
    pipeline = Pipeline("p")
    pipeline.source(FileSource(tmp_path, on_error="dead_letter"), name="read").sink(CollectSink())
    with pytest.raises(
        PipelineError, match=r"the output 'dead_letters' of 'read' is not read.*\.dead_letters\(\)\.sink"
    ):
        pipeline.graph()


@pytest.mark.parametrize("options", [{"on_error": "ignore"}, {"on_missing": "wait"}])
def test_settings_are_checked(tmp_path: Path, options: Any) -> None:
    with pytest.raises(PipelineError, match="FileSource: on_"):
        FileSource(tmp_path, **options)


# --- any bytes ---

_GOOD = st.integers(0, 999).map(lambda n: b'{"n": %d}' % n)
_JSON = st.one_of(
    _GOOD,
    _GOOD,
    _GOOD.map(lambda line: b" " + line + b"\t"),
    _GOOD.map(lambda line: line + line),
    _GOOD.map(lambda line: line[:-1]),
    st.sampled_from(
        [b"", b" ", b'{"n":', b"1}", b"}", b"{", b'{"n": 1.5}', b'{"n": null}', b'{"n": "\xe9"}', b"[1]", b"{}"]
    ),
    st.binary(max_size=12),
)
_CSV = st.one_of(
    st.integers(0, 999).map(lambda n: b"%d,text" % n),
    st.integers(0, 999).map(lambda n: b'%d,"a, ""b"""' % n),
    st.sampled_from(
        [
            b"",
            b"1",
            b"1,2,3",
            b"x,y",
            b'"',
            b'1,"',
            b'1,"a',
            b'b",2',
            b"1,\xe9",
            b"1\r2,3",
            b'1\r"',
            b"1,2\r",
            b'1,"a\rb"',
            b",",
            b"1,",
        ]
    ),
    st.text(alphabet='1,"\r x', max_size=6).map(str.encode),
    st.binary(max_size=12),
)


def check_any_bytes(path: Path, format: Any, rows: list[bytes], ending: bytes, block: int, seed: int) -> None:
    """Good rows and dead letters are all lines, none twice, however the file is cut, and through crashes."""
    rows = [piece for row in rows for piece in row.split(b"\n")]
    data = (b"n,t\n" if format == "csv" else b"") + ending.join(rows)
    name = f"a.{format}"
    (path / name).write_bytes(data)
    schema = N if format == "jsonl" else NT
    source = FileSource(path, format=format, schema=schema, on_error="dead_letter")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lines, "BLOCK_BYTES", 1 << 20)
        records, letters = read(source, name)
        numbers = [letter["line"] for letter in letters]
        blank = b" \t\r\n" if format == "jsonl" else b"\r\n"
        filled = [n for n, line in enumerate(data.split(b"\n"), 1) if line.strip(blank)]
        header = 1 if format == "csv" else 0
        assert len(numbers) == len(set(numbers)) and set(numbers) <= set(filled[header:])
        assert len(records) + len(letters) == len(filled) - header
        # A line by itself has the same verdict.
        alone = [line for line in data.split(b"\n")[header:] if line.strip(blank)]
        for number, line in zip(filled[header:], alone, strict=True):
            (path / f".one.{format}").write_bytes((b"n,t\n" if header else b"") + line + b"\n")
            assert bool(read(source, f".one.{format}")[1]) == (number in numbers), line
        patch.setattr(lines, "BLOCK_BYTES", block)
        patch.setattr(lines, "_SEARCHED_RECORDS", 1 + seed % 5)
        assert read(source, name, 1 + seed % 7, stops=1 + seed % 3) == (records, letters)
        again, dead, _ = letters_of(source, crash_after_checkpoints=[1, 2], schedule=Schedule(seed))
        assert again == records
        assert [{**letter, "operator": ""} for letter in dead] == letters
        skipping = FileSource(path, format=format, schema=schema, on_error="skip")
        again, _, result = letters_of(skipping, crash_after_checkpoints=[1, 2], schedule=Schedule(seed))
        assert again == records
        assert result.rows_skipped == len(letters)


ANY = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@ANY
@given(st.lists(_JSON, max_size=30), st.sampled_from([b"\n", b"\r\n"]), st.integers(1, 100), st.integers(0, 999))
def test_any_bytes_as_json_lines(tmp_path: Path, rows: list[bytes], ending: bytes, block: int, seed: int) -> None:
    check_any_bytes(tmp_path, "jsonl", rows, ending, block, seed)


@ANY
@given(st.lists(_CSV, max_size=30), st.sampled_from([b"\n", b"\r\n"]), st.integers(1, 100), st.integers(0, 999))
def test_any_bytes_as_csv(tmp_path: Path, rows: list[bytes], ending: bytes, block: int, seed: int) -> None:
    check_any_bytes(tmp_path, "csv", rows, ending, block, seed)
