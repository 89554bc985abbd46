"""Functions of polars frames: what goes in comes out, in every method that takes a function."""

from __future__ import annotations

import datetime
import decimal
from typing import Any

import polars

from penstock import KeyedFunction, Pipeline, Stream
from penstock.testing import ListSource, collect

_BEGIN = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
_ROWS: list[dict[str, Any]] = [
    {
        "k": number % 3,
        "v": float(number),
        "text": None if number == 2 else f"t{number}",
        "at": _BEGIN + datetime.timedelta(seconds=number),
        "list": [number, None],
        "price": decimal.Decimal("1.50"),
    }
    for number in range(7)
]


def _stream() -> Stream:
    return Pipeline("polars").source(ListSource(_ROWS), name="rows")


def test_a_frame_that_is_passed_on_comes_out_as_it_went_in() -> None:
    assert collect(_stream().map(lambda frame: frame, format="polars"), by="v") == _ROWS


def test_filter_takes_a_mask_or_a_frame() -> None:
    for function in (lambda frame: frame["v"] > 4, lambda frame: frame.filter(polars.col("v") > 4)):
        assert collect(_stream().filter(function, format="polars").select("v"), by="v") == [{"v": 5.0}, {"v": 6.0}]


def test_flat_map_takes_several_frames() -> None:
    twice = _stream().flat_map(lambda frame: [frame.select("k"), frame.select("k")], format="polars")
    assert [row["k"] for row in collect(twice, by="k")] == [0] * 6 + [1] * 4 + [2] * 4


class _Counts(KeyedFunction):
    def open(self, context: Any) -> None:
        self._count = context.value("count", "n bigint")

    def process(self, key: tuple[Any, ...], frame: polars.DataFrame, context: Any) -> polars.DataFrame:
        (before,) = self._count.get() or (0,)
        self._count.update((before + frame.height,))
        return polars.DataFrame({"k": [key[0]], "n": [before + frame.height]})


def test_a_keyed_function_gets_the_frame_of_a_key() -> None:
    counts = _stream().key_by("k").process(_Counts(), format="polars", schema="k bigint, n bigint")
    newest = {row["k"]: row["n"] for row in collect(counts, by="n")}
    assert newest == {0: 3, 1: 2, 2: 2}
