"""Values of files of lines: those that Arrow alone would change without a word."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock import DataError, FileSource, JsonLinesSink, Pipeline
from penstock.testing import CollectSink, ListSource, run
from tests.unit.connectors.files.test_bad_input import read

UTC = datetime.UTC


def rows(path: Path, text: str, format: Any = "jsonl", **options: Any) -> list[Any]:
    name = f"a.{format}"
    (path / name).write_text(text, encoding="utf-8")
    return read(FileSource(path / name, format=format, **options), name)[0]


class TestAHeaderWithOneNameTwice:
    def test_is_an_error(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match="its header has the column 'a' more than once, in a, b, a: give each"):
            rows(tmp_path, "a,b,a\n1,2,3\n", "csv")

    def test_is_none_for_other_columns(self, tmp_path: Path) -> None:
        assert rows(tmp_path, "a,b,a\n1,2,3\n", "csv", schema="b int") == [{"b": 2}]


class TestWholeNumbersBeyond64Bits:
    @pytest.mark.parametrize(
        ("format", "text"),
        [("csv", "n\n123456789012345678901\n5\n"), ("jsonl", '{"n": 5}\n{"n": 12345678901234567890}\n')],
    )
    def test_are_an_error_unless_a_type_is_declared(self, tmp_path: Path, format: str, text: str) -> None:
        with pytest.raises(DataError, match=r"beyond 64 bits in column 'n'.*'n decimal\(38,0\)'"):
            rows(tmp_path, text, format)
        exact = rows(tmp_path, text, format, schema="n decimal(38,0)")
        assert {int(row["n"]) for row in exact} in ({5, 123456789012345678901}, {5, 12345678901234567890})

    def test_are_not_what_floats_are(self, tmp_path: Path) -> None:
        assert rows(tmp_path, "n\n1e300\n1.5\n", "csv") == [{"n": 1e300}, {"n": 1.5}]


class TestTimesOfJson:
    def test_with_offsets_are_in_utc(self, tmp_path: Path) -> None:
        text = '{"t": "2026-01-01T10:00:00+02:00"}\n{"t": null}\n{"t": "2026-01-01T10:00:00Z"}\n'
        first, last = datetime.datetime(2026, 1, 1, 8, tzinfo=UTC), datetime.datetime(2026, 1, 1, 10, tzinfo=UTC)
        assert [row["t"] for row in rows(tmp_path, text)] == [first, None, last]

    def test_without_are_naive(self, tmp_path: Path) -> None:
        text = '{"t": "2026-01-01T10:00:00", "d": "2026-01-01"}\n'
        assert rows(tmp_path, text) == [
            {"t": datetime.datetime(2026, 1, 1, 10), "d": datetime.datetime(2026, 1, 1)},
        ]

    def test_of_both_kinds_are_an_error_unless_a_type_is_declared(self, tmp_path: Path) -> None:
        text = '{"t": "2026-01-01T10:00:00Z"}\n{"t": "2026-01-01T10:00:00"}\n'
        with pytest.raises(DataError, match=r"times with an offset such as Z .* in column 't', and times without one"):
            rows(tmp_path, text)
        assert {row["t"].hour for row in rows(tmp_path, text, schema="t timestamp")} == {10}


def test_bytes_and_dates_that_the_sink_has_written_are_read_again(tmp_path: Path) -> None:
    schema = pa.schema({"b": pa.binary(), "d": pa.date32()})
    written = [{"b": b"\x00\xff", "d": datetime.date(2026, 3, 29)}, {"b": None, "d": None}, {"b": b"", "d": None}]
    there = Pipeline("there")
    there.source(ListSource(written, schema=schema)).sink(JsonLinesSink(tmp_path))
    run(there)
    back, output = Pipeline("back"), CollectSink()
    back.source(FileSource(str(tmp_path / "*.jsonl"), format="jsonl", schema="b binary, d date")).sink(output)
    run(back)
    assert output.rows() == written


@pytest.mark.parametrize(("kind", "text"), [("binary", "no base64!"), ("date", "2026-02-30")])
def test_texts_that_are_neither_are_bad_lines(tmp_path: Path, kind: str, text: str) -> None:
    with pytest.raises(DataError, match="line 2: "):
        rows(tmp_path, f'{{"a": null}}\n{{"a": "{text}"}}\n', schema=f"a {kind}")
