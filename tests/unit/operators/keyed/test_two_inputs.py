"""Functions of two inputs get many records, sorted by key, and are interrupted between calls."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.columnar.grouping import group
from penstock.operators.keyed.functions import TwoInputContext, TwoInputFunction
from penstock.operators.keyed.process import TwoInputOperator
from penstock.operators.steps import Steps
from tests.unit.operators.keyed.test_by_key import Context, finish, records

Call = tuple[str, list[tuple[int, list[int]]]]


class Sums(TwoInputFunction):
    """The sum of each key, of both sides; `calls` has the keys and numbers of each call."""

    def __init__(self) -> None:
        self.calls: list[Call] = []

    def open(self, context: TwoInputContext) -> None:
        self.sum = context.value("sum", "n bigint")

    def process_left(self, batch: pa.RecordBatch, context: TwoInputContext) -> Any:
        return self._add("left", batch, context)

    def process_right(self, batch: pa.RecordBatch, context: TwoInputContext) -> Any:
        return self._add("right", batch, context)

    def _add(self, side: str, batch: pa.RecordBatch, context: TwoInputContext) -> Any:
        self.calls.append((side, []))
        for key, rows in context.each_key(batch):
            numbers = rows["v"].to_pylist()
            self.calls[-1][1].append((key[0], numbers))
            (before,) = self.sum.get() or (0,)
            self.sum.update((before + sum(numbers),))
            yield pa.record_batch({"k": [key[0]], "n": [before + sum(numbers)]})


class Seen(TwoInputFunction):
    """Looks at batches as they are."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, list[int]]] = []

    def process_left(self, batch: pa.RecordBatch, context: TwoInputContext) -> pa.RecordBatch:
        self.calls.append(("left", batch["v"].to_pylist()))
        return batch

    def process_right(self, batch: pa.RecordBatch, context: TwoInputContext) -> None:
        self.calls.append(("right", batch["v"].to_pylist()))


def opened(
    calls_per_slice: int,
    keys: tuple[tuple[str, ...], ...] = (("k",), ("k",)),
    function: type[TwoInputFunction] = Sums,
) -> Any:
    operator = TwoInputOperator(function(), keys, None, True, "processing")
    operator.open(Context(calls_per_slice))  # type: ignore[arg-type]
    return operator


def begun(operator: Any, batch: pa.RecordBatch, side: int = 0, rows_max: int = 4) -> tuple[Steps, list[dict[str, Any]]]:
    emitted: list[dict[str, Any]] = []
    steps = operator.process(batch, side, lambda made: emitted.extend(made.to_pylist()))
    steps.call_rows_max = rows_max
    return steps, emitted


@pytest.mark.parametrize(("side", "name"), [(0, "left"), (1, "right")])
def test_a_call_has_whole_keys_with_all_of_their_records_in_order(side: int, name: str) -> None:
    operator = opened(calls_per_slice=100)
    steps, _ = begun(operator, records(20, 5), side, rows_max=9)
    finish(steps)
    by_key = [(k, [k, k + 5, k + 10, k + 15]) for k in range(5)]
    assert operator.function.calls == [(name, by_key[:2]), (name, by_key[2:4]), (name, by_key[4:])]
    assert (steps.calls, steps.keys) == (3, 5)


def test_a_key_with_many_records_has_several_calls() -> None:
    operator = opened(calls_per_slice=100)
    steps, _ = begun(operator, records(11, 2), rows_max=4)
    finish(steps)
    assert [[len(numbers) for _, numbers in made] for _, made in operator.function.calls] == [[4], [2], [4], [1]]


def test_after_each_step_the_output_of_its_calls_has_been_emitted() -> None:
    operator = opened(calls_per_slice=2)
    steps, emitted = begun(operator, records(20, 5))
    for rows_done in (8, 16):
        assert steps.step()
        assert (steps.rows_done, len(emitted)) == (rows_done, rows_done // 4)
    assert not steps.step()
    assert (steps.rows_done, len(emitted)) == (20, 5)


def test_records_of_a_side_without_a_key_keep_their_order() -> None:
    operator = opened(calls_per_slice=2, keys=(("k",), ()), function=Seen)
    steps, _ = begun(operator, records(10, 5), 1)
    assert steps.step() and steps.rows_done == 8
    assert not steps.step()
    assert operator.function.calls == [("right", [0, 1, 2, 3]), ("right", [4, 5, 6, 7]), ("right", [8, 9])]


@pytest.mark.parametrize("side", [0, 1])
def test_a_batch_without_records_still_shows_its_schema_to_the_function(side: int) -> None:
    operator = opened(calls_per_slice=1, function=Seen)
    steps, emitted = begun(operator, records(3, 3).slice(0, 0), side)
    assert not steps.step()
    assert ([numbers for _, numbers in operator.function.calls], emitted) == ([[]], [])


def test_a_step_goes_on_with_the_side_that_it_began_with() -> None:
    """A timer, or whatever else looks at the other side, may be called between two steps."""

    class Shifted(Sums):
        def process_right(self, batch: pa.RecordBatch, context: TwoInputContext) -> Any:
            # A batch of its own, which is not grouped yet.
            return self._add("right", batch.set_column(1, "v", pc.add(batch["v"], 10)), context)

    operator = opened(calls_per_slice=1, keys=(("k",), ("id",)), function=Shifted)
    right = records(8, 2).rename_columns(["id", "v"])
    steps, _ = begun(operator, right, 1)
    assert steps.step()
    operator.access.side = 0
    finish(steps)
    assert operator.function.calls == [("right", [(0, [10, 12, 14, 16])]), ("right", [(1, [11, 13, 15, 17])])]


def test_other_batches_than_the_one_that_was_given_are_grouped_too() -> None:
    class Halves(Sums):
        def process_left(self, batch: pa.RecordBatch, context: TwoInputContext) -> Any:
            yield from super().process_left(batch.slice(0, 3), context)
            yield from super().process_left(batch.slice(3), context)

    operator = opened(calls_per_slice=1, function=Halves)
    steps, emitted = begun(operator, records(8, 2), rows_max=100)
    finish(steps)
    assert [made for _, made in operator.function.calls] == [[(0, [0, 2, 4])], [(0, [6]), (1, [1, 3, 5, 7])]]
    assert emitted[-1] == {"k": 1, "n": 16}


@given(
    keys=st.lists(st.integers(0, 6), min_size=1, max_size=60),
    sizes=st.lists(st.integers(1, 20), min_size=1, max_size=8),
)
def test_parts_of_a_sorted_batch_are_whole_keys_or_parts_of_one(keys: list[int], sizes: list[int]) -> None:
    batch = pa.record_batch({"k": keys, "v": list(range(len(keys)))})
    groups = group(batch, ["k"], "test")
    asked = iter(sizes * len(keys))
    given_sizes: list[int] = []

    def rows_max() -> int:
        given_sizes.append(next(asked))
        return given_sizes[-1]

    parts = list(groups.parts(rows_max))
    assert pa.Table.from_batches([part.batch for part in parts]).equals(pa.Table.from_batches([groups.batch]))
    assert np.concatenate([part.order for part in parts]).tolist() == groups.order.tolist()
    for part, most in zip(parts, given_sizes, strict=True):
        assert 0 < part.batch.num_rows <= most
        assert part.starts == [0, *part.ends[:-1]] and part.ends[-1] == part.batch.num_rows
        for key, start, end in zip(part.keys["k"].to_pylist(), part.starts, part.ends, strict=True):
            assert set(part.batch["k"].slice(start, end - start).to_pylist()) == {key}
    # Only a key that is alone in its part goes on in the next one.
    for part, following in itertools.pairwise(parts):
        if part.keys["k"][-1] == following.keys["k"][0]:
            assert len(part.starts) == 1
