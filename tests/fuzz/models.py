"""What each step makes of its input, in plain Python and row by row. Nothing of this is shared with the product.

A settled step has one right output, as a multiset. An unsettled one depends on the order in which its input came: then
its own output is verified against that input, key by key, and believed from there on.
"""

from __future__ import annotations

import itertools
import json
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from tests.fuzz.functions import is_bad
from tests.fuzz.kinds import Plain, frozen, key_of, one_zero
from tests.fuzz.steps import Shape, Step

BAD_LINES = ("rubbish", "[]", '{"file": "a", "number":', '{"file": "a", "number": "three"}')
"""Lines that are not records of `FILES`."""
Lane = tuple[Any, ...]
"""Records of one lane keep their order: those of one split, by one way, with one value in all keys on that way."""

_VECTORS_MAX = 4000


def model(step: Step, inputs: Sequence[list[Plain]], shapes: Sequence[Shape], ends: Sequence[int]) -> list[Plain]:
    """The output of a settled step. `ends` are the lives in which the input ended."""
    o = step.options
    if step.kind == "files":
        return [json.loads(line) for lines in o["lines"] for line in lines if line not in BAD_LINES]
    rows = [row for row in inputs[0] if not is_bad(row["v"], o["bad"])] if "bad" in o else inputs[0]
    match step.kind:
        case "union":
            return [row for given in inputs for row in given]
        case "map" | "map_async":
            return [{**row, "v": None if row["v"] is None else row["v"] + o["number"]} for row in rows]
        case "lane":
            return [{**row, "lane": row["lane"] + o["suffix"]} for row in rows]
        case "filter":
            return [row for row in rows if row["v"] is not None and row["v"] % 4 != o["bits"]]
        case "flat_map":
            return [{**row, "lane": f"{row['lane']}+{number}"} for row in rows for number in range(o["copies"])]
        case "select":
            return [{name: row[name] for name in o["columns"]} for row in rows]
        case "with_column":
            return [{**row, o["column"]: None if row["v"] is None else 2 * row["v"]} for row in rows]
        case "held":
            keyed = {name: one_zero for name in step.key[0]}
            names = o["schema"].names
            return [{name: keyed.get(name, lambda value: value)(row[name]) for name in names} for row in rows]
        case "join_lists" | "join_rows":
            left, right = step.key
            by_key = defaultdict(list)
            for row in inputs[1]:
                by_key[key_of(row, right)].append(row)
            return [_pair(row, other) for row in rows for other in by_key[key_of(row, left)]]
        case "rules":
            return [_pair(row, other) for row in rows for other in inputs[1]]
        case "sides":
            return [
                {**row, "lane": f"{row['lane']}|{side}"}
                for side, given in zip(("left", "right"), inputs, strict=True)
                for row in given
            ]
        case "window":
            return list(windows(step, rows, shapes[0], ends))
    raise AssertionError(step.kind)


def bad_rows(step: Step, rows: Sequence[Plain]) -> list[Plain]:
    """The dead letters of a step: lines of files, or records that a function cannot take."""
    if step.kind == "files":
        found = (number for lines in step.options["lines"] for number, line in enumerate(lines, 1) if line in BAD_LINES)
        return [{"line": number} for number in found]
    bad = step.options["bad"]
    return [{"reason": f"BadRecord: {row['lane']} {row['seq']}"} for row in rows if is_bad(row["v"], bad)]


def _pair(row: Plain, other: Plain) -> Plain:
    return {"lane": row["lane"], "seq": row["seq"], "lane2": other["lane"], "seq2": other["seq"]}


# --- aggregates ---


def aggregates(outputs: dict[str, Any], rows: list[Plain]) -> Plain:
    """All but `first` and `last`, which go by the order."""
    made = {}
    for output, wanted in outputs.items():
        if wanted == "count":
            made[output] = len(rows)
        elif wanted[0] not in ("first", "last"):
            made[output] = _aggregate(wanted[0], values_of(wanted, rows))
    return made


def values_of(wanted: tuple[Any, ...], rows: list[Plain]) -> list[Any]:
    """What an aggregate is of: the values that are not null, of the rows that meet its condition if it has one."""
    _, column, *below = wanted
    return [
        row[column]
        for row in rows
        if row[column] is not None and (not below or (row["v"] is not None and row["v"] < below[0]))
    ]


def _aggregate(function: str, values: list[Any]) -> Any:
    if function == "count":
        return len(values)
    if not values:
        return None
    if function == "sum":
        return sum(values)
    if function == "mean":
        return sum(values) / len(values)
    # NaN is larger than every number.
    chosen = (min if function == "min" else max)(values, key=lambda value: (_is_nan(value), value))
    return chosen if not _is_nan(chosen) or function == "max" else math.nan


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)


def windows(step: Step, rows: list[Plain], shape: Shape, ends: Sequence[int]) -> Iterator[Plain]:
    """One row for each key and window; at an end of the input every window is complete, and may begin anew later."""
    o, per_ms = step.options, ticks_per_ms(shape.columns["t"])
    if "gap" in o:
        yield from _sessions(step, rows, round(o["gap"] * per_ms), ends)
        return
    by_place: dict[tuple[Any, ...], list[Plain]] = defaultdict(list)
    for row in rows:
        segment = sum(end < row["life"] for end in ends)
        for start in starts(
            row["t"], round(o["size"] * per_ms), round(o["every"] * per_ms), round(o["offset"] * per_ms)
        ):
            by_place[segment, key_of(row, step.key[0]), start].append(row)
    for (_, _, start), members in by_place.items():
        key = {name: members[0][name] for name in step.key[0]}
        bounds = {"window_start": start, "window_end": start + round(o["size"] * per_ms)}
        yield {**key, **bounds, **aggregates(o["outputs"], members)}


def _sessions(step: Step, rows: list[Plain], gap: int, ends: Sequence[int]) -> Iterator[Plain]:
    """One row for each key and stretch of records without a pause that is longer than the gap."""
    by_key: dict[tuple[Any, ...], list[Plain]] = defaultdict(list)
    for row in rows:
        by_key[sum(end < row["life"] for end in ends), key_of(row, step.key[0])].append(row)
    for mine in by_key.values():
        parts: list[list[Plain]] = []
        for row in sorted(mine, key=lambda row: int(row["t"])):
            if not parts or row["t"] - parts[-1][-1]["t"] > gap:
                parts.append([])
            parts[-1].append(row)
        for members in parts:
            key = {name: members[0][name] for name in step.key[0]}
            bounds = {"window_start": members[0]["t"], "window_end": members[-1]["t"] + gap}
            yield {**key, **bounds, **aggregates(step.options["outputs"], members)}


def starts(time: int, size: int, every: int, offset: int) -> Iterator[int]:
    last = (time - offset) // every * every + offset
    return (start for start in range(last, time - size, -every))


def ticks_per_ms(kind: pa.DataType) -> float:
    return {"s": 0.001, "ms": 1, "us": 1_000, "ns": 1_000_000}[kind.unit] if pa.types.is_timestamp(kind) else 1


# --- what depends on the order ---


def verify(
    step: Step, rows: list[Plain], made: list[Plain], scope: tuple[str, ...] | None, is_in_order: bool
) -> Iterator[str]:
    """What is wrong with the output of an unsettled step.

    `scope` are the columns that, beside the lane, decide whether the input keeps its order; None if it does not at all.
    `is_in_order` says whether the output is here in the order in which it was made.
    """
    key = step.key[0]
    by_key: dict[Any, list[Plain]] = defaultdict(list)
    made_by_key: dict[Any, list[Plain]] = defaultdict(list)
    for row in rows:
        by_key[key_of(row, key)].append(row)
    for row in made:
        made_by_key[key_of(row, key)].append(row)
    for found in made_by_key.keys() - by_key.keys():
        yield f"{step.name} has output for the key {found}, of which there was no record"
    for one, members in by_key.items():
        judge = {"running": _verify_running, "reduce": _verify_reduce, "aggregate": _verify_aggregate}[step.kind]
        for wrong in judge(step, members, made_by_key[one], scope, is_in_order):
            yield f"{step.name}, key {one}: {wrong}"


def lanes_of(rows: list[Plain], scope: tuple[str, ...]) -> dict[Lane, list[Plain]]:
    lanes: dict[Lane, list[Plain]] = defaultdict(list)
    for row in rows:
        lanes[row["lane"], key_of(row, scope)].append(row)
    return {lane: sorted(members, key=lambda row: row["seq"]) for lane, members in lanes.items()}


def _verify_running(
    step: Step, rows: list[Plain], made: list[Plain], scope: tuple[str, ...] | None, is_in_order: bool
) -> Iterator[str]:
    given = sorted((row["lane"], row["seq"]) for row in rows)
    found = sorted((row["lane"], row["seq"]) for row in made)
    if given != found:
        yield f"its records are {_difference(given, found)}"
        return
    ordered = sorted(made, key=lambda row: row["n"])
    if [row["n"] for row in ordered] != list(range(1, len(ordered) + 1)):
        yield f"its records are counted {[row['n'] for row in ordered]}"
        return
    if is_in_order and [row["n"] for row in made] != [row["n"] for row in ordered]:
        yield f"its results are out of order: {[row['n'] for row in made]}"
    total = 0
    for row in ordered:
        total += row["v"] or 0
        if row["total"] != total:
            yield f"the sum of the first {row['n']} is {total}, not {row['total']}"
            return
    if scope is not None:
        yield from out_of_order(ordered, scope)


def _difference(given: list[Any], found: list[Any]) -> str:
    missing, more = list(given), []
    for item in found:
        if item in missing:
            missing.remove(item)
        else:
            more.append(item)
    return f"not those that came: missing {missing[:5]}, too many {more[:5]}"


def out_of_order(rows: list[Plain], scope: tuple[str, ...]) -> Iterator[str]:
    """Records that come after a younger one of their lane."""
    newest: dict[Lane, int] = {}
    for row in rows:
        lane = row["lane"], key_of(row, scope)
        if row["seq"] <= newest.get(lane, -1):
            yield f"record {row['seq']} of {lane} comes after {newest[lane]}"
            return
        newest[lane] = row["seq"]


def _verify_reduce(
    step: Step, rows: list[Plain], made: list[Plain], scope: tuple[str, ...] | None, is_in_order: bool
) -> Iterator[str]:
    names = {(row["lane"], row["seq"]): row for row in rows}
    kept = [name for name in rows[0] if name != "v" and name not in step.key[0]]
    for row in made:
        newest = names.get((row["lane"], row["seq"]))
        if newest is None or any(frozen(row[name], is_key=True) != frozen(newest[name], is_key=True) for name in kept):
            yield f"{row} is not made from any record"
            return
    if not made:
        yield "it has no result"
        return
    whole = sum(row["v"] or 0 for row in rows)
    if whole not in [row["v"] or 0 for row in (made[-1:] if is_in_order else made)]:
        yield f"the last sum is {made[-1]['v']}, not {whole}"
        return
    if scope is None or not is_in_order:
        return
    lanes = lanes_of(rows, scope)
    places = {
        (row["lane"], row["seq"]): (lane, number) for lane, all_ in lanes.items() for number, row in enumerate(all_)
    }
    order = list(lanes)

    def fits(row: Plain, vector: tuple[int, ...]) -> bool:
        lane, number = places[row["lane"], row["seq"]]
        return vector[order.index(lane)] == number + 1 and (row["v"] or 0) == sum(
            each["v"] or 0 for each in _taken(lanes, vector)
        )

    yield from _unreachable(lanes, made, fits)


def _taken(lanes: dict[Lane, list[Plain]], vector: tuple[int, ...]) -> list[Plain]:
    return [row for members, count in zip(lanes.values(), vector, strict=True) for row in members[:count]]


def _unreachable(
    lanes: dict[Lane, list[Plain]], made: list[Plain], fits: Callable[[Plain, tuple[int, ...]], bool]
) -> Iterator[str]:
    """Whether there is a way from nothing to all records, taking each lane in its order, that explains every result."""
    if math.prod(len(members) + 1 for members in lanes.values()) > _VECTORS_MAX:
        return
    vectors = list(itertools.product(*(range(len(members) + 1) for members in lanes.values())))
    reached = {tuple(0 for _ in lanes)}
    for number, row in enumerate(made):
        fitting = [vector for vector in vectors if fits(row, vector)]
        reached = {
            vector
            for vector in fitting
            if any(vector != before and all(map(int.__le__, before, vector)) for before in reached)
        }
        if not reached:
            yield f"result {number} is {row}, which no order of its records explains after the results before"
            return
    if tuple(len(members) for members in lanes.values()) not in reached:
        count = sum(map(len, lanes.values()))
        yield f"the last result, {made[-1] if made else None}, does not have all {count} records"


def _verify_aggregate(
    step: Step, rows: list[Plain], made: list[Plain], scope: tuple[str, ...] | None, is_in_order: bool
) -> Iterator[str]:
    outputs = step.options["outputs"]
    counts = [name for name, wanted in outputs.items() if wanted == "count"]
    if counts and not is_in_order:
        made = sorted(made, key=lambda row: row[counts[0]])
        is_in_order = True
    if not made:
        yield "it has no result"
        return
    whole = aggregates(outputs, rows)
    if not any(same_aggregates(outputs, whole, row) for row in (made[-1:] if is_in_order else made)):
        yield f"the last result is {made[-1]}, not {whole}"
        return
    if counts:
        steps_up = [row[counts[0]] for row in made]
        if any(later <= earlier for earlier, later in itertools.pairwise(steps_up)):
            yield f"its counts do not grow: {steps_up}"
            return
    if scope is None or not is_in_order:
        return
    lanes = lanes_of(rows, scope)
    memo: dict[tuple[int, ...], Plain] = {}

    def fits(row: Plain, vector: tuple[int, ...]) -> bool:
        if counts and sum(vector) != row[counts[0]]:
            return False
        if vector not in memo:
            memo[vector] = aggregates(outputs, _taken(lanes, vector))
        return same_aggregates(outputs, memo[vector], row) and _fits_ends(outputs, lanes, vector, row)

    yield from _unreachable(lanes, made, fits)


def _fits_ends(outputs: dict[str, Any], lanes: dict[Lane, list[Plain]], vector: tuple[int, ...], row: Plain) -> bool:
    """Whether `first` and `last` are the first and last values of some lane."""
    for output, wanted in outputs.items():
        if wanted[0] in ("first", "last"):
            taken = [members[:count] for members, count in zip(lanes.values(), vector, strict=True)]
            known = [values_of(wanted, some) for some in taken]
            ends = [frozen(values[0 if wanted[0] == "first" else -1]) for values in known if values]
            if frozen(row[output]) not in (ends or [None]):
                return False
    return True


def same_aggregates(outputs: dict[str, Any], expected: Plain, row: Plain) -> bool:
    return all(
        # Which of the two zeros is the smaller one is not said.
        frozen(expected[output], is_key=True) == frozen(row[output], is_key=True)
        for output in outputs
        if output in expected
    )
