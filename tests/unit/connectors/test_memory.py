"""The source in memory: its records, its marks, its positions."""

from __future__ import annotations

import time
from typing import Any

import pyarrow as pa
import pytest

from penstock import END_OF_SPLIT, PipelineError
from penstock.connectors.memory import Aborted
from penstock.testing import ABORT, CHECKPOINT, PAUSE, ListSource


def rows_of(reader: Any, rows_max: int = 100) -> list[int]:
    found: list[int] = []
    while (batch := reader.read(rows_max)) is not END_OF_SPLIT:
        assert batch is not None
        found += batch.column("n").to_pylist()
    return found


def rows(count: int) -> list[Any]:
    return [{"n": n} for n in range(count)]


def test_records_are_dealt_out_to_the_splits() -> None:
    source = ListSource(rows(7), splits=2)
    assert source.splits() == ["0", "1"]
    assert [rows_of(source.open(split, None)) for split in source.splits()] == [[0, 2, 4, 6], [1, 3, 5]]


@pytest.mark.parametrize("rows_max", [1, 2, 3, 100])
def test_it_goes_on_at_every_position(rows_max: int) -> None:
    source = ListSource([*rows(5), pa.record_batch({"n": [5, 6]}), pa.record_batch({"n": pa.array([], pa.int64())})])
    for count in range(8):
        first = source.open("0", None)
        read: list[int] = []
        while len(read) < count:
            read += first.read(min(rows_max, count - len(read))).column("n").to_pylist()  # type: ignore[union-attr]
        assert read + rows_of(source.open("0", first.offset()), rows_max) == list(range(7))


def test_a_field_that_only_later_rows_have_is_a_column() -> None:
    reader = ListSource([{"n": 1}, {"m": "x", "n": 2}, {"n": 3}]).open("0", None)
    assert reader.read(10).to_pylist() == [{"n": 1, "m": None}, {"n": 2, "m": "x"}, {"n": 3, "m": None}]


def test_a_field_that_the_schema_does_not_have_is_an_error() -> None:
    schema = pa.schema({"n": pa.int64(), "m": pa.string()})
    assert ListSource([{"n": 1}], schema=schema).open("0", None).read(10).to_pylist() == [{"n": 1, "m": None}]
    with pytest.raises(PipelineError, match=r"row 1 has the field 'k', which the schema does not have: .*'k': 5"):
        ListSource([{"n": 1}, {"n": 2, "k": 5}], schema=schema)


def test_no_records() -> None:
    assert rows_of(ListSource([]).open("0", None)) == []


def test_an_abort_happens_once() -> None:
    source = ListSource([*rows(2), ABORT(), *rows(1)])
    reader = source.open("0", None)
    reader.read(10)
    with pytest.raises(Aborted):
        reader.read(10)
    assert rows_of(source.open("0", reader.offset())) == [0]


def test_a_pause_takes_its_time() -> None:
    reader = ListSource([PAUSE("20 ms"), *rows(1)]).open("0", None)
    started = time.monotonic()
    while reader.read(1) is None:
        pass
    assert time.monotonic() - started >= 0.02


def test_a_checkpoint_mark_waits_for_two_to_begin() -> None:
    reader = ListSource([CHECKPOINT, *rows(1), CHECKPOINT]).open("0", None)
    for _ in range(2):
        assert reader.read(1) is None
        reader.offset()
    assert reader.read(1) is not None
    assert reader.read(1) is None
    reader.offset(), reader.offset()
    assert reader.read(1) is END_OF_SPLIT


@pytest.mark.parametrize("arguments", [{"splits": 0}, {"batch_rows": 0}])
def test_bad_arguments(arguments: dict[str, int]) -> None:
    with pytest.raises(PipelineError, match="must be at least 1"):
        ListSource(rows(1), **arguments)  # type: ignore[arg-type]


def test_other_items_are_refused() -> None:
    with pytest.raises(PipelineError, match="takes batches, rows as dictionaries, and marks, not 7"):
        ListSource([7])  # type: ignore[list-item]
