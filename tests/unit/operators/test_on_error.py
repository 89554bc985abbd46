"""`on_error`: a record for which a function raises is dropped, or sent to `dead_letters()`, alone."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from penstock import BatchFunction, KeyedFunction, Pipeline, Stream
from penstock.errors import PipelineError, UserCodeError
from penstock.operators.failures import narrowed
from penstock.testing import ABORT, CHECKPOINT, CollectSink, ListSource, collect, run

ROWS = [{"k": n % 3, "n": n} for n in range(50)]
BAD = [7, 8, 31]
FAR = 4_000_000_000_000


def numbers() -> Stream:
    return Pipeline("numbers").source(ListSource(ROWS))


def check(n: int) -> None:
    if n in BAD:
        raise ValueError(f"{n} is bad")


def of_rows(row: dict[str, int]) -> dict[str, int]:
    check(row["n"])
    return {"n": row["n"]}


def of_batches(batch: pa.RecordBatch) -> pa.RecordBatch:
    for n in batch["n"].to_pylist():
        check(n)
    return batch.select(["n"])


def of_frames(frame: Any) -> Any:
    for n in frame["n"]:
        check(n)
    return frame[["n"]]


def passed(stream: Stream) -> tuple[list[int], list[dict[str, Any]]]:
    good, bad = CollectSink(), CollectSink()
    stream.sink(good, name="good")
    stream.dead_letters().sink(bad, name="bad")
    run(stream.pipeline)
    return [row["n"] for row in good.rows()], bad.rows()


CALLS: dict[str, Callable[[Stream], Stream]] = {
    "map of rows": lambda stream: stream.map(of_rows, format="rows", on_error="stream"),
    "map of batches": lambda stream: stream.map(of_batches, on_error="stream"),
    "map of frames": lambda stream: stream.map(of_frames, format="pandas", on_error="stream"),
    "flat_map of rows": lambda stream: stream.flat_map(lambda row: [of_rows(row)], format="rows", on_error="stream"),
    "flat_map of batches": lambda stream: stream.flat_map(lambda batch: [of_batches(batch)], on_error="stream"),
    "filter of rows": lambda stream: stream.filter(lambda row: bool(of_rows(row)), format="rows", on_error="stream"),
    "filter of batches": lambda stream: stream.filter(
        lambda batch: pc.is_valid(of_batches(batch)["n"]), on_error="stream"
    ),
    "map_async of rows": lambda stream: stream.map_async(of_rows, format="rows", on_error="stream"),
    "map_async of batches": lambda stream: stream.map_async(of_batches, batch_rows=20, on_error="stream"),
}


@pytest.mark.parametrize("call", CALLS)
def test_the_bad_records_alone_become_dead_letters(call: str) -> None:
    good, bad = passed(CALLS[call](numbers()))
    assert good == [n for n in range(50) if n not in BAD]
    assert [json.loads(letter["raw"])["n"] for letter in bad] == BAD
    for letter, n in zip(bad, BAD, strict=True):
        assert letter["reason"] == f"ValueError: {n} is bad"
        assert letter["path"] == __file__ and letter["line"] == check.__code__.co_firstlineno + 2
        assert letter["operator"].startswith(call.split(maxsplit=1)[0])


def test_a_function_of_rows_is_called_once_for_each_row() -> None:
    called: list[int] = []

    def counted(row: dict[str, int]) -> dict[str, int]:
        called.append(row["n"])
        return of_rows(row)

    assert len(collect(numbers().map(counted, format="rows", on_error="drop"))) == 47
    assert called == list(range(50))


def test_a_result_that_cannot_become_arrow_fails_its_row_alone() -> None:
    stream = numbers().map(
        lambda row: {"n": "seven" if row["n"] == 7 else row["n"]}, format="rows", schema="n bigint", on_error="stream"
    )
    good, bad = passed(stream)
    assert good == [n for n in range(50) if n != 7]
    assert len(bad) == 1 and bad[0]["reason"].startswith("DataError: ")


def test_an_outage_is_not_the_fault_of_a_record() -> None:
    def unreachable(row: dict[str, int]) -> dict[str, int]:
        raise ConnectionError("the service is down")

    with pytest.raises(UserCodeError, match="the service is down"):
        collect(numbers().map(unreachable, format="rows", on_error="drop"))


def test_dropped_records_are_counted_and_told_of_with_the_last_one(caplog: pytest.LogCaptureFixture) -> None:
    stream = numbers().map(of_rows, format="rows", on_error="drop", name="checked")
    stream.sink(CollectSink())
    with caplog.at_level(logging.WARNING, "penstock"):
        result = run(stream.pipeline)
    (counted,) = [each for each in result.metrics if each.metric.name == "num_records_dropped"]
    assert (counted.operator, counted.value) == ("checked", 3)
    (told,) = [record.getMessage() for record in caplog.records if "dropped" in record.getMessage()]
    assert "operator 'checked', subtask 0: 3 records so far" in told
    assert "ValueError: 31 is bad" in told and __file__ in told and 'on_error="stream"' in told


class Sums(KeyedFunction):
    """Changes every kind of state and a timer before it raises."""

    def open(self, context: Any) -> None:
        self.total = context.value("total", "n bigint")
        self.seen = context.list("seen", "n bigint")
        self.by_n = context.map("by_n", "n bigint", "n bigint")

    def process(self, key: Any, rows: Any, context: Any) -> Any:
        for n in rows["n"].to_pylist():
            self.total.update((((self.total.get() or (0,))[0]) + n,))
            self.seen.append_value((n,))
            self.by_n.update_value((n,), (n,))
            self.by_n.update_value((-1,), (n,))
            context.set_timer(FAR + n)
            if n == 0:
                context.set_timer(FAR + 99)
            if n in BAD:
                context.delete_timer(FAR + 99)
                self.seen.put([(n,)])
                raise ValueError(f"{n} is bad")

    def on_timer(self, key: Any, at: int, context: Any) -> Any:
        (last,) = self.by_n.get_value((-1,))
        held = [n for (n,) in self.seen.get()]
        assert sorted(n for (n,), _ in self.by_n.iterator() if n >= 0) == held
        return pa.record_batch({"k": [key[0]], "at": [at], "n": [self.total.get()[0]], "seen": [held], "last": [last]})


def crashing() -> list[Any]:
    return [*ROWS[:20], CHECKPOINT, *ROWS[20:35], ABORT(), *ROWS[35:], CHECKPOINT, ABORT()]


@pytest.mark.parametrize("given", [ROWS, crashing()], ids=["at once", "crashing"])
def test_a_failed_call_leaves_state_and_timers_as_they_were(given: list[Any]) -> None:
    keyed = Pipeline("sums").source(ListSource(given)).key_by("k")
    stream = keyed.process(Sums(), on_error="stream", time_mode="processing")
    fired, bad = CollectSink(), CollectSink()
    stream.sink(fired)
    stream.dead_letters().sink(bad)
    assert run(stream.pipeline).restarts == sum(isinstance(each, ABORT) for each in given)
    rows = fired.rows()
    for k in range(3):
        good = [n for n in range(50) if n % 3 == k and n not in BAD]
        mine = [row for row in rows if row["k"] == k]
        assert [row["at"] - FAR for row in mine] == sorted(good + [99] * (k == 0))
        assert all(row["n"] == sum(good) and row["seen"] == good and row["last"] == good[-1] for row in mine)
    assert sorted(json.loads(letter["raw"])["n"] for letter in bad.rows()) == BAD


@pytest.mark.parametrize("call", ["map of batches", "map_async of batches"])
def test_dead_letters_survive_crashes_once_each(call: str) -> None:
    stream = CALLS[call](Pipeline("crashing").source(ListSource(crashing())))
    good, bad = passed(stream)
    assert good == [n for n in range(50) if n not in BAD]
    assert [json.loads(letter["raw"])["n"] for letter in bad] == BAD


def test_dead_letters_that_nobody_reads_are_refused() -> None:
    stream = numbers().map(of_rows, format="rows", on_error="stream")
    stream.sink(CollectSink())
    with pytest.raises(PipelineError, match=r"the output 'dead_letters' of 'map"):
        run(stream.pipeline)


def test_a_batch_function_has_no_on_error() -> None:
    class Whole(BatchFunction):
        def process_batch(self, batch: pa.RecordBatch, context: Any) -> Any:
            return batch

    with pytest.raises(PipelineError, match="cannot be taken back: write a KeyedFunction"):
        numbers().key_by("k").process(Whole(), on_error="drop")


@pytest.mark.parametrize("call", ["map", "filter", "flat_map", "map_async"])
def test_on_error_is_one_of_three(call: str) -> None:
    with pytest.raises(PipelineError, match=f"{call}: on_error is 'skip': it must be 'raise' or 'drop' or 'stream'"):
        getattr(numbers(), call)(of_rows, format="rows", on_error="skip")


@pytest.mark.parametrize("bad", [set(), {0}, {99}, {3, 4, 60}, set(range(100))])
def test_halving_finds_the_bad_rows_with_few_calls(bad: set[int]) -> None:
    calls: list[tuple[int, int]] = []
    failed: dict[int, Exception] = {}

    def attempt(first: int, end: int) -> list[int]:
        calls.append((first, end))
        if bad.intersection(range(first, end)):
            raise ValueError
        return list(range(first, end))

    good = [row for some in narrowed(100, attempt, failed.__setitem__) for row in some]
    assert good == sorted(set(range(100)) - bad)
    assert set(failed) == bad
    assert len(calls) <= min(1 + 2 * 7 * len(bad), 199)
