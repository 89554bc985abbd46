"""An error that a user's value provokes names operator, subtask, record and the user's own line."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from penstock import BatchFunction, KeyedFunction, PenstockError, Pipeline, PipelineError, TwoInputFunction
from penstock.api.stream import Stream
from penstock.connectors.generator import GeneratorSource
from penstock.errors import DataError, UserCodeError, is_final, repetition_of
from penstock.ids import Generation, OperatorName, SubtaskId, WorkerId
from penstock.mailbox.failures import error_of, failed_frame
from penstock.testing import CollectSink, ListSource, run
from penstock.user_code import note_batch, place

ROWS = [{"k": "a", "n": n, "text": "x"} for n in range(5)]
HERE = "test_places_of_errors.py"


def error_in(build: Callable[[Stream], Any]) -> PenstockError:
    """The error with which a pipeline of five rows ends."""
    pipeline = Pipeline("p")
    build(pipeline.source(ListSource(ROWS), name="in")).sink(CollectSink(), name="out")
    return ending_of(pipeline)


def ending_of(pipeline: Pipeline) -> PenstockError:
    with pytest.raises(PenstockError) as raised:
        run(pipeline)
    return raised.value


def line_in(function: Any) -> str:
    """The second line of a function, where it goes wrong."""
    return f"{HERE}:{inspect.getsourcelines(function)[1] + 1} in {function.__name__}"


class Stateful(KeyedFunction):
    def open(self, context: Any) -> None:
        self.value = context.value("v", "n bigint")
        self.list = context.list("l", "n bigint")
        self.map = context.map("m", "k string", "n bigint")


class WrongValue(Stateful):
    def process(self, key: Any, rows: Any, context: Any) -> None:
        self.value.update(("x",))


class WrongSize(Stateful):
    def process(self, key: Any, rows: Any, context: Any) -> None:
        self.value.update((1, 2))


class EmptyList(Stateful):
    def process(self, key: Any, rows: Any, context: Any) -> None:
        self.list.put([])


class WrongKey(Stateful):
    def process(self, key: Any, rows: Any, context: Any) -> None:
        self.map.update_value((1,), (2,))


class WrongInGenerator(Stateful):
    def process(self, key: Any, rows: Any, context: Any) -> Any:
        yield self.value.update((1.5,))


class StateTooLate(Stateful):
    def process(self, key: Any, rows: Any, context: Any) -> None:
        context.value("other", "n bigint")


class NoSideOutput(Stateful):
    def process(self, key: Any, rows: Any, context: Any) -> None:
        context.emit("nowhere", rows)


@pytest.mark.parametrize(
    "function", [WrongValue, WrongSize, EmptyList, WrongKey, WrongInGenerator, StateTooLate, NoSideOutput]
)
def test_a_wrong_value_of_a_keyed_function_is_told_with_its_key_and_line(function: type[KeyedFunction]) -> None:
    error = error_in(lambda rows: rows.key_by("k").process(function(), name="fn"))
    assert isinstance(error, DataError)
    text = str(error)
    assert text.startswith("operator 'fn'")
    assert f"{line_in(function.process)}; key ('a',))" in text
    assert text.count("operator 'fn'") == text.count("subtask 0 of 1") == 1
    assert "in process" in error.traceback


class WrongAtTimer(Stateful):
    def process(self, key: Any, rows: Any, context: Any) -> None:
        context.set_timer(context.now_ms())

    def on_timer(self, key: Any, at: int, context: Any) -> None:
        self.value.update(("x",))


def test_so_is_one_of_a_timer() -> None:
    text = str(error_in(lambda rows: rows.key_by("k").process(WrongAtTimer(), name="fn")))
    assert text.startswith("operator 'fn', subtask 0 of 1: value state 'v' takes n: int64")
    assert f"{line_in(WrongAtTimer.on_timer)}; key ('a',))" in text


class RaisesAtTimer(WrongAtTimer):
    def on_timer(self, key: Any, at: int, context: Any) -> None:
        raise KeyError("no")


def test_a_timer_that_raises_is_told_with_its_key() -> None:
    error = error_in(lambda rows: rows.key_by("k").process(RaisesAtTimer(), name="fn"))
    assert isinstance(error, UserCodeError)
    assert str(error).startswith("operator 'fn', subtask 0 of 1: on_timer, key ('a',) raised KeyError")


class WrongSchema(KeyedFunction):
    def open(self, context: Any) -> None:
        context.value("v", "n bigg")

    def process(self, key: Any, rows: Any, context: Any) -> None: ...


def test_a_schema_that_open_gets_wrong_ends_the_pipeline_with_the_line() -> None:
    error = error_in(lambda rows: rows.key_by("k").process(WrongSchema(), name="fn"))
    assert isinstance(error, PipelineError)
    assert str(error).startswith("operator 'fn', subtask 0 of 1: the schema 'n bigg' cannot be parsed")
    assert f"({error_line(WrongSchema.open)})" in str(error)
    assert is_final(type(error))


def error_line(function: Any) -> str:
    return f"{inspect.getsourcefile(function)}:{inspect.getsourcelines(function)[1] + 1} in {function.__name__}"


class WrongBatch(BatchFunction):
    def open(self, context: Any) -> None:
        self.value = context.value("v", "n bigint")

    def process_batch(self, batch: pa.RecordBatch, context: Any) -> None:
        self.value.update_batch(batch["k"], {"n": batch["text"]})


class WrongLeft(TwoInputFunction):
    def open(self, context: Any) -> None:
        self.value = context.value("v", "n bigint")

    def process_left(self, batch: pa.RecordBatch, context: Any) -> None:
        [self.value.update(("x",)) for _ in context.each_key(batch)]

    def process_right(self, batch: pa.RecordBatch, context: Any) -> None: ...


@pytest.mark.parametrize(
    ("build", "function"),
    [
        (lambda rows: rows.key_by("k").process(WrongBatch(), name="fn"), WrongBatch.process_batch),
        (
            lambda rows: rows.key_by("k").connect(rows.key_by("k")).process(WrongLeft(), name="fn"),
            WrongLeft.process_left,
        ),
    ],
)
def test_a_wrong_value_of_a_function_of_batches_is_told_with_the_batch(
    build: Callable[[Stream], Any], function: Any
) -> None:
    text = str(error_in(build))
    assert text.startswith("operator 'fn', subtask 0 of 1: value state 'v'")
    where = f"{inspect.getsourcelines(function)[1] + 1} in "
    assert f"{HERE}:{where}" in text and "; a batch of 5 rows, the first {'k': 'a', 'n': 0, " in text


def test_a_function_of_batches_that_raises_is_told_with_the_batch() -> None:
    text = str(error_in(lambda rows: rows.map(lambda batch: batch.select(["typo"]), name="fn")))
    assert "operator 'fn', subtask 0 of 1: process raised KeyError" in text
    assert "; a batch of 5 rows, the first {'k': 'a', 'n': 0, " in text


def test_a_reducing_function_that_raises_is_told_with_the_key() -> None:
    text = str(error_in(lambda rows: rows.key_by("k").reduce(lambda one, other: one["typo"], name="fn")))
    assert "raised KeyError: 'typo'" in text and "in <lambda>; key ('a',))" in text


BUILDS: dict[str, Callable[[Stream], Any]] = {
    "a function that returns no batch": lambda rows: rows.map(lambda batch: "text", name="fn"),
    "a function that returns no row": lambda rows: rows.map(lambda row: 3, format="rows", name="fn"),
    "a column that is not there": lambda rows: rows.select("typo", name="fn"),
    "a key that is not there": lambda rows: rows.key_by("typo").count("c", name="fn"),
    "an expression of a wrong type": lambda rows: rows.filter(pc.field("text") > 1, name="fn"),
    "a sum of texts": lambda rows: rows.key_by("k").sum("text", name="fn"),
    "a text as event time": lambda rows: rows.with_watermark("text", "1 s", name="fn"),
    "a reducing function that returns no row": lambda rows: rows.key_by("k").reduce(lambda a, b: 3, name="fn"),
    "a result of map_async that is no batch": lambda rows: rows.map_async(lambda batch: "text", name="fn"),
}


@pytest.mark.parametrize("what", BUILDS)
def test_where_no_line_of_a_function_is_to_blame_it_is_the_line_that_adds_the_operator(what: str) -> None:
    error = error_in(BUILDS[what])
    assert isinstance(error, DataError)
    text, line = str(error), inspect.getsource(inspect.getmodule(error_in)).splitlines()  # type: ignore[arg-type]
    number = next(number for number, code in enumerate(line, 1) if f'"{what}": ' in code)
    assert "operator 'fn'" in text and "subtask 0 of 1" in text
    assert f"added at {HERE}:{number})" in text


def test_so_it_is_for_a_source() -> None:
    pipeline = Pipeline("p")
    made = pipeline.source(GeneratorSource(lambda start, count: pa.record_batch({"n": [1]}), rows=10), name="in")
    made.sink(CollectSink())
    text = str(ending_of(pipeline))
    assert text.startswith("source 'in', subtask 0 of 1: ") and f"(added at {HERE}:" in text


def test_a_row_that_does_not_become_arrow_is_told() -> None:
    text = str(
        error_in(lambda rows: rows.map(lambda row: {"x": 1 if row["n"] < 3 else "s"}, format="rows", schema="x int"))
    )
    assert "rows cannot become Arrow" in text and ", in row 3 of 5 in its batch, {'x': 's'}" in text


def test_only_the_operator_nearest_to_the_error_names_itself() -> None:
    text = str(error_in(lambda rows: rows.map(lambda batch: batch, name="first").map(lambda batch: 3, name="second")))
    assert "'first'" not in text and text.startswith("output of operator 'second': ")


def test_a_message_that_names_the_operator_is_left_as_it_is() -> None:
    error = DataError("operator 'fn' is keyed by k: there is no column 'k'")
    place(error, "operator 'fn'", "subtask 1 of 2", "app.py:3")
    assert str(error) == "operator 'fn' is keyed by k: there is no column 'k' (subtask 1 of 2; added at app.py:3)"


def test_an_error_of_data_is_the_same_in_the_driver_and_is_known_again_whatever_the_record() -> None:
    errors = []
    for subtask, record in enumerate(("key ('a',)", "key ('b',)")):
        raised = DataError("value state 'v' takes n: int64")
        raised.record = record
        place(raised, "operator 'fn'", f"subtask {subtask} of 2", "app.py:3")
        frame = failed_frame(Generation(1), WorkerId(0), raised, SubtaskId(OperatorName("fn"), subtask))
        errors.append(error_of(frame))
        assert str(errors[-1]) == str(raised) and errors[-1].traceback == raised.traceback
    assert str(errors[0]) != str(errors[1])
    assert repetition_of(errors[0]) == repetition_of(errors[1])


def test_a_batch_that_cannot_be_shown_hides_no_error() -> None:
    error = KeyError("typo")
    note_batch(error, pa.record_batch({"n": pa.array([], pa.int64())}))
    assert not getattr(error, "__notes__", ())
