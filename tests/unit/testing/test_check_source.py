"""`penstock.testing.check_source`: sources that keep the contract pass, each way to break it has its own sentence."""

from __future__ import annotations

import itertools
import json
import secrets
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest

from penstock import END_OF_SPLIT, FileSource, GeneratorSource, Source, SplitReader
from penstock.testing import ContractBroken, ListSource, check_source

ROWS = 60


class GoodSource(Source):
    def splits(self) -> Sequence[str]:
        return ["a", "b"]

    def open(self, split: str, offset: bytes | None) -> SplitReader:
        return GoodReader(split, json.loads(offset) if offset else 0)


class GoodReader(SplitReader):
    def __init__(self, split: str, position: int) -> None:
        self.split = split
        self.position = position

    def read(self, rows_max: int) -> Any:
        end = min(ROWS, self.position + rows_max)
        numbers = list(range(self.position, end))
        self.position = end
        return pa.record_batch({"split": [self.split] * len(numbers), "n": numbers}) if numbers else END_OF_SPLIT

    def offset(self) -> bytes:
        return json.dumps(self.position).encode()


def with_reader(change: type[GoodReader]) -> type[Source]:
    class Changed(GoodSource):
        def open(self, split: str, offset: bytes | None) -> SplitReader:
            return change(split, json.loads(offset) if offset else 0)

    return Changed


EXPECTED = [{"split": split, "n": n} for split in "ab" for n in range(ROWS)]


def test_a_source_that_keeps_the_contract_passes() -> None:
    check_source(GoodSource, EXPECTED)


def numbers(start: int, count: int) -> pa.RecordBatch:
    return pa.record_batch({"n": range(start, start + count)})


def test_generators_lists_and_files_keep_the_contract(tmp_path: Path) -> None:
    check_source(lambda: GeneratorSource(numbers, rows=100, splits=3), numbers(0, 100))
    for part in range(3):
        pyarrow.parquet.write_table(pa.table({"n": range(30 * part, 30 * part + 30)}), tmp_path / f"{part}.parquet")
    check_source(lambda: FileSource(tmp_path), numbers(0, 90))


def test_a_source_without_an_end_is_checked_as_far_as_it_is_told() -> None:
    class Waits(GoodReader):
        def read(self, rows_max: int) -> Any:
            batch = super().read(rows_max)
            return None if batch is END_OF_SPLIT else batch

    class Endless(GoodSource):
        is_endless = True

        def open(self, split: str, offset: bytes | None) -> SplitReader:
            return Waits(split, json.loads(offset) if offset else 0)

    check_source(Endless, EXPECTED, rows=2 * ROWS)


class RunsAhead(GoodReader):
    def offset(self) -> bytes:
        return json.dumps(min(ROWS, self.position + 1) if self.position else 0).encode()


class LagsBehind(GoodReader):
    def offset(self) -> bytes:
        return json.dumps(max(0, self.position - 1)).encode()


class OtherOrder(GoodReader):
    def read(self, rows_max: int) -> Any:
        batch = super().read(rows_max)
        return (
            batch
            if batch is END_OF_SPLIT
            else batch.take(sorted(range(len(batch)), key=lambda _: secrets.token_hex(2)))
        )


class OffsetMoves(GoodReader):
    def offset(self) -> bytes:
        self.position += 1
        return super().offset()


class NoJson(GoodReader):
    def offset(self) -> bytes:
        return b"\x00"


class NeverEnds(GoodReader):
    def read(self, rows_max: int) -> Any:
        batch = super().read(rows_max)
        return None if batch is END_OF_SPLIT else batch


class ReturnsTables(GoodReader):
    def read(self, rows_max: int) -> Any:
        batch = super().read(rows_max)
        return batch if batch is END_OF_SPLIT else pa.Table.from_batches([batch])


class Unsorted(GoodSource):
    turns = itertools.count()

    def splits(self) -> Sequence[str]:
        return ["a", "b"] if next(self.turns) % 2 else ["b", "a"]


class Twins(GoodSource):
    def splits(self) -> Sequence[str]:
        return ["a", "a"]


class ChangingIdentity(GoodSource):
    def identity(self) -> dict[str, str]:
        return {"source": secrets.token_hex(4)}


class NumberInIdentity(GoodSource):
    def identity(self) -> dict[str, str]:
        return {"source": 1}  # type: ignore[dict-item]


@pytest.mark.parametrize(
    ("kind", "sentence"),
    [
        (with_reader(RunsAhead), "misses rows: the offset runs ahead"),
        (with_reader(LagsBehind), "repeats rows: the offset lags behind"),
        (with_reader(OtherOrder), "does not return the same rows in the same order"),
        (with_reader(OffsetMoves), "changes although nothing was read"),
        (with_reader(NoJson), "is no JSON"),
        (with_reader(NeverEnds), "neither goes on nor ends"),
        (with_reader(ReturnsTables), "something that is no record batch"),
        (Unsorted, "does not give every worker the same answer, in the same order"),
        (Twins, "two splits have one name"),
        (ChangingIdentity, "its identity differs from one start to the next"),
        (NumberInIdentity, "is no text"),
    ],
)
def test_each_way_to_break_the_contract_is_told_in_its_own_sentence(
    kind: type[Source], sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Sources that read in a thread have seconds; this one is not to wait for them.
    monkeypatch.setattr(sys.modules["penstock.testing.check_source"], "_NOTHING_MAX", 200)
    with pytest.raises(ContractBroken, match=sentence):
        check_source(kind)


def test_rows_that_are_not_the_expected_ones_are_shown() -> None:
    with pytest.raises(ContractBroken, match=r'1 of 121 rows are missing, such as \{"n": 99, "split": "c"\}'):
        check_source(GoodSource, [*EXPECTED, {"split": "c", "n": 99}])


def test_a_source_whose_marks_stop_a_run_is_told_with_the_run_that_it_stopped() -> None:
    class FailsAtThirty(GoodReader):
        def __init__(self, split: str, position: int) -> None:
            super().__init__(split, position)
            if position and split == "b":
                raise OSError("the split is gone")

    with pytest.raises((ContractBroken, OSError), match="the split is gone"):
        check_source(with_reader(FailsAtThirty))


def test_positions_of_a_list_count_its_snapshots_and_yet_hold() -> None:
    check_source(lambda: ListSource([{"n": n} for n in range(40)], splits=2), [{"n": n} for n in range(40)])
