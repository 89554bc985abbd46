"""Options of the formats by Spark's names, compressed files, encodings, and text."""

from __future__ import annotations

import bz2
import datetime
import gzip
import logging
import lzma
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock import DataError, FileSource, Pipeline, PipelineError
from penstock.connectors.files.formats import lines
from penstock.connectors.source import Portion
from penstock.protocol.coordinator.state import Policy
from penstock.testing import CollectSink, run
from penstock.worker.settings import WorkerSettings
from tests.unit.connectors.files.test_bad_input import read

N_T = pa.schema([("n", pa.int64()), ("t", pa.string())])
COMPRESSED: dict[str, Callable[[bytes], bytes]] = {
    "gz": gzip.compress,
    "bz2": bz2.compress,
    "xz": lzma.compress,
    "zst": lambda data: bytes(pa.compress(data, "zstd", asbytes=True)),
    "lz4": lambda data: bytes(pa.compress(data, "lz4", asbytes=True)),
}


def rows(path: Path, data: bytes | str, **options: Any) -> list[Any]:
    name = "a.csv" if options.get("format", "csv") == "csv" else "a.txt"
    (path / name).write_bytes(data if isinstance(data, bytes) else data.encode())
    return read(FileSource(path / name, **{"format": "csv", **options}), name)[0]


# --- compressed ---


@pytest.mark.parametrize("ending", COMPRESSED)
@pytest.mark.parametrize("format", ["jsonl", "csv", "text"])
def test_compressed_files_from_every_position(
    tmp_path: Path, ending: str, format: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "BLOCK_BYTES", 64)
    line = {"jsonl": '{{"n": {0}, "t": "text {0}"}}\n', "csv": "{0},text {0}\n", "text": "{0}\n"}[format]
    data = ("n,t\n" if format == "csv" else "") + "".join(line.format(n) for n in range(40))
    (tmp_path / f"a.{ending}").write_bytes(COMPRESSED[ending](data.encode()))
    source = FileSource(tmp_path, format=format)
    for stops in (1, 3, None):
        found, letters = read(source, f"a.{ending}", 7, stops)
        assert [int(row["value" if format == "text" else "n"]) for row in found] == list(range(40))
        assert letters == []


def test_several_gz_streams_in_one_file_and_zeros_behind_them(tmp_path: Path) -> None:
    (tmp_path / "a.gz").write_bytes(gzip.compress(b"a\nb\n") + gzip.compress(b"c\n") + b"\0" * 512)
    assert [row["value"] for row in read(FileSource(tmp_path, format="text"), "a.gz")[0]] == ["a", "b", "c"]


def test_a_compressed_file_is_decompressed_once_while_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "BLOCK_BYTES", 64)
    (tmp_path / "a.gz").write_bytes(gzip.compress(b"".join(b"line %d\n" % n for n in range(1000))))
    source, opened = FileSource(tmp_path, format="text"), 0
    real = source.file

    def counted(split: str) -> Any:
        nonlocal opened
        opened += 1
        return real(split)

    monkeypatch.setattr(source, "file", counted)
    assert len(read(source, "a.gz", 10)[0]) == 1000
    assert opened == 1


def test_compressed_files_exactly_once_through_crashes(tmp_path: Path) -> None:
    for name in range(4):
        text = "".join(f"{n}\n" if n % 5 else "x\n" for n in range(1000 * name, 1000 * name + 1000))
        (tmp_path / f"{name}.csv.gz").write_bytes(gzip.compress(b"n\n" + text.encode()))
    pipeline, good, bad = Pipeline("p"), CollectSink(), CollectSink()
    source = FileSource(tmp_path, format="csv", schema=pa.schema([("n", pa.int64())]), on_error="dead_letter")
    stream = pipeline.source(source)
    stream.sink(good)
    stream.dead_letters().sink(bad)
    small = WorkerSettings(source_rows_max=100, driver_silence_ms=10**6)
    fast = Policy(interval_ms=1, backoff_ms=1)
    result = run(pipeline, parallelism=2, crash_after_checkpoints=[1, 3], worker_settings=small, policy=fast)
    assert result.restarts == 2
    assert sorted(row["n"] for row in good.rows()) == [n for n in range(4000) if n % 5]
    places = sorted((row["path"][-8:], row["line"]) for row in bad.rows())
    assert places == [(f"{name}.csv.gz", n + 2) for name in range(4) for n in range(0, 1000, 5)]


# --- encodings ---


@pytest.mark.parametrize("encoding", ["latin1", "cp1252", "utf-16", "utf-16-le", "utf-32", "utf-8", "shift_jis"])
@pytest.mark.parametrize("stops", [None, 1])
def test_encodings(tmp_path: Path, encoding: str, stops: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "BLOCK_BYTES", 32)
    word = "表ソ" if encoding == "shift_jis" else "Größe"
    text = "n,t\n" + "".join(f"{n},{word}\n" for n in range(20))
    (tmp_path / "a.csv").write_bytes(text.encode(encoding))
    found, _ = read(FileSource(tmp_path, format="csv", encoding=encoding), "a.csv", 3, stops)
    assert found == [{"n": n, "t": word} for n in range(20)]


@pytest.mark.parametrize("format", ["csv", "jsonl", "text"])
def test_a_file_in_another_encoding_fails_and_names_the_option(tmp_path: Path, format: Any) -> None:
    line = '{"n": 1, "t": "é"}\n' if format == "jsonl" else "n,t\n1,é\n"
    number = 1 if format == "jsonl" else 2
    (tmp_path / "a").write_bytes(line.encode("latin1"))
    with pytest.raises(DataError, match=rf"line {number}: the byte 0xe9 is no utf-8: .*encoding=\"latin1\"") as raised:
        read(FileSource(tmp_path, format=format), "a")
    assert "declare one" not in str(raised.value)


def test_a_byte_order_mark_is_no_data(tmp_path: Path) -> None:
    assert rows(tmp_path, b"\xef\xbb\xbfn,t\n1,a\n") == [{"n": 1, "t": "a"}]
    assert rows(tmp_path, b'\xef\xbb\xbf{"n": 1}\n', format="jsonl") == [{"n": 1}]
    assert rows(tmp_path, b"\xef\xbb\xbfa\n", format="text") == [{"value": "a"}]


# --- text ---


def test_text_has_one_column_with_every_line(tmp_path: Path) -> None:
    assert [row["value"] for row in rows(tmp_path, 'a\n\n b \r\nc,"d\nlast', format="text")] == [
        "a",
        "",
        " b ",
        'c,"d',
        "last",
    ]


# --- CSV ---


@pytest.mark.parametrize(
    ("data", "options", "expected"),
    [
        ("n;t\n1;a,b\n", {"sep": ";"}, [{"n": 1, "t": "a,b"}]),
        ("n\tt\n1\ta\n", {"delimiter": "\t"}, [{"n": 1, "t": "a"}]),
        ("1,a\n2,b\n", {"header": False}, [{"_c0": 1, "_c1": "a"}, {"_c0": 2, "_c1": "b"}]),
        ("1,a\n", {"header": "false", "inferSchema": False}, [{"_c0": "1", "_c1": "a"}]),
        ("n,t\n1,'a,b'\n", {"quote": "'"}, [{"n": 1, "t": "a,b"}]),
        ('n,t\n1,"a ""b"" c"\n', {}, [{"n": 1, "t": 'a "b" c'}]),
        ('n,t\n1,"a \\"b\\", c"\n', {"escape": "\\"}, [{"n": 1, "t": 'a "b", c'}]),
        ("n,t\nNA,NA\n1,\n", {"nullValue": "NA"}, [{"n": None, "t": None}, {"n": 1, "t": None}]),
        ("n,t\n1,\n,NA\n", {"schema": N_T}, [{"n": 1, "t": ""}, {"n": None, "t": "NA"}]),
        ('n,t\n1,"a\nb"\n\n2,c\n', {"multiLine": True}, [{"n": 1, "t": "a\nb"}, {"n": 2, "t": "c"}]),
        ("n;t\n1;é\n", {"options": {"sep": ";", "ENCODING": "utf-8"}}, [{"n": 1, "t": "é"}]),
        (
            "at\n02/01/2026 03:04:05\n",
            {"timestampFormat": "dd/MM/yyyy HH:mm:ss"},
            [{"at": datetime.datetime(2026, 1, 2, 3, 4, 5)}],
        ),
        (
            "at\n02.01.2026\n",
            {"dateFormat": "dd.MM.yyyy", "schema": pa.schema([("at", pa.date32())])},
            [{"at": datetime.date(2026, 1, 2)}],
        ),
        (
            "1,a\n",
            {"header": False, "schema": pa.schema([("t", pa.string()), ("u", pa.string())])},
            [{"t": "1", "u": "a"}],
        ),
        ("\n\nn,t\n1,a\n", {}, [{"n": 1, "t": "a"}]),
    ],
)
def test_options_of_csv(tmp_path: Path, data: str, options: Any, expected: list[Any]) -> None:
    assert rows(tmp_path, data, **options) == expected


@pytest.mark.parametrize("rows_max", [1, 2, 50])
@pytest.mark.parametrize("block", [5, 17, 64, 1 << 20])
def test_records_over_several_lines_from_every_position(
    tmp_path: Path, rows_max: int, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "BLOCK_BYTES", block)
    text = "".join(f'{n},"line one\n\nline ""{n}"""\n' if n % 3 else f"{n},x,y\n" for n in range(1, 20))
    (tmp_path / "a.csv").write_text("n,t\n" + text)
    source = FileSource(tmp_path, format="csv", multiLine=True, on_error="dead_letter")
    found, letters = read(source, "a.csv", rows_max, stops=1)
    assert found == [{"n": n, "t": f'line one\n\nline "{n}"'} for n in range(1, 20) if n % 3]
    assert [(row["line"], row["raw"]) for row in letters] == [
        (2 + 3 * (n - 1) - 2 * (n // 3 - 1), f"{n},x,y") for n in range(3, 20, 3)
    ]


@pytest.mark.parametrize("columns", [1, 2])
def test_a_quote_that_is_not_closed_is_bad_input_wherever_it_stands(tmp_path: Path, columns: int) -> None:
    schema = pa.schema([("n", pa.int64()), ("t", pa.string())][-columns:])
    names, number = ("n,t", "1,") if columns == 2 else ("t", "")
    for data in (f'{number}"a', f'{number}a\n{number}"a\n', f'{number}"a\n\n{number}b', f'{number}"\n{number}b\n'):
        (tmp_path / "a.csv").write_text(f"{names}\n{data}")
        source = FileSource(tmp_path, format="csv", schema=schema, on_error="dead_letter")
        found, letters = read(source, "a.csv")
        assert len(letters) == 1 and letters[0]["raw"].startswith(f'{number}"')
        assert [row["t"] for row in found] == [line[-1] for line in data.split("\n") if '"' not in line and line]


@pytest.mark.parametrize("null", ["", "NA"])
def test_a_column_alone_may_be_null(tmp_path: Path, null: str) -> None:
    assert rows(tmp_path, "n\n1\n2\n", schema=pa.schema([("n", pa.int64())]), nullValue=null) == [{"n": 1}, {"n": 2}]


@pytest.mark.parametrize("options", [{}, {"multiLine": True}])
def test_what_lies_behind_a_carriage_return_is_not_lost(tmp_path: Path, options: Any) -> None:
    (tmp_path / "a.csv").write_bytes(b'n\n1\r"x\n')
    source = FileSource(
        tmp_path, format="csv", schema=pa.schema([("n", pa.string())]), on_error="dead_letter", **options
    )
    found, letters = read(source, "a.csv")
    assert found == [] and [row["raw"] for row in letters] == ['1\r"x']


def test_a_separator_that_is_likely_another_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "penstock"):
        assert rows(tmp_path, "a;b\n1;2\n") == [{"a;b": "1;2"}]
        assert any("set sep=';'" in message for message in caplog.messages)
        caplog.clear()
        assert rows(tmp_path, "a\n1\n") == [{"a": 1}]
        assert caplog.messages == []


def test_a_declared_column_that_a_file_does_not_have_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"it has no column 'b', which the schema declares; it has a, c\."):
        rows(tmp_path, "a,c\n1,2\n", schema=pa.schema([("b", pa.int64())]))


# --- options that there are not ---


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"format": "csv", "header_": True}, "there is no option header_: did you mean header"),
        ({"format": "csv", "separator": ";"}, "there is no option separator: (did you mean sep|options of)"),
        ({"format": "csv", "on_eror": "skip"}, "did you mean on_error"),
        (
            {"format": "csv", "mode": "DROPMALFORMED"},
            'Spark has the option mode, and Penstock has not: set on_error="fail"',
        ),
        (
            {"format": "csv", "comment": "#"},
            "Spark has the option comment, and Penstock has not. Options of the format csv",
        ),
        ({"format": "jsonl", "sep": ";"}, "sep is an option of the format csv, not of jsonl"),
        ({"format": "json", "multiLine": True}, "multiLine is True: JSON must have one object per line"),
        ({"format": "parquet", "mergeSchema": True}, "Spark has the option mergeSchema, .*declare a schema"),
        ({"format": "text", "wholetext": True}, "Spark has the option wholetext"),
        ({"format": "csv", "sep": ";;"}, "sep is ';;': it must be one ASCII character"),
        ({"format": "csv", "header": "yes"}, "header is 'yes': it must be True or False"),
        ({"format": "csv", "encoding": "klingon"}, "unknown encoding"),
        ({"format": "csv", "timestampFormat": "EEE dd"}, "'EEE' is not supported"),
        ({"format": "csv", "dateFormat": "dd.MM.yyyy"}, "dateFormat needs a declared schema"),
        ({"format": "csv", "multiLine": True, "escape": "\\"}, "multiLine=True needs escape to be the quote"),
        ({"format": "parquet", "header": True}, "header is an option of the format csv, not of parquet"),
    ],
)
def test_options_that_cannot_work_are_refused(tmp_path: Path, options: Any, message: str) -> None:
    with pytest.raises(PipelineError, match=f"FileSource: .*{message}"):
        FileSource(tmp_path, **options)


def test_a_position_depends_on_an_encoding_that_is_decoded_as_a_stream(tmp_path: Path) -> None:
    assert "encoding" not in FileSource(tmp_path, format="csv", encoding="latin1").identity()
    assert FileSource(tmp_path, format="csv", encoding="utf-16").identity()["encoding"] == "utf-16"
    assert "multiLine" in FileSource(tmp_path, format="csv", multiLine=True).identity()
    assert dict(FileSource(tmp_path, format="json").identity()) == dict(FileSource(tmp_path, format="jsonl").identity())


@pytest.mark.parametrize("watch", [False, True])
def test_a_pattern_that_nothing_fits_is_said(tmp_path: Path, watch: bool, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "a.csv").touch()
    with caplog.at_level(logging.WARNING, "penstock"):
        assert FileSource(f"{tmp_path}/*.json", format="json", watch=watch).splits() == []
    waiting = "; waiting for one" if watch else ""
    assert caplog.messages == [
        f"FileSource: no file matches {tmp_path}/*.json; 1 other file, such as 'a.csv', did not match{waiting}"
    ]


def test_an_empty_directory_that_is_watched_is_waited_for(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert FileSource(tmp_path, watch=True).splits() == []
    assert caplog.messages == [f"FileSource: no file matches {tmp_path}; waiting for one"]


def test_a_watched_directory_that_is_not_there_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    source = FileSource(tmp_path / "no", watch=True)
    with caplog.at_level(logging.WARNING, "penstock"):
        assert source.splits() == source.splits() == []
    assert caplog.messages == [f"FileSource: {tmp_path}/no does not exist yet; waiting for it"]


def test_bad_lines_at_the_beginning_do_not_decide_the_schema(tmp_path: Path) -> None:
    text = '{"n": 1}\nrubbish\n{"n": 2}\n{"n": "three"}\n[]\n{"n": 4}\n'
    (tmp_path / "a.jsonl").write_text(text)
    found, letters = read(FileSource(tmp_path, format="jsonl", on_error="dead_letter"), "a.jsonl")
    assert [row["n"] for row in found] == [1, 2, 4]
    assert [row["line"] for row in letters] == [2, 4, 5]
    (tmp_path / "b.jsonl").write_text("rubbish\n" * 5)
    found, letters = read(FileSource(tmp_path, format="jsonl", on_error="dead_letter"), "b.jsonl")
    assert found == [] and len(letters) == 5
    (tmp_path / "c.csv").write_bytes(b"a,b\n1,2,3\n\xff,1\n1,2\n")
    found, letters = read(FileSource(tmp_path, format="csv", on_error="dead_letter"), "c.csv")
    assert found == [{"a": 1, "b": 2}] and [row["line"] for row in letters] == [2, 3]


def test_a_good_block_is_one_call_of_arrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import pyarrow.json

    calls = 0
    real = pyarrow.json.read_json

    def counted(*arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        return real(*arguments)

    monkeypatch.setattr(pyarrow.json, "read_json", counted)
    (tmp_path / "a.jsonl").write_text('{"n": 1}\n' * 10_000)
    schema = pa.schema([("n", pa.int64())])
    assert len(read(FileSource(tmp_path, format="jsonl", schema=schema, on_error="skip"), "a.jsonl")[0]) == 10_000
    assert calls == 1
    # One bad line among ten thousand: the block, its parts, and the halves of one part.
    (tmp_path / "a.jsonl").write_text('{"n": 1}\n' * 6_000 + "{\n" + '{"n": 1}\n' * 3_999)
    calls = 0
    reader = FileSource(tmp_path, format="jsonl", schema=schema, on_error="skip").open("a.jsonl", None)
    found = skipped = 0
    while hasattr(portion := reader.read(1000), "num_rows") or isinstance(portion, Portion):
        if isinstance(portion, Portion):
            skipped += portion.rows_skipped
            portion = portion.records
        found += 0 if portion is None else portion.num_rows
    assert (found, skipped) == (9_999, 1)
    assert calls <= 1 + 40 + 2 * 9


def test_a_schema_may_be_text_as_everywhere(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("n\n1\n")
    source = FileSource(tmp_path, format="csv", schema="n bigint")
    assert source.schema == pa.schema([("n", pa.int64())])
