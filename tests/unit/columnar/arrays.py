"""A column of every type that Arrow has, with nulls, long and short values, for tests that should hold for all."""

from __future__ import annotations

import decimal
import functools
from typing import Any

import numpy as np
import pyarrow as pa

TEXTS = ["a", "b" * 30, None, "", "c" * 13, "ä", "d" * 12]


def text(row: int) -> str | None:
    found = TEXTS[row % len(TEXTS)]
    return found if found is None or row % 2 else f"{found}{row}"


def number(row: int) -> int | None:
    return None if row % 5 == 2 else row


def _lists(rows: int, values: list[Any]) -> list[Any]:
    return [None if row % 6 == 4 else [values[(row + n) % rows] for n in range(row % 3)] for row in range(rows)]


@functools.cache
def columns(rows: int) -> dict[str, pa.Array]:
    """By name, a column of each type, all of them with so many rows, one at least."""
    numbers, texts = [number(row) for row in range(rows)], [text(row) for row in range(rows)]
    blobs = [None if each is None else each.encode() for each in texts]
    found: dict[str, pa.Array] = {"bool": pa.array([each if each is None else each % 2 == 0 for each in numbers])}
    found["null"] = pa.nulls(rows)
    for kind in (pa.int8(), pa.uint16(), pa.int32(), pa.uint64(), pa.float32(), pa.float64()):
        found[str(kind)] = pa.array([None if each is None else each % 100 for each in numbers], kind)
    found["float16"] = pa.array(np.arange(rows, dtype=np.float16))
    for kind in (pa.date32(), pa.timestamp("us", "Europe/Berlin"), pa.duration("ms"), pa.time64("ns")):
        found[str(kind)] = pa.array(numbers, pa.int32() if kind.bit_width == 32 else pa.int64()).view(kind)
    for name in ("decimal32", "decimal64", "decimal128", "decimal256"):
        if hasattr(pa, name):
            exact = [None if each is None else decimal.Decimal(each) / 10 for each in numbers]
            found[name] = pa.array(exact, getattr(pa, name)(7, 1))
    for kind in (pa.string(), pa.large_string(), pa.string_view()):
        found[str(kind)] = pa.array(texts, kind)
    for kind in (pa.binary(), pa.large_binary(), pa.binary_view()):
        found[str(kind)] = pa.array(blobs, kind)
    found["fixed_size_binary"] = pa.array([None if n is None else b"%04d" % n for n in numbers], pa.binary(4))
    found["interval"] = pa.array([None if n is None else (n, n, n) for n in numbers], pa.month_day_nano_interval())
    found |= _nested(rows, numbers, texts) | _encoded(rows, numbers, texts)
    found["list of unions"] = pa.ListArray.from_arrays(pa.array(range(rows + 1), pa.int32()), found["dense union"])
    found["list of runs"] = pa.ListArray.from_arrays(pa.array(range(rows + 1), pa.int32()), found["runs"])
    found["struct of all"] = pa.StructArray.from_arrays(list(found.values()), names=list(found))
    return found


def _nested(rows: int, numbers: list[Any], texts: list[Any]) -> dict[str, pa.Array]:
    found: dict[str, pa.Array] = {}
    for inside, values in ((pa.int64(), numbers), (pa.string_view(), texts)):
        for make in (pa.list_, pa.large_list, pa.list_view, pa.large_list_view):
            found[f"{make.__name__} of {inside}"] = pa.array(_lists(rows, values), make(inside))
        pairs = [None if row % 6 == 1 else [values[row], values[(row + 1) % rows]] for row in range(rows)]
        found[f"fixed_size_list of {inside}"] = pa.array(pairs, pa.list_(inside, 2))
        structs = [None if row % 6 == 3 else {"a": values[row]} for row in range(rows)]
        found[f"struct of {inside}"] = pa.array(structs, pa.struct([pa.field("a", inside, metadata={"unit": "m"})]))
        maps = [None if row % 6 == 2 else [(f"k{n}", values[n % rows]) for n in range(row % 4)] for row in range(rows)]
        found[f"map of {inside}"] = pa.array(maps, pa.map_(pa.string_view(), inside))
    return found


def _encoded(rows: int, numbers: list[Any], texts: list[Any]) -> dict[str, pa.Array]:
    codes = pa.array([None if row % 7 == 3 else (row * 3) % 5 for row in range(rows)], pa.int8())
    found: dict[str, pa.Array] = {}
    for kind in (pa.string(), pa.string_view()):
        values = pa.array(["x", "y" * 20, "z", "", "w" * 13], kind)
        found[f"dictionary of {kind}"] = pa.DictionaryArray.from_arrays(codes, values, ordered=True)
        ends = pa.array([*range(2, rows, 3), rows], pa.int32())
        found["runs" if kind == pa.string() else f"runs of {kind}"] = pa.RunEndEncodedArray.from_arrays(
            ends, pa.array([text(n) for n in range(len(ends))], kind)
        )
        codes_of_union = pa.array([row % 2 for row in range(rows)], pa.int8())
        children = [pa.array(range(rows)), pa.array(texts, kind)]
        name = "" if kind == pa.string() else f" of {kind}"
        found[f"sparse union{name}"] = pa.UnionArray.from_sparse(codes_of_union, children)
        places = pa.array([row // 2 for row in range(rows)], pa.int32())
        found[f"dense union{name}"] = pa.UnionArray.from_dense(codes_of_union, places, children)
    inside = found["dictionary of string"]
    found["list of dictionaries"] = pa.ListArray.from_arrays(pa.array(range(rows + 1), pa.int32()), inside)
    uuids = pa.array([b"%016d" % n for n in range(rows)], pa.binary(16))
    found["uuid"] = pa.ExtensionArray.from_storage(pa.uuid(), uuids)
    return found


NAMES = tuple(columns(1))
