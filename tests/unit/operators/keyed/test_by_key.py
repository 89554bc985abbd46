"""Keyed functions get many records and are interrupted between calls."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from penstock.errors import ProtocolViolation
from penstock.operators.keyed.functions import KeyedFunction
from penstock.operators.keyed.process import ProcessOperator
from penstock.operators.keyed.reduce import ReduceOperator
from penstock.operators.steps import Steps
from penstock.state.keyed import KeyedState


def finish(steps: Steps) -> None:
    """Do all that is left."""
    while steps.step():
        pass


class Context:
    """The context of an operator whose every slice is over after some calls."""

    operator, subtask, parallelism, max_parallelism = "sums", 0, 1, 8
    key, key_groups, time_zone, watermark = ("k",), range(8), "UTC", 0

    def __init__(self, calls_per_slice: int) -> None:
        self.calls_per_slice = calls_per_slice
        self.keyed = KeyedState(self.key_groups, self.max_parallelism)

    def begin_slice(self) -> Any:
        left = iter(range(self.calls_per_slice - 1))
        return lambda: next(left, None) is None

    def now_ms(self) -> int:
        return 0


class Sums(KeyedFunction):
    def open(self, context: Any) -> None:
        self.sum = context.value("sum", "n bigint")
        self.calls: list[tuple[int, list[int]]] = []

    def process(self, key: tuple[Any, ...], rows: Any, context: Any) -> pa.RecordBatch:
        numbers = rows["v"].to_pylist()
        self.calls.append((key[0], numbers))
        (before,) = self.sum.get() or (0,)
        self.sum.update((before + sum(numbers),))
        return pa.record_batch({"k": [key[0]], "n": [before + sum(numbers)]})


def opened(calls_per_slice: int) -> ProcessOperator:
    operator = ProcessOperator(Sums(), ("k",), "arrow", None, True, "processing")
    operator.open(Context(calls_per_slice))  # type: ignore[arg-type]
    return operator


def records(count: int, keys: int) -> pa.RecordBatch:
    return pa.record_batch({"k": [n % keys for n in range(count)], "v": list(range(count))})


def begun(operator: ProcessOperator, batch: pa.RecordBatch) -> tuple[Steps, list[dict[str, Any]]]:
    emitted: list[dict[str, Any]] = []
    steps = operator.process(batch, 0, lambda made: emitted.extend(made.to_pylist()))
    assert steps is not None
    return steps, emitted


def test_after_each_step_the_output_of_its_calls_has_been_emitted_as_one_batch() -> None:
    operator = opened(calls_per_slice=2)
    steps, emitted = begun(operator, records(20, 5))
    for rows_done in (8, 16):
        assert steps.step()
        assert (steps.rows_done, len(emitted)) == (rows_done, rows_done // 4)
    assert not steps.step()
    assert (steps.rows_done, steps.calls, len(emitted)) == (20, 5, 5)


def test_a_key_is_called_once_with_all_of_its_records_in_their_order() -> None:
    operator = opened(calls_per_slice=3)
    steps, _ = begun(operator, records(20, 5))
    finish(steps)
    assert operator.function.calls == [(k, [k, k + 5, k + 10, k + 15]) for k in range(5)]


@pytest.mark.parametrize("rows_max", [1, 3, 1000])
def test_the_records_that_are_left_are_those_behind_the_rows_that_are_done(rows_max: int) -> None:
    operator = opened(calls_per_slice=1)
    batch = records(10_000, 3)
    steps, _ = begun(operator, batch)
    steps.call_rows_max = rows_max
    for _ in range(4):
        assert steps.step()
    done = [number for _, numbers in operator.function.calls for number in numbers]
    assert done == steps.order[: steps.rows_done].tolist()
    again, _ = begun(operator, batch.take(pa.array(sorted(steps.order[steps.rows_done :].tolist()))))
    again.call_rows_max = 1 << 17
    finish(again)
    by_key: dict[int, list[int]] = {}
    for key, numbers in operator.function.calls:
        by_key.setdefault(key, []).extend(numbers)
    assert by_key == {k: list(range(k, 10_000, 3)) for k in range(3)}


def test_a_key_with_many_records_has_calls_of_the_size_that_is_allowed() -> None:
    operator = opened(calls_per_slice=1)
    steps, _ = begun(operator, records(9_000, 1))
    steps.call_rows_max = 2_000
    finish(steps)
    assert [len(numbers) for _, numbers in operator.function.calls] == [2_000] * 4 + [1_000]


def test_no_step_follows_the_last_record() -> None:
    steps, _ = begun(opened(calls_per_slice=1), records(1, 1))
    assert not steps.step()


def test_a_batch_without_records_has_no_calls() -> None:
    operator = opened(calls_per_slice=1)
    steps, emitted = begun(operator, records(3, 3).slice(0, 0))
    assert not steps.step()
    assert (operator.function.calls, emitted) == ([], [])


def test_a_reduction_that_is_interrupted_has_kept_and_emitted_all_that_is_done_and_nothing_else() -> None:
    context = Context(calls_per_slice=2)
    operator = ReduceOperator(lambda one, other: {"k": one["k"], "v": one["v"] + other["v"]})
    operator.open(context)  # type: ignore[arg-type]
    emitted: list[dict[str, Any]] = []
    batch = records(20, 5)
    steps = operator.process(batch, 0, lambda made: emitted.extend(made.to_pylist()))
    assert steps is not None and steps.step()
    done = batch.take(pa.array(steps.order[: steps.rows_done]))
    assert (steps.rows_done, steps.calls) == (8, 2)
    expected = [{"k": k, "v": sum(n for n in range(20) if n % 5 == k)} for k in sorted(set(done["k"].to_pylist()))]
    assert emitted == expected
    kept = context.keyed.rows("reduced", ("k",)).get()
    assert [row for each in kept for row in each.to_pylist()] == expected
    finish(steps)
    assert [row["k"] for row in emitted] == [0, 1, 2, 3, 4]


def test_a_key_with_many_rows_is_reduced_in_several_calls() -> None:
    operator = ReduceOperator(lambda one, other: {"k": one["k"], "v": one["v"] + other["v"]})
    operator.open(Context(calls_per_slice=1))  # type: ignore[arg-type]
    emitted: list[dict[str, Any]] = []
    steps = operator.process(records(10, 1), 0, lambda made: emitted.extend(made.to_pylist()))
    assert steps is not None
    steps.call_rows_max = 4
    done = []
    while steps.step():
        done.append(steps.rows_done)
    assert (done, steps.calls) == ([4, 8], 3)
    assert [row["v"] for row in emitted] == [6, 28, 45], "each made of all rows so far"


class InTurns(KeyedFunction):
    """Counts the records of each key, and returns its count in the way of its turn."""

    def open(self, context: Any) -> None:
        self.count = context.value("count", "n bigint")
        self.calls = 0

    def process(self, key: tuple[Any, ...], rows: Any, context: Any) -> object:
        (before,) = self.count.get() or (0,)
        self.count.update((before + len(rows),))
        made = {"n": before + len(rows)}
        self.calls += 1
        ways = [lambda: made, lambda: [made], lambda: (each for each in [made]), lambda: iter([made]), lambda: None]
        return ways[self.calls % 5]()


def test_outputs_of_every_kind_are_gathered_and_nothing_is_none() -> None:
    operator = ProcessOperator(InTurns(), ("k",), "rows", None, True, "processing")
    operator.open(Context(3))  # type: ignore[arg-type]
    steps, emitted = begun(operator, records(10, 10))
    finish(steps)
    assert emitted == [{"n": 1}] * 8


@pytest.mark.parametrize(
    "keys",
    [
        pa.array([0.5, float("nan"), -0.0, float("nan"), 0.0, 0.5]),
        pa.array(["a", None, "b", None, "b", "a"]).dictionary_encode(),
        pa.array([1, None, 2, None, 2, 1], pa.timestamp("us", "Europe/Berlin")),
        pa.array([{"a": 1}, {"a": None}, {"a": 2}, {"a": None}, {"a": 2}, {"a": 1}]),
    ],
    ids=["floats", "dictionary", "times with a zone", "structs"],
)
def test_a_key_finds_the_state_that_it_had_in_an_earlier_batch(keys: pa.Array) -> None:
    operator = ProcessOperator(Counts(), ("k",), "rows", None, True, "processing")
    operator.open(Context(100))  # type: ignore[arg-type]
    counted = []
    for part in (slice(0, 2), slice(2, 4), slice(4, 6)):
        steps, emitted = begun(operator, pa.record_batch({"k": keys[part], "v": [0, 0]}))
        finish(steps)
        counted += [row["n"] for row in emitted]
    assert counted == [1, 1, 1, 2, 2, 2]


class Counts(KeyedFunction):
    def open(self, context: Any) -> None:
        self.count = context.value("count", "n bigint")

    def process(self, key: tuple[Any, ...], rows: Any, context: Any) -> object:
        (before,) = self.count.get() or (0,)
        self.count.update((before + len(rows),))
        return {"n": before + len(rows)}


def test_a_key_of_another_subtask_is_refused() -> None:
    context = Context(100)
    context.keyed = KeyedState(range(1), 8)
    operator = ProcessOperator(Counts(), ("k",), "rows", None, True, "processing")
    operator.open(context)  # type: ignore[arg-type]
    steps, _ = begun(operator, records(10, 10))
    with pytest.raises(ProtocolViolation, match="are not all among 0 … 0"):
        finish(steps)
